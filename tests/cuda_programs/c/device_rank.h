/* A rank on its device: setup and teardown for programs with a thread for each device. */
#ifndef DEVICE_RANK_H
#define DEVICE_RANK_H

#include "check.h"
#include "cuda_check.h"
#include "threads.h"

/* The communicator and the stream of a rank. */
typedef struct {
    ncclComm_t comm;
    cudaStream_t stream;
} DeviceRank;

/* Joins the other ranks on the device of the rank's number. */
static inline DeviceRank join_on_device(const Rank *me) {
    DeviceRank joined = {NULL, NULL};
    CUDA(cudaSetDevice(me->rank));
    CHECK(ncclCommInitRank(&joined.comm, me->ranks, me->id, me->rank));
    CUDA(cudaStreamCreate(&joined.stream));
    return joined;
}

/* Ends a rank whose stream is done. */
static inline void leave_device(DeviceRank joined) {
    CHECK(ncclCommDestroy(joined.comm));
    CUDA(cudaStreamDestroy(joined.stream));
}

/* Allocates memory that other ranks can use. */
static inline void *allocate(size_t bytes) {
    void *memory = NULL;
    CHECK(ncclMemAlloc(&memory, bytes));
    return memory;
}

#endif
