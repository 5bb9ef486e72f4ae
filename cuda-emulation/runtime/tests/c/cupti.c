/* Profiling with NVIDIA's CUPTI, as PyTorch starts it: each call returns an error with a text, and the program
 * continues. CUPTI's header is not needed. */

#include "cuda_check.h"

#include <dlfcn.h>

#if CUDART_VERSION >= 13000
#define LIBRARY "libcupti.so.13"
#else
#define LIBRARY "libcupti.so.12"
#endif

static void *library;

static void *function(const char *name) {
    void *found = dlsym(library, name);
    REQUIRE(found != NULL);
    return found;
}

static void callback(void *data, int domain, uint32_t id, const void *information) {
    (void)data, (void)domain, (void)id, (void)information;
}

static void require_error(const char *name, int result) {
    int (*text_of)(int, const char **) = (int (*)(int, const char **))function("cuptiGetResultString");
    const char *text = NULL;
    if (result == 0 || text_of(result, &text) != 0 || text == NULL)
        FAIL("%s: %d, %s", name, result, text ? text : "without a text");
}

int main(void) {
    enum { CONCURRENT_KERNEL = 10 };
    int devices = 0;
    void *memory = NULL, *subscriber = NULL;
    CUDA(cudaGetDeviceCount(&devices));
    CUDA(cudaMalloc(&memory, 64));
    library = dlopen(LIBRARY, RTLD_NOW);
    if (library == NULL)
        FAIL("%s", dlerror());
    int (*subscribe)(void **, void *, void *) = (int (*)(void **, void *, void *))function("cuptiSubscribe");
    int (*enable)(int) = (int (*)(int))function("cuptiActivityEnable");
    int (*flush)(uint32_t) = (int (*)(uint32_t))function("cuptiActivityFlushAll");
    require_error("cuptiSubscribe", subscribe(&subscriber, (void *)callback, NULL));
    require_error("cuptiActivityEnable", enable(CONCURRENT_KERNEL));
    require_error("cuptiActivityFlushAll", flush(0));
    CUDA(cudaMemset(memory, 1, 64));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(memory));
    puts("ok: CUPTI is refused");
    return 0;
}
