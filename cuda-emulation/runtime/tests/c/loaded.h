/* Calls of a library that is loaded, without its headers. */
#ifndef LOADED_H
#define LOADED_H

#include "cuda_check.h"

#include <dlfcn.h>

static void *library;

/* Calls a function by its name, with these arguments, and requires a result. */
#define RETURNS(expected, name, ...) \
    do { \
        union { \
            void *found; \
            int (*call)(); \
        } function_ = {dlsym(library, name)}; \
        REQUIRE(function_.found != NULL); \
        int result_ = function_.call(__VA_ARGS__); \
        if (result_ != (expected)) \
            FAIL("%s(%s): %d, expected %d", name, #__VA_ARGS__, result_, (int)(expected)); \
    } while (0)

static void open_library(const char *name) {
    library = dlopen(name, RTLD_NOW);
    if (library == NULL)
        FAIL("%s", dlerror());
}

#endif
