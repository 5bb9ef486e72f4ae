#include <stdlib.h>
#include <string.h>
struct info { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; };
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetGpuFabricInfo(void *device, struct info *info) {
    static const struct info infos[4] = {{.state = 0}, {.state = 3}, {.state = 3, .status = 15}, {.state = 2}};
    *info = infos[(size_t)device - 1];
    return 0;
}
