/* The runtime API without NCCL: devices, memory, copies, streams, events, graphs, functions of the host, and errors. */

#include "cuda_check.h"
#include "gate.h"

enum { COUNT = 100003, BYTES = COUNT * (int)sizeof(int32_t) };

static void fill(int32_t *numbers, int32_t first) {
    for (int i = 0; i < COUNT; i++)
        numbers[i] = first + i;
}

static void require_filled(const int32_t *numbers, int32_t first) {
    for (int i = 0; i < COUNT; i++)
        REQUIRE_EQUAL(first + i, numbers[i]);
}

static void versions(void) {
    int version = 0;
    CUDA(cudaRuntimeGetVersion(&version));
    REQUIRE_EQUAL(CUDART_VERSION / 1000, version / 1000);
    CUDA(cudaDriverGetVersion(&version));
    REQUIRE(version >= 12000);
    CUDA_FAILS(cudaErrorInvalidValue, cudaRuntimeGetVersion(NULL));
}

static void devices(void) {
    int count = 0, device = -1, value = 0, other = -1;
    CUDA(cudaGetDeviceCount(&count));
    REQUIRE_EQUAL(4, count);
    CUDA(cudaGetDevice(&device));
    REQUIRE_EQUAL(0, device);
    CUDA(cudaSetDevice(3));
    CUDA(cudaGetDevice(&device));
    REQUIRE_EQUAL(3, device);
    CUDA_FAILS(cudaErrorInvalidDevice, cudaSetDevice(count));
    CUDA_FAILS(cudaErrorInvalidDevice, cudaSetDevice(-1));
    CUDA(cudaGetDevice(&device));
    REQUIRE_EQUAL(3, device);
    CUDA(cudaSetDevice(0));

    for (device = 0; device < count; device++) {
        /* Garbage around the struct shows whether exactly the struct is written. */
        struct { struct cudaDeviceProp properties; unsigned char after[64]; } memory;
        memset(&memory, 0x5a, sizeof memory);
        CUDA(cudaGetDeviceProperties(&memory.properties, device));
        for (size_t i = 0; i < sizeof memory.after; i++)
            REQUIRE_EQUAL(0x5a, memory.after[i]);
        REQUIRE(memchr(memory.properties.name, 0, sizeof memory.properties.name) != NULL);
        REQUIRE(memory.properties.name[0] != 0);
        REQUIRE(strstr(memory.properties.name, "NVIDIA") == NULL);
        REQUIRE(memory.properties.totalGlobalMem > 0);
        REQUIRE_EQUAL(1, memory.properties.unifiedAddressing);
        const struct { enum cudaDeviceAttr attribute; long long property; } same[] = {
            {cudaDevAttrComputeCapabilityMajor, memory.properties.major},
            {cudaDevAttrComputeCapabilityMinor, memory.properties.minor},
            {cudaDevAttrMultiProcessorCount, memory.properties.multiProcessorCount},
            {cudaDevAttrWarpSize, memory.properties.warpSize},
            {cudaDevAttrPciBusId, memory.properties.pciBusID},
            {cudaDevAttrMaxThreadsPerBlock, memory.properties.maxThreadsPerBlock},
            {cudaDevAttrMaxGridDimZ, memory.properties.maxGridSize[2]},
            {cudaDevAttrMemoryPoolsSupported, memory.properties.memoryPoolsSupported},
            {cudaDevAttrManagedMemory, memory.properties.managedMemory},
        };
        for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
            CUDA(cudaDeviceGetAttribute(&value, same[i].attribute, device));
            REQUIRE_EQUAL(value, same[i].property);
        }
        char id[32] = "";
        CUDA(cudaDeviceGetPCIBusId(id, sizeof id, device));
        CUDA(cudaDeviceGetByPCIBusId(&other, id));
        REQUIRE_EQUAL(device, other);
    }
    struct cudaDeviceProp properties;
    CUDA_FAILS(cudaErrorInvalidDevice, cudaGetDeviceProperties(&properties, count));

    CUDA(cudaDeviceCanAccessPeer(&value, 0, 1));
    REQUIRE_EQUAL(1, value);
    CUDA(cudaDeviceEnablePeerAccess(1, 0));
    CUDA_FAILS(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
    CUDA(cudaDeviceDisablePeerAccess(1));
    CUDA_FAILS(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
    int least = 0, greatest = 0;
    CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    REQUIRE(greatest <= least);
    size_t free = 0, total = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    REQUIRE(free > 0);
    REQUIRE(free <= total);
}

static void *device_of_thread(void *unused) {
    (void)unused;
    int device = -1;
    CUDA(cudaGetDevice(&device));
    REQUIRE_EQUAL(0, device);
    /* The other thread's error is not this one's. */
    CUDA(cudaPeekAtLastError());
    CUDA(cudaSetDevice(2));
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, 16));
    struct cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, memory));
    REQUIRE_EQUAL(2, attributes.device);
    CUDA(cudaFree(memory));
    return NULL;
}

