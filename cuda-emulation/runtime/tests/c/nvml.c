/* NVIDIA's management library has the same devices as CUDA, without initializing CUDA, so that a process that has queried
 * them can fork and use CUDA in its children. NVML's header is not needed. */

#include "loaded.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, MISMATCH = 25 };

typedef struct Device *Handle;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, ids[2];
    char id[32];
} Pci;
typedef struct {
    unsigned long long total, free, used;
} Memory;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} Process;
/* The third version; the second ends before `health_summary`, and the first begins with `uuid` and ends after `state`. */
typedef struct {
    unsigned version;
    unsigned char uuid[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health_mask;
    unsigned char health_summary;
} Fabric;

#define NVML(name, ...) RETURNS(0, name, __VA_ARGS__)

/* The handle of a device, by its number, its UUID and the id of its bus in CUDA's form. */
static Handle handle_of(int index) {
    Handle handle = NULL, same = NULL;
    char text[96];
    Pci pci;
    NVML("nvmlDeviceGetHandleByIndex_v2", index, &handle);
    NVML("nvmlDeviceGetUUID", handle, text, 96u);
    NVML("nvmlDeviceGetHandleByUUID", text, &same);
    REQUIRE(same == handle);
    NVML("nvmlDeviceGetPciInfo_v3", handle, &pci);
    NVML("nvmlDeviceGetHandleByPciBusId_v2", pci.id, &same);
    REQUIRE(same == handle);
    NVML("nvmlDeviceGetHandleByPciBusId", pci.legacy, &same);
    REQUIRE(same == handle);
    return handle;
}

/* Requires NVML's properties of a device to equal CUDA's. */
static void compare(int index) {
    Handle handle = handle_of(index);
    struct cudaDeviceProp properties;
    char text[96], bus[32], expected[96] = "GPU";
    int major, minor;
    unsigned number;
    size_t free, total, length = 3;
    Memory memory;
    MemoryV2 memory_v2 = {.version = sizeof memory_v2 | 2 << 24};
    Pci pci;
    CUDA(cudaSetDevice(index));
    CUDA(cudaGetDeviceProperties(&properties, index));
    CUDA(cudaMemGetInfo(&free, &total));
    CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, index));
    NVML("nvmlDeviceGetName", handle, text, 96u);
    REQUIRE(strcmp(text, properties.name) == 0);
    for (int i = 0; i < 16; i++) {
        const char *dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        length += (size_t)sprintf(expected + length, "%s%02x", dash, (unsigned char)properties.uuid.bytes[i]);
    }
    NVML("nvmlDeviceGetUUID", handle, text, 96u);
    REQUIRE(strcmp(text, expected) == 0);
    RETURNS(INSUFFICIENT_SIZE, "nvmlDeviceGetUUID", handle, text, 40u);
    NVML("nvmlDeviceGetPciInfo_v3", handle, &pci);
    REQUIRE(strcmp(pci.legacy, bus) == 0 && strcmp(pci.id + 4, bus) == 0);
    REQUIRE_EQUAL(properties.pciBusID, pci.bus);
    NVML("nvmlDeviceGetCudaComputeCapability", handle, &major, &minor);
    REQUIRE(major == properties.major && minor == properties.minor);
    NVML("nvmlDeviceGetMemoryInfo", handle, &memory);
    REQUIRE_EQUAL(total, memory.total);
    REQUIRE_EQUAL(free, memory.free);
    REQUIRE_EQUAL(total - free, memory.used);
    NVML("nvmlDeviceGetMemoryInfo_v2", handle, &memory_v2);
    REQUIRE_EQUAL(total, memory_v2.total);
    REQUIRE_EQUAL(free, memory_v2.free);
    memory_v2.version = 1;
    RETURNS(MISMATCH, "nvmlDeviceGetMemoryInfo_v2", handle, &memory_v2);
    NVML("nvmlDeviceGetIndex", handle, &number);
    REQUIRE_EQUAL(index, (int)number);
}

