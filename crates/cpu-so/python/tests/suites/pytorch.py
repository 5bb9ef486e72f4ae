"""PyTorch's `DistributedTest` with backend nccl, of the installed torch. WORLD_SIZE has the number of ranks, and BACKEND is nccl."""

import torch
from torch.testing._internal.distributed import distributed_test

import run


class DistributedTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        # PyTorch's own subclass spawns the ranks, which import PyTorch again.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def tests():
    return run.of_cases([DistributedTest])