static void threads(void) {
    CUDA(cudaSetDevice(1));
    REQUIRE_CUDA(cudaErrorInvalidValue, cudaFree((void *)16));
    pthread_t thread;
    REQUIRE_EQUAL(0, pthread_create(&thread, NULL, device_of_thread, NULL));
    REQUIRE_EQUAL(0, pthread_join(thread, NULL));
    int device = -1;
    CUDA(cudaGetDevice(&device));
    REQUIRE_EQUAL(1, device);
    REQUIRE_CUDA(cudaErrorInvalidValue, cudaGetLastError());
    CUDA(cudaSetDevice(0));
}

static void copies(void) {
    int32_t *host = malloc(BYTES), *back = malloc(BYTES), *device = NULL, *second = NULL;
    REQUIRE(host != NULL);
    REQUIRE(back != NULL);
    CUDA(cudaMalloc((void **)&device, BYTES));
    CUDA(cudaMalloc((void **)&second, BYTES));
    fill(host, 7);
    TO_DEVICE(device, host, COUNT);
    CUDA(cudaMemcpy(second, device, BYTES, cudaMemcpyDeviceToDevice));
    memset(back, 0, BYTES);
    TO_HOST(back, second, COUNT);
    require_filled(back, 7);
    /* The direction from the addresses. */
    fill(host, 70);
    CUDA(cudaMemcpy(device, host, BYTES, cudaMemcpyDefault));
    CUDA(cudaMemcpy(back, device, BYTES, cudaMemcpyDefault));
    require_filled(back, 70);
    fill(host, 71);
    CUDA(cudaMemcpy(back, host, BYTES, cudaMemcpyHostToHost));
    require_filled(back, 71);
    /* A part of an allocation. */
    CUDA(cudaMemset(device, 0xab, BYTES));
    CUDA(cudaMemset((char *)device + 4, 0, 4));
    TO_HOST(back, device, 3);
    REQUIRE_EQUAL((int32_t)0xabababab, back[0]);
    REQUIRE_EQUAL(0, back[1]);
    REQUIRE_EQUAL((int32_t)0xabababab, back[2]);
    CUDA(cudaMemset(device, 1, 0));
    CUDA(cudaMemcpy(device, host, 0, cudaMemcpyHostToDevice));

    CUDA_FAILS(cudaErrorInvalidValue, cudaMemcpy(device, host, BYTES + 1, cudaMemcpyHostToDevice));
    CUDA_FAILS(cudaErrorInvalidMemcpyDirection, cudaMemcpy(device, host, 4, (enum cudaMemcpyKind)9));
    CUDA_FAILS(cudaErrorInvalidValue, cudaMemset(device, 0, BYTES + 1));
    CUDA_FAILS(cudaErrorInvalidValue, cudaFree((char *)device + 4));

    CUDA(cudaFree(device));
    CUDA(cudaFree(second));
    CUDA(cudaFree(NULL));
    CUDA_FAILS(cudaErrorInvalidValue, cudaFree(device));
    CUDA_FAILS(cudaErrorInvalidValue, cudaMalloc(NULL, 4));
    void *nothing = &nothing;
    CUDA(cudaMalloc(&nothing, 0));
    REQUIRE(nothing == NULL);
    CUDA_FAILS(cudaErrorMemoryAllocation, cudaMalloc(&nothing, SIZE_MAX / 2));
    free(host);
    free(back);
}

