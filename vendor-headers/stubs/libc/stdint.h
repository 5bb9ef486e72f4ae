/*
 * Stands in for the C library's header when bindgen reads an nccl.h: the types of fixed width as they are on
 * 64-bit Linux. bindgen runs with -nostdinc on these stubs, so that its output does not depend on the host.
 * Programs use the headers of their C library instead.
 */
#ifndef LIBNCCL_STUB_STDINT_H
#define LIBNCCL_STUB_STDINT_H

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

typedef long intptr_t;
typedef unsigned long uintptr_t;

#endif
