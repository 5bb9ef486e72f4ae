"""Computes PyTorch's CUDA operators on the CPU: an operator's tensors are copied to the host, the CPU's operator runs there, and its
results are copied back. Allocations, views and copies of whole tensors still run on CUDA."""

import ctypes
import functools
import itertools
import operator
import warnings

import torch

from libnccl_cpu import formulas

# CUDA kernels that launch nothing on the device.
_KEPT = {
    "_efficientzerotensor",
    "_local_scalar_dense",
    "_pin_memory",
    "empty",
    "empty_strided",
    "is_pinned",
    "is_set_to",
    "record_stream",
    "resize_",
    "set_",
}
# These choose among CUDA's libraries if nothing is registered for CUDA.
_CHOOSING = ["convolution", "convolution_backward"]
# These are composed of operators that only CUDA has.
_WHOLE = ["gru.data", "gru.input", "gru_cell", "lstm.data", "lstm.input", "lstm_cell"]
# These overwrite their whole first argument and do not read it.
_FILLING = {"fill_", "normal_", "uniform_", "zero_"}
# These write into the arguments with these numbers, which their schema does not declare.
_UNDECLARED = {"native_batch_norm": (3, 4), "batch_norm_gather_stats_with_counts": (3, 4)}
# These accept tensors of several devices, or of the host, as on a GPU.
_MIXED = {"_index_put_impl_", "_pack_padded_sequence", "_unsafe_index", "index"}
_MIXED_FAMILIES = ("_ctc_loss", "_foreach_", "_fused_")
_REFUSED_KEYS = {
    "SparseCUDA": "sparse",
    "SparseCsrCUDA": "sparse",
    "NestedTensorCUDA": "nested",
    "QuantizedCUDA": "quantized",
}

_CPU = torch.device("cpu")
_aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")


def install():
    """Replaces the CUDA kernels of all of PyTorch's own operators."""
    # PyTorch would prefer fused kernels, which the CPU does not have.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.compile = functools.partial(_compile, torch.compile)
    torch._C._cuda_sleep = _sleep
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # The kernels replace others.
        for name in torch._C._dispatch_get_all_op_names():
            namespace, _, rest = name.partition("::")
            base, _, overload = rest.partition(".")
            if namespace != "aten":
                continue
            for key, kind in _REFUSED_KEYS.items():
                if has_kernel(name, key):
                    _library.impl(rest, _refusing(f"{name}: {kind} tensors on CUDA devices are not supported"), key)
            if has_kernel(name, "CUDA") or rest in _CHOOSING:
                op = getattr(getattr(_aten, base), overload or "default")
                if base not in _KEPT and not _is_view(op):
                    _library.impl(rest, _on_plain_tensors(_kernel(name, op)), "CUDA")
            if rest in _WHOLE:
                for key in ("AutogradCUDA", "CUDA"):
                    _library.impl(rest, _whole(getattr(getattr(_aten, base), overload or "default")), key)
        _library.impl("copy_", _on_plain_tensors(_copy), "CUDA")


