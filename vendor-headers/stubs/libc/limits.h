/*
 * Stands in for the C library's header when bindgen reads an nccl.h: the limits of int, the only ones that any
 * release of nccl.h mentions. bindgen runs with -nostdinc on these stubs, so that its output does not depend on
 * the host. Programs use the headers of their C library instead.
 */
#ifndef LIBNCCL_STUB_LIMITS_H
#define LIBNCCL_STUB_LIMITS_H

#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)

#endif
