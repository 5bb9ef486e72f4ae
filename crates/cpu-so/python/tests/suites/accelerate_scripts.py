"""accelerate's own test scripts, from its wheel, on two ranks."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

from accelerate import test_utils

# These launch ranks themselves.
_LAUNCHING = ["test_notebook"]


def tests(_column):
    scripts = Path(test_utils.__file__).parent / "scripts"
    found = {script.stem: _launch(script) for script in scripts.glob("test_*.py")}
    return {**found, **{script.stem: _skip for script in (scripts / "external_deps").glob("test_*.py")}}


def _skip():
    raise unittest.SkipTest("not run: needs DeepSpeed, or models and data of the Hugging Face hub")


def _launch(script):
    launch = ["-m", "accelerate.commands.launch", "--num_processes=2", "--multi_gpu", "-m"]

    def test():
        command = [sys.executable, *(launch if script.stem not in _LAUNCHING else ["-m"]), "libnccl_cpu.torch", str(script)]
        subprocess.run(command, check=True, env=dict(os.environ, ACCELERATE_NUM_PROCESSES="2"))

    return test
