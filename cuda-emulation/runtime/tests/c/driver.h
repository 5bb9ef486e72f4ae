/* Calls of the driver, which the program is not linked with. */
#ifndef DRIVER_H
#define DRIVER_H

#include "cuda_check.h"

#include <cuda.h>
#include <dlfcn.h>

/* Calls a function, and requires success. */
#define DRIVER(name, ...) REQUIRE_EQUAL(CUDA_SUCCESS, ((__typeof__(&name))find(#name))(__VA_ARGS__))

static void *find(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(library != NULL);
    void *function = dlsym(library, name);
    REQUIRE(function != NULL);
    return function;
}

#endif
