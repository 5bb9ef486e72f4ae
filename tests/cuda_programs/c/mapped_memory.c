/* NCCL's operations on memory that is mapped at reserved addresses, across the parts that are mapped there side by side, as
 * growing allocators do. */

#include "check.h"
#include "driver.h"

#include <cuda.h>

enum { DEVICES = 2, PARTS = 3 };
static size_t part;

static CUdeviceptr map_parts(int device) {
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address = 0;
    DRIVER(cuMemGetAllocationGranularity, &part, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    DRIVER(cuMemAddressReserve, &address, 10 * part, 0, 0, 0);
    for (int i = 0; i < PARTS; i++) {
        CUmemGenericAllocationHandle handle;
        DRIVER(cuMemCreate, &handle, part, &properties, 0);
        DRIVER(cuMemMap, address + i * part, part, 0, handle, 0);
        DRIVER(cuMemSetAccess, address + i * part, part, &access, 1);
        DRIVER(cuMemRelease, handle);
    }
    return address;
}

int main(void) {
    ncclComm_t comms[DEVICES];
    int32_t *memory[DEVICES], *host = NULL;
    int count = 0;
    CUDA(cudaFree(NULL));
    CHECK(ncclCommInitAll(comms, DEVICES, NULL));
    for (int i = 0; i < DEVICES; i++) {
        CUDA(cudaSetDevice(i));
        memory[i] = (int32_t *)map_parts(i) + 1;
        struct cudaPointerAttributes attributes;
        CUDA(cudaPointerGetAttributes(&attributes, memory[i] + part / sizeof *host));
        REQUIRE_EQUAL(cudaMemoryTypeDevice, attributes.type);
        REQUIRE_EQUAL(i, attributes.device);
        count = (int)(PARTS * part / sizeof *host) - 2;
        host = realloc(host, count * sizeof *host);
        REQUIRE(host != NULL);
        for (int k = 0; k < count; k++)
            host[k] = i * 1000 + k;
        TO_DEVICE(memory[i], host, count);
    }
    CHECK(ncclGroupStart());
    for (int i = 0; i < DEVICES; i++)
        CHECK(ncclAllReduce(memory[i], memory[i], count, ncclInt32, ncclSum, comms[i], 0));
    CHECK(ncclGroupEnd());
    for (int i = 0; i < DEVICES; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaDeviceSynchronize());
        TO_HOST(host, memory[i], count);
        for (int k = 0; k < count; k++)
            REQUIRE_EQUAL(1000 + 2 * k, host[k]);
        CUDA_FAILS(cudaErrorInvalidValue, cudaMemset(memory[i], 0, PARTS * part));
        DRIVER(cuMemUnmap, (CUdeviceptr)(memory[i] - 1), PARTS * part);
        DRIVER(cuMemAddressFree, (CUdeviceptr)(memory[i] - 1), 10 * part);
        CUDA_FAILS(cudaErrorInvalidValue, cudaMemset(memory[i], 0, 4));
    }
    for (int i = 0; i < DEVICES; i++)
        CHECK(ncclCommDestroy(comms[i]));
    free(host);
    puts("ok: mapped memory");
    return 0;
}
