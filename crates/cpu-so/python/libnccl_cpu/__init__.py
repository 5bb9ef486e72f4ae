"""NCCL's C interface on the CPU, as a shared object with NCCL's name, and stand-ins for CUDA's libraries."""

import os

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def library():
    """Returns the path of libnccl.so.2."""
    return os.path.join(_FOLDER, "lib", "libnccl.so.2")


def include():
    """Returns the folder of nccl.h."""
    return os.path.join(_FOLDER, "include")


def cuda():
    """Returns the folder of the stand-ins for CUDA: libcuda.so.1, libcudart.so.12, libcudart.so.13, libnvidia-ml.so.1."""
    return os.path.join(_FOLDER, "cuda")


def preload():
    """Returns the paths for LD_PRELOAD: with those, programs run on the stand-ins that have NVIDIA's libraries on a path of
    their own, as Python's packages have."""
    runtimes = [os.path.join(cuda(), name) for name in ("libcudart.so.12", "libcudart.so.13")]
    return runtimes + [library()]
