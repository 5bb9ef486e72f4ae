/*
 * Stands in for the header of the same name of the CUDA toolkit. NCCL headers before 2.24 declare ncclBfloat16
 * only where the macro below is defined, and CUDA defines it for C++ only: defined here, a C reader sees all
 * types that the library has. bindgen runs with -nostdinc on these stubs, so that its output does not depend
 * on the host.
 */
#ifndef LIBNCCL_STUB_CUDA_BF16_H
#define LIBNCCL_STUB_CUDA_BF16_H

#define __CUDA_BF16_TYPES_EXIST__

#endif
