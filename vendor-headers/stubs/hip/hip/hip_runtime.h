/*
 * Stands in for the header of the same name of ROCm when bindgen reads the header of RCCL, to compare it with
 * nccl.h: the handle types, under their names in nccl.h.
 */
#ifndef LIBNCCL_STUB_HIP_RUNTIME_H
#define LIBNCCL_STUB_HIP_RUNTIME_H

#include <cuda_runtime.h>

#define hipStream_t cudaStream_t
#define hipEvent_t cudaEvent_t

#endif
