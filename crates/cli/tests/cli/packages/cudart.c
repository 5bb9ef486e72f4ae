// NVIDIA's runtime library: it queries the driver for a function that the emulation lacks.
#include <dlfcn.h>
int cudaGetDeviceCount(int *count) {
    int (*get)(const char *, void **, int, unsigned long) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress");
    void *function;
    return get("cuInit", &function, 12000, 2);
}
