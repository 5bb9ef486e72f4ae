/* A libnccl with few functions, which do nothing. */
#include <nccl.h>

ncclResult_t ncclGetVersion(int *version) {
    *version = 21304;
    return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist) {
    (void)devlist;
    static char communicators[8];
    for (int i = 0; i < ndev && i < 8; i++) comm[i] = (ncclComm_t)&communicators[i];
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    (void)sendbuff, (void)recvbuff, (void)count, (void)datatype, (void)op, (void)comm, (void)stream;
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t comm) {
    (void)comm;
    return "its own";
}
