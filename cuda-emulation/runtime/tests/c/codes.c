/* Prints the results of invalid and premature CUDA calls, and the thread's last error after each:
 *
 *     group, case: result, last error
 *
 * Each group runs in a separate process. codes.txt is the output on a GPU: an H200 with driver 580.159.04 (CUDA 13.0),
 * linked with NVIDIA's runtime library 13.0. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *name;

static void say(const char *what, cudaError_t result) {
    cudaError_t last = cudaGetLastError();
    printf("%s, %s: %d, %d\n", name, what, (int)result, (int)last);
    fflush(stdout);
}

static void *driver(const char *function) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *found = library ? dlsym(library, function) : NULL;
    if (!found) {
        printf("%s: no %s\n", name, function);
        exit(1);
    }
    return found;
}

/* ---- functions of the driver */

static void entry_point(const char *function, unsigned version) {
    void *found = (void *)1;
    enum cudaDriverEntryPointQueryResult status = (enum cudaDriverEntryPointQueryResult)9;
    cudaError_t result = cudaGetDriverEntryPointByVersion(function, &found, version, cudaEnableDefault, &status);
    char what[120];
    snprintf(what, sizeof what, "%s %u (%s, status %d)", function, version, found == NULL ? "null" : found == (void *)1 ? "kept" : "found", (int)status);
    say(what, result);
}

static void driver_entry_points(void) {
    entry_point("cuNoSuchFunction", 12000);
    entry_point("cuMemAlloc", 12000);
    entry_point("cuMemAlloc", 1000);
    entry_point("cuMemAddressReserve", 12000);
    entry_point("cuMemAddressReserve", 9000);
    entry_point("cuStreamWriteValue32", 12000);
    entry_point("cuMulticastCreate", 12010);
    entry_point("", 12000);
    void *found;
    say("without a status", cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &found, 12000, cudaEnableDefault, NULL));
    int known;
    say("release of the driver", cudaDriverGetVersion(&known));
    say("of the driver's release", cudaGetDriverEntryPointByVersion("cuInit", &found, (unsigned)known, cudaEnableDefault, NULL));
    say("beyond the driver's release", cudaGetDriverEntryPointByVersion("cuInit", &found, (unsigned)known + 10, cudaEnableDefault, NULL));
    say("of no release", cudaGetDriverEntryPointByVersion("cuInit", &found, 0, cudaEnableDefault, NULL));
    say("of flags 64", cudaGetDriverEntryPointByVersion("cuInit", &found, 12000, 64, NULL));
}

static void procedures(void) {
    CUresult (*get)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) = driver("cuGetProcAddress_v2");
    const struct { const char *function; int version; cuuint64_t flags; } cases[] = {
        {"cuNoSuchFunction", 12000, 0}, {"cuInit", 12000, 0}, {"cuMemAlloc", 1000, 0}, {"cuMemAlloc", 2000, 0},
        {"cuMemAlloc", 99000, 0}, {"cuMemAlloc_v2", 12000, 0}, {"cuStreamSynchronize", 12000, 2}, {"cuInit", 12000, 64}, {"", 12000, 0},
        {"cuInit", 0, 0}, {"cuInit", -1, 0}, {"cuInit", 1999, 0}, {"cuInit", 12000, 1}, {"cuInit", 12000, 2}, {"cuInit", 12000, 3},
        {"cuGetProcAddress_v2", 12000, 0}, {"cuCtxGetDevice", 2000, 0}, {"cuStreamGetCaptureInfo", 10000, 0}, {"cuUserObjectCreate", 12000, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *found = (void *)1;
        CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)9;
        CUresult result = get(cases[i].function, &found, cases[i].version, cases[i].flags, &status);
        char what[120];
        snprintf(what, sizeof what, "%s %d flags %d (%s, status %d)", cases[i].function, cases[i].version, (int)cases[i].flags,
                 found == NULL ? "null" : found == (void *)1 ? "kept" : "found", (int)status);
        say(what, (cudaError_t)result);
    }
    void *found = (void *)1;
    say("without a status", (cudaError_t)get("cuNoSuchFunction", &found, 12000, 0, NULL));
}

/* ---- devices */

