/* The input of bindgen: the vendored header and nothing else. See build/bindings.rs. */
#include <nccl.h>
