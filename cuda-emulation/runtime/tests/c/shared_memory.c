/* Memory and events of one process in another: by handles of CUDA's runtime, and by file descriptors of the driver. */

#include "driver.h"

#include <cuda.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* A length that shares its pages with others here, and one that does not. */
enum { SHORT = 1000, LONG = 1 << 20, LENGTHS = 2 };
static const size_t lengths[LENGTHS] = {SHORT, LONG};

/* The exporter's first message. */
struct handles {
    cudaIpcMemHandle_t memory[LENGTHS];
    cudaIpcEventHandle_t filled, never, destroyed;
};

#define SEND(to, value) REQUIRE_EQUAL((ssize_t)sizeof(value), write(to, &(value), sizeof(value)))
#define RECEIVE(from, value) REQUIRE_EQUAL((ssize_t)sizeof(value), read(from, &(value), sizeof(value)))

static void next(int peer) {
    char byte = 1;
    SEND(peer, byte);
}

static void await(int peer) {
    char byte;
    RECEIVE(peer, byte);
}

/* Sends or receives a file descriptor. */
static int pass_file(int peer, int file) {
    char byte = 0, room[CMSG_SPACE(sizeof file)] = {0};
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (file >= 0) {
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &file, sizeof file);
        REQUIRE_EQUAL(1, sendmsg(peer, &message, 0));
    } else {
        REQUIRE_EQUAL(1, recvmsg(peer, &message, 0));
        memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    }
    return file;
}

static void sleep_a_while(void *unused) {
    (void)unused;
    usleep(100000);
}

static void sleep_for_ever(void *unused) {
    (void)unused;
    for (;;)
        pause();
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t size) {
    CUdeviceptr address = 0;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRIVER(cuMemAddressReserve, &address, size, 0, 0, 0);
    DRIVER(cuMemMap, address, size, 0, handle, 0);
    DRIVER(cuMemSetAccess, address, size, &access, 1);
    return address;
}

