/*
 * Stands in for the header of the same name of the CUDA toolkit, which every nccl.h includes but takes nothing
 * from. bindgen runs with -nostdinc on these stubs, so that its output does not depend on the host.
 */
#ifndef LIBNCCL_STUB_CUDA_FP16_H
#define LIBNCCL_STUB_CUDA_FP16_H
#endif
