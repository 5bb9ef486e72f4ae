"""A rank of a job that calls every collective of torch.distributed with backend nccl, alone or through `python3 -m libnccl_cpu.torch`."""

import datetime
import os
import sys

import torch
import torch.distributed as dist

rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
has_kernels = "libnccl_cpu.cuda_operators" in sys.modules
following, preceding = (rank + 1) % n, (rank - 1) % n
total = n * (n + 1) / 2


def full(value, size=1000, dtype=torch.float32):
    """A copy of a tensor that the host fills, which needs no kernel."""
    tensor = torch.empty(size, dtype=dtype, device=device)
    tensor.copy_(torch.full((size,), value, dtype=dtype))
    return tensor


def empty(size=3):
    return torch.empty(size, device=device)


def held(tensor):
    """The value of all elements."""
    values = set(tensor.cpu().to(torch.complex64 if tensor.is_complex() else torch.float32).tolist())
    assert len(values) == 1, f"elements differ: {values}"
    return values.pop()


def reduced(op=dist.ReduceOp.SUM, dtype=torch.float32, value=None, **options):
    tensor = full(rank + 1 if value is None else value, dtype=dtype)
    work = dist.all_reduce(tensor, op=op, **options)
    if work is not None:
        work.wait()
    return held(tensor)


def all_gather(sizes):
    parts = [empty(size) for size in sizes]
    dist.all_gather(parts, full(rank, sizes[rank]))
    return [held(part) for part in parts]


def all_gather_into_tensor():
    result = empty(3 * n)
    dist.all_gather_into_tensor(result, full(rank, 3))
    return [held(part) for part in result.chunk(n)]


def reduce_scatter():
    result = empty()
    dist.reduce_scatter(result, [full(index, 3) for index in range(n)])
    return held(result)


def reduce_scatter_tensor():
    result, source = empty(4), empty(4 * n)
    source.copy_(torch.arange(4.0 * n))
    dist.reduce_scatter_tensor(result, source)
    return result.tolist()


def broadcast():
    tensor = full(rank)
    dist.broadcast(tensor, n - 1)
    return held(tensor)


def reduce():
    tensor = full(rank + 1)
    dist.reduce(tensor, 0)
    return held(tensor) if rank == 0 else total


def send_and_receive():
    tensor = full(rank)
    if n == 1:
        return 0  # PyTorch rejects a send to the same rank.
    if rank == 0:
        dist.send(tensor, n - 1)
    elif rank == n - 1:
        dist.recv(tensor, 0)
    return held(tensor)


