// The header in C++: it compiles, as do its initializers, and its functions link as C functions.

#include <cstdio>
#include <type_traits>

#include "nccl.h"

static_assert(std::is_same_v<decltype(&ncclGetVersion), ncclResult_t (*)(int *)>);
static_assert(std::is_trivially_copyable_v<ncclUniqueId> && sizeof(ncclUniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE);

int main() {
    const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    const ncclCollConfig_t collective = NCCL_COLLCONFIG_INITIALIZER;
    const ncclSimInfo_t simulation = NCCL_SIM_INFO_INITIALIZER;
    const ncclEncryptionConfig_t encryption = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
    int version = 0, twin = 0;
    if (config.size != sizeof config || collective.size != sizeof collective ||
        simulation.size != sizeof simulation || encryption.size != sizeof encryption ||
        ncclGetVersion(&version) != ncclSuccess || pncclGetVersion(&twin) != ncclSuccess ||
        version != NCCL_VERSION_CODE || twin != version) {
        std::printf("version %d and %d, expected %d\n", version, twin, NCCL_VERSION_CODE);
        return 1;
    }
    std::puts("ok: C++");
    return 0;
}
