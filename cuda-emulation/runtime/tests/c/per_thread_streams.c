/* A program in which the null stream is the thread's own, as with nvcc's option --default-stream per-thread. */
#define CUDA_API_PER_THREAD_DEFAULT_STREAM

#include "cuda_check.h"
#include "gate.h"

enum { COUNT = 1000 };

static void *other_thread(void *unused) {
    (void)unused;
    int32_t host[COUNT], *device = NULL;
    CUDA(cudaMalloc((void **)&device, sizeof host));
    for (int i = 0; i < COUNT; i++)
        host[i] = i;
    TO_DEVICE(device, host, COUNT);
    CUDA(cudaMemsetAsync(device, 0, sizeof *host, 0));
    CUDA(cudaStreamSynchronize(0));
    CUDA(cudaStreamQuery(0));
    TO_HOST(host, device, COUNT);
    REQUIRE_EQUAL(0, host[0]);
    REQUIRE_EQUAL(COUNT - 1, host[COUNT - 1]);
    return device;
}

int main(void) {
    Gate gate = CLOSED_GATE;
    cudaEvent_t event = NULL;
    CUDA(cudaEventCreate(&event));
    CUDA(cudaLaunchHostFunc(0, wait_for_gate, &gate));
    CUDA(cudaEventRecord(event, 0));
    CUDA_NOT_READY(cudaStreamQuery(0));
    CUDA_NOT_READY(cudaStreamQuery(cudaStreamPerThread));
    /* It completes although this thread's stream is blocked. */
    pthread_t thread;
    void *device = NULL;
    REQUIRE_EQUAL(0, pthread_create(&thread, NULL, other_thread, NULL));
    REQUIRE_EQUAL(0, pthread_join(thread, &device));
    CUDA_NOT_READY(cudaEventQuery(event));
    open_gate(&gate);
    CUDA(cudaEventSynchronize(event));
    CUDA(cudaStreamSynchronize(0));
    CUDA(cudaFree(device));
    CUDA(cudaEventDestroy(event));
    puts("ok: default streams of threads");
    return 0;
}
