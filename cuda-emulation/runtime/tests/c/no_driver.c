/* Prints the results of calls on a machine without a driver. */

#include <cuda_runtime.h>
#include <stdio.h>

int main(void) {
    int count = -1, device = -1, version = -1;
    void *memory = NULL;
    cudaStream_t stream = NULL;
    struct cudaDeviceProp properties;
    printf("cudaDriverGetVersion %d", cudaDriverGetVersion(&version));
    printf(" %d\n", version);
    printf("cudaGetDeviceCount %d\n", cudaGetDeviceCount(&count));
    printf("cudaPeekAtLastError %d\n", cudaPeekAtLastError());
    printf("cudaGetLastError %d\n", cudaGetLastError());
    printf("cudaGetLastError %d\n", cudaGetLastError());
    printf("cudaGetDevice %d\n", cudaGetDevice(&device));
    printf("cudaSetDevice %d\n", cudaSetDevice(0));
    printf("cudaGetDeviceProperties %d\n", cudaGetDeviceProperties(&properties, 0));
    printf("cudaMalloc %d\n", cudaMalloc(&memory, 4));
    printf("cudaMallocHost %d\n", cudaMallocHost(&memory, 4));
    printf("cudaFree %d\n", cudaFree(NULL));
    printf("cudaStreamCreate %d\n", cudaStreamCreate(&stream));
    printf("cudaStreamSynchronize %d\n", cudaStreamSynchronize(NULL));
    printf("cudaDeviceSynchronize %d\n", cudaDeviceSynchronize());
    printf("%s: %s\n", cudaGetErrorName(cudaGetLastError()), cudaGetErrorString(cudaGetLastError()));
    return 0;
}
