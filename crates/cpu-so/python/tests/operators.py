"""CUDA's operators, through `python3 -m libnccl_cpu.torch`: they return and write the same as the CPU's operators."""

import copy
import gc
import sys
import threading
import time

import torch
from torch import nn
from torch.nn import functional as F


def numbers(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape).sin()


def written(tensor, write):
    write(tensor)
    return tensor


def out(make, shape):
    result = torch.empty(shape, device=make.device)
    returned = torch.add(make, 1, out=result)
    assert returned is result
    return result


def gradients(model, *inputs):
    model(*inputs).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def trained(optimizer, device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)
    steps = optimizer(model.parameters(), lr=0.1)
    for _ in range(3):
        steps.zero_grad()
        model(numbers(5, 4).to(device)).square().mean().backward()
        steps.step()
    return list(model.parameters())


def batch_norm(device):
    norm = nn.BatchNorm1d(4).to(device)
    norm(numbers(6, 4).to(device))
    return [norm.running_mean, norm.running_var, norm.num_batches_tracked]


def module(make, *shapes):
    def run(device):
        torch.manual_seed(0)
        model = make()
        return gradients(model.to(device), *(numbers(*shape).to(device) for shape in shapes))

    return run


def mixed_precision(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 2)).to(device)
    scaler = torch.amp.GradScaler(device, init_scale=64.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    moved = []
    for factor in (1.0, float("inf")):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            result = model(numbers(3, 2, 5, 5).to(device))
        scaler.scale(result.float().square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        moved.append(any(not torch.equal(one, other) for one, other in zip(before, model.parameters())))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    return [result.dtype, moved, scaler.get_scale()]


class LastOutput(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


def packed_lstm(device):
    torch.manual_seed(0)
    model = nn.LSTM(4, 6).to(device)
    packed = nn.utils.rnn.pack_padded_sequence(numbers(3, 2, 4).to(device), torch.tensor([3, 1]))
    with torch.no_grad():
        return nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0]


HALF = (torch.float16, torch.bfloat16)


def differentiated(compute, *tensors):
    """Returns the results of a function, and its derivatives."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    results = compute(*leaves)
    results = [results] if isinstance(results, torch.Tensor) else results
    # Not a sum of squares, which is constant after a normalization.
    sum((result.float() * numbers(*result.shape).to(result.device)).sum() for result in results).backward()
    return [*results, *(leaf.grad for leaf in leaves)]


def float_of_half(compute):
    """An operator on a half tensor that returns float, which must be exact, with a derivative in half."""

    def run(d):
        found = []
        for dtype in HALF:
            half = numbers(3, 8).mul(3).to(d, dtype)
            *results, gradient = differentiated(compute, half if d == "cuda" else half.float())
            assert d == "cpu" or gradient.dtype == dtype, gradient.dtype
            found += [*results, Near(gradient)]
        return found

    return run


def normalized(make, shape, **types):
    """A module's results, derivatives and statistics for half batches, in training and in evaluation, with the parameters and the
    statistics in these types, or the batch's. The CPU computes all in float from values rounded to half."""

    def run(d):
        found = []
        for dtype in HALF:
            torch.manual_seed(0)
            model = make()
            for name, value in [*model.named_parameters(), *model.named_buffers()]:
                kind = "parameters" if isinstance(value, nn.Parameter) else "statistics"
                if value.is_floating_point():
                    value.data = (value + numbers(*value.shape).to(dtype) / 4).to(types.get(kind, dtype))
            model.to(d) if d == "cuda" else model.float()
            for training in (True, False):
                batch = numbers(*shape).to(dtype).to(d, dtype if d == "cuda" else torch.float32)
                model.train(training).zero_grad()
                result, gradient = differentiated(model, batch)
                assert d == "cpu" or result.dtype == gradient.dtype == dtype, (result.dtype, gradient.dtype)
                found += [result, gradient, *(parameter.grad for parameter in model.parameters())]
            found += model.buffers()
        return [Near(value) for value in flat(found)]

    return run


class Near:
    """A tensor of any type, which equals others except for the rounding of bfloat16."""

    def __init__(self, tensor):
        self.tensor = tensor.detach().float().cpu()

    def __eq__(self, other):
        return torch.allclose(self.tensor, other.tensor, rtol=2e-2, atol=2e-2)

    def __repr__(self):
        return repr(self.tensor)


def near(compute):
    """Operators on half tensors, which the CPU computes in float."""

    def run(d):
        half = [numbers(2, 4, 6, 6).to(d, dtype) for dtype in HALF]
        return [Near(part) for x in half for part in flat(differentiated(compute, x if d == "cuda" else x.float()))]

    return run


def amp(compute):
    def run(d):
        results = []
        for dtype in HALF:
            with torch.autocast(d, dtype=dtype):
                results += flat(differentiated(compute, numbers(4, 5).to(d)))
        return [Near(result) for result in results]

    return run


def product_of_another_type(multiply):
    """Only CUDA has this operator, for a float result of half matrices."""

    def run(d):
        shapes = (2, 3, 4), (2, 4, 5)
        one, other = (numbers(*shape).half().to(d) for shape in shapes)
        return multiply(one, other, torch.float32) if d == "cuda" else one.float() @ other.float()

    return run


def moved_lazily(make, *shape):
    """A lazy module that is moved, converted and initialized."""

    def run(d):
        torch.manual_seed(0)
        model = make().to(d).half().float().cpu().to(d)
        assert torch.nn.parameter.is_lazy(next(model.parameters()))
        model(numbers(*shape).to(d))
        devices = {value.device.type for value in [*model.parameters(), *model.buffers()]}
        return [devices == {d}, *([*value.shape] for value in model.parameters())]

    return run


class Shapeless(torch.Tensor):
    """A subclass with attributes of the program."""

    @property
    def shape(self):
        raise RuntimeError("of the program")

    dtype = device = is_cuda = layout = shape

    def size(self, *dimension):
        raise RuntimeError("of the program")

    stride = numel = dim = is_contiguous = resize_ = element_size = data_ptr = size


def shapeless(tensor):
    return tensor.as_subclass(Shapeless)


def plain(tensor):
    return torch.Tensor.as_subclass(tensor, torch.Tensor)


def subclass_written(device):
    to = shapeless(torch.zeros(3, device=device))
    returned = torch.add(shapeless(numbers(3).to(device)), 1, out=to)
    assert returned is to
    resized = shapeless(torch.zeros(0, device=device))
    torch.add(numbers(2, 2).to(device), 1, out=resized)
    return [plain(to), plain(resized), plain(to.mul_(2)), type(to.mul_(1)) is Shapeless]


def subclass_copied(device):
    to = shapeless(torch.zeros(2, 3, device=device))
    to.copy_(shapeless(numbers(3, 2)).t())
    return [plain(to), plain(to.to(torch.float64)), plain(shapeless(numbers(2)).to(device).cpu())]


def subclass_in_an_lstm(device):
    torch.manual_seed(0)
    model = nn.LSTM(4, 6).to(device)

    class Marked(torch.Tensor):
        pass

    return plain(model(numbers(3, 2, 4).to(device).as_subclass(Marked))[0])


# Each is computed on both devices, and must return the same.
SAME = {
    "arithmetic": lambda d: numbers(3, 4).to(d) * 2 + torch.ones(4, device=d),
    "number_of_the_host": lambda d: numbers(3).to(d) + torch.tensor(2.0),
    "factories": lambda d: [torch.arange(5, device=d), torch.eye(3, device=d), torch.tril_indices(3, 3, device=d)],
    "types": lambda d: [numbers(4).to(d).to(t) for t in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool)],
    "complex": lambda d: torch.view_as_real((torch.complex(numbers(3), numbers(3) * 2).to(d).conj() * 2).resolve_conj()),
    "conjugate_written": lambda d: torch.view_as_real(
        written(torch.zeros(3, dtype=torch.complex64, device=d), lambda t: t.conj().copy_(torch.complex(numbers(3), numbers(3)).to(d)))
    ),
    "transposed": lambda d: (numbers(3, 4).to(d).t() @ numbers(3, 2).to(d)).t().contiguous(),
    "view_written": lambda d: written(torch.zeros(4, 6, device=d), lambda t: t[1:3, ::2].add_(5)),
    "view_of_three_dimensions_written": lambda d: written(
        torch.zeros(4, 4, 4, device=d), lambda t: t[::2, ::2, 1::2].copy_(numbers(2, 2, 2))
    ),
    "column_read": lambda d: numbers(4, 6).to(d)[:, 2].clone(),
    "column_of_other_type_read": lambda d: numbers(4, 6).to(d)[:, 2].double().cpu(),
    "expanded": lambda d: numbers(1, 3).to(d).expand(4, 3).contiguous(),
    "expanded_column": lambda d: numbers(4, 3).to(d)[:, 1:2].expand(4, 5) + 1,
    "windows": lambda d: numbers(8).to(d).unfold(0, 3, 1) * 2,
    "overlapping_shift": lambda d: written(numbers(6).to(d), lambda t: t[1:].copy_(t[:-1].clone())),
    "channels_last": lambda d: (numbers(2, 3, 4, 5).to(d).contiguous(memory_format=torch.channels_last) + 1).stride(),
    "out": lambda d: out(numbers(3).to(d), 3),
    "out_resized": lambda d: out(numbers(3).to(d), 0),
    "out_that_is_read": lambda d: written(numbers(3).to(d), lambda t: torch.add(t, t, out=t)),
    "in_place_chain": lambda d: numbers(3).to(d).add_(1).mul_(2).clamp_(max=3),
    "index": lambda d: numbers(4, 3).to(d)[torch.tensor([2, 0])],
    "index_written": lambda d: written(numbers(4, 3).to(d), lambda t: t.__setitem__(torch.tensor([2, 0], device=d), 7.0)),
    "masked": lambda d: numbers(4, 3).to(d)[numbers(4, 3).to(d) > 0],
    "list_written": lambda d: written([numbers(3).to(d), numbers(2).to(d)], lambda t: torch._foreach_add_(t, 1)),
    "list_returned": lambda d: numbers(7).to(d).split([3, 4]),
    "scatter": lambda d: torch.zeros(3, device=d).scatter_add_(0, torch.tensor([0, 2, 0], device=d), numbers(3).to(d)),
    "empty": lambda d: torch.cat([torch.empty(0, device=d), numbers(2).to(d)]).sum() + torch.empty(0, 3, device=d).sum(),
    "empty_differentiated": lambda d: differentiated(lambda x: (x.sum(), x.exp()), torch.empty(0, 3, device=d)),
    "item": lambda d: (numbers(3).to(d).sum().item(), bool(numbers(1).to(d) > 0)),
    "text": lambda d: str(numbers(3).to(d)).replace(", device='cuda:0'", ""),
    "sort": lambda d: numbers(9).to(d).sort(descending=True),
    "linalg": lambda d: torch.linalg.solve(torch.eye(3).to(d) + 0.1 * numbers(3, 3).to(d), numbers(3).to(d)),
    "set_default_device": lambda d: torch.set_default_device(d) or written([torch.ones(2) + 1], lambda _: torch.set_default_device(None)),
    "batch_norm_statistics": batch_norm,
    "conv2d": module(lambda: nn.Conv2d(2, 3, 3, padding=1), (1, 2, 5, 5)),
    "depthwise_conv": module(lambda: nn.Conv2d(4, 4, 3, groups=4), (1, 4, 5, 5)),
    "transposed_conv": module(lambda: nn.ConvTranspose2d(2, 3, 3), (1, 2, 4, 4)),
    "embedding": module(lambda: nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (3, 4)), nn.Linear(4, 2)), (12,)),
    "rms_norm": module(lambda: nn.RMSNorm(6), (4, 6)),
    "lstm": module(lambda: LastOutput(nn.LSTM(4, 6, 2, bidirectional=True)), (3, 2, 4)),
    "gru": module(lambda: LastOutput(nn.GRU(4, 6)), (3, 2, 4)),
    "lstm_cell": module(lambda: LastOutput(nn.LSTMCell(4, 6)), (2, 4)),
    "packed_lstm": packed_lstm,
    "transformer_layer": module(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "causal_attention": lambda d: F.scaled_dot_product_attention(*[numbers(1, 2, 4, 8).to(d)] * 3, is_causal=True),
    "cross_entropy": lambda d: F.cross_entropy(numbers(4, 5).to(d), torch.tensor([0, 4, 2, 1]).to(d)),
    "adamw": lambda d: trained(torch.optim.AdamW, d),
    "adam_fused": lambda d: trained(lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True), d),
    "sgd": lambda d: trained(lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, foreach=True), d),
    "mixed_precision": mixed_precision,
    "softmax_of_half_in_float": float_of_half(lambda x: F.softmax(x, -1, dtype=torch.float32)),
    "log_softmax_of_half_in_float": float_of_half(lambda x: F.log_softmax(x, 0, dtype=torch.float32)),
    "softmin_of_half_in_float": float_of_half(lambda x: F.softmin(x, -1, dtype=torch.float32)),
    "sums_of_half_in_float": float_of_half(
        lambda x: [reduce(x, 0, dtype=torch.float32) for reduce in (torch.sum, torch.mean, torch.prod, torch.cumsum, torch.cumprod)]
    ),
    "norms_of_half_in_float": float_of_half(
        lambda x: [torch.linalg.vector_norm(x, dtype=torch.float32), torch.norm(x, dim=0, dtype=torch.float32)]
    ),
    "half_batch_norm": normalized(lambda: nn.BatchNorm1d(8), (6, 8)),
    "half_batch_norm_with_float_statistics": normalized(lambda: nn.BatchNorm2d(4), (3, 4, 2, 2), statistics=torch.float32),
    "half_batch_norm_with_float_parameters": normalized(
        lambda: nn.BatchNorm2d(4), (3, 4, 2, 2), parameters=torch.float32, statistics=torch.float32
    ),
    "half_batch_norm_without_parameters": normalized(
        lambda: nn.BatchNorm1d(8, affine=False), (6, 8), statistics=torch.float32
    ),
    "half_batch_norm_without_statistics": normalized(lambda: nn.BatchNorm1d(8, track_running_stats=False), (6, 8)),
    "half_instance_norm": normalized(
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 3, 3), statistics=torch.float32
    ),
    "half_layer_norm": normalized(lambda: nn.LayerNorm(8), (6, 8)),
    "half_group_norm": normalized(lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "half_rms_norm": normalized(lambda: nn.RMSNorm(8), (6, 8)),
    "half_weight_norm": near(lambda x: torch._weight_norm(x, x[:, :1, :1, :1] + 2, 0)),
    "half_attention": near(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
    "half_attention_with_a_mask": near(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.zeros_like(x))),
    "half_pooling": near(lambda x: [F.avg_pool3d(x, 2), F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3)]),
    "half_resized": near(lambda x: F.interpolate(x, size=(3, 3), mode="bilinear", antialias=True)),
    "half_margin_losses": near(
        lambda x: [
            F.multi_margin_loss(x[0, 0], torch.tensor([0, 1, 2, 3, 4, 5], device=x.device)),
            F.multilabel_margin_loss(x[0, 0], torch.tensor([[0, 1, -1, 0, 0, 0]] * 6, device=x.device)),
        ]
    ),
    "half_functions": near(lambda x: [torch.polygamma(1, x + 3), F.rrelu(x), x[0, 0].trace()]),
    "half_written": near(
        lambda x: [
            torch.round(x.detach(), decimals=1, out=x.new_empty(0)),
            torch.polygamma(1, x.detach() + 3, out=x.new_empty(x.shape)),
            x,
        ]
    ),
    "half_rounded": near(lambda x: [x.detach().round(decimals=1), x.detach().clone().round_(decimals=1), x]),
    "half_cross_entropy": near(lambda x: F.cross_entropy(x, torch.ones(2, 6, 6, dtype=torch.long, device=x.device), label_smoothing=0.1)),
    "cross_entropy_under_amp": amp(
        lambda x: F.cross_entropy(x @ x.t(), torch.tensor([0, 3, 2, 1], device=x.device), label_smoothing=0.1)
    ),
    "other_losses_under_amp": amp(
        lambda x: [
            F.nll_loss((x @ x.t()).log_softmax(1), torch.tensor([0, 3, 2, 1], device=x.device)),
            F.binary_cross_entropy_with_logits(x @ x.t(), torch.ones(4, 4, device=x.device)),
        ]
    ),
    "norms_under_amp": amp(
        lambda x: [
            normalize(x @ torch.eye(5, device=x.device))
            for normalize in (
                lambda half: F.layer_norm(half, (5,)),
                lambda half: F.group_norm(half, 1),
                lambda half: F.batch_norm(half, None, None, training=True),
            )
        ]
    ),
    "attention_under_amp": amp(lambda x: F.scaled_dot_product_attention(*[(x @ x.t())[None]] * 3)),
    "float_product_of_half": product_of_another_type(lambda one, other, to: torch.bmm(one, other, out_dtype=to)),
    "histogram_of_integers": lambda d: [
        torch.histc(torch.tensor([0, 3, 3, 1, 9, 4], device=d).to(torch.int64 if d == "cuda" else torch.float32), 5, 0, 5).float()
    ],
    "lazy_linear": moved_lazily(lambda: nn.LazyLinear(4), 2, 3),
    "lazy_conv": moved_lazily(lambda: nn.LazyConv2d(3, 2), 1, 2, 4, 4),
    "lazy_batch_norm": moved_lazily(nn.LazyBatchNorm1d, 5, 3),
    "subclass_written": subclass_written,
    "subclass_copied": subclass_copied,
    "subclass_in_an_lstm": subclass_in_an_lstm,
    "checkpoint": lambda d: torch.utils.checkpoint.checkpoint(torch.sin, numbers(3).to(d), use_reentrant=False),
}


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value.detach().cpu()]
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [element for part in value for element in flat(part)]
    return [value]


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    return one == other


