/* What bindgen reads: the vendored header and nothing else. See build/bindings.rs. */
#include <nccl.h>