static void rows(void) {
    enum { WIDTH = 10, HEIGHT = 5, DISTANCE = 16 };
    unsigned char host[HEIGHT][DISTANCE], back[HEIGHT][WIDTH];
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < DISTANCE; x++)
            host[y][x] = (unsigned char)(y * DISTANCE + x);
    void *device = NULL;
    size_t pitch = 0;
    CUDA(cudaMallocPitch(&device, &pitch, WIDTH, HEIGHT));
    REQUIRE(pitch >= WIDTH);
    CUDA(cudaMemcpy2D(device, pitch, host, DISTANCE, WIDTH, HEIGHT, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy2D(back, WIDTH, device, pitch, WIDTH, HEIGHT, cudaMemcpyDeviceToHost));
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            REQUIRE_EQUAL(host[y][x], back[y][x]);
    CUDA(cudaMemset2D(device, pitch, 9, 3, HEIGHT));
    CUDA(cudaMemcpy2DAsync(back, WIDTH, device, pitch, WIDTH, HEIGHT, cudaMemcpyDefault, NULL));
    CUDA(cudaStreamSynchronize(NULL));
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++)
            REQUIRE_EQUAL(x < 3 ? 9 : host[y][x], back[y][x]);
    CUDA_FAILS(cudaErrorInvalidPitchValue,
               cudaMemcpy2D(device, WIDTH - 1, host, DISTANCE, WIDTH, HEIGHT, cudaMemcpyHostToDevice));
    CUDA(cudaFree(device));
}

static void peers(void) {
    int32_t *host = malloc(BYTES), *first = NULL, *second = NULL;
    REQUIRE(host != NULL);
    CUDA(cudaMalloc((void **)&first, BYTES));
    CUDA(cudaSetDevice(1));
    CUDA(cudaMalloc((void **)&second, BYTES));
    fill(host, 3);
    CUDA(cudaSetDevice(0));
    TO_DEVICE(first, host, COUNT);
    CUDA(cudaMemcpyPeer(second, 1, first, 0, BYTES));
    memset(host, 0, BYTES);
    CUDA(cudaSetDevice(1));
    TO_HOST(host, second, COUNT);
    require_filled(host, 3);
    CUDA(cudaFree(second));
    CUDA(cudaSetDevice(0));
    CUDA(cudaFree(first));
    free(host);
}

static void kinds_of_memory(void) {
    struct cudaPointerAttributes attributes;
    int local = 0;
    CUDA(cudaPointerGetAttributes(&attributes, &local));
    REQUIRE_EQUAL(cudaMemoryTypeUnregistered, attributes.type);

    int32_t *pinned = NULL, *mapped = NULL, *managed = NULL, *device = NULL;
    CUDA(cudaMallocHost((void **)&pinned, BYTES));
    CUDA(cudaPointerGetAttributes(&attributes, pinned));
    REQUIRE_EQUAL(cudaMemoryTypeHost, attributes.type);
    REQUIRE(attributes.hostPointer == pinned);
    CUDA(cudaHostAlloc((void **)&mapped, BYTES, cudaHostAllocMapped | cudaHostAllocPortable));
    unsigned int flags = 0;
    CUDA(cudaHostGetFlags(&flags, mapped));
    REQUIRE(flags & cudaHostAllocMapped);
    void *on_device = NULL;
    CUDA(cudaHostGetDevicePointer(&on_device, mapped, 0));
    REQUIRE(on_device != NULL);

    CUDA(cudaMalloc((void **)&device, BYTES));
    CUDA(cudaPointerGetAttributes(&attributes, (char *)device + 5));
    REQUIRE_EQUAL(cudaMemoryTypeDevice, attributes.type);
    REQUIRE_EQUAL(0, attributes.device);
    REQUIRE(attributes.devicePointer == (char *)device + 5);
    REQUIRE(attributes.hostPointer == NULL);

    CUDA(cudaMallocManaged((void **)&managed, BYTES, cudaMemAttachGlobal));
    CUDA(cudaPointerGetAttributes(&attributes, managed));
    REQUIRE_EQUAL(cudaMemoryTypeManaged, attributes.type);
    fill(managed, 11);
    CUDA(cudaMemcpy(device, managed, BYTES, cudaMemcpyDefault));
    CUDA(cudaMemcpy(pinned, device, BYTES, cudaMemcpyDeviceToHost));
    require_filled(pinned, 11);

    int32_t *registered = aligned_alloc(4096, 4096);
    REQUIRE(registered != NULL);
    CUDA(cudaHostRegister(registered, 4096, cudaHostRegisterDefault));
    CUDA(cudaPointerGetAttributes(&attributes, registered));
    REQUIRE_EQUAL(cudaMemoryTypeHost, attributes.type);
    CUDA_FAILS(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(registered, 4096, 0));
    CUDA(cudaHostUnregister(registered));
    CUDA_FAILS(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(registered));
    free(registered);
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFreeHost(mapped));
    CUDA(cudaFree(managed));
    CUDA(cudaFree(device));
}

