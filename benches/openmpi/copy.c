/*
 * Measures the machine's copy speed: one thread for each core copies its share of 64 MiB. Prints the bytes read and
 * written in a second, added up. Takes the faster of memcpy and non-temporal stores.
 */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { BYTES = 64 << 20, ALIGNMENT = 4096, REPETITIONS = 20, MAX_THREADS = 256 };

struct share {
    pthread_t thread;
    pthread_barrier_t *barrier;
    void (*copy)(char *to, const char *from, size_t bytes);
    char *to;
    const char *from;
    size_t bytes;
    double times[REPETITIONS];
};

static void copy_memcpy(char *to, const char *from, size_t bytes) {
    memcpy(to, from, bytes);
}

static void copy_nontemporal(char *to, const char *from, size_t bytes) {
#ifdef __SSE2__
    __m128i *target = (__m128i *)to;
    const __m128i *source = (const __m128i *)from;
    for (size_t i = 0; i < bytes / sizeof *source; i++) _mm_stream_si128(target + i, _mm_load_si128(source + i));
    _mm_sfence();
#else
    copy_memcpy(to, from, bytes);
#endif
}

static void *run(void *argument) {
    struct share *share = argument;
    for (int i = 0; i < REPETITIONS; i++) {
        pthread_barrier_wait(share->barrier);
        double start = now();
        share->copy(share->to, share->from, share->bytes);
        pthread_barrier_wait(share->barrier);
        share->times[i] = now() - start;
    }
    return NULL;
}

/* Returns the median time to copy everything, in seconds. */
static double time_of(void (*copy)(char *, const char *, size_t), char *to, const char *from, int threads) {
    static struct share shares[MAX_THREADS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, threads);
    size_t bytes = BYTES / threads / ALIGNMENT * ALIGNMENT;
    for (int i = 0; i < threads; i++) {
        shares[i] = (struct share){.barrier = &barrier, .copy = copy, .to = to + i * bytes, .from = from + i * bytes,
                                   .bytes = i + 1 < threads ? bytes : BYTES - i * bytes};
        if (pthread_create(&shares[i].thread, NULL, run, &shares[i]) != 0) fail("cannot start thread %d", i);
    }
    for (int i = 0; i < threads; i++) pthread_join(shares[i].thread, NULL);
    return median(shares[0].times, REPETITIONS);
}

int main(void) {
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) fail("cannot get the CPU affinity");
    int threads = CPU_COUNT(&cpus);
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    char *from = aligned_alloc(ALIGNMENT, BYTES), *to = aligned_alloc(ALIGNMENT, BYTES);
    if (from == NULL || to == NULL) fail("cannot allocate %d bytes", BYTES);
    memset(from, 1, BYTES);
    memset(to, 2, BYTES);
    double cached = time_of(copy_memcpy, to, from, threads), nontemporal = time_of(copy_nontemporal, to, from, threads);
    if (memcmp(from, to, BYTES) != 0) fail("the copy differs");
    printf("copy\t%.0f\n", 2.0 * BYTES / (cached < nontemporal ? cached : nontemporal));
    return EXIT_SUCCESS;
}
