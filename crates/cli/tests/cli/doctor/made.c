/* Reads ~/.nccl.conf, except NCCL_PROTO, and fails with an interface ib0. TEST_START, TEST_ID and TEST_END let it fail otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int equals(const char *variable, const char *value) {
    return getenv(variable) && !strcmp(getenv(variable), value);
}
__attribute__((constructor)) static void start(void) {
    if (equals("TEST_START", "abort")) abort();
    if (equals("TEST_START", "hang")) pause();
}
__attribute__((destructor)) static void end(void) { if (equals("TEST_END", "abort")) abort(); }
int ncclGetVersion(int *version) { *version = 23203; return 0; }
int ncclGetUniqueId(void *id) {
    char path[4096], line[4096];
    snprintf(path, sizeof path, "%s/.nccl.conf", getenv("HOME"));
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, '=');
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#' || !value) continue;
        *value++ = 0;
        if (strcmp(line, "NCCL_PROTO")) setenv(line, value, 0);
    }
    if (equals("TEST_ID", "abort")) abort();
    if (equals("TEST_ID", "exit")) _exit(3);
    if (equals("TEST_ID", "noise")) {
        // Text that is not a log.
        static char text[1 << 22];
        for (size_t at = 0; at < sizeof text; at++) text[at] = rand();
        fwrite(text, 1, sizeof text, stdout), fwrite(text, 1, sizeof text, stderr), _exit(3);
    }
    return equals("NCCL_SOCKET_IFNAME", "ib0") ? 2 : 0;
}
const char *const texts[] = {"NCCL version 2.32.3+cuda12.9", NAMES};
