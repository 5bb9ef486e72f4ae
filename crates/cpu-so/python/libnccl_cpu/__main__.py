"""Prints what to put first in LD_LIBRARY_PATH: the folder of libnccl.so.2; with the argument `cuda`, that of the
stand-ins for CUDA before it. With the argument `preload`, prints what to put first in LD_PRELOAD, as Python programs need."""

import os
import sys

from libnccl_cpu import cuda, library, preload

folder = os.path.dirname(library())
paths = {(): [folder], ("cuda",): [cuda(), folder], ("preload",): preload()}.get(tuple(sys.argv[1:]))
if paths is None:
    sys.exit("expected no argument, cuda or preload; found " + " ".join(sys.argv[1:]))
if paths == preload() and any(separator in folder for separator in ": "):
    sys.exit("nothing in " + folder + " can be preloaded: its path has a blank or a colon")
print(os.pathsep.join(paths))
