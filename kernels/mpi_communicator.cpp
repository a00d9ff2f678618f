/// Ranks by MPI, on host memory. Exchanges are pairs of Isend and Irecv, not MPI_Alltoallv: its
/// displacements are ints. Messages above 1 GiB go in pieces for the same reason.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "kernels/communicator.hpp"

namespace moeplan {
namespace {

constexpr std::int64_t kPiece = std::int64_t{1} << 30;
constexpr int kTag = 77;

Status status_from(int code, const char* call) {
    if (code == MPI_SUCCESS) return {};
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    return status_of(kFailed, std::string(call) + ": " + text);
}

struct State {
    MPI_Comm comm = MPI_COMM_NULL;
    bool owned = false;
};
MPI_Comm comm_of(void* state) { return static_cast<State*>(state)->comm; }

#define MOEPLAN_TRY(call)                                           \
    do {                                                            \
        const int code_ = (call);                                   \
        if (code_ != MPI_SUCCESS) return status_from(code_, #call); \
    } while (false)

Status exchange(MPI_Comm comm, const char* send, const std::int64_t* send_bytes, char* receive,
                const std::int64_t* receive_bytes) {
    int rank = 0, size = 1;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    std::vector<std::int64_t> send_at(std::size_t(size), 0), receive_at(std::size_t(size), 0);
    for (int r = 1; r < size; ++r) {
        send_at[std::size_t(r)] = send_at[std::size_t(r - 1)] + send_bytes[r - 1];
        receive_at[std::size_t(r)] = receive_at[std::size_t(r - 1)] + receive_bytes[r - 1];
    }
    std::vector<MPI_Request> requests;
    for (int step = 1; step < size; ++step) {
        const int from = (rank - step + size) % size;
        for (std::int64_t at = 0; at < receive_bytes[from]; at += kPiece) {
            requests.emplace_back();
            MOEPLAN_TRY(MPI_Irecv(receive + receive_at[std::size_t(from)] + at,
                                  int(std::min(kPiece, receive_bytes[from] - at)), MPI_BYTE, from,
                                  kTag, comm, &requests.back()));
        }
    }
    for (int step = 1; step < size; ++step) {
        const int to = (rank + step) % size;
        for (std::int64_t at = 0; at < send_bytes[to]; at += kPiece) {
            requests.emplace_back();
            MOEPLAN_TRY(MPI_Isend(send + send_at[std::size_t(to)] + at,
                                  int(std::min(kPiece, send_bytes[to] - at)), MPI_BYTE, to, kTag,
                                  comm, &requests.back()));
        }
    }
    if (send_bytes[rank] > 0)
        std::memmove(receive + receive_at[std::size_t(rank)], send + send_at[std::size_t(rank)],
                     std::size_t(send_bytes[rank]));
    MOEPLAN_TRY(MPI_Waitall(int(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
    return {};
}

Status all_to_all_v(void* state, const void* send, const std::int64_t* send_bytes, void* receive,
                    const std::int64_t* receive_bytes, Stream_*) {
    return exchange(comm_of(state), static_cast<const char*>(send), send_bytes,
                    static_cast<char*>(receive), receive_bytes);
}

MPI_Datatype type_of(NumberFormat format) {
    switch (format) {
        case NumberFormat::f64:
            return MPI_DOUBLE;
        case NumberFormat::f32:
            return MPI_FLOAT;
        case NumberFormat::i64:
            return MPI_INT64_T;
        case NumberFormat::i32:
            return MPI_INT32_T;
        case NumberFormat::u16:
            return MPI_UINT16_T;
        case NumberFormat::u8:
            return MPI_UINT8_T;
        default:
            return MPI_DATATYPE_NULL;
    }
}

Status all_reduce(void* state, void* data, std::int64_t count, NumberFormat format,
                  Reduction reduction, Stream_*) {
    const MPI_Datatype type = type_of(format);
    if (type == MPI_DATATYPE_NULL) return status_of(kUnsupported, "MPI has no such number format");
    const std::int64_t piece = kPiece / 8, element = std::int64_t(size_of(format).value);
    for (std::int64_t at = 0; at < count; at += piece)
        MOEPLAN_TRY(MPI_Allreduce(MPI_IN_PLACE, static_cast<char*>(data) + at * element,
                                  int(std::min(piece, count - at)), type,
                                  reduction == Reduction::sum ? MPI_SUM : MPI_MAX, comm_of(state)));
    return {};
}

Status reduce_scatter(void* state, const void* data, void* out, std::int64_t count,
                      NumberFormat format, Stream_*) {
    const MPI_Datatype type = type_of(format);
    if (type == MPI_DATATYPE_NULL) return status_of(kUnsupported, "MPI has no such number format");
    if (count > kPiece) return status_of(kUnsupported, "a block of more than 2^30 elements");
    MOEPLAN_TRY(MPI_Reduce_scatter_block(data, out, int(count), type, MPI_SUM, comm_of(state)));
    return {};
}

/// Everyone's block to everyone: an exchange in which the same bytes go to all.
Status all_gather_v(void* state, const void* send, std::int64_t send_bytes, void* receive,
                    const std::int64_t* receive_bytes, Stream_*) {
    const MPI_Comm comm = comm_of(state);
    int rank = 0, size = 1;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    std::vector<MPI_Request> requests;
    std::int64_t at = 0;
    for (int r = 0; r < size; at += receive_bytes[r], ++r) {
        char* to = static_cast<char*>(receive) + at;
        if (r == rank) {
            if (send_bytes > 0 && to != send) std::memmove(to, send, std::size_t(send_bytes));
            continue;
        }
        for (std::int64_t part = 0; part < receive_bytes[r]; part += kPiece) {
            requests.emplace_back();
            MOEPLAN_TRY(MPI_Irecv(to + part, int(std::min(kPiece, receive_bytes[r] - part)),
                                  MPI_BYTE, r, kTag, comm, &requests.back()));
        }
    }
    for (int r = 0; r < size; ++r)
        if (r != rank)
            for (std::int64_t part = 0; part < send_bytes; part += kPiece) {
                requests.emplace_back();
                MOEPLAN_TRY(MPI_Isend(static_cast<const char*>(send) + part,
                                      int(std::min(kPiece, send_bytes - part)), MPI_BYTE, r, kTag,
                                      comm, &requests.back()));
            }
    MOEPLAN_TRY(MPI_Waitall(int(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
    return {};
}

Status broadcast(void* state, void* data, std::int64_t bytes, int root, Stream_*) {
    for (std::int64_t at = 0; at < bytes; at += kPiece)
        MOEPLAN_TRY(MPI_Bcast(static_cast<char*>(data) + at, int(std::min(kPiece, bytes - at)),
                              MPI_BYTE, root, comm_of(state)));
    return {};
}
Status send(void* state, const void* data, std::int64_t bytes, int to, Stream_*) {
    for (std::int64_t at = 0; at < bytes; at += kPiece)
        MOEPLAN_TRY(MPI_Send(static_cast<const char*>(data) + at, int(std::min(kPiece, bytes - at)),
                             MPI_BYTE, to, kTag, comm_of(state)));
    return {};
}
Status receive(void* state, void* data, std::int64_t bytes, int from, Stream_*) {
    for (std::int64_t at = 0; at < bytes; at += kPiece)
        MOEPLAN_TRY(MPI_Recv(static_cast<char*>(data) + at, int(std::min(kPiece, bytes - at)),
                             MPI_BYTE, from, kTag, comm_of(state), MPI_STATUS_IGNORE));
    return {};
}
Status barrier(void* state) {
    MOEPLAN_TRY(MPI_Barrier(comm_of(state)));
    return {};
}

CommunicatorTable table_of(MPI_Comm comm, bool owned);

Status split(void* state, int color, int key, CommunicatorTable* out) {
    MPI_Comm part = MPI_COMM_NULL;
    MOEPLAN_TRY(MPI_Comm_split(comm_of(state), color, key, &part));
    MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN);
    *out = table_of(part, true);
    return {};
}

void release(void* pointer) {
    State* state = static_cast<State*>(pointer);
    int ended = 0;
    MPI_Finalized(&ended);
    if (state->owned && !ended) MPI_Comm_free(&state->comm);
    delete state;
}

CommunicatorTable table_of(MPI_Comm comm, bool owned) {
    CommunicatorTable table;
    table.state = new State{comm, owned};
    MPI_Comm_rank(comm, &table.rank);
    MPI_Comm_size(comm, &table.size);
    table.all_to_all_v = all_to_all_v;
    table.all_reduce = all_reduce;
    table.reduce_scatter = reduce_scatter;
    table.all_gather_v = all_gather_v;
    table.broadcast = broadcast;
    table.send = send;
    table.receive = receive;
    table.barrier = barrier;
    table.split = split;
    table.release = release;
    table.abort = [](void* state, int status) { MPI_Abort(comm_of(state), status); };
    return table;
}

}  // namespace

CommunicatorTable mpi_world() {
    int begun = 0;
    MPI_Initialized(&begun);
    if (!begun) {
        int provided = 0;
        if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
            throw EnvironmentError(
                "MPI_Init failed: was this process launched by an mpirun of the same MPI?");
        std::atexit([] {
            int ended = 0;
            MPI_Finalized(&ended);
            if (!ended) MPI_Finalize();
        });
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return table_of(MPI_COMM_WORLD, false);
}

std::string mpi_library_text() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    const std::string whole(text, std::size_t(length));
    return whole.substr(0, whole.find(','));
}

}  // namespace moeplan
