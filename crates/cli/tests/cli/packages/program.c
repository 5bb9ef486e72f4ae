// Prints the memory that NCCL has its buffers in, the number of devices if it is a program of CUDA's, and what is preloaded.
#include <stdio.h>
#include <stdlib.h>
int ncclParamGetParameter(const char *key, const char **value, int *length);
int cudaGetDeviceCount(int *count);
int main(void) {
    const char *memory = "none";
    int length, devices = -1;
    ncclParamGetParameter("LIBNCCL_MEMORY_SPACE", &memory, &length);
#ifdef CUDA
    cudaGetDeviceCount(&devices);
#endif
    printf("%s %d %s\n", memory, devices, getenv("LD_PRELOAD"));
}