def ring():
    received = empty()
    operations = [dist.P2POp(dist.isend, full(rank, 3), following), dist.P2POp(dist.irecv, received, preceding)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return held(received)


def all_to_all_single():
    result, source = empty(n), empty(n)
    source.copy_(torch.arange(float(n)) + 10 * rank)
    dist.all_to_all_single(result, source)
    return result.tolist()


def all_to_all_uneven():
    # A rank sends one element more than the receiver's rank.
    result = empty((rank + 1) * n)
    dist.all_to_all_single(result, full(rank, int(total)), [rank + 1] * n, list(range(1, n + 1)))
    return [held(part) for part in result.chunk(n)]


def all_to_all():
    results = [empty() for _ in range(n)]
    dist.all_to_all(results, [full(10 * rank + index, 3) for index in range(n)])
    return [held(result) for result in results]


def scatter():
    result = empty()
    dist.scatter(result, [full(index, 3) for index in range(n)] if rank == 0 else None)
    return held(result)


def gather():
    results = [empty() for _ in range(n)] if rank == 0 else None
    dist.gather(full(rank, 3), results)
    return [held(result) for result in results or []] if rank == 0 else list(range(n))


def coalesced():
    tensors = [full(rank + index, 3) for index in range(3)]
    with dist._coalescing_manager(device=device):
        for tensor in tensors:
            dist.all_reduce(tensor)
    return [held(tensor) for tensor in tensors]


def subgroups():
    halves = [list(range(n)[: (n + 1) // 2]), list(range(n)[(n + 1) // 2 :])]
    groups = [dist.new_group(half) for half in halves if half]
    mine = groups[0 if rank in halves[0] else 1]
    return reduced(value=1, group=mine), dist.get_world_size(mine)


def split():
    # Groups of one process each: all ranks call it.
    group = dist.split_group(split_ranks=[[index] for index in range(n)])
    return reduced(group=group)


def graph():
    source, result = full(rank + 1), empty(1000)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result.copy_(source)
        dist.all_reduce(result)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result.copy_(source)
        dist.all_reduce(result)
    found = []
    for factor in (1, 2):
        source.copy_(torch.full((1000,), float(factor * (rank + 1))))
        captured.replay()
        torch.cuda.synchronize()
        found.append(held(result))
    captured.reset()
    return found


def objects():
    gathered = [None] * n
    dist.all_gather_object(gathered, {"rank": rank})
    told = [{"of": rank}]
    dist.broadcast_object_list(told, n - 1)
    dist.barrier()
    return [value["rank"] for value in gathered], told[0]["of"]


# The expected result of each.
CASES = {
    "all_reduce": (reduced, total),
    "all_reduce_average": (lambda: reduced(dist.ReduceOp.AVG), (n + 1) / 2),
    "all_reduce_maximum": (lambda: reduced(dist.ReduceOp.MAX), n),
    "all_reduce_minimum": (lambda: reduced(dist.ReduceOp.MIN), 1),
    "all_reduce_product": (lambda: reduced(dist.ReduceOp.PRODUCT, value=2), 2**n),
    "all_reduce_factor": (lambda: reduced(dist._make_nccl_premul_sum(2.0)), 2 * total),
    "all_reduce_async": (lambda: reduced(async_op=True), total),
    **{
        f"all_reduce_{dtype}".replace("torch.", ""): (lambda dtype=dtype: reduced(dtype=dtype), total)
        for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
    },
    "all_reduce_bool": (lambda: reduced(dtype=torch.bool, value=rank == n - 1), 1),
    "all_gather": (lambda: all_gather([3] * n), list(range(n))),
    "all_gather_uneven": (lambda: all_gather(list(range(1, n + 1))), list(range(n))),
    "all_gather_into_tensor": (all_gather_into_tensor, list(range(n))),
    "reduce_scatter": (reduce_scatter, n * rank),
    "reduce_scatter_tensor": (reduce_scatter_tensor, [n * (4 * rank + index) for index in range(4)]),
    "broadcast": (broadcast, n - 1),
    "reduce": (reduce, total),
    "send_and_receive": (send_and_receive, 0 if rank == n - 1 else rank),
    "ring": (ring, preceding),
    "all_to_all_single": (all_to_all_single, [10 * index + rank for index in range(n)]),
    "all_to_all_uneven": (all_to_all_uneven, list(range(n))),
    "all_to_all": (all_to_all, [10 * index + rank for index in range(n)]),
    "scatter": (scatter, rank),
    "gather": (gather, list(range(n))),
    "coalesced": (coalesced, [n * (n - 1) / 2 + index * n for index in range(3)]),
    "subgroups": (subgroups, ((size := (n + 1) // 2 if rank < (n + 1) // 2 else n // 2), size)),
    "split": (split, rank + 1),
}
if has_kernels:
    CASES["objects"] = (objects, (list(range(n)), n - 1))
    CASES["graph"] = (graph, [total, 2 * total])

torch.cuda.set_device(device)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60), device_id=device)
for name, (run, wanted) in CASES.items():
    found = run()
    assert found == wanted, f"{name} on rank {rank} of {n}: {found}; expected {wanted}"
torch.cuda.synchronize()
dist.destroy_process_group()
print(f"rank {rank}: {len(CASES)} passed, PyTorch {torch.__version__}")