/* Requires zeros, that is, no fabric, in each version of the struct, and nothing after its end. */
static void require_no_fabric(Handle handle) {
    const unsigned versions[] = {0, 36 | 2 << 24, 40 | 3 << 24};
    const size_t sizes[] = {28, 36, 40};
    REQUIRE_EQUAL(sizes[2], sizeof(Fabric));
    for (int number = 0; number < 3; number++) {
        Fabric info[2], expected[2];
        memset(info, 0xff, sizeof info);
        memset(expected, 0xff, sizeof expected);
        if (number == 0) {
            NVML("nvmlDeviceGetGpuFabricInfo", handle, info);
            unsigned char *bytes = (unsigned char *)info;
            for (int i = 0; i < 25; i++)
                REQUIRE_EQUAL(0, bytes[i]);
        } else {
            info->version = versions[number];
            NVML("nvmlDeviceGetGpuFabricInfoV", handle, info);
            REQUIRE_EQUAL(versions[number], info->version);
            for (int i = 0; i < 16; i++)
                REQUIRE_EQUAL(0, info->uuid[i]);
            REQUIRE(info->status == 0 && info->clique == 0 && info->state == 0 && info->health_mask == 0);
            REQUIRE_EQUAL(number == 2 ? 0 : 0xff, info->health_summary);
        }
        REQUIRE(memcmp((char *)info + sizes[number], (char *)expected + sizes[number], sizeof info - sizes[number]) == 0);
    }
    Fabric info = {.version = 1};
    RETURNS(MISMATCH, "nvmlDeviceGetGpuFabricInfoV", handle, &info);
    RETURNS(INVALID_ARGUMENT, "nvmlDeviceGetGpuFabricInfoV", handle, NULL);
    RETURNS(INVALID_ARGUMENT, "nvmlDeviceGetGpuFabricInfo", handle, NULL);
    RETURNS(INVALID_ARGUMENT, "nvmlDeviceGetGpuFabricInfo", NULL, &info);
}

static void require_processes(int index, unsigned expected, unsigned long long used) {
    Process process = {0, 0, 0, 0};
    unsigned count = 1;
    NVML("nvmlDeviceGetComputeRunningProcesses_v3", handle_of(index), &count, &process);
    REQUIRE_EQUAL(expected, count);
    REQUIRE(count == 0 || process.pid == (unsigned)getpid());
    REQUIRE_EQUAL(used, process.used);
    count = 0;
    RETURNS(expected ? INSUFFICIENT_SIZE : 0, "nvmlDeviceGetComputeRunningProcesses", handle_of(index), &count, NULL);
    REQUIRE_EQUAL(expected, count);
}

int main(void) {
    int devices = 0, status = -1, can = 0;
    unsigned count = 0;
    void *memory;
    char text[96];
    open_library("libnvidia-ml.so.1");
    RETURNS(UNINITIALIZED, "nvmlShutdown");
    RETURNS(UNINITIALIZED, "nvmlDeviceGetCount_v2", &count);
    RETURNS(UNINITIALIZED, "nvmlDeviceGetMigMode", NULL, &count, &count);
    RETURNS(UNINITIALIZED, "nvmlDeviceGetGpuFabricInfo", NULL, text);
    NVML("nvmlInit_v2");
    NVML("nvmlInitWithFlags", 0);
    NVML("nvmlShutdown");
    NVML("nvmlDeviceGetCount_v2", &count);
    handle_of(0);
    require_processes(0, 0, 0);

    /* CUDA has not been initialized. */
    pid_t child = fork();
    if (child == 0) {
        CUDA(cudaGetDeviceCount(&devices));
        _exit(devices == (int)count ? 0 : 1);
    }
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);

    CUDA(cudaGetDeviceCount(&devices));
    REQUIRE_EQUAL(devices, (int)count);
    CUDA(cudaMalloc(&memory, 1 << 20));
    for (int index = 0; index < devices; index++)
        compare(index);
    require_no_fabric(handle_of(0));
    require_processes(0, 1, 1 << 20);
    require_processes(1, 0, 0);
    CUDA(cudaFree(memory));

    Handle none = NULL, first = handle_of(0), second = handle_of(1);
    RETURNS(INVALID_ARGUMENT, "nvmlDeviceGetHandleByIndex_v2", devices, &none);
    RETURNS(INVALID_ARGUMENT, "nvmlDeviceGetName", none, text, 96u);
    RETURNS(INVALID_ARGUMENT, "nvmlDeviceGetHandleByIndex_v2", 0, NULL);
    RETURNS(NOT_FOUND, "nvmlDeviceGetHandleByUUID", "GPU-0", &none);
    RETURNS(NOT_FOUND, "nvmlDeviceGetHandleByPciBusId_v2", "0001:01:00.0", &none);
    RETURNS(NOT_SUPPORTED, "nvmlDeviceGetMigMode", first, &count, &count);
    RETURNS(NOT_SUPPORTED, "nvmlDeviceGetUtilizationRates", first, text);
    /* Reads, writes, NVLink. */
    const int expected[] = {0, 0, 5};
    for (int capability = 0; capability < 3; capability++) {
        NVML("nvmlDeviceGetP2PStatus", first, second, capability, &status);
        REQUIRE_EQUAL(expected[capability], status);
    }
    CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
    REQUIRE(can);
    NVML("nvmlSystemGetCudaDriverVersion_v2", &status);
    CUDA(cudaDriverGetVersion(&devices));
    REQUIRE_EQUAL(devices, status);
    NVML("nvmlShutdown");
    RETURNS(UNINITIALIZED, "nvmlDeviceGetName", first, text, 96u);
    puts("ok: the devices are CUDA's");
    return 0;
}
