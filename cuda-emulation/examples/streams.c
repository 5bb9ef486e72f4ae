/*
 * One stream fills device memory, another copies it to the host. An event orders them; with an argument, the program omits
 * the wait, which is a race.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define LENGTH 4096

#define CHECK(call) \
    do { \
        cudaError_t error_ = (call); \
        if (error_ != cudaSuccess) { \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_)); \
            exit(1); \
        } \
    } while (0)

int main(int argc, char **argv) {
    (void)argv;
    unsigned char *device, *host;
    cudaStream_t fill, copy;
    cudaEvent_t filled;
    CHECK(cudaMalloc((void **)&device, LENGTH));
    CHECK(cudaMallocHost((void **)&host, LENGTH));
    CHECK(cudaStreamCreate(&fill));
    CHECK(cudaStreamCreate(&copy));
    CHECK(cudaEventCreate(&filled));

    CHECK(cudaMemsetAsync(device, 7, LENGTH, fill));
    CHECK(cudaEventRecord(filled, fill));
    if (argc == 1)
        CHECK(cudaStreamWaitEvent(copy, filled, 0));
    CHECK(cudaMemcpyAsync(host, device, LENGTH, cudaMemcpyDeviceToHost, copy));
    CHECK(cudaStreamSynchronize(copy));
    printf("the last byte is %d\n", host[LENGTH - 1]);

    CHECK(cudaEventDestroy(filled));
    CHECK(cudaStreamDestroy(copy));
    CHECK(cudaStreamDestroy(fill));
    CHECK(cudaFreeHost(host));
    CHECK(cudaFree(device));
    return 0;
}
