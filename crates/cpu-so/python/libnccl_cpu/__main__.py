"""Prints the folder of libnccl.so.2, for LD_LIBRARY_PATH."""

import os

from libnccl_cpu import library

print(os.path.dirname(library()))
