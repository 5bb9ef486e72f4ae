"""Prints the directories to put first in LD_LIBRARY_PATH: the directory of libnccl.so.2 or, with the argument `cuda`, the
directory of the CUDA emulation before it. With the argument `preload`, prints the files to put first in LD_PRELOAD, which
Python programs need."""

import os
import sys

from libnccl_cpu import cuda, library, preload

directory = os.path.dirname(library())
paths = {(): [directory], ("cuda",): [cuda(), directory], ("preload",): preload()}.get(tuple(sys.argv[1:]))
if paths is None:
    sys.exit("expected no argument, cuda or preload; found " + " ".join(sys.argv[1:]))
if paths == preload() and any(separator in directory for separator in ": "):
    sys.exit("nothing in " + directory + " can be preloaded: its path has a blank or a colon")
print(os.pathsep.join(paths))
