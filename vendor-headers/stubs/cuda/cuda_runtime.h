/*
 * Stands in for the header of the same name of the CUDA toolkit when bindgen reads an nccl.h (ours or an
 * official one): the two handle types that NCCL's declarations mention, and a CUDA version so that they are
 * all declared. bindgen runs with -nostdinc on these stubs, so that its output does not depend on the host. C
 * programs on a machine without CUDA may use it too, together with the system's C library headers.
 */
#ifndef LIBNCCL_STUB_CUDA_RUNTIME_H
#define LIBNCCL_STUB_CUDA_RUNTIME_H

/* CUDA's own header brings size_t and NULL along, and official NCCL headers rely on it. */
#include <stddef.h>

#define CUDART_VERSION 12090

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

#endif
