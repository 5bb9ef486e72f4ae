/* Calls a function that the library lacks. */
#include <nccl.h>
#include <stdio.h>

int main(void) {
    ncclComm_t comm, child;
    if (ncclCommInitAll(&comm, 1, NULL)) return 1;
    ncclResult_t code = ncclCommSplit(comm, 0, 0, &child, NULL);
    printf("%d %s\n", code, ncclGetLastError(comm));
    printf("%s\n", ncclGetLastError(comm));
    return 0;
}
