/* One process, a thread for each device: a step of work is captured in a graph, and replayed with new data. */

#include "check.h"
#include "cuda_check.h"
#include "threads.h"

#include <sched.h>

enum { DEVICES = 4, COUNT = 20011, ROUNDS = 10 };

/* The work of a rank on its device. */
typedef struct {
    ncclComm_t comm;
    cudaStream_t stream, other;
    cudaEvent_t fork, join;
    int64_t *host, *back, *device, *reduced, *received;
} Work;

static void require_capture(cudaStream_t stream, enum cudaStreamCaptureStatus expected, size_t nodes) {
    enum cudaStreamCaptureStatus status, same;
    unsigned long long id = 0;
    cudaGraph_t graph = NULL;
    const cudaGraphNode_t *last = NULL;
    size_t count = 0;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges = NULL;
    CUDA(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &last, &edges, &count));
#else
    CUDA(cudaStreamGetCaptureInfo_v2(stream, &status, &id, &graph, &last, &count));
#endif
    CUDA(cudaStreamIsCapturing(stream, &same));
    REQUIRE_EQUAL(expected, status);
    REQUIRE_EQUAL(expected, same);
    REQUIRE_EQUAL(nodes, count);
    REQUIRE((id != 0) == (expected != cudaStreamCaptureStatusNone));
    REQUIRE((graph != NULL) == (expected == cudaStreamCaptureStatusActive));
}

/* Copies numbers to the device, sums them over the ranks, passes the sum on to the next rank on another stream, and copies
   what came back. */
static void enqueue_step(const Rank *me, const Work *work) {
    const size_t bytes = COUNT * sizeof *work->host;
    const int next = (me->rank + 1) % DEVICES, previous = (me->rank + DEVICES - 1) % DEVICES;
    CUDA(cudaMemcpyAsync(work->device, work->host, bytes, cudaMemcpyHostToDevice, work->stream));
    CHECK(ncclAllReduce(work->device, work->reduced, COUNT, ncclInt64, ncclSum, work->comm, work->stream));
    CUDA(cudaEventRecord(work->fork, work->stream));
    CUDA(cudaStreamWaitEvent(work->other, work->fork, 0));
    CUDA(cudaMemsetAsync(work->device, 0xff, bytes, work->other));
    CHECK(ncclGroupStart());
    CHECK(ncclSend(work->reduced, COUNT, ncclInt64, next, work->comm, work->stream));
    CHECK(ncclRecv(work->received, COUNT, ncclInt64, previous, work->comm, work->stream));
    CHECK(ncclGroupEnd());
    CUDA(cudaEventRecord(work->join, work->other));
    CUDA(cudaStreamWaitEvent(work->stream, work->join, 0));
    CUDA(cudaMemcpyAsync(work->back, work->received, bytes, cudaMemcpyDeviceToHost, work->stream));
}

/* Destroys a user object: sets an int, on a thread of CUDA's. */
static void CUDART_CB destroy(void *is_destroyed) {
    __atomic_store_n((int *)is_destroyed, 1, __ATOMIC_SEQ_CST);
}

static void *rank_main(void *argument) {
    const Rank *me = argument;
    Work work;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    cudaUserObject_t object;
    int is_destroyed = 0;
    size_t nodes = 0;
    CUDA(cudaSetDevice(me->rank));
    CHECK(ncclCommInitRank(&work.comm, me->ranks, me->id, me->rank));
    CUDA(cudaStreamCreateWithFlags(&work.stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&work.other, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&work.fork, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&work.join, cudaEventDisableTiming));
    CUDA(cudaMallocHost((void **)&work.host, COUNT * sizeof *work.host));
    CUDA(cudaMallocHost((void **)&work.back, COUNT * sizeof *work.back));
    CUDA(cudaMalloc((void **)&work.device, COUNT * sizeof *work.device));
    CUDA(cudaMalloc((void **)&work.reduced, COUNT * sizeof *work.reduced));
    CUDA(cudaMalloc((void **)&work.received, COUNT * sizeof *work.received));

    /* Other threads allocate meanwhile, which a global capture would forbid them. */
    require_capture(work.stream, cudaStreamCaptureStatusNone, 0);
    CUDA(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal));
    require_capture(work.stream, cudaStreamCaptureStatusActive, 0);
    enqueue_step(me, &work);
    require_capture(work.stream, cudaStreamCaptureStatusActive, 1);
    require_capture(work.other, cudaStreamCaptureStatusActive, 1);
    CUDA(cudaStreamEndCapture(work.stream, &graph));
    require_capture(work.other, cudaStreamCaptureStatusNone, 0);
    CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
    REQUIRE(nodes >= 5);
    CUDA_FAILS(cudaErrorInvalidValue, cudaUserObjectCreate(&object, &is_destroyed, destroy, 1, 0));
    CUDA(cudaUserObjectCreate(&object, &is_destroyed, destroy, 2, cudaUserObjectNoDestructorSync));
    CUDA(cudaUserObjectRetain(object, 1));
    CUDA(cudaUserObjectRelease(object, 2));
    CUDA(cudaGraphRetainUserObject(graph, object, 1, 0));
    CUDA(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    CUDA(cudaGraphReleaseUserObject(graph, object, 1));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphUpload(executable, work.stream));

    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++)
            work.host[i] = (int64_t)me->rank * 1000003 + round * 17 + i;
        if (round % 3 == 2)
            enqueue_step(me, &work); /* Not captured: between launches. */
        else
            CUDA(cudaGraphLaunch(executable, work.stream));
        CUDA(cudaStreamSynchronize(work.stream));
        for (int i = 0; i < COUNT; i++)
            REQUIRE_EQUAL((int64_t)DEVICES * (DEVICES - 1) / 2 * 1000003 + DEVICES * (round * 17 + i), work.back[i]);
    }

    /* A wait makes a capture fail. */
    CUDA(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeRelaxed));
    CUDA_FAILS(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(work.stream));
    require_capture(work.stream, cudaStreamCaptureStatusInvalidated, 0);
    CUDA_FAILS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(work.stream, &graph));
    REQUIRE(graph == NULL);

    REQUIRE(!__atomic_load_n(&is_destroyed, __ATOMIC_SEQ_CST));
    CUDA(cudaGraphExecDestroy(executable));
    while (!__atomic_load_n(&is_destroyed, __ATOMIC_SEQ_CST))
        sched_yield();
    CHECK(ncclCommFinalize(work.comm));
    CHECK(ncclCommDestroy(work.comm));
    CUDA(cudaEventDestroy(work.fork));
    CUDA(cudaEventDestroy(work.join));
    CUDA(cudaStreamDestroy(work.stream));
    CUDA(cudaStreamDestroy(work.other));
    CUDA(cudaFree(work.device));
    CUDA(cudaFree(work.reduced));
    CUDA(cudaFree(work.received));
    CUDA(cudaFreeHost(work.host));
    CUDA(cudaFreeHost(work.back));
    return NULL;
}

int main(void) {
    on_threads(DEVICES, rank_main);
    puts("ok: graphs of each device");
    return 0;
}