def _is_view(op):
    aliases = [value.alias_info for value in op._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _kernel(name, op):
    if formula := formulas.OF.get(name):
        return lambda *args, **kwargs: _compute(name, op, formula, args, kwargs)
    if torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"):
        return lambda *args, **kwargs: _compute(name, op, op, args, kwargs)
    return _refusing(f"{name} has no kernel for the CPU, and CUDA's needs a GPU")


def _whole(op):
    """Returns a kernel of an operator that is composed of others, some of which only CUDA has: all of it is computed, and differentiated,
    on the CPU."""

    def compute(*args):
        tensors = list(_tensors(args))
        if any(type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for tensor in tensors):
            return op.decompose(*args)
        device = next(tensor.device for tensor in tensors if tensor.is_cuda)
        with torch._C.DisableTorchFunction():
            return _map(op(*_map(args, lambda value: _to(value, _CPU))), lambda value: _to(value, device))

    return compute


def _to(value, device):
    return torch.Tensor.to(value, device) if isinstance(value, torch.Tensor) else value


def _map(value, function):
    """Applies a function to a value, or to the elements of nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(_map(element, function) for element in value)
    return function(value)


def _on_plain_tensors(kernel):
    """Returns a kernel that never sees subclasses of tensors, whose attributes may be the program's, or raise as the shape of an
    uninitialized parameter does."""

    def run(*args, **kwargs):
        with torch._C.DisableTorchFunction():
            aliases = {}

            def to_plain(value):
                if not isinstance(value, torch.Tensor) or type(value) in (torch.Tensor, torch.nn.Parameter):
                    return value
                if id(value) not in aliases:
                    aliases[id(value)] = (value, torch.Tensor.as_subclass(value, torch.Tensor))
                return aliases[id(value)][1]

            def to_original(value):
                return next((original for original, alias in aliases.values() if alias is value), value)

            args = _map(args, to_plain)
            kwargs = {key: _map(value, to_plain) for key, value in kwargs.items()}
            results = kernel(*args, **kwargs)
            for original, alias in aliases.values():
                if torch.Tensor.size(original) != alias.size():
                    torch.Tensor.resize_(original, alias.size())
            return _map(results, to_original)

    return run


def _refusing(text):
    def refuse(*args, **kwargs):
        raise NotImplementedError("libnccl_cpu.torch: " + text)

    return refuse


def _compile(compile, model=None, *, backend="inductor", **options):
    """`torch.compile`, whose default backend makes kernels for GPUs."""
    if backend != "inductor":
        return compile(model, backend=backend, **options)
    chosen = {key: options.pop(key) for key in ("mode", "options") if key in options}

    def inductor(graph, inputs, **ignored):
        if any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs):
            names = sorted({str(node.target) for node in graph.graph.nodes if node.op == "call_function"})
            raise NotImplementedError(
                f"libnccl_cpu.torch: torch.compile's inductor makes kernels for GPUs, here of {', '.join(names)}; "
                "backend='aot_eager', and TORCHDYNAMO_DISABLE=1 for all models, need none"
            )
        return torch._TorchCompileInductorWrapper(
            chosen.get("mode"), chosen.get("options"), options.get("dynamic")
        )(graph, inputs)

    return compile(model, backend=inductor, **options)


def _compute(name, op, function, args, kwargs):
    with torch._C.DisableTorchFunction():
        schema = op._schema
        base = schema.name.partition("::")[2]
        device = _device(name, base, args, kwargs)
        _refuse_capture(name)
        written, outputs = [], set()
        for index, argument in enumerate(schema.arguments):
            is_declared = argument.alias_info is not None and argument.alias_info.is_write
            if is_declared or index in _UNDECLARED.get(base, ()):
                value = args[index] if index < len(args) else kwargs.get(argument.name)
                written += [tensor for tensor in _tensors(value) if tensor.is_cuda]
                if argument.is_out or base in _FILLING:
                    outputs.update(id(tensor) for tensor in _tensors(value))
        # An argument that is also read, as the same object, counts as read.
        read = [tensor for tensor in _tensors(args) if base not in _FILLING or tensor is not args[0]]
        outputs -= {id(tensor) for tensor in read}
        hosts = {}

        # Neither function calls itself: a recursive closure is a reference cycle, which keeps the tensors until the collector runs.
        def to_host(value):
            if isinstance(value, torch.device):
                return _CPU
            if not isinstance(value, torch.Tensor) or not value.is_cuda:
                return value
            if id(value) not in hosts:
                is_read = id(value) not in outputs
                hosts[id(value)] = (value, _fetch(value) if is_read else torch.empty_like(value, device=_CPU))
            return hosts[id(value)][1]

        def to_device(value):
            if not isinstance(value, torch.Tensor):
                return value
            for tensor, host in hosts.values():
                if host is value:
                    return tensor
            if value.layout != torch.strided or value.is_quantized or value.is_nested:
                raise NotImplementedError(
                    f"libnccl_cpu.torch: {name} returns a tensor that is sparse, nested or quantized, which are not supported"
                )
            value = value.resolve_conj().resolve_neg()
            if not _is_dense(value):
                value = value.contiguous()
            result = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
            _transfer(result, value, result)
            return result

        host_kwargs = {key: _map(value, to_host) for key, value in kwargs.items() if key != "pin_memory"}
        host_args = _map(args, to_host)
        if torch.Tag.nondeterministic_seeded in op.tags:
            results = _draw(function, host_args, host_kwargs, device, _argument(schema, "generator", args, kwargs))
        else:
            results = function(*host_args, **host_kwargs)
        for tensor in written:
            host = hosts[id(tensor)][1]
            if tensor.shape != host.shape:
                tensor.resize_(host.shape)
            _put(tensor, host)
        return _map(results, to_device)


def _argument(schema, name, args, kwargs):
    index = next((index for index, argument in enumerate(schema.arguments) if argument.name == name), None)
    return args[index] if index is not None and index < len(args) else kwargs.get(name)


def _draw(function, args, kwargs, device, generator):
    """Runs an operator that draws random numbers. The CPU's generator draws them, seeded for that time with the seed of CUDA's plus its
    offset times a constant; the offset moves on by 4 each time. So what sets, saves and restores the state of CUDA's generator
    determines the numbers."""
    if generator is None:
        torch.cuda.init()
        generator = torch.cuda.default_generators[device.index]
    elif generator.device.type != "cuda":
        raise RuntimeError(f"expected a generator of a CUDA device; found one of {generator.device}")
    args = [None if isinstance(value, torch.Generator) else value for value in args]
    kwargs = {key: None if key == "generator" else value for key, value in kwargs.items()}
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    before = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed((generator.initial_seed() + offset * 0x9E3779B97F4A7C15) % 2**64)
        return function(*args, **kwargs)
    finally:
        torch.default_generator.set_state(before)


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from _tensors(element)


def _device(name, base, args, kwargs):
    """Returns the device of an operator, whose tensors must be on one device, except numbers on the host."""
    device = None
    for tensor in itertools.chain(_tensors(args), _tensors(list(kwargs.values()))):
        if device is None and tensor.is_cuda:
            device = tensor.device
    if device is None:
        devices = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.device))
        device = next(devices, torch.device("cuda"))
        return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
    if base not in _MIXED and not base.startswith(_MIXED_FAMILIES):
        for tensor in itertools.chain(_tensors(args), _tensors(list(kwargs.values()))):
            if tensor.device != device and (tensor.is_cuda or tensor.dim() > 0):
                raise RuntimeError(f"{name}: expected all tensors on the same device; found {device} and {tensor.device}")
    return device


def _refuse_capture(name):
    if torch.cuda.is_current_stream_capturing():
        raise NotImplementedError(f"libnccl_cpu.torch: {name} in a CUDA graph; only copies and NCCL's operations can be captured")


def _copy(to, source, non_blocking=False):
    with torch._C.DisableTorchFunction():
        is_same = to.dtype == source.dtype and to.shape == source.shape
        is_same = is_same and to.is_conj() == source.is_conj() and to.is_neg() == source.is_neg()
        is_same = is_same and not source._is_zerotensor()
        if to.numel() == 0 or is_same and _have_equal_layouts(to, source):
            return _copy_bytes(to, source, non_blocking)
        _refuse_capture("aten::copy_ of another type or layout")
        host = _fetch(source) if source.is_cuda else source
        if to.is_cuda:
            _put(to, host)
        else:
            to.copy_(host)
        return to


_CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def _copy_bytes(to, source, non_blocking=False):
    # The kernel is the same for all devices. The registration for CUDA is replaced.
    return _aten.copy_.default.redispatch(_CPU_KEYS, to, source, non_blocking)


def _have_equal_layouts(one, other):
    if one.is_contiguous() and other.is_contiguous():
        return True
    return one.stride() == other.stride() and _is_dense(one)


def _is_dense(tensor):
    return tensor.is_contiguous() or _aten.is_non_overlapping_and_dense.default(tensor)


def _fetch(tensor):
    """Returns a copy on the host, after the work on the tensor's current stream."""
    if tensor.is_conj():
        return _fetch(tensor.conj()).conj().resolve_conj()
    if tensor.is_neg():
        return -_fetch(tensor._neg_view())
    host = torch.empty_like(tensor, device=_CPU)
    if tensor.numel() == 0:
        return host
    if tensor._is_zerotensor():
        return host.zero_()
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride())):
        once = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride())]
        return host.copy_(_fetch(tensor.as_strided(once, tensor.stride())))
    if _overlaps(tensor):
        length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return host.copy_(_fetch(tensor.as_strided((length,), (1,))).as_strided(tensor.shape, tensor.stride(), 0))
    _transfer(host, tensor, tensor)
    return host