static void devices(void) {
    struct cudaDeviceProp properties;
    int value;
    say("set 99", cudaSetDevice(99));
    say("set -1", cudaSetDevice(-1));
    say("properties of 99", cudaGetDeviceProperties(&properties, 99));
    say("attribute 9999", cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)9999, 0));
    say("attribute of 99", cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 99));
    say("attribute to null", cudaDeviceGetAttribute(NULL, cudaDevAttrWarpSize, 0));
    say("count to null", cudaGetDeviceCount(NULL));
    say("device to null", cudaGetDevice(NULL));
    say("by garbage", cudaDeviceGetByPCIBusId(&value, "garbage"));
    char id[32];
    say("pci id in 3 bytes", cudaDeviceGetPCIBusId(id, 3, 0));
    say("pci id in 12 bytes", cudaDeviceGetPCIBusId(id, 12, 0));
    say("pci id in 13 bytes", cudaDeviceGetPCIBusId(id, 13, 0));
    say("by another id", cudaDeviceGetByPCIBusId(&value, "0000:fe:1d.0"));
    say("by null", cudaDeviceGetByPCIBusId(&value, NULL));
    say("pci id in 0 bytes", cudaDeviceGetPCIBusId(id, 0, 0));
    say("peer of itself", cudaDeviceCanAccessPeer(&value, 0, 0));
    say("peer 99", cudaDeviceCanAccessPeer(&value, 0, 99));
    say("enable itself", cudaDeviceEnablePeerAccess(0, 0));
    say("enable 99", cudaDeviceEnablePeerAccess(99, 0));
    say("disable itself", cudaDeviceDisablePeerAccess(0));
    say("flags 1234", cudaSetDeviceFlags(1234));
    size_t bytes;
    say("memory to null", cudaMemGetInfo(NULL, NULL));
    say("limit 99", cudaDeviceGetLimit(&bytes, (enum cudaLimit)99));
    say("limit to null", cudaDeviceGetLimit(NULL, cudaLimitStackSize));
    say("set limit 99", cudaDeviceSetLimit((enum cudaLimit)99, 1));
    say("cache 99", cudaDeviceSetCacheConfig((enum cudaFuncCache)99));
    say("priorities to null", cudaDeviceGetStreamPriorityRange(NULL, NULL));
    say("p2p attribute of itself", cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, 0));
    say("p2p attribute 99", cudaDeviceGetP2PAttribute(&value, (enum cudaDeviceP2PAttr)99, 0, 0));
    say("init 99", cudaInitDevice(99, 0, 0));
    say("flags to null", cudaGetDeviceFlags(NULL));
    say("valid devices null", cudaSetValidDevices(NULL, 0));
    say("driver version to null", cudaDriverGetVersion(NULL));
    say("runtime version to null", cudaRuntimeGetVersion(NULL));
}

/* ---- memory */

static void allocations(void) {
    void *pointer = NULL;
    say("too much", cudaMalloc(&pointer, (size_t)1 << 50));
    say("nothing", cudaMalloc(&pointer, 0));
    say(pointer == NULL ? "nothing is null" : "nothing is something", cudaSuccess);
    say("to null", cudaMalloc(NULL, 8));
    say("free null", cudaFree(NULL));
    say("free host", cudaFree(&pointer));
    void *memory;
    say("malloc", cudaMalloc(&memory, 1024));
    say("free inside", cudaFree((char *)memory + 512));
    say("free", cudaFree(memory));
    say("free twice", cudaFree(memory));
    say("host too much", cudaMallocHost(&pointer, (size_t)1 << 50));
    say("host nothing", cudaMallocHost(&pointer, 0));
    say("free host null", cudaFreeHost(NULL));
    say("free host of the stack", cudaFreeHost(&pointer));
    say("host flags 1234", cudaHostAlloc(&pointer, 64, 1234));
    say("managed flags 1234", cudaMallocManaged(&pointer, 64, 1234));
    say("managed nothing", cudaMallocManaged(&pointer, 0, cudaMemAttachGlobal));
    say(pointer == NULL ? "managed nothing is null" : "managed nothing is something", cudaSuccess);
    size_t pitch;
    say("pitch nothing", cudaMallocPitch(&pointer, &pitch, 0, 4));
    say("pitch to null", cudaMallocPitch(NULL, &pitch, 4, 4));
    say("pitch without", cudaMallocPitch(&pointer, NULL, 4, 4));
}

static void registrations(void) {
    char *page = NULL;
    if (posix_memalign((void **)&page, 4096, 16384)) exit(1);
    void *device = NULL;
    unsigned flags;
    say("device pointer of unregistered", cudaHostGetDevicePointer(&device, page, 0));
    say("flags of unregistered", cudaHostGetFlags(&flags, page));
    say("unregister unregistered", cudaHostUnregister(page));
    say("nothing", cudaHostRegister(page, 0, cudaHostRegisterDefault));
    say("null", cudaHostRegister(NULL, 4096, cudaHostRegisterDefault));
    say("flags 1234", cudaHostRegister(page, 4096, 1234));
    say("first", cudaHostRegister(page, 8192, cudaHostRegisterDefault));
    say("twice", cudaHostRegister(page, 8192, cudaHostRegisterDefault));
    say("overlap", cudaHostRegister(page + 4096, 8192, cudaHostRegisterDefault));
    say("device pointer with flags", cudaHostGetDevicePointer(&device, page, 1));
    say("device pointer inside", cudaHostGetDevicePointer(&device, page + 100, 0));
    say("unregister inside", cudaHostUnregister(page + 4096));
    say("free registered", cudaFreeHost(page));
    say("unregister", cudaHostUnregister(page));
    say("unregister twice", cudaHostUnregister(page));
}

