// NCCL for the shim, by MPI between processes. As strict as NCCL is where it would hang or break: both sides of a message must name
// the same size, buffers must be device memory, groups must be closed.
// MOEPLAN_SHIM_NCCL_FAILS_AT=N: after N calls a peer is gone. Work on streams never ends then, and a little later the asynchronous error
// says so: only who asks both while waiting gets to know.

#include <mpi.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

struct ncclComm { MPI_Comm mpi = MPI_COMM_NULL; };

namespace {

std::string last_text;
int calls_done = 0, times_waited = 0;
bool a_peer_is_gone() {
    static const char* const at = std::getenv("MOEPLAN_SHIM_NCCL_FAILS_AT");
    return at && calls_done >= std::atoi(at);
}
bool work_never_ends() { return a_peer_is_gone() && ++times_waited; }
ncclResult_t fail(ncclResult_t result, const std::string& text) {
    last_text = text;
    return result;
}
ncclResult_t done(int code, const char* call) {
    return code == MPI_SUCCESS ? ncclSuccess : fail(ncclSystemError, std::string(call) + " of the shim's MPI failed");
}

std::size_t size_of(ncclDataType_t t) {
    switch (t) {
        case ncclInt8: case ncclUint8: return 1;
        case ncclFloat16: case ncclBfloat16: return 2;
        case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
        default: return 8;
    }
}
bool adds(ncclDataType_t t, MPI_Datatype* out) {
    switch (t) {
        case ncclFloat32: *out = MPI_FLOAT; return true;
        case ncclFloat64: *out = MPI_DOUBLE; return true;
        case ncclInt32: *out = MPI_INT32_T; return true;
        case ncclInt64: *out = MPI_INT64_T; return true;
        case ncclUint8: *out = MPI_UINT8_T; return true;
        default: return false;
    }
}
bool on_device(const void* p) {
    cudaPointerAttributes attributes{};
    return cudaPointerGetAttributes(&attributes, p) == cudaSuccess && attributes.type == cudaMemoryTypeDevice;
}

/// A call that a group holds back until it is closed.
struct Held {
    enum Kind { send, receive, broadcast } kind;
    const void* from;
    void* to;
    int bytes, peer;
    MPI_Comm comm;
};
thread_local int depth = 0;
thread_local std::vector<Held> held;
constexpr int kTag = 4711;

ncclResult_t play(std::vector<Held> calls) {
    std::vector<MPI_Request> requests;
    std::vector<const Held*> receives;
    for (const Held& c : calls)
        if (c.kind == Held::receive) {
            requests.emplace_back();
            receives.push_back(&c);
            MPI_Irecv(c.to, c.bytes, MPI_BYTE, c.peer, kTag, c.comm, &requests.back());
        }
    for (const Held& c : calls) {
        if (c.kind != Held::send) continue;
        requests.emplace_back();
        MPI_Isend(c.from, c.bytes, MPI_BYTE, c.peer, kTag, c.comm, &requests.back());
    }
    for (const Held& c : calls) {
        if (c.kind != Held::broadcast) continue;
        int rank = 0;
        MPI_Comm_rank(c.comm, &rank);
        if (rank == c.peer && c.to != c.from) std::memcpy(c.to, c.from, static_cast<std::size_t>(c.bytes));
        MPI_Bcast(c.to, c.bytes, MPI_BYTE, c.peer, c.comm);
    }
    std::vector<MPI_Status> statuses(requests.size());
    if (MPI_Waitall(static_cast<int>(requests.size()), requests.data(), statuses.data()) != MPI_SUCCESS)
        return fail(ncclInvalidUsage, "a rank sends more than its peer receives");
    for (std::size_t i = 0; i < receives.size(); ++i) {
        int got = 0;
        MPI_Get_count(&statuses[i], MPI_BYTE, &got);
        if (got != receives[i]->bytes) return fail(ncclInvalidUsage, "a rank sends less than its peer receives: NCCL would wait for ever");
    }
    return ncclSuccess;
}
ncclResult_t take(const Held& call) {
    if ((call.kind != Held::receive && !on_device(call.from)) || (call.kind != Held::send && !on_device(call.to)))
        return fail(ncclInvalidArgument, "a buffer that is not in device memory");
    ++calls_done;
    if (depth == 0) return play({call});
    held.push_back(call);
    return ncclSuccess;
}

const bool streams_know = [] { return shim::streams_hang = work_never_ends, true; }();

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        default: return "system error";
    }
}
const char* ncclGetLastError(ncclComm_t) { return last_text.c_str(); }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return *id = {}, id->internal[0] = 'm', ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t* out, int size, ncclUniqueId id, int rank) {
    int have = 0, am = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &have);
    MPI_Comm_rank(MPI_COMM_WORLD, &am);
    if (id.internal[0] != 'm' || have != size || am != rank) return fail(ncclInvalidArgument, "another group than the job's");
    *out = new ncclComm;
    return done(MPI_Comm_dup(MPI_COMM_WORLD, &(*out)->mpi), "MPI_Comm_dup");
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t*) {
    *out = new ncclComm;
    const ncclResult_t result = done(MPI_Comm_split(comm->mpi, color, key, &(*out)->mpi), "MPI_Comm_split");
    if (result == ncclSuccess) MPI_Comm_set_errhandler((*out)->mpi, MPI_ERRORS_RETURN);
    return result;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    int ended = 0;
    MPI_Finalized(&ended);
    if (!ended) MPI_Comm_free(&comm->mpi);
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return delete comm, ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* out) { return *out = a_peer_is_gone() && times_waited > 3 ? ncclRemoteError : ncclSuccess, ncclSuccess; }

ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
    if (depth == 0) return fail(ncclInvalidUsage, "a group is closed that was never opened");
    return --depth > 0 ? ncclSuccess : play(std::exchange(held, {}));
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t) {
    return take({Held::send, from, nullptr, static_cast<int>(count * size_of(type)), peer, comm->mpi});
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t) {
    return take({Held::receive, nullptr, to, static_cast<int>(count * size_of(type)), peer, comm->mpi});
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t) {
    return take({Held::broadcast, from, to, static_cast<int>(count * size_of(type)), root, comm->mpi});
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
    MPI_Datatype mpi;
    if (!adds(type, &mpi)) return fail(ncclInvalidArgument, "a number format that the shim's NCCL does not add");
    if (!on_device(from) || !on_device(to)) return fail(ncclInvalidArgument, "a buffer that is not in device memory");
    ++calls_done;
    return done(MPI_Allreduce(from == to ? MPI_IN_PLACE : from, to, static_cast<int>(count), mpi, op == ncclMax ? MPI_MAX : MPI_SUM, comm->mpi),
                "MPI_Allreduce");
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
    MPI_Datatype mpi;
    if (!adds(type, &mpi)) return fail(ncclInvalidArgument, "a number format that the shim's NCCL does not add");
    ++calls_done;
    return done(MPI_Reduce_scatter_block(from, to, static_cast<int>(count), mpi, op == ncclMax ? MPI_MAX : MPI_SUM, comm->mpi),
                "MPI_Reduce_scatter_block");
}
