/* A driver without devices: it has a version, and everything else fails. */

#include "cuda_check.h"

int main(void) {
    int version = 0, count = -1;
    void *memory = NULL;
    CUDA(cudaDriverGetVersion(&version));
    REQUIRE(version >= 12000);
    REQUIRE_CUDA(cudaErrorNoDevice, cudaGetDeviceCount(&count));
    REQUIRE_CUDA(cudaErrorNoDevice, cudaGetLastError());
    REQUIRE_CUDA(cudaErrorNoDevice, cudaSetDevice(0));
    REQUIRE_CUDA(cudaErrorNoDevice, cudaMalloc(&memory, 4));
    puts("ok: no device");
    return 0;
}
