"""Uses the installed package with two emulated devices; run by .ci/wheel."""

import ctypes
import os

import libnccl_cpu

assert os.path.isfile(os.path.join(libnccl_cpu.include(), "nccl.h"))
comms, device, count = (ctypes.c_void_p * 2)(), ctypes.c_int(-1), ctypes.c_int(-1)
nccl = ctypes.CDLL("libnccl.so.2")
assert nccl.ncclCommInitAll(comms, 2, None) == 0
assert nccl.ncclCommCuDevice(ctypes.c_void_p(comms[1]), ctypes.byref(device)) == 0 and device.value == 1, device
for runtime in "libcudart.so.12", "libcudart.so.13":
    assert ctypes.CDLL(runtime).cudaGetDeviceCount(ctypes.byref(count)) == 0 and count.value == 2, count
files = {os.path.realpath(line.split()[-1]) for line in open("/proc/self/maps") if "/libnccl.so" in line or "/libcuda" in line}
package = {os.path.realpath(path) for path in (libnccl_cpu.cuda(), os.path.dirname(libnccl_cpu.library()))}
assert {os.path.dirname(file) for file in files} == package, files
