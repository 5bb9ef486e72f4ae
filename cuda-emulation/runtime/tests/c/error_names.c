/* Prints the names of all errors. */

#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    for (int code = -1; code <= 10001; code++) {
        const char *name = cudaGetErrorName((cudaError_t)code);
        if (strcmp(name, cudaGetErrorName((cudaError_t)12345)) != 0)
            printf("%d %s\n", code, name);
    }
    return 0;
}