class Without:
    """A region without Python's collector, after which CUDA must not use more memory than before."""

    def __enter__(self):
        gc.collect()
        gc.disable()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()
        return self.before

    def __exit__(self, *failure):
        gc.enable()
        if failure[0] is None:
            left = torch.cuda.memory_allocated() - self.before
            assert left == 0, f"{left} bytes are in use that only the collector frees"


def tensors_are_freed_with_their_last_reference():
    size = 1 << 20
    with Without() as before:
        for _ in range(20):
            x = torch.ones(size // 4, device="cuda") * 2
        peak = torch.cuda.max_memory_allocated() - before
        del x
    # The last result, a new one, and its operand.
    assert peak <= 3 * size, peak


def training_keeps_no_memory_but_the_models():
    size = 1 << 20
    with Without() as before:
        model = nn.Linear(512, 512, bias=False, device="cuda")
        steps = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
        for _ in range(5):
            model(torch.ones(1, 512, device="cuda")).sum().backward()
            steps.step()
            steps.zero_grad()
        peak = torch.cuda.max_memory_allocated() - before
        del model, steps
    # Parameters, gradients, and one more while the next gradient is added.
    assert peak <= 4 * size, peak


def no_operator_leaves_its_memory_to_the_collector():
    left = {}
    for name, run in SAME.items():
        run("cuda")  # What is made once is made.
        gc.collect()
        gc.disable()
        before = torch.cuda.memory_allocated()
        run("cuda")
        if kept := torch.cuda.memory_allocated() - before:
            left[name] = kept
        gc.enable()
    assert not left, left


def an_operator_that_fails_leaves_nothing():
    def fails():
        try:
            torch.ones(1 << 18, device="cuda") @ torch.ones(3, device="cuda")
        except RuntimeError:
            return
        raise AssertionError("the operator succeeds")

    with Without():
        fails()


def sleep_delays_its_stream_alone():
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    done = torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        done.record()
    with torch.cuda.stream(other):
        torch.ones(2, device="cuda").add_(1)
    start = time.monotonic()
    assert not done.query(), "the sleep is over before the query"
    stream.synchronize()
    assert done.query()
    assert time.monotonic() - start < 60
    torch.cuda._sleep(0)
    torch.cuda._sleep(-1)


def sleep_is_captured_and_replayed():
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    start = time.monotonic()
    with torch.cuda.graph(graph, stream=stream):
        torch.cuda._sleep(50_000_000)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    assert time.monotonic() - start >= 0.1


def random_numbers_follow_the_state_of_cudas_generator():
    def draw():
        dropped = F.dropout(torch.ones(64, device="cuda"), 0.5)
        return torch.cat([torch.randn(8, device="cuda"), dropped, torch.randperm(9, device="cuda").float()]).cpu()

    torch.manual_seed(5)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(draw(), first)
    state = torch.cuda.get_rng_state()
    again = draw()
    assert torch.equal(again, second)
    torch.cuda.set_rng_state(state)
    assert torch.equal(draw(), second)
    torch.cuda.manual_seed(6)
    assert not torch.equal(draw(), first)
    # A generator and the CPU's own random numbers are independent.
    one, other = (torch.Generator("cuda").manual_seed(3) for _ in range(2))
    assert torch.equal(torch.rand(4, generator=one, device="cuda").cpu(), torch.rand(4, generator=other, device="cuda").cpu())
    torch.manual_seed(7)
    wanted = torch.rand(4)
    torch.manual_seed(7)
    draw()
    assert torch.equal(torch.rand(4), wanted)
    assert not torch.equal(torch.randn(8, device="cuda:0").cpu(), torch.randn(8, device="cuda:0").cpu())


def dropout_differs_between_layers_and_steps():
    torch.manual_seed(0)
    masks = [tuple((F.dropout(torch.ones(32, device="cuda")) > 0).tolist()) for _ in range(20)]
    assert len(set(masks)) == 20


def checkpointed_dropout_is_drawn_again_the_same():
    torch.manual_seed(0)
    value = torch.ones(64, device="cuda", requires_grad=True)
    result = torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x, 0.5), value, use_reentrant=False)
    result.sum().backward()
    assert torch.equal(value.grad, result.detach())