static void attributes(void) {
    struct cudaPointerAttributes found;
    int local = 0;
    say("of the stack", cudaPointerGetAttributes(&found, &local));
    printf("attributes: type %d, device %d\n", (int)found.type, found.device);
    say("of null", cudaPointerGetAttributes(&found, NULL));
    printf("attributes: type %d, device %d\n", (int)found.type, found.device);
    say("to null", cudaPointerGetAttributes(NULL, &local));
    void *memory, *freed;
    say("malloc", cudaMalloc(&memory, 4096));
    say("of device memory", cudaPointerGetAttributes(&found, memory));
    printf("attributes: type %d, device %d\n", (int)found.type, found.device);
    say("malloc", cudaMalloc(&freed, (size_t)64 << 20));
    say("free", cudaFree(freed));
    say("of freed memory", cudaPointerGetAttributes(&found, freed));
    printf("attributes: type %d, device %d\n", (int)found.type, found.device);
    say("pinned", cudaMallocHost(&freed, 4096));
    say("of pinned memory", cudaPointerGetAttributes(&found, freed));
    printf("attributes: type %d, device %d\n", (int)found.type, found.device);
    say("managed", cudaMallocManaged(&freed, 4096, cudaMemAttachGlobal));
    say("of managed memory", cudaPointerGetAttributes(&found, freed));
    printf("attributes: type %d, device %d\n", (int)found.type, found.device);
    cudaIpcMemHandle_t handle;
    say("ipc of the stack", cudaIpcGetMemHandle(&handle, &local));
    say("ipc of null", cudaIpcGetMemHandle(&handle, NULL));
    memset(&handle, 7, sizeof handle);
    say("open garbage", cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
    say("close unopened", cudaIpcCloseMemHandle(&local));
}

static void copies(void) {
    char host[64] = {0};
    void *memory;
    say("malloc", cudaMalloc(&memory, 64));
    say("kind 99", cudaMemcpy(memory, host, 64, (enum cudaMemcpyKind)99));
    say("kind 99 of nothing", cudaMemcpy(memory, host, 0, (enum cudaMemcpyKind)99));
    say("of nothing", cudaMemcpy(NULL, NULL, 0, cudaMemcpyDefault));
    say("from null", cudaMemcpy(memory, NULL, 64, cudaMemcpyHostToDevice));
    say("to null", cudaMemcpy(NULL, host, 64, cudaMemcpyHostToDevice));
    say("kind the other way", cudaMemcpy(memory, host, 64, cudaMemcpyDeviceToHost));
    say("kind host to host", cudaMemcpy(host + 32, host, 32, cudaMemcpyHostToHost));
    say("device to device of the stack", cudaMemcpy(host + 32, host, 32, cudaMemcpyDeviceToDevice));
    say("memset of the stack", cudaMemset(host, 1, 64));
    say("memset of null", cudaMemset(NULL, 1, 64));
    say("memset of null, nothing", cudaMemset(NULL, 1, 0));
    say("2d pitch too small", cudaMemcpy2D(memory, 4, host, 8, 8, 2, cudaMemcpyHostToDevice));
    say("2d of nothing", cudaMemcpy2D(memory, 8, host, 8, 0, 2, cudaMemcpyHostToDevice));
    say("2d of null and nothing", cudaMemcpy2D(NULL, 8, NULL, 8, 0, 0, cudaMemcpyHostToDevice));
    say("2d from a pitch too small", cudaMemcpy2D(memory, 8, host, 4, 8, 2, cudaMemcpyHostToDevice));
    say("memset 2d pitch too small", cudaMemset2D(memory, 4, 0, 8, 2));
    say("peer to 99", cudaMemcpyPeer(memory, 99, memory, 0, 8));
    say("async to a garbage stream of null", cudaMemcpyAsync(memory, host, 0, cudaMemcpyHostToDevice, NULL));
}

static void beyond(void) {
    char host[1 << 16] = {0};
    void *memory;
    say("malloc", cudaMalloc(&memory, 64));
    say("4 GiB to 64 bytes", cudaMemset(memory, 0, (size_t)4 << 30));
    say("sync", cudaDeviceSynchronize());
    say("copy 65536 of 64 bytes", cudaMemcpy(host, memory, sizeof host, cudaMemcpyDeviceToHost));
}

/* ---- streams and events */

static void sleep_on(void *microseconds) { usleep((useconds_t)(size_t)microseconds); }

static void streams(void) {
    cudaStream_t stream;
    say("flags 99", cudaStreamCreateWithFlags(&stream, 99));
    say("to null", cudaStreamCreate(NULL));
    say("priority 99", cudaStreamCreateWithPriority(&stream, 0, 99));
    int value;
    say("priority of it", cudaStreamGetPriority(stream, &value));
    say("query of a thread's default", cudaStreamQuery(cudaStreamPerThread));
    say("priority to null", cudaStreamGetPriority(stream, NULL));
    say("flags to null", cudaStreamGetFlags(stream, NULL));
    say("destroy the thread's default", cudaStreamDestroy(cudaStreamPerThread));
    say("destroy default", cudaStreamDestroy(NULL));
    say("destroy legacy", cudaStreamDestroy(cudaStreamLegacy));
    say("create", cudaStreamCreate(&stream));
    say("host function null", cudaLaunchHostFunc(stream, NULL, NULL));
    say("wait for null", cudaStreamWaitEvent(stream, NULL, 0));
    say("enqueue", cudaLaunchHostFunc(stream, sleep_on, (void *)300000));
    say("query busy", cudaStreamQuery(stream));
    say("peek", cudaPeekAtLastError());
    cudaEvent_t event;
    say("event", cudaEventCreate(&event));
    say("record", cudaEventRecord(event, stream));
    say("query busy event", cudaEventQuery(event));
    say("query busy, nothing read between", cudaStreamQuery(stream));
    say("synchronize", cudaStreamSynchronize(stream));
    say("query idle", cudaStreamQuery(stream));
    say("callback null", cudaStreamAddCallback(stream, NULL, NULL, 0));
    say("wait flags 99", cudaStreamWaitEvent(stream, event, 99));
    say("callback flags 1", cudaStreamAddCallback(stream, NULL, NULL, 1));
    say("attach", cudaStreamAttachMemAsync(stream, NULL, 0, 99));
    unsigned flags;
    say("flags of it", cudaStreamGetFlags(stream, &flags));
    say("flags of the default", cudaStreamGetFlags(NULL, &flags));
    say("destroy", cudaStreamDestroy(stream));
}

static void events(void) {
    cudaEvent_t event, other, untimed;
    float time;
    say("flags 99", cudaEventCreateWithFlags(&event, 99));
    say("to null", cudaEventCreate(NULL));
    say("interprocess with times", cudaEventCreateWithFlags(&event, cudaEventInterprocess));
    say("create", cudaEventCreate(&event));
    say("create", cudaEventCreate(&other));
    say("create untimed", cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    say("query unrecorded", cudaEventQuery(event));
    say("synchronize unrecorded", cudaEventSynchronize(event));
    say("query null", cudaEventQuery(NULL));
    say("synchronize null", cudaEventSynchronize(NULL));
    say("elapsed of null", cudaEventElapsedTime(&time, NULL, NULL));
    say("elapsed to null", cudaEventElapsedTime(NULL, event, other));
    say("wait for unrecorded", cudaStreamWaitEvent(NULL, event, 0));
    say("elapsed of unrecorded", cudaEventElapsedTime(&time, event, other));
    say("record", cudaEventRecord(event, NULL));
    say("elapsed of one unrecorded", cudaEventElapsedTime(&time, event, other));
    say("record", cudaEventRecord(untimed, NULL));
    say("synchronize", cudaDeviceSynchronize());
    say("elapsed of untimed", cudaEventElapsedTime(&time, event, untimed));
    cudaStream_t stream;
    say("stream", cudaStreamCreate(&stream));
    say("enqueue", cudaLaunchHostFunc(stream, sleep_on, (void *)200000));
    say("record", cudaEventRecord(other, stream));
    say("elapsed of busy", cudaEventElapsedTime(&time, event, other));
    say("destroy busy", cudaEventDestroy(other));
    say("destroy null", cudaEventDestroy(NULL));
    say("record flags 99", cudaEventRecordWithFlags(event, NULL, 99));
    say("record null", cudaEventRecord(NULL, NULL));
    cudaIpcEventHandle_t handle;
    say("ipc of a plain event", cudaIpcGetEventHandle(&handle, event));
    say("synchronize", cudaDeviceSynchronize());
}

static cudaError_t inside[6];

static void call_cuda(void *stream) {
    void *memory;
    inside[0] = cudaMalloc(&memory, 8);
    inside[1] = cudaDeviceSynchronize();
    inside[2] = cudaStreamSynchronize(stream);
    inside[3] = cudaStreamQuery(stream);
    inside[4] = cudaGetLastError();
    int count;
    inside[5] = cudaGetDeviceCount(&count);
}

static void host_functions(void) {
    cudaStream_t stream;
    say("stream", cudaStreamCreate(&stream));
    say("enqueue", cudaLaunchHostFunc(stream, call_cuda, stream));
    say("synchronize", cudaStreamSynchronize(stream));
    for (int i = 0; i < 6; i++) {
        char what[20];
        snprintf(what, sizeof what, "inside %d", i);
        say(what, inside[i]);
    }
}

/* ---- captures and graphs */

static void captures(void) {
    cudaStream_t stream, other;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable;
    enum cudaStreamCaptureStatus status;
    void *memory, *more;
    say("malloc", cudaMalloc(&memory, 64));
    say("streams", cudaStreamCreate(&stream));
    say("streams", cudaStreamCreate(&other));
    say("begin on default", cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal));
    say("end without", cudaStreamEndCapture(stream, &graph));
    say("mode 99", cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)99));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("begin twice", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("memset", cudaMemsetAsync(memory, 1, 64, stream));
    say("malloc relaxed", cudaMalloc(&more, 64));
    say("destroy captured", cudaSuccess);
    say("end", cudaStreamEndCapture(stream, &graph));
    say("instantiate", cudaGraphInstantiate(&executable, graph, 0));
    say("launch", cudaGraphLaunch(executable, stream));
    say("launch null", cudaGraphLaunch(NULL, stream));
    say("instantiate null", cudaGraphInstantiate(&executable, NULL, 0));
    say("destroy null", cudaGraphDestroy(NULL));
    say("destroy executable null", cudaGraphExecDestroy(NULL));
    say("synchronize", cudaDeviceSynchronize());
    say("begin global", cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    say("malloc", cudaMalloc(&more, 64));
    say("status", cudaStreamIsCapturing(stream, &status));
    printf("captures: status %d\n", (int)status);
    say("memset in a failed capture", cudaMemsetAsync(memory, 1, 64, stream));
    say("end", cudaStreamEndCapture(stream, &graph));
    printf("captures: graph %s\n", graph ? "some" : "none");
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    say("synchronize captured", cudaStreamSynchronize(stream));
    say("end", cudaStreamEndCapture(stream, &graph));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    say("query captured", cudaStreamQuery(stream));
    say("status", cudaStreamIsCapturing(stream, &status));
    printf("captures: status %d\n", (int)status);
    say("end", cudaStreamEndCapture(stream, &graph));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("default stream meanwhile", cudaMemsetAsync(memory, 1, 64, NULL));
    say("is the default capturing", cudaStreamIsCapturing(NULL, &status));
    say("end", cudaStreamEndCapture(stream, &graph));
    say("upload null", cudaGraphUpload(NULL, stream));
    size_t count;
    say("nodes of null", cudaGraphGetNodes(NULL, NULL, &count));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("callback captured", cudaStreamAddCallback(stream, NULL, NULL, 0));
    say("host function null captured", cudaLaunchHostFunc(stream, NULL, NULL));
    say("synchronize the device", cudaDeviceSynchronize());
    say("end", cudaStreamEndCapture(stream, &graph));
    say("begin thread local", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    say("free", cudaFree(more));
    say("end", cudaStreamEndCapture(stream, &graph));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("end to null", cudaStreamEndCapture(stream, NULL));
    say("end", cudaStreamEndCapture(stream, &graph));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("copy from pageable memory", cudaMemcpyAsync(memory, &count, 8, cudaMemcpyHostToDevice, stream));
    say("malloc in stream order", cudaMallocAsync(&more, 64, stream));
    say("end", cudaStreamEndCapture(stream, &graph));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("empty", cudaStreamEndCapture(stream, &graph));
    say("instantiate empty", cudaGraphInstantiate(&executable, graph, 0));
    say("launch empty", cudaGraphLaunch(executable, stream));
    say("instantiate flags 999", cudaGraphInstantiate(&executable, graph, 99999));
    say("begin global", cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    say("launch in a capture", cudaGraphLaunch(executable, stream));
    say("query another stream", cudaStreamQuery(other));
    say("end", cudaStreamEndCapture(stream, &graph));
    cudaEvent_t event;
    say("event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    say("begin global", cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    say("query an event from outside", cudaEventQuery(event));
    say("wait for an event from outside", cudaStreamWaitEvent(stream, event, 0));
    say("end", cudaStreamEndCapture(stream, &graph));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("record", cudaEventRecord(event, stream));
    say("query captured event", cudaEventQuery(event));
    say("end", cudaStreamEndCapture(stream, &graph));
    say("begin", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    say("record", cudaEventRecord(event, stream));
    say("fork", cudaStreamWaitEvent(other, event, 0));
    say("memset", cudaMemsetAsync(memory, 1, 64, other));
    say("end on the fork", cudaStreamEndCapture(other, &graph));
    say("end unjoined", cudaStreamEndCapture(stream, &graph));
}

/* ---- threads and kernels */

static void *in_another_thread(void *unused) {
    say("seen by another thread", cudaSuccess);
    (void)cudaSetDevice(99);
    return unused;
}

static void threads(void) {
    (void)cudaSetDevice(99);
    pthread_t thread;
    if (pthread_create(&thread, NULL, in_another_thread, NULL) || pthread_join(thread, NULL)) exit(1);
    say("seen by the first", cudaSuccess);
    (void)cudaSetDevice(99);
    say("after a success", cudaFree(NULL));
    (void)cudaSetDevice(99);
    (void)cudaMalloc(NULL, 8);
    say("after two", cudaSuccess);
    (void)cudaSetDevice(99);
    say("peeked", cudaPeekAtLastError());
    struct cudaFuncAttributes attributes;
    dim3 one = {1, 1, 1};
    say("attributes of a function", cudaFuncGetAttributes(&attributes, (const void *)in_another_thread));
    say("launch of a function", cudaLaunchKernel((const void *)in_another_thread, one, one, NULL, 0, NULL));
    say("reset", cudaDeviceReset());
    say("after a reset", cudaFree(NULL));
}

/* ---- the driver's own results */

#define TEXT(token) #token
#define DRIVER(function, ...) ((cudaError_t)((__typeof__(&function))driver(TEXT(function)))(__VA_ARGS__))

static void driver_calls(void) {
    CUdeviceptr memory = 0;
    CUcontext context;
    CUstream stream;
    CUevent event;
    CUdevice device;
    int value = 0, local = 0;
    char text[64];
    void *pointer;
    size_t size;
    say("init 1", DRIVER(cuInit, 1));
    say("device 99", DRIVER(cuDeviceGet, &device, 99));
    say("device -1", DRIVER(cuDeviceGet, &device, -1));
    say("name in 1 byte", DRIVER(cuDeviceGetName, text, 1, 0));
    say("name of 99", DRIVER(cuDeviceGetName, text, 64, 99));
    say("attribute 9999", DRIVER(cuDeviceGetAttribute, &value, (CUdevice_attribute)9999, 0));
    say("by garbage", DRIVER(cuDeviceGetByPCIBusId, &device, "garbage"));
    say("by another id", DRIVER(cuDeviceGetByPCIBusId, &device, "0000:fe:1d.0"));
    say("pci id in 3 bytes", DRIVER(cuDeviceGetPCIBusId, text, 3, 0));
    say("pci id in 13 bytes", DRIVER(cuDeviceGetPCIBusId, text, 13, 0));
    say("alloc nothing", DRIVER(cuMemAlloc, &memory, 0));
    say("alloc too much", DRIVER(cuMemAlloc, &memory, (size_t)1 << 50));
    say("alloc", DRIVER(cuMemAlloc, &memory, 4096));
    say("free null", DRIVER(cuMemFree, 0));
    say("free inside", DRIVER(cuMemFree, memory + 8));
    say("host nothing", DRIVER(cuMemHostAlloc, &pointer, 0, 0));
    say("host flags 99", DRIVER(cuMemHostAlloc, &pointer, 64, 99));
    say("free host null", DRIVER(cuMemFreeHost, NULL));
    say("free host of the stack", DRIVER(cuMemFreeHost, &local));
    say("managed nothing", DRIVER(cuMemAllocManaged, &memory, 0, CU_MEM_ATTACH_GLOBAL));
    say("managed flags 9", DRIVER(cuMemAllocManaged, &memory, 64, 9));
    say("alloc", DRIVER(cuMemAlloc, &memory, 4096));
    say("range of the stack", DRIVER(cuMemGetAddressRange, &memory, &size, (CUdeviceptr)&local));
    say("alloc", DRIVER(cuMemAlloc, &memory, 4096));
    say("attribute of the stack", DRIVER(cuPointerGetAttribute, &value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&local));
    say("attribute 999 of memory", DRIVER(cuPointerGetAttribute, &value, (CUpointer_attribute)999, memory));
    say("memset of nothing", DRIVER(cuMemsetD8, 0, 0, 0));
    say("memset of null", DRIVER(cuMemsetD8, 0, 0, 8));
    say("memset unaligned", DRIVER(cuMemsetD32, memory + 1, 0, 8));
    say("memset beyond", DRIVER(cuMemsetD8, memory, 0, (size_t)1 << 40));
    say("copy from null", DRIVER(cuMemcpyHtoD, memory, NULL, 8));
    say("copy of nothing", DRIVER(cuMemcpyHtoD, 0, NULL, 0));
    say("stream flags 9", DRIVER(cuStreamCreate, &stream, 9));
    say("stream", DRIVER(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING));
    say("host function null", DRIVER(cuLaunchHostFunc, stream, NULL, NULL));
    say("event flags 99", DRIVER(cuEventCreate, &event, 99));
    say("event interprocess with times", DRIVER(cuEventCreate, &event, CU_EVENT_INTERPROCESS));
    say("event", DRIVER(cuEventCreate, &event, 0));
    say("synchronize unrecorded", DRIVER(cuEventSynchronize, event));
    say("wait for null", DRIVER(cuStreamWaitEvent, stream, NULL, 0));
    say("record null", DRIVER(cuEventRecord, NULL, stream));
    say("destroy null stream", DRIVER(cuStreamDestroy, NULL));
    say("destroy null event", DRIVER(cuEventDestroy, NULL));
    say("launch null", DRIVER(cuLaunchKernel, NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    say("module of garbage", DRIVER(cuModuleLoadData, (CUmodule *)&pointer, "garbage"));
    say("module of no file", DRIVER(cuModuleLoad, (CUmodule *)&pointer, "/nowhere"));
    say("register nothing", DRIVER(cuMemHostRegister, &local, 0, 0));
    say("unregister the stack", DRIVER(cuMemHostUnregister, &local));
    say("limit 99", DRIVER(cuCtxGetLimit, &size, (CUlimit)99));
    say("enable peer null", DRIVER(cuCtxEnablePeerAccess, NULL, 0));
    say("current", DRIVER(cuCtxGetCurrent, &context));
    say("enable peer itself", DRIVER(cuCtxEnablePeerAccess, context, 0));
    say("disable peer itself", DRIVER(cuCtxDisablePeerAccess, context));
    say("flags of the primary", DRIVER(cuDevicePrimaryCtxSetFlags, 0, 99));
    say("none current", DRIVER(cuCtxSetCurrent, NULL));
    say("alloc without a context", DRIVER(cuMemAlloc, &memory, 64));
    say("stream without a context", DRIVER(cuStreamCreate, &stream, 0));
    say("synchronize without a context", DRIVER(cuCtxSynchronize));
    say("device without a context", DRIVER(cuCtxGetDevice, &device));
    say("pop nothing", DRIVER(cuCtxPopCurrent, &context));
    say("pop nothing again", DRIVER(cuCtxPopCurrent, &context));
    say("the runtime makes one current again", cudaFree(NULL));
    say("alloc after that", DRIVER(cuMemAlloc, &memory, 64));
    const char *string = "kept";
    say("string of 12345", DRIVER(cuGetErrorString, (CUresult)12345, &string));
    printf("%s: string %s\n", name, string ? string : "null");
}

/* ---- after a fault */

/* A kernel that stops. */
static const char trap[] = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry stop() { trap; }\n";

/* Makes the context unusable, and returns the error of its calls from then on: with a kernel, or, where there are none, with a
 * race that LIBNCCL_CPU_RACES=error makes an error. */
static cudaError_t fault(void) {
    CUmodule module;
    CUfunction function;
    if (DRIVER(cuModuleLoadData, &module, trap) == cudaSuccess) {
        (void)DRIVER(cuModuleGetFunction, &function, module, "stop");
        (void)DRIVER(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    } else {
        cudaStream_t first, second;
        void *memory;
        (void)cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
        (void)cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
        (void)cudaMalloc(&memory, 64);
        (void)cudaMemsetAsync(memory, 1, 64, first);
        (void)cudaMemsetAsync(memory, 2, 64, second);
    }
    return cudaDeviceSynchronize();
}

static cudaError_t faulty;

/* Prints the error of the fault, which differs, as 999999. */
static void after(const char *what, cudaError_t result) {
    cudaError_t last = cudaGetLastError();
    int same = 999999;
    printf("%s, %s: %d, %d\n", name, what, result == faulty ? same : (int)result, last == faulty ? same : (int)last);
    fflush(stdout);
}

static void after_a_fault(void) {
    void *memory, *pinned, *other;
    cudaStream_t stream, another;
    cudaEvent_t event, late;
    int value;
    size_t free_bytes, bytes;
    struct cudaPointerAttributes attributes;
    struct cudaDeviceProp properties;
    CUcontext context;
    CUdevice device;
    CUdeviceptr address;
    (void)cudaMalloc(&memory, 64);
    (void)cudaMallocHost(&pinned, 64);
    (void)cudaStreamCreate(&stream);
    (void)cudaEventCreate(&event);
    (void)cudaEventRecord(event, stream);
    (void)cudaStreamSynchronize(stream);
    faulty = fault();
    printf("%s: %s\n", name, faulty == cudaSuccess ? "none" : "there is one");
    after("last error", cudaPeekAtLastError());
    after("last error again", cudaPeekAtLastError());
    after("synchronize", cudaDeviceSynchronize());
    after("synchronize a stream", cudaStreamSynchronize(stream));
    after("query a stream", cudaStreamQuery(stream));
    after("query an event of before", cudaEventQuery(event));
    after("synchronize an event of before", cudaEventSynchronize(event));
    after("record", cudaEventRecord(event, stream));
    after("event", cudaEventCreate(&late));
    after("stream", cudaStreamCreate(&another));
    after("malloc", cudaMalloc(&other, 64));
    after("malloc host", cudaMallocHost(&other, 64));
    after("memset", cudaMemset(memory, 0, 64));
    after("memset asynchronously", cudaMemsetAsync(memory, 0, 64, NULL));
    after("copy", cudaMemcpy(pinned, memory, 64, cudaMemcpyDeviceToHost));
    after("copy of the host", cudaMemcpy(pinned, &bytes, 8, cudaMemcpyHostToHost));
    after("host function", cudaLaunchHostFunc(NULL, sleep_on, NULL));
    after("attributes", cudaPointerGetAttributes(&attributes, memory));
    after("memory info", cudaMemGetInfo(&free_bytes, &bytes));
    after("count", cudaGetDeviceCount(&value));
    after("device", cudaGetDevice(&value));
    after("set device", cudaSetDevice(0));
    after("properties", cudaGetDeviceProperties(&properties, 0));
    after("attribute", cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 0));
    after("wrong device", cudaSetDevice(99));
    after("null pointer", cudaMalloc(NULL, 64));
    after("driver version", cudaDriverGetVersion(&value));
    after("capture status", cudaStreamIsCapturing(NULL, &(enum cudaStreamCaptureStatus){cudaStreamCaptureStatusNone}));
    after("begin a capture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    after("destroy an event", cudaEventDestroy(event));
    after("destroy a stream", cudaStreamDestroy(stream));
    after("free host", cudaFreeHost(pinned));
    after("free", cudaFree(memory));
    after("free null", cudaFree(NULL));
    after("driver: current", DRIVER(cuCtxGetCurrent, &context));
    after("driver: set current", DRIVER(cuCtxSetCurrent, context));
    after("driver: synchronize", DRIVER(cuCtxSynchronize));
    after("driver: device", DRIVER(cuCtxGetDevice, &device));
    after("driver: alloc", DRIVER(cuMemAlloc, &address, 64));
    after("driver: query the default stream", DRIVER(cuStreamQuery, NULL));
    after("driver: range", DRIVER(cuMemGetAddressRange, &address, &bytes, (CUdeviceptr)memory));
    after("driver: free", DRIVER(cuMemFree, (CUdeviceptr)memory));
    after("reset", cudaDeviceReset());
    after("after a reset", cudaFree(NULL));
    after("malloc after a reset", cudaMalloc(&memory, 64));
    after("synchronize after a reset", cudaDeviceSynchronize());
}

/* ---- an old way to find functions */

static void first_version(void) {
    CUresult (*get)(const char *, void **, int, cuuint64_t) = driver("cuGetProcAddress");
    void *found = (void *)1;
    say("no such function", (cudaError_t)get("cuNoSuchFunction", &found, 12000, 0));
    printf("%s: %s\n", name, found == NULL ? "null" : found == (void *)1 ? "kept" : "found");
    found = (void *)1;
    say("too old", (cudaError_t)get("cuInit", &found, 1000, 0));
    printf("%s: %s\n", name, found == NULL ? "null" : found == (void *)1 ? "kept" : "found");
    say("found", (cudaError_t)get("cuInit", &found, 12000, 0));
}

/* ---- names */

static void names(void) {
    const int codes[] = {0, 1, 2, 34, 36, 46, 71, 100, 101, 201, 209, 400, 500, 600, 700, 710, 719, 800, 801, 900, 907, 911, 999, 1000, 12345, -1};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        printf("names: %d is %s\n", codes[i], cudaGetErrorName((cudaError_t)codes[i]));
    CUresult (*get)(CUresult, const char **) = driver("cuGetErrorName");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        const char *text = "kept";
        CUresult result = get((CUresult)codes[i], &text);
        printf("names: %d of the driver is %s, %d\n", codes[i], text ? text : "null", (int)result);
    }
}

/* ---- pools */

static void pools(void) {
    cudaMemPool_t pool;
    void *memory;
    cudaStream_t stream;
    say("stream", cudaStreamCreate(&stream));
    say("of 99", cudaDeviceGetDefaultMemPool(&pool, 99));
    say("of 0", cudaDeviceGetDefaultMemPool(&pool, 0));
    say("destroy default", cudaMemPoolDestroy(pool));
    int value;
    say("attribute 99", cudaMemPoolGetAttribute(pool, (enum cudaMemPoolAttr)99, &value));
    say("attribute to null", cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, NULL));
    say("too much", cudaMallocAsync(&memory, (size_t)1 << 50, stream));
    say("nothing", cudaMallocAsync(&memory, 0, stream));
    say("malloc", cudaMallocAsync(&memory, 64, stream));
    say("free", cudaFreeAsync(memory, stream));
    say("free twice", cudaFreeAsync(memory, stream));
    say("free null", cudaFreeAsync(NULL, stream));
    say("free host", cudaFreeAsync(&value, stream));
    say("malloc", cudaMallocAsync(&memory, 64, stream));
    (void)cudaStreamSynchronize(stream);
    say("free synchronously", cudaFree(memory));
    cudaMemPool_t made;
    say("create of null", cudaMemPoolCreate(&made, NULL));
    say("set null", cudaDeviceSetMemPool(0, NULL));
    say("access null", cudaMemPoolSetAccess(pool, NULL, 0));
    say("trim", cudaMemPoolTrimTo(pool, 0));
    say("trim null", cudaMemPoolTrimTo(NULL, 0));
    say("null pool", cudaMallocFromPoolAsync(&memory, 64, NULL, stream));
}

int main(void) {
    const struct { const char *name; void (*run)(void); } cases[] = {
        {"entry", driver_entry_points}, {"procedures", procedures}, {"devices", devices},
        {"allocations", allocations}, {"registrations", registrations}, {"attributes", attributes},
        {"copies", copies}, {"beyond", beyond}, {"streams", streams}, {"events", events},
        {"host functions", host_functions}, {"captures", captures}, {"names", names},
        {"threads", threads}, {"driver", driver_calls},
        {"after a fault", after_a_fault}, {"first version", first_version}, {"pools", pools},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pid_t child = fork();
        if (child == 0) {
            name = cases[i].name;
            say("start", cudaFree(NULL));
            cases[i].run();
            fflush(stdout);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child) return 1;
        if (status) printf("%s: ended with %#x\n", cases[i].name, status);
        fflush(stdout);
    }
    return 0;
}
