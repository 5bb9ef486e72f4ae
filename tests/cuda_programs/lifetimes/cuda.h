/* The functions of CUDA that the programs here call, as NVIDIA's headers are not everywhere. Enumerations are numbers. */
#ifndef CUDA_H
#define CUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

int cuCtxGetCurrent(void **context);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);

int cudaGetDeviceCount(int *count);
int cudaSetDevice(int device);
int cudaDeviceSynchronize(void);
int cudaMalloc(void **memory, size_t length);
int cudaMallocAsync(void **memory, size_t length, void *stream);
int cudaMallocHost(void **memory, size_t length);
int cudaFree(void *memory);
int cudaFreeAsync(void *memory, void *stream);
int cudaFreeHost(void *memory);
int cudaMemsetAsync(void *memory, int value, size_t length, void *stream);
int cudaMemcpy(void *to, const void *from, size_t length, int kind);
int cudaMemcpyAsync(void *to, const void *from, size_t length, int kind, void *stream);
int cudaStreamCreate(void **stream);
int cudaStreamDestroy(void *stream);
int cudaStreamSynchronize(void *stream);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamEndCapture(void *stream, void **graph);
int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags);
int cudaGraphLaunch(void *executable, void *stream);
int cudaGraphExecDestroy(void *executable);
int cudaGraphDestroy(void *graph);
int cudaEventCreate(void **event);
int cudaEventRecord(void *event, void *stream);
int cudaEventSynchronize(void *event);
int cudaEventDestroy(void *event);
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data);
int cudaGetLastError(void);

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);

int cublasCreate_v2(void **handle);
int cublasDestroy_v2(void *handle);

#ifdef __cplusplus
}
#endif

enum { TO_DEVICE = 1, TO_HOST = 2, INVALID_VALUE = 1 };

#endif
