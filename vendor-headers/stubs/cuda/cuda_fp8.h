/*
 * Stands in for the header of the same name of the CUDA toolkit, which nccl.h includes from 2.24 on (in later
 * releases for C++ only) but takes nothing from. bindgen runs with -nostdinc on these stubs, so that its output
 * does not depend on the host.
 */
#ifndef LIBNCCL_STUB_CUDA_FP8_H
#define LIBNCCL_STUB_CUDA_FP8_H
#endif