def _put(tensor, host):
    """Fills a tensor on a device from a tensor on the host, after the work on the current stream."""
    if tensor.is_conj():
        return _put(tensor.conj(), host.conj())
    if tensor.is_neg():
        return _put(tensor._neg_view(), -host)
    if _overlaps(tensor):
        raise RuntimeError("an element of the tensor that is written to has several places in it: clone it first")
    if host.dtype != tensor.dtype or host.is_conj() or host.is_neg() or not _have_equal_layouts(tensor, host):
        host = torch.empty_like(tensor, device=_CPU).copy_(host)
    _transfer(tensor, host, tensor)


def _overlaps(tensor):
    end = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if size > 1):
        if stride < end:
            return tensor.numel() > 0
        end += (size - 1) * stride
    return False


def _transfer(to, source, tensor):
    """Copies between the host, where the elements have no gaps, and a device, where they may have gaps."""
    if tensor.numel() == 0:
        return
    if _have_equal_layouts(to, source):
        _copy_bytes(to, source)
        return
    # Does not copy the bytes in the gaps: other tensors may use them.
    size = tensor.element_size()
    dimensions = sorted(
        (t * size, s * size, n) for n, t, s in zip(to.shape, to.stride(), source.stride()) if n > 1
    )
    width, gaps = size, []
    for dimension in dimensions:
        if not gaps and dimension[0] == dimension[1] == width:
            width *= dimension[2]
        else:
            gaps.append(dimension)
    rows = max(gaps, key=lambda dimension: dimension[2])
    gaps.remove(rows)
    with torch.cuda.device(tensor.device):
        stream = torch.cuda.current_stream()
        for place in itertools.product(*(range(n) for _, _, n in gaps)):
            to_address = to.data_ptr() + sum(index * t for index, (t, _, _) in zip(place, gaps))
            source_address = source.data_ptr() + sum(index * s for index, (_, s, _) in zip(place, gaps))
            _call(
                "cudaMemcpy2DAsync", to_address, rows[0], source_address, rows[1], width, rows[2], _BY_ADDRESS, stream.cuda_stream
            )
        stream.synchronize()