static void CUDART_CB after(cudaStream_t stream, cudaError_t status, void *data) {
    REQUIRE_CUDA(cudaSuccess, status);
    /* The stream waits for this function, which would wait for the stream. */
    CUDA_FAILS(cudaErrorNotPermitted, cudaDeviceSynchronize());
    CUDA_FAILS(cudaErrorNotPermitted, cudaStreamSynchronize(stream));
    CUDA_FAILS(cudaErrorNotPermitted, cudaDeviceReset());
    ++*(int *)data;
}

static void streams(void) {
    Gate gate = CLOSED_GATE;
    cudaStream_t first = NULL, second = NULL;
    cudaEvent_t event = NULL, end = NULL, quick = NULL;
    int32_t *pinned = NULL, *back = NULL, *device = NULL;
    CUDA(cudaStreamCreate(&first));
    CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&event));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaEventCreateWithFlags(&quick, cudaEventDisableTiming));
    CUDA(cudaMallocHost((void **)&pinned, BYTES));
    CUDA(cudaMallocHost((void **)&back, BYTES));
    CUDA(cudaMalloc((void **)&device, BYTES));
    unsigned int flags = 9;
    CUDA(cudaStreamGetFlags(second, &flags));
    REQUIRE_EQUAL(cudaStreamNonBlocking, flags);

    /* An event that was never recorded is complete. */
    CUDA(cudaEventQuery(event));
    CUDA(cudaStreamWaitEvent(first, event, 0));

    fill(pinned, 5);
    memset(back, 0, BYTES);
    CUDA(cudaLaunchHostFunc(first, wait_for_gate, &gate));
    CUDA(cudaEventRecord(event, first));
    CUDA(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, first));
    CUDA(cudaEventRecord(end, first));
    CUDA(cudaStreamWaitEvent(second, end, 0));
    CUDA(cudaMemcpyAsync(back, device, BYTES, cudaMemcpyDeviceToHost, second));
    int callbacks = 0;
    CUDA(cudaStreamAddCallback(second, after, &callbacks, 0));
    CUDA_NOT_READY(cudaStreamQuery(first));
    CUDA_NOT_READY(cudaStreamQuery(second));
    CUDA_NOT_READY(cudaEventQuery(event));
    float time = -1;
    CUDA_NOT_READY(cudaEventElapsedTime(&time, event, end));
    REQUIRE_EQUAL(0, back[0]);
    open_gate(&gate);
    CUDA(cudaStreamSynchronize(second));
    require_filled(back, 5);
    REQUIRE_EQUAL(1, gate.passed);
    REQUIRE_EQUAL(1, callbacks);
    CUDA(cudaEventSynchronize(end));
    CUDA(cudaStreamQuery(first));
    CUDA(cudaEventElapsedTime(&time, event, end));
    REQUIRE(time >= 0);
    CUDA(cudaEventRecord(quick, first));
    CUDA(cudaEventSynchronize(quick));
    CUDA_FAILS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&time, quick, end));

    /* The default stream waits for blocking streams, and they for it. */
    fill(pinned, 6);
    gate.is_open = 0;
    CUDA(cudaLaunchHostFunc(first, wait_for_gate, &gate));
    CUDA(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, first));
    CUDA(cudaMemcpyAsync(back, device, BYTES, cudaMemcpyDeviceToHost, NULL));
    CUDA_NOT_READY(cudaStreamQuery(NULL));
    CUDA(cudaStreamQuery(second));
    open_gate(&gate);
    CUDA(cudaDeviceSynchronize());
    require_filled(back, 6);

    /* Memory in stream order. */
    int32_t *later = NULL;
    fill(pinned, 8);
    CUDA(cudaMallocAsync((void **)&later, BYTES, first));
    CUDA(cudaMemcpyAsync(later, pinned, BYTES, cudaMemcpyHostToDevice, first));
    CUDA(cudaMemcpyAsync(back, later, BYTES, cudaMemcpyDeviceToHost, first));
    CUDA(cudaFreeAsync(later, first));
    CUDA(cudaStreamSynchronize(first));
    require_filled(back, 8);
    CUDA(cudaMemsetAsync(device, 0x11, BYTES, cudaStreamPerThread));
    CUDA(cudaStreamSynchronize(cudaStreamPerThread));
    TO_HOST(back, device, COUNT);
    REQUIRE_EQUAL(0x11111111, back[COUNT - 1]);

    CUDA(cudaEventDestroy(event));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaEventDestroy(quick));
    CUDA(cudaStreamDestroy(first));
    CUDA(cudaStreamDestroy(second));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFreeHost(back));
}

