"""PyTorch's `DistributedTest` with backend nccl, which is in its wheel. The column is `N ranks`."""

import importlib
import os
import unittest

import run
import torch

# Tests that are not run, by version.
_TOO_LONG = {"2.10.0": ["test_ddp_uneven_inputs"]}


def tests(column):
    ranks = column.split()[0]
    os.environ.update(BACKEND="nccl", WORLD_SIZE=ranks, PYTORCH_PRINT_REPRO_ON_FAILURE="0")
    common = importlib.import_module("torch.testing._internal.common_distributed")
    # On a busy machine, a test takes longer than its limit.
    common.get_timeout = lambda test: 1500
    module = importlib.import_module("torch.testing._internal.distributed.distributed_test")

    class DistributedTest(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # PyTorch's own subclass spawns the ranks, each of which imports PyTorch again.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    found = {name.partition(".")[2]: test for name, test in run.of_cases([DistributedTest]).items()}
    return {**found, **dict.fromkeys(_TOO_LONG.get(torch.__version__.partition("+")[0], []), _skip)}


def _skip():
    raise unittest.SkipTest("not run: its convolutions take an hour on two processors")
