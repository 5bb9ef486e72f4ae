"""A rank of a job that trains by several methods, through `python3 -m libnccl_cpu.torch`. The weights equal the weights of one process on the CPU."""

import datetime
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
STEPS, BATCH = 5, 8


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.RMSNorm(16)
        self.out = nn.Linear(16, 32)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.out(self.norm(self.layers(self.tokens(tokens), mask, is_causal=True)))


def perceptron():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 4))


def normalized():
    return nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def two_layers():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def data(make):
    generator = torch.Generator().manual_seed(1)
    if make is Transformer:
        tokens = torch.randint(32, (BATCH * n, 9), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    return torch.randn(BATCH * n, 16, generator=generator), torch.randn(BATCH * n, 4, generator=generator)


def loss(result, wanted):
    if wanted.dtype == torch.int64:
        return nn.functional.cross_entropy(result.flatten(0, 1), wanted.flatten())
    return nn.functional.mse_loss(result, wanted)


def train(model, optimizer, inputs, wanted):
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model(inputs), wanted).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), 3e-3)


def data_parallel(model):
    return DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=0.002)


def sharded(model):
    for child in model.children():
        fully_shard(child)
    return fully_shard(model)


def sharded_flat(model):
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=device)


def synchronized(model):
    return data_parallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))


def tensor_parallel(model):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cuda", (n,)), plan)


def zero(model):
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-3)


def values(model):
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model):
            return [value.detach().cpu().clone() for value in model.parameters()]
    whole = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in model.parameters()]
    return [value.detach().cpu().clone() for value in whole]


# The model, how it is spread over the ranks, its optimizer, whether a rank has a part of the batch, and how far its weights may be.
CASES = {
    "DDP": (perceptron, data_parallel, adamw, True, 1e-6),
    "DDP with ZeRO": (perceptron, data_parallel, zero, True, 1e-6),
    "DDP with SyncBatchNorm": (normalized, synchronized, lambda model: torch.optim.SGD(model.parameters(), 0.1), True, 1e-6),
    "FSDP": (perceptron, sharded_flat, adamw, True, 1e-6),
    "FSDP2": (perceptron, sharded, adamw, True, 1e-6),
    "transformer with DDP": (Transformer, data_parallel, lambda model: torch.optim.SGD(model.parameters(), 0.1), True, 1e-6),
    "transformer with FSDP2": (Transformer, sharded, lambda model: torch.optim.SGD(model.parameters(), 0.1), True, 1e-6),
    "tensor parallel": (two_layers, tensor_parallel, lambda model: torch.optim.SGD(model.parameters(), 0.1), False, 1e-5),
}

torch.cuda.set_device(device)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60), device_id=device)
for name, (make, spread, optimizer, is_part, tolerance) in CASES.items():
    inputs, wanted = data(make)
    torch.manual_seed(0)
    alone = make()
    first = values(alone)
    train(alone, adamw(alone) if optimizer is zero else optimizer(alone), inputs, wanted)
    assert any((one - other).abs().max() > 1e-3 for one, other in zip(first, values(alone))), f"{name}: nothing was learned"
    torch.manual_seed(0)
    model = spread(make().to(device))
    part = slice(rank * BATCH, (rank + 1) * BATCH) if is_part else slice(None)
    train(model, optimizer(model), inputs[part].to(device), wanted[part].to(device))
    difference = max((one - other).abs().max().item() for one, other in zip(values(model), values(alone), strict=True))
    assert difference <= tolerance, f"{name} on rank {rank} of {n}: differs by {difference}; expected {tolerance} at most"
    if rank == 0:
        print(f"{name}: differs from one process by {difference:.1e}")
torch.cuda.synchronize()
dist.destroy_process_group()
print(f"rank {rank}: {len(CASES)} passed, PyTorch {torch.__version__}")
