"""Operators of PyTorch that CUDA alone has, for tensors of the host."""

import torch


def _channels(tensor, like):
    """Shapes values of the channels, which are dimension 1, for arithmetic with a batch."""
    return tensor.view(1, -1, *[1] * (like.dim() - 2))


def _others(tensor):
    return [0, *range(2, tensor.dim())]


def _rms_norm_backward(*args):
    # Takes as long to import as all the rest.
    from torch._decomp import global_decomposition_table

    operator = torch.ops.aten._fused_rms_norm_backward.default
    return global_decomposition_table["post_autograd"][operator](*args)


def _stats(batch, eps):
    batch = batch.float() if batch.dtype in (torch.float16, torch.bfloat16) else batch
    variance, mean = torch.var_mean(batch, _others(batch), correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats(batch, means, invstds, running_mean, running_var, momentum, eps, counts):
    counts = counts.to(means.dtype).view(-1, 1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    variance = ((invstds**-2 - eps + (means - mean) ** 2) * counts).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((variance * total / (total - 1)).to(running_var.dtype), momentum)
    return mean, (variance + eps).rsqrt()


def _normalized(batch, weight, bias, mean, invstd, eps):
    result = (batch - _channels(mean, batch)) * _channels(invstd, batch)
    if weight is not None:
        result = result * _channels(weight, batch)
    if bias is not None:
        result = result + _channels(bias, batch)
    return result.to(batch.dtype)


def _backward_reduce(gradient, batch, mean, invstd, weight, *wanted):
    sum_dy = gradient.to(mean.dtype).sum(_others(batch))
    sum_dy_xmu = (gradient * (batch - _channels(mean, batch))).to(mean.dtype).sum(_others(batch))
    to = mean.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(to), sum_dy.to(to)


def _backward_elemt(gradient, batch, mean, invstd, weight, sum_dy, sum_dy_xmu, counts):
    total = counts.sum()
    slope = _channels(sum_dy_xmu / total * invstd**2, batch)
    result = gradient - _channels(sum_dy / total, batch) - (batch - _channels(mean, batch)) * slope
    result = result * _channels(invstd if weight is None else invstd * weight, batch)
    return result.to(batch.dtype)


OF = {
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "aten::batch_norm_stats": _stats,
    "aten::batch_norm_gather_stats_with_counts": _gather_stats,
    "aten::batch_norm_elemt": _normalized,
    "aten::batch_norm_backward_reduce": _backward_reduce,
    "aten::batch_norm_backward_elemt": _backward_elemt,
}