static void require_capture(cudaStream_t stream, enum cudaStreamCaptureStatus expected, size_t nodes, cudaGraph_t *graph) {
    enum cudaStreamCaptureStatus status, same;
    unsigned long long id = 0;
    const cudaGraphNode_t *last = NULL;
    size_t count = 0;
    *graph = NULL;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges = NULL;
    CUDA(cudaStreamGetCaptureInfo(stream, &status, &id, graph, &last, &edges, &count));
#else
    CUDA(cudaStreamGetCaptureInfo_v2(stream, &status, &id, graph, &last, &count));
#endif
    CUDA(cudaStreamIsCapturing(stream, &same));
    REQUIRE_EQUAL(expected, status);
    REQUIRE_EQUAL(expected, same);
    REQUIRE_EQUAL(nodes, count);
    REQUIRE((id != 0) == (expected != cudaStreamCaptureStatusNone));
    REQUIRE((*graph != NULL) == (expected == cudaStreamCaptureStatusActive));
}

/* Destroys a user object: sets an int, on a thread of CUDA's. */
static void CUDART_CB destroy(void *is_destroyed) {
    __atomic_store_n((int *)is_destroyed, 1, __ATOMIC_SEQ_CST);
}

static void graphs(void) {
    cudaStream_t stream = NULL;
    cudaGraph_t graph = NULL, same = NULL;
    cudaGraphExec_t executable = NULL;
    cudaUserObject_t object;
    int32_t *device = NULL, back = 0;
    int is_destroyed = 0;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&device, BYTES));
    require_capture(stream, cudaStreamCaptureStatusNone, 0, &graph);
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaMemsetAsync(device, 0x11, BYTES, stream));
    require_capture(stream, cudaStreamCaptureStatusActive, 1, &graph);
    CUDA(cudaStreamEndCapture(stream, &same));
    REQUIRE(same == graph);
    CUDA_FAILS(cudaErrorInvalidValue, cudaUserObjectCreate(&object, &is_destroyed, destroy, 1, 0));
    CUDA(cudaUserObjectCreate(&object, &is_destroyed, destroy, 2, cudaUserObjectNoDestructorSync));
    CUDA(cudaUserObjectRetain(object, 1));
    CUDA(cudaUserObjectRelease(object, 2));
    CUDA(cudaGraphRetainUserObject(graph, object, 1, 0));
    CUDA(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    CUDA(cudaGraphReleaseUserObject(graph, object, 1));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphUpload(executable, stream));
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    TO_HOST(&back, device, 1);
    REQUIRE_EQUAL(0x11111111, back);

    REQUIRE(!__atomic_load_n(&is_destroyed, __ATOMIC_SEQ_CST));
    CUDA(cudaGraphExecDestroy(executable));
    while (!__atomic_load_n(&is_destroyed, __ATOMIC_SEQ_CST))
        sched_yield();
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(device));
}

static void not_supported(void) {
    struct cudaFuncAttributes attributes;
    CUDA_FAILS(cudaErrorNotSupported, cudaFuncGetAttributes(&attributes, (const void *)not_supported));
    struct cudaChannelFormatDesc format = cudaCreateChannelDesc(8, 16, 0, 0, cudaChannelFormatKindUnsigned);
    REQUIRE(format.x == 8);
    REQUIRE(format.y == 16);
    REQUIRE(format.z == 0);
    REQUIRE(format.f == cudaChannelFormatKindUnsigned);
    cudaArray_t array = NULL;
    CUDA_FAILS(cudaErrorNotSupported, cudaMallocArray(&array, &format, 4, 4, 0));
}

static void reset(void) {
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, 16));
    CUDA(cudaDeviceReset());
    CUDA_FAILS(cudaErrorInvalidValue, cudaFree(memory));
    CUDA(cudaMalloc(&memory, 16));
    CUDA(cudaMemset(memory, 0, 16));
    CUDA(cudaFree(memory));
}

int main(void) {
    versions();
    devices();
    threads();
    copies();
    rows();
    peers();
    kinds_of_memory();
    streams();
    graphs();
    not_supported();
    reset();
    CUDA(cudaGetLastError());
    puts("ok: the runtime API");
    return 0;
}
