/*
 * Stands in for the C library's header when bindgen reads an nccl.h: size_t and NULL as they are on 64-bit
 * Linux. bindgen runs with -nostdinc on these stubs, so that its output does not depend on the host. Programs
 * use the headers of their C library instead.
 */
#ifndef LIBNCCL_STUB_STDDEF_H
#define LIBNCCL_STUB_STDDEF_H

typedef unsigned long size_t;

#ifdef __cplusplus
#define NULL __null
#else
#define NULL ((void *)0)
#endif

#endif