static void export(int peer) {
    struct handles handles;
    int32_t *memory[LENGTHS], *host = malloc(LONG * sizeof *host), number = 0;
    REQUIRE(host != NULL);
    cudaStream_t stream;
    cudaEvent_t filled, never, destroyed, plain;
    CUDA(cudaSetDevice(1));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming | cudaEventInterprocess));
    CUDA(cudaEventCreateWithFlags(&never, cudaEventDisableTiming | cudaEventInterprocess));
    CUDA(cudaEventCreateWithFlags(&destroyed, cudaEventDisableTiming | cudaEventInterprocess));
    CUDA(cudaEventCreate(&plain));
    CUDA_FAILS(cudaErrorInvalidResourceHandle, cudaIpcGetEventHandle(&handles.filled, plain));
    CUDA(cudaLaunchHostFunc(stream, sleep_a_while, NULL));
    for (int i = 0; i < LENGTHS; i++) {
        CUDA(cudaMalloc((void **)&memory[i], lengths[i] * sizeof *host));
        CUDA(cudaMemsetAsync(memory[i], i + 1, lengths[i] * sizeof *host, stream));
        CUDA(cudaIpcGetMemHandle(&handles.memory[i], memory[i]));
        void *opened;
        CUDA_FAILS(cudaErrorDeviceUninitialized, cudaIpcOpenMemHandle(&opened, handles.memory[i], cudaIpcMemLazyEnablePeerAccess));
    }
    CUDA(cudaEventRecord(filled, stream));
    CUDA(cudaIpcGetEventHandle(&handles.filled, filled));
    CUDA(cudaIpcGetEventHandle(&handles.never, never));
    CUDA(cudaEventRecord(destroyed, stream));
    CUDA(cudaIpcGetEventHandle(&handles.destroyed, destroyed));
    CUDA(cudaEventDestroy(destroyed));
    SEND(peer, handles);

    /* The importer has written, and recorded the event. */
    await(peer);
    CUDA(cudaStreamWaitEvent(stream, filled, 0));
    for (int i = 0; i < LENGTHS; i++) {
        CUDA(cudaMemcpyAsync(host, memory[i], lengths[i] * sizeof *host, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        for (size_t k = 0; k < lengths[i]; k++)
            REQUIRE_EQUAL(0x07070707, host[k]);
    }

    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
    };
    CUmemGenericAllocationHandle handle;
    size_t size;
    int file;
    DRIVER(cuMemGetAllocationGranularity, &size, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    DRIVER(cuMemCreate, &handle, size, &properties, 0);
    CUdeviceptr mapped = map(handle, size);
    DRIVER(cuMemExportToShareableHandle, &file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    number = 41;
    TO_DEVICE((void *)mapped, &number, 1);
    pass_file(peer, file);
    await(peer);
    TO_HOST(&number, (void *)mapped, 1);
    REQUIRE_EQUAL(42, number);

    /* CUDA's contract: the importer closes memory before the exporter frees it. */
    await(peer);
    CUDA(cudaFree(memory[0]));
    CUDA(cudaLaunchHostFunc(stream, sleep_for_ever, NULL));
    CUDA(cudaEventRecord(never, stream));
    next(peer);
    await(peer);
    _exit(0);
}

static void import(int peer) {
    struct handles handles;
    int32_t *memory[LENGTHS], *host = malloc(LONG * sizeof *host), number = 0;
    REQUIRE(host != NULL);
    void *again = NULL;
    cudaEvent_t filled, never, destroyed;
    cudaStream_t stream;
    RECEIVE(peer, handles);
    CUDA(cudaSetDevice(1));
    CUDA(cudaStreamCreate(&stream));
    size_t before, after, total;
    CUDA(cudaMemGetInfo(&before, &total));
    CUDA(cudaIpcOpenEventHandle(&filled, handles.filled));
    CUDA(cudaIpcOpenEventHandle(&never, handles.never));
    CUDA(cudaIpcOpenEventHandle(&destroyed, handles.destroyed));
    CUDA(cudaEventSynchronize(never));
    CUDA_NOT_READY(cudaEventQuery(filled));
    CUDA_NOT_READY(cudaEventQuery(destroyed));
    CUDA(cudaStreamWaitEvent(stream, filled, 0));
    for (int i = 0; i < LENGTHS; i++) {
        cudaIpcMemHandle_t garbage = handles.memory[i];
        memset(&garbage, 3, sizeof garbage);
        CUDA_FAILS(cudaErrorInvalidValue, cudaIpcOpenMemHandle(&again, garbage, cudaIpcMemLazyEnablePeerAccess));
        CUDA_FAILS(cudaErrorInvalidValue, cudaIpcOpenMemHandle(&again, handles.memory[i], 0));
        CUDA(cudaIpcOpenMemHandle((void **)&memory[i], handles.memory[i], cudaIpcMemLazyEnablePeerAccess));
        CUDA(cudaIpcOpenMemHandle(&again, handles.memory[i], cudaIpcMemLazyEnablePeerAccess));
        REQUIRE(again == memory[i]);
        CUDA(cudaIpcCloseMemHandle(again));
        struct cudaPointerAttributes attributes;
        CUDA(cudaPointerGetAttributes(&attributes, memory[i] + lengths[i] - 1));
        REQUIRE_EQUAL(cudaMemoryTypeDevice, attributes.type);
        REQUIRE_EQUAL(1, attributes.device);
        CUDA_FAILS(cudaErrorInvalidValue, cudaFree(memory[i]));
        CUDA_FAILS(cudaErrorInvalidValue, cudaMemset(memory[i], 0, lengths[i] * sizeof *host + 1));
        CUDA(cudaMemcpyAsync(host, memory[i], lengths[i] * sizeof *host, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        for (size_t k = 0; k < lengths[i]; k++)
            REQUIRE_EQUAL(0x01010101 * (i + 1), host[k]);
        CUDA(cudaMemsetAsync(memory[i], 7, lengths[i] * sizeof *host, stream));
    }
    CUDA(cudaEventQuery(filled));
    CUDA(cudaEventSynchronize(destroyed));
    CUDA(cudaMemGetInfo(&after, &total));
    REQUIRE_EQUAL(before, after);
    CUDA(cudaEventRecord(filled, stream));
    next(peer);

    CUmemGenericAllocationHandle handle;
    int file = pass_file(peer, -1);
    DRIVER(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(file);
    CUdeviceptr mapped = map(handle, 2 << 20);
    TO_HOST(&number, (void *)mapped, 1);
    REQUIRE_EQUAL(41, number);
    number = 42;
    TO_DEVICE((void *)mapped, &number, 1);
    CUDA(cudaDeviceSynchronize());
    next(peer);

    CUDA(cudaIpcCloseMemHandle(memory[0]));
    CUDA_FAILS(cudaErrorInvalidValue, cudaIpcCloseMemHandle(memory[0]));
    next(peer);

    /* The short memory is freed, and the event will never be complete. */
    await(peer);
    CUDA_FAILS(cudaErrorMapBufferObjectFailed, cudaIpcOpenMemHandle(&again, handles.memory[0], cudaIpcMemLazyEnablePeerAccess));
    CUDA_NOT_READY(cudaEventQuery(never));
    CUDA(cudaStreamWaitEvent(stream, never, 0));
    CUDA_NOT_READY(cudaStreamQuery(stream));
    next(peer);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaEventSynchronize(never));
    TO_HOST(host, memory[1], 1);
    REQUIRE_EQUAL(0x07070707, host[0]);
    CUDA(cudaIpcCloseMemHandle(memory[1]));
    CUDA_FAILS(cudaErrorMapBufferObjectFailed, cudaIpcOpenMemHandle(&again, handles.memory[1], cudaIpcMemLazyEnablePeerAccess));
    CUDA_FAILS(cudaErrorMapBufferObjectFailed, cudaIpcOpenEventHandle(&filled, handles.filled));
    exit(0);
}

int main(void) {
    int peers[2], status;
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, peers) == 0);
    void (*const run[2])(int) = {export, import};
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        REQUIRE(children[i] >= 0);
        if (children[i] == 0) {
            close(peers[1 - i]);
            run[i](peers[i]);
        }
    }
    close(peers[0]);
    close(peers[1]);
    for (int i = 0; i < 2; i++) {
        REQUIRE(waitpid(children[i], &status, 0) == children[i]);
        REQUIRE_EQUAL(0, status);
    }
    puts("ok: shared memory");
    return 0;
}
