"""The CPU backend: NCCL's C interface as a shared object with NCCL's name, and the CUDA emulation."""

import os

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def library():
    """Returns the path of libnccl.so.2."""
    return os.path.join(_DIRECTORY, "lib", "libnccl.so.2")


def include():
    """Returns the directory of nccl.h."""
    return os.path.join(_DIRECTORY, "include")


def cuda():
    """Returns the directory of the CUDA emulation: libcuda.so.1, libcudart.so.12, libcudart.so.13, libnvidia-ml.so.1."""
    return os.path.join(_DIRECTORY, "cuda")


def preload():
    """Returns the paths for LD_PRELOAD. Programs that load NVIDIA's libraries by path, as Python packages do, need them to run
    on the CUDA emulation."""
    runtimes = [os.path.join(cuda(), name) for name in ("libcudart.so.12", "libcudart.so.13")]
    return runtimes + [library()]
