/* Handles of cuBLAS and cuRAND, as programs create them when they open a device. A function that would compute returns an
 * error and is named once. Their headers are not needed. */

#include "loaded.h"

#include <string.h>
#include <unistd.h>

#if CUDART_VERSION >= 13000
#define CUBLAS "libcublas.so.13"
#else
#define CUBLAS "libcublas.so.12"
#endif

enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { PSEUDO_DEFAULT = 100, RAND_NOT_INITIALIZED = 101, TYPE_ERROR = 103, LAUNCH_FAILURE = 201 };

static void blas(cudaStream_t stream) {
    void *handle = NULL, *other = NULL, *workspace = NULL;
    cudaStream_t same = NULL;
    int version = 0, major = 0, value = -1;
    float one = 1;
    open_library(CUBLAS);
    RETURNS(INVALID_VALUE, "cublasCreate_v2", NULL);
    RETURNS(NOT_INITIALIZED, "cublasSetStream_v2", NULL, stream);
    RETURNS(0, "cublasCreate_v2", &handle);
    RETURNS(0, "cublasCreate_v2", &other);
    REQUIRE(handle != NULL && other != NULL && handle != other);
    RETURNS(0, "cublasGetStream_v2", handle, &same);
    REQUIRE(same == NULL);
    RETURNS(0, "cublasSetStream_v2", handle, stream);
    RETURNS(0, "cublasGetStream_v2", handle, &same);
    REQUIRE(same == stream);
    RETURNS(0, "cublasGetStream_v2", other, &same);
    REQUIRE(same == NULL);
    RETURNS(0, "cublasGetVersion_v2", handle, &version);
    RETURNS(0, "cublasGetProperty", 0, &major);
    REQUIRE_EQUAL(CUDART_VERSION / 1000, major);
    REQUIRE_EQUAL(major, version / 10000);
    const char *const settings[][2] = {
        {"cublasSetPointerMode_v2", "cublasGetPointerMode_v2"},
        {"cublasSetMathMode", "cublasGetMathMode"},
        {"cublasSetAtomicsMode", "cublasGetAtomicsMode"},
    };
    for (int i = 0; i < 3; i++) {
        RETURNS(0, settings[i][1], handle, &value);
        REQUIRE_EQUAL(0, value);
        RETURNS(0, settings[i][0], handle, 1);
        RETURNS(0, settings[i][1], handle, &value);
        REQUIRE_EQUAL(1, value);
        RETURNS(INVALID_VALUE, settings[i][1], handle, NULL);
    }
    CUDA(cudaMalloc(&workspace, 1024));
    RETURNS(0, "cublasSetWorkspace_v2", handle, workspace, (size_t)1024);
    CUDA(cudaFree(workspace));
    RETURNS(NOT_SUPPORTED, "cublasSscal_v2", handle, 1, &one, workspace, 1);
    RETURNS(NOT_SUPPORTED, "cublasSscal_v2", handle, 1, &one, workspace, 1);
    RETURNS(NOT_SUPPORTED, "cublasGemmEx_64", handle);
    RETURNS(0, "cublasDestroy_v2", handle);
    RETURNS(NOT_INITIALIZED, "cublasDestroy_v2", handle);
    RETURNS(NOT_INITIALIZED, "cublasSetStream_v2", handle, stream);
    RETURNS(0, "cublasDestroy_v2", other);
}

static void random_numbers(cudaStream_t stream) {
    void *generator = NULL;
    float numbers[2];
    open_library("libcurand.so.10");
    RETURNS(TYPE_ERROR, "curandCreateGenerator", &generator, 7);
    RETURNS(0, "curandCreateGenerator", &generator, PSEUDO_DEFAULT);
    RETURNS(0, "curandSetStream", generator, stream);
    RETURNS(0, "curandSetPseudoRandomGeneratorSeed", generator, 299792458ULL);
    RETURNS(0, "curandSetGeneratorOffset", generator, 1ULL);
    RETURNS(LAUNCH_FAILURE, "curandGenerateUniform", generator, numbers, (size_t)2);
    RETURNS(0, "curandDestroyGenerator", generator);
    RETURNS(RAND_NOT_INITIALIZED, "curandDestroyGenerator", generator);
    RETURNS(RAND_NOT_INITIALIZED, "curandSetStream", generator, stream);
}

int main(void) {
    static const char *const expected =
        "libnccl: the CUDA emulation does not support cublasSscal_v2\n"
        "libnccl: the CUDA emulation does not support cublasGemmEx_64\n"
        "libnccl: the CUDA emulation does not support curandGenerateUniform\n";
    char said[1024] = "";
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    FILE *errors = tmpfile();
    int before = dup(2);
    REQUIRE(errors != NULL && before >= 0 && dup2(fileno(errors), 2) == 2);
    blas(stream);
    random_numbers(stream);
    REQUIRE(dup2(before, 2) == 2);
    rewind(errors);
    size_t length = fread(said, 1, sizeof said - 1, errors);
    if (strcmp(said, expected) != 0)
        FAIL("%zu bytes: %s", length, said);
    CUDA(cudaStreamDestroy(stream));
    puts("ok: handles, and nothing else");
    return 0;
}
