/*
 * Stands in for the C library's header when bindgen reads nccl_device_host.h: the name of C's truth values. bindgen
 * runs with -nostdinc on these stubs, so that its output does not depend on the host. Programs use the headers of
 * their C library instead.
 */
#ifndef LIBNCCL_STUB_STDBOOL_H
#define LIBNCCL_STUB_STDBOOL_H

#define bool _Bool
#define true 1
#define false 0

#endif
