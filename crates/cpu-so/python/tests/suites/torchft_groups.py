"""torchft's tests that use NCCL or CUDA, which are in its wheel."""

import functools
import importlib
import unittest

import run

_MODULES = """
checkpointing.pg_transport_test collectives_test fsdp_test local_sgd_integ_test manager_integ_test process_group_test
quantization_test reconfigure_test torchcomms_test
""".split()
# They use Gloo alone, on the host.
_OF_GLOO = {"BabyGlooMultiPgTest", "NormalGlooMultiPgTest"}


def tests():
    modules = [importlib.import_module("torchft." + name) for name in _MODULES]
    cases = {}
    for module in modules:
        for name, case in vars(module).items():
            if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == module.__name__:
                if name not in _OF_GLOO:
                    cases[name] = case
    groups = importlib.import_module("torchft.process_group_test")
    # Its process starts within 10 s, unless the machine is busy.
    groups.ProcessGroupBabyNCCL = functools.partial(_patient, groups.ProcessGroupBabyNCCL)
    return run.of_cases(cases.values())


def _patient(group, timeout):
    return group(timeout=10 * timeout)
