/* The measurement of all_reduce with oneCCL; mpiexec starts the ranks. Options: see measure.c. */
extern "C" {
#include "measure.h"
}

#include <mpi.h>
#include <oneapi/ccl.hpp>

#include <cstdlib>
#include <exception>
#include <string>
#include <unistd.h>

/* The static library calls a tracing interface through these pointers, which no package defines. Null turns tracing
   off. */
extern "C" {
void *__itt_domain_create_ptr__3_0;
void *__itt_event_create_ptr__3_0;
void *__itt_event_end_ptr__3_0;
void *__itt_event_start_ptr__3_0;
void *__itt_metadata_add_ptr__3_0;
void *__itt_string_handle_create_ptr__3_0;
void *__itt_task_begin_ptr__3_0;
void *__itt_task_end_ptr__3_0;
void *__itt_thread_set_name_ptr__3_0;
}

static const ccl::communicator &communicator(const struct rank *rank) {
    return *static_cast<const ccl::communicator *>(rank->communicator);
}

/* The calls of one size share a cached operation, as oneCCL's guide advises for calls that repeat. */
static const ccl::allreduce_attr &attributes(size_t elements) {
    static auto attributes = ccl::create_operation_attr<ccl::allreduce_attr>();
    static size_t current = 0;
    if (elements != current) {
        current = elements;
        attributes.set<ccl::operation_attr_id::to_cache>(true);
        attributes.set<ccl::operation_attr_id::match_id>(ccl::string_class(std::to_string(elements).c_str()));
    }
    return attributes;
}

void operate(const struct rank *rank, enum operation operation, const float *send, float *receive, size_t elements,
             int) {
    if (operation != ALL_REDUCE) fail("unsupported operation %d", static_cast<int>(operation));
    ccl::allreduce(send, receive, elements, ccl::reduction::sum, communicator(rank), attributes(elements)).wait();
}

double max_over_ranks(const struct rank *rank, double value) {
    double result;
    ccl::allreduce(&value, &result, 1, ccl::reduction::max, communicator(rank)).wait();
    return result;
}

static void require(int result, const char *call) {
    if (result != MPI_SUCCESS) fail("%s failed with code %d", call, result);
}

static float *allocate(size_t bytes) {
    void *memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) fail("cannot allocate %zu bytes", bytes);
    return static_cast<float *>(memory);
}

/* Creates the key-value store through which the ranks find each other. */
static ccl::shared_ptr_class<ccl::kvs> key_value_store(int rank) {
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    require(MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
    return rank == 0 ? store : ccl::create_kvs(address);
}

/* Reads oneCCL's environment variables. Its remarks about them would be among the figures on standard output. */
static void initialise() {
    int output = dup(STDOUT_FILENO);
    if (output < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) fail("cannot redirect the standard output");
    ccl::init();
    if (dup2(output, STDOUT_FILENO) < 0) fail("cannot restore the standard output");
    close(output);
}

static void run(struct rank *rank, const struct options *options) {
    ccl::communicator comm = ccl::create_communicator(rank->ranks, rank->index, key_value_store(rank->index));
    rank->communicator = &comm;
    float *send = allocate(options->max), *receive = allocate(options->max);
    measure(rank, options, send, receive);
    free(send);
    free(receive);
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    try {
        /* Before MPI starts, because it sets MPI's environment variables. */
        initialise();
        int provided;
        require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
        struct rank rank = {};
        rank.in_process = 1;
        require(MPI_Comm_rank(MPI_COMM_WORLD, &rank.index), "MPI_Comm_rank");
        require(MPI_Comm_size(MPI_COMM_WORLD, &rank.ranks), "MPI_Comm_size");
        if (rank.ranks != options.ranks) fail("mpiexec started %d ranks, not %d", rank.ranks, options.ranks);
        run(&rank, &options);
        require(MPI_Finalize(), "MPI_Finalize");
    } catch (const std::exception &error) {
        fail("oneCCL: %s", error.what());
    }
    return EXIT_SUCCESS;
}