def gaps_of_a_view_are_left_to_other_streams():
    # With LIBNCCL_CPU_RACES=error, touching them while another stream writes would fail.
    whole, pinned, other = torch.zeros(3, 1 << 20, device="cuda"), torch.full((1 << 20,), 7.0).pin_memory(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(other):
            whole[1].copy_(pinned, non_blocking=True)
        whole[::2].add_(1)
    torch.cuda.synchronize()
    assert [set(row.tolist()) for row in whole.cpu()] == [{5.0}, {7.0}, {5.0}]


def threads_compute_at_the_same_time():
    results = [None] * 4

    def compute(index):
        value = torch.full((16,), float(index), device=f"cuda:{index}")
        for _ in range(20):
            value.add_(1)
        results[index] = value.cpu()

    threads = [threading.Thread(target=compute, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result[0].item() for result in results] == [20, 21, 22, 23]


def a_copied_model_has_storage_of_its_own():
    model = nn.Linear(2, 2).cuda()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()
    assert model.weight.abs().sum() > 0


class Factor:
    """A function of the program: spawned processes must find it."""

    value = 3


def spawned(rank, factor, results):
    results[rank] = (torch.ones(2, device=f"cuda:{rank}") * factor.value).sum().item()


def spawned_processes_compute_too():
    results = torch.multiprocessing.get_context("spawn").Array("d", 2)
    torch.multiprocessing.spawn(spawned, (Factor(), results), nprocs=2)
    assert list(results) == [6, 6], list(results)


def two_devices(_):
    return torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")


def flash(d):
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(*[torch.ones(1, 1, 4, 8, device=d, dtype=torch.float16)] * 3)


def captured(d):
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(2, device=d)


# Expected failures, and their error texts.
REFUSED = {
    "fused_attention": (flash, "aten::_scaled_dot_product_flash_attention has no kernel for the CPU"),
    "sparse": (lambda d: torch.eye(3).to_sparse().to(d), "aten::_sparse_coo_tensor_with_dims_and_tensors: sparse tensors on CUDA"),
    "made_sparse": (lambda d: torch.eye(3).to(d).to_sparse(), "sparse"),
    "sparse_rows": (lambda d: torch.eye(3).to(d).to_sparse_csr(), "sparse"),
    "quantized": (lambda d: torch.quantize_per_tensor(numbers(3).to(d), 0.1, 0, torch.qint8), "quantized"),
    "two_devices": (two_devices, "aten::add.Tensor: expected all tensors on the same device; found cuda:0 and cuda:1"),
    "index_of_the_host": (lambda d: torch.ones(2, device=d).index_select(0, torch.tensor([1])), "found cuda:0 and cpu"),
    "host_and_device": (lambda d: torch.ones(2, device=d) @ torch.ones(2), "found cuda:0 and cpu"),
    "expanded_written": (lambda d: torch.zeros(1, device=d).expand(3).add_(1), "several places"),
    "captured": (captured, "aten::fill_.Scalar in a CUDA graph"),
    "generator_of_the_host": (
        lambda d: torch.empty(2, device=d).normal_(generator=torch.Generator()),
        "expected a generator of a CUDA device",
    ),
    "compiled": (lambda d: torch.compile(lambda x: x.sin() + 1)(torch.ones(2, device=d)), "torch.compile's inductor makes kernels"),
}


def failure(name):
    try:
        if name in SAME:
            wanted, found = flat(SAME[name]("cpu")), flat(SAME[name]("cuda"))
            return None if len(wanted) == len(found) and all(map(equal, wanted, found)) else f"{found}; expected {wanted}"
        if name in REFUSED:
            run, text = REFUSED[name]
            try:
                return f"returned {run('cuda')}"
            except Exception as error:
                return None if text in str(error) else f"{type(error).__name__}: {error}; expected {text}"
        globals()[name]()
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"


OTHERS = [
    tensors_are_freed_with_their_last_reference,
    training_keeps_no_memory_but_the_models,
    no_operator_leaves_its_memory_to_the_collector,
    an_operator_that_fails_leaves_nothing,
    sleep_delays_its_stream_alone,
    sleep_is_captured_and_replayed,
    random_numbers_follow_the_state_of_cudas_generator,
    dropout_differs_between_layers_and_steps,
    checkpointed_dropout_is_drawn_again_the_same,
    gaps_of_a_view_are_left_to_other_streams,
    threads_compute_at_the_same_time,
    a_copied_model_has_storage_of_its_own,
    spawned_processes_compute_too,
]


def main():
    names = sys.argv[1:] or [*SAME, *(test.__name__ for test in OTHERS), *REFUSED]
    failures = {name: text for name in names if (text := failure(name))}
    for name, text in failures.items():
        print(f"FAILED {name}: {text}")
    torch.cuda.synchronize()
    print(f"{len(names) - len(failures)} of {len(names)} passed, PyTorch {torch.__version__}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
