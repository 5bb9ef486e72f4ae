"""Operators for tensors of the host: those that PyTorch has for CUDA alone, and those whose kernel for the CPU refuses types that CUDA's
takes."""

import torch

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def _channels(tensor, like):
    """Shapes values of the channels, which are dimension 1, for arithmetic with a batch."""
    return tensor.view(1, -1, *[1] * (like.dim() - 2))


def _others(tensor):
    return [0, *range(2, tensor.dim())]


def _rms_norm_backward(*args):
    # Importing this takes as long as all other imports together.
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


def _is_half(value):
    return isinstance(value, torch.Tensor) and value.dtype in _HALF


def _in_float(operator, args, kwargs):
    """Runs an operator on copies in float of its half tensors, and copies them back, as the operator may write them."""
    copies = {}

    def widen(value):
        if not _is_half(value):
            return value
        return copies.setdefault(id(value), (value, value.float()))[1]

    def narrow(value):
        return next((half for half, copy in copies.values() if copy is value), value)

    results = operator(*map(widen, args), **{key: widen(value) for key, value in kwargs.items()})
    for half, copy in copies.values():
        half.resize_(copy.shape).copy_(copy)
    return tuple(map(narrow, results)) if isinstance(results, tuple) else narrow(results)


def _through_float(operator):
    """Returns an operator that has no kernel for half tensors. Its result has the type of its first tensor."""

    def compute(*args, **kwargs):
        first = next(value for value in args if isinstance(value, torch.Tensor))
        if not _is_half(first):
            return operator(*args, **kwargs)
        results = _in_float(operator, args, kwargs)
        return tuple(result.to(first.dtype) for result in results) if isinstance(results, tuple) else results.to(first.dtype)

    return compute


def _has_half_statistics(batch, *parameters):
    """Returns whether CUDA, but not the CPU, can normalize these tensors: the parameters are half as the batch is, or float."""
    types = {parameter.dtype for parameter in parameters if parameter is not None}
    return _is_half(batch) and len(types) <= 1 and types <= {batch.dtype, torch.float32}


def _batch_norm(operator):
    def compute(batch, weight, bias, *args, **kwargs):
        if not _has_half_statistics(batch, weight, bias):
            return operator(batch, weight, bias, *args, **kwargs)
        # The statistics of the batch stay in float, as on CUDA.
        result, *statistics = _in_float(operator, (batch, weight, bias, *args), kwargs)
        return result.to(batch.dtype), *statistics

    return compute


def _batch_norm_statistics(operator):
    return lambda *args: _in_float(operator, args, {})


def _batch_norm_backward(operator):
    def compute(gradient, batch, weight, *args):
        if not _has_half_statistics(batch, weight) or gradient.dtype != batch.dtype:
            return operator(gradient, batch, weight, *args)
        results = _in_float(operator, (gradient, batch, weight, *args), {})
        types = [batch.dtype] + 2 * [batch.dtype if weight is None else weight.dtype]
        return tuple(None if result is None else result.to(to) for result, to in zip(results, types))

    return compute


def _softmax(operator):
    def compute(tensor, dimension, half_to_float, **out):
        is_half = half_to_float and tensor.dtype == torch.float16
        return operator(tensor.float() if is_half else tensor, dimension, half_to_float and not is_half, **out)

    return compute


def _softmax_backward(operator):
    def compute(gradient, output, dimension, input_type, **out):
        if gradient.dtype != torch.float32 or input_type != torch.float16:
            return operator(gradient, output, dimension, input_type, **out)
        return _in_float(operator, (gradient, output, dimension, torch.float32), out).to(input_type)

    return compute


def _multiply(operator):
    """Returns a matrix product whose result has another type than the matrices."""

    def compute(*args, **kwargs):
        *tensors, to = args
        if to != tensors[-1].dtype and not (_is_half(tensors[-1]) and to == torch.float32):
            raise RuntimeError(f"out_dtype is {to}; expected the type of the matrices, {tensors[-1].dtype}, or float32 for half")
        return operator(*(tensor.to(to) for tensor in tensors), **kwargs)

    return compute


def _histogram(tensor, *args, out=None):
    if tensor.is_floating_point():
        return _aten.histc(tensor, *args) if out is None else _aten.histc(tensor, *args, out=out)
    result = _aten.histc(tensor.double(), *args).to(tensor.dtype)
    return result if out is None else out.resize_(result.shape).copy_(result)


def _trace(tensor):
    return _aten.trace(tensor) if tensor.dim() != 2 else tensor.diagonal().sum()


# The names and overloads of operators that have a kernel for half tensors on CUDA, but not on the CPU.
_THROUGH_FLOAT = """
_upsample_bilinear2d_aa _upsample_bilinear2d_aa.out _upsample_bilinear2d_aa_backward _upsample_bilinear2d_aa_backward.grad_input
avg_pool3d avg_pool3d.out avg_pool3d_backward avg_pool3d_backward.grad_input
multi_margin_loss multi_margin_loss.out multi_margin_loss_backward multi_margin_loss_backward.grad_input
multilabel_margin_loss_forward multilabel_margin_loss_forward.output
multilabel_margin_loss_backward multilabel_margin_loss_backward.grad_input
polygamma polygamma.out
round.decimals round.decimals_out round_.decimals
rrelu_with_noise rrelu_with_noise.out rrelu_with_noise_
""".split()


def _each(make, *names):
    """Creates the formulas of the operators that this PyTorch has."""
    operators = {}
    for name in names:
        base, _, overload = name.partition(".")
        if operator := getattr(getattr(_aten, base, None), overload or "default", None):
            operators["aten::" + name] = make(operator)
    return operators


OF = {
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
    "aten::batch_norm_stats": _stats,
    "aten::batch_norm_gather_stats_with_counts": _gather_stats,
    "aten::batch_norm_elemt": _normalized,
    "aten::batch_norm_backward_reduce": _backward_reduce,
    "aten::batch_norm_backward_elemt": _backward_elemt,
    "aten::histc": _histogram,
    "aten::histc.out": _histogram,
    "aten::trace": _trace,
    "aten::mm.dtype": _multiply(_aten.mm.default),
    "aten::bmm.dtype": _multiply(_aten.bmm.default),
    "aten::addmm.dtype": _multiply(_aten.addmm.default),
    "aten::baddbmm.dtype": _multiply(_aten.baddbmm.default),
    **_each(_through_float, *_THROUGH_FLOAT),
    **_each(_batch_norm, "native_batch_norm", "native_batch_norm.out", "_native_batch_norm_legit", "_native_batch_norm_legit.out"),
    **_each(_batch_norm, "_native_batch_norm_legit.no_stats", "_native_batch_norm_legit.no_stats_out"),
    **_each(_batch_norm, "_batch_norm_with_update", "_batch_norm_with_update.out"),
    **_each(_batch_norm_backward, "native_batch_norm_backward", "batch_norm_backward"),
    **_each(_batch_norm_statistics, "batch_norm_update_stats"),
    **_each(_softmax, "_softmax", "_softmax.out", "_log_softmax", "_log_softmax.out"),
    **_each(_softmax_backward, "_softmax_backward_data", "_softmax_backward_data.out"),
    **_each(_softmax_backward, "_log_softmax_backward_data", "_log_softmax_backward_data.out"),
}
