/*
 * Stands in for the header of the same name of the CUDA toolkit when bindgen reads NCCL's own nccl_device/host.h,
 * to compare ours with it: the one type that it mentions, of which only the size matters.
 */
#ifndef LIBNCCL_STUB_CUDA_H
#define LIBNCCL_STUB_CUDA_H

typedef enum CUmemLocationType_enum { CU_MEM_LOCATION_TYPE_INVALID = 0 } CUmemLocationType;

#endif
