"""torchft's tests, from its wheel, that use NCCL or CUDA devices: tests of process groups and of their users."""

import concurrent.futures
import datetime
import importlib
import re
import unittest

import run

# Not quantization_test and collectives_test, which need Triton, and torchcomms_test, which needs torchcomms.
_MODULES = ["checkpointing.pg_transport_test", "fsdp_test", "manager_integ_test", "process_group_test", "reconfigure_test"]
_OF_GLOO = re.compile(r"(Baby|Normal)Gloo|ManagerIntegTest\.test_(?!manager_allreduce)")


def tests(_column):
    cases = {}
    for name in _MODULES:
        module = importlib.import_module("torchft." + name)
        for case in vars(module).values():
            if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__:
                cases[case] = None
        _be_patient(module)
    _be_patient(importlib.import_module("torchft.checkpointing.transport_test"))
    return {name: test for name, test in run.of_cases(cases).items() if not _OF_GLOO.match(name)}


def _be_patient(module):
    """Replaces time limits of 10 s: on a busy machine, starting processes with PyTorch takes as long."""
    if hasattr(module, "timedelta"):
        module.timedelta = _timedelta
    if hasattr(module, "as_completed"):
        module.as_completed = _as_completed


def _timedelta(**time):
    return datetime.timedelta(seconds=100) if time == {"seconds": 10} else datetime.timedelta(**time)


def _as_completed(futures, timeout=None):
    return concurrent.futures.as_completed(futures, None if timeout is None else 10 * timeout)
