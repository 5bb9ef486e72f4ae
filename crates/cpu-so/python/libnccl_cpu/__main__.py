"""Prints what to put first in LD_LIBRARY_PATH: the folder of libnccl.so.2; with the argument `cuda`, that of the
stand-ins for CUDA before it."""

import os
import sys

from libnccl_cpu import cuda, library

folders = {(): [], ("cuda",): [cuda()]}.get(tuple(sys.argv[1:]))
if folders is None:
    sys.exit("expected no argument, or cuda; found " + " ".join(sys.argv[1:]))
print(os.pathsep.join(folders + [os.path.dirname(library())]))
