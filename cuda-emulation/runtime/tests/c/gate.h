/* A host function that blocks a stream. */
#ifndef GATE_H
#define GATE_H

#include <cuda_runtime.h>
#include <pthread.h>

/* A gate in a stream: work behind it waits until it is opened. */
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int is_open, passed;
} Gate;

#define CLOSED_GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0}

static inline void CUDART_CB wait_for_gate(void *data) {
    Gate *gate = data;
    pthread_mutex_lock(&gate->mutex);
    while (!gate->is_open)
        pthread_cond_wait(&gate->changed, &gate->mutex);
    gate->passed++;
    pthread_mutex_unlock(&gate->mutex);
}

static inline void open_gate(Gate *gate) {
    pthread_mutex_lock(&gate->mutex);
    gate->is_open = 1;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->mutex);
}

#endif