_BY_ADDRESS = 4  # cudaMemcpyDefault


def _sleep(cycles):
    """`torch.cuda._sleep`: a host function that sleeps on the current stream, a nanosecond for each cycle. On a GPU it is a kernel, and
    no operator."""
    microseconds = min(max(operator.index(cycles), 0) // 1000, _LONGEST_SLEEP)
    _call("cudaLaunchHostFunc", torch.cuda.current_stream().cuda_stream, _usleep(), microseconds)


_LONGEST_SLEEP = 2**32 - 1  # useconds_t


@functools.lru_cache(maxsize=None)
def _usleep():
    # A C function: a Python function would need the interpreter's lock, which the program may hold while it waits for the stream.
    return ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)


def _call(function, *arguments):
    """Calls a function of the CUDA runtime."""
    if status := getattr(_runtime(), function)(*arguments):
        raise RuntimeError(f"{function}: error {status}")


@functools.lru_cache(maxsize=None)
def _runtime():
    runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.partition(".")[0])
    size, address = ctypes.c_size_t, ctypes.c_void_p
    runtime.cudaMemcpy2DAsync.argtypes = [address, size, address, size, size, size, ctypes.c_int, address]
    runtime.cudaLaunchHostFunc.argtypes = [address, address, address]
    return runtime
