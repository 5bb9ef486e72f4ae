/* `caller <single | group> <calls>`: a C program's all_reduce, with which the others are compared. */
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

/* Visible to the library, so that the compiler has to read them for each call; as in the Rust callers. */
struct {
    const float *send;
    float *recv;
    size_t count;
    ncclComm_t comm;
    cudaStream_t stream;
} arguments;

static ncclResult_t all_reduce(void) {
    return ncclAllReduce(arguments.send, arguments.recv, arguments.count, ncclFloat32, ncclSum, arguments.comm,
                         arguments.stream);
}

static int single(long calls) {
    for (; calls > 0; calls--) {
        if (all_reduce() != ncclSuccess) return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

static int group(long calls) {
    for (; calls > 0; calls--) {
        if (ncclGroupStart() != ncclSuccess) return EXIT_FAILURE;
        if (all_reduce() != ncclSuccess) return EXIT_FAILURE;
        if (ncclGroupEnd() != ncclSuccess) return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    static float send[4], recv[4];
    if (argc != 3) return EXIT_FAILURE;
    arguments.send = send;
    arguments.recv = recv;
    arguments.count = 4;
    if (ncclCommInitAll(&arguments.comm, 1, NULL) != ncclSuccess) return EXIT_FAILURE;
    return (strcmp(argv[1], "group") == 0 ? group : single)(atol(argv[2]));
}
