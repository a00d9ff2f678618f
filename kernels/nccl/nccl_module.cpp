// NCCL as a Communicator: one rank a GPU, everything asynchronous on the stream it is given.
//
// An all-to-all of unequal blocks is a group of sends and receives. NCCL wants every size on both sides before it starts:
// callers exchange their counts over the hosts first (they need them anyway, to allocate), so nothing waits here.
// Buffers in host memory go to the hosts' communicator, so that one object serves both.
// Errors that NCCL finds later, in its own threads, are asked for at every call.

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <memory>
#include <thread>

#include "kernels/communicator.hpp"

namespace moeplan::nccl {
namespace {

struct State {
    ncclComm_t comm = nullptr;
    CommunicatorTable hosts;          ///< of the same ranks
    bool owns_hosts = false;
    int rank = 0, size = 1;
};
State& state_of(void* state) { return *static_cast<State*>(state); }
cudaStream_t as_stream(Stream_* s) { return reinterpret_cast<cudaStream_t>(s); }

Status failure(ncclResult_t result, ncclComm_t comm, const char* call) {
    char text[256];
    const char* detail = ncclGetLastError(comm);
    std::snprintf(text, sizeof text, "%s (NCCL error %d) from %.80s%s%.80s", ncclGetErrorString(result), static_cast<int>(result), call,
                  detail && *detail ? ": " : "", detail ? detail : "");
    return status_of(kFailed, text);
}
Status failure(cudaError_t error, const char* call) {
    char text[256];
    std::snprintf(text, sizeof text, "%s (error %d) from %.120s", cudaGetErrorString(error), static_cast<int>(error), call);
    return status_of(kFailed, text);
}
#define NCCL_TRY(comm, call)                                                                 \
    do {                                                                                     \
        const ncclResult_t nccl_result = (call);                                             \
        if (nccl_result != ncclSuccess) return failure(nccl_result, comm, #call);            \
    } while (0)
#define CUDA_TRY(call)                                                                       \
    do {                                                                                     \
        const cudaError_t cuda_error = (call);                                               \
        if (cuda_error != cudaSuccess) return failure(cuda_error, #call);                    \
    } while (0)

/// What NCCL's own threads found wrong since the last call: a peer that died, a link that broke.
Status asynchronous_error(const State& s) {
    if (!s.comm) return status_of(kFailed, "an exchange on a communicator that an earlier error ended");
    ncclResult_t found = ncclSuccess;
    NCCL_TRY(s.comm, ncclCommGetAsyncError(s.comm, &found));
    return found == ncclSuccess || found == ncclInProgress ? Status{} : failure(found, s.comm, "an earlier exchange");
}

/// Is this buffer's memory on a GPU? An empty one may be null: the other tells.
bool on_device(const void* a, const void* b) {
    const void* p = a ? a : b;
    if (!p) return true;
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

Status type_of(NumberFormat format, ncclDataType_t* out) {
    switch (format) {
        case NumberFormat::f64: *out = ncclFloat64; return {};
        case NumberFormat::f32: *out = ncclFloat32; return {};
        case NumberFormat::bf16: *out = ncclBfloat16; return {};
        case NumberFormat::f16: *out = ncclFloat16; return {};
        case NumberFormat::i64: *out = ncclInt64; return {};
        case NumberFormat::i32: *out = ncclInt32; return {};
        case NumberFormat::u8: *out = ncclUint8; return {};
        default: return status_of(kUnsupported, "NCCL does not add this number format");
    }
}

Status all_to_all_v(void* state, const void* send, const std::int64_t* send_bytes, void* receive, const std::int64_t* receive_bytes, Stream_* stream) {
    State& s = state_of(state);
    if (!on_device(send, receive)) return s.hosts.all_to_all_v(s.hosts.state, send, send_bytes, receive, receive_bytes, stream);
    if (const Status e = asynchronous_error(s); e.code != kOk) return e;
    const char* from = static_cast<const char*>(send);
    char* to = static_cast<char*>(receive);
    NCCL_TRY(s.comm, ncclGroupStart());
    ncclResult_t result = ncclSuccess;
    for (int peer = 0; peer < s.size && result == ncclSuccess; ++peer) {
        if (send_bytes[peer] > 0) result = ncclSend(from, static_cast<std::size_t>(send_bytes[peer]), ncclUint8, peer, s.comm, as_stream(stream));
        if (receive_bytes[peer] > 0 && result == ncclSuccess)
            result = ncclRecv(to, static_cast<std::size_t>(receive_bytes[peer]), ncclUint8, peer, s.comm, as_stream(stream));
        from += send_bytes[peer], to += receive_bytes[peer];
    }
    const ncclResult_t ended = ncclGroupEnd();                // also after a failure: a group left open would take later calls
    if (result != ncclSuccess) return failure(result, s.comm, "ncclSend or ncclRecv");
    if (ended != ncclSuccess) return failure(ended, s.comm, "ncclGroupEnd");
    return asynchronous_error(s);
}

Status all_reduce(void* state, void* data, std::int64_t count, NumberFormat format, Reduction reduction, Stream_* stream) {
    State& s = state_of(state);
    if (count == 0) return {};
    if (!on_device(data, nullptr)) return s.hosts.all_reduce(s.hosts.state, data, count, format, reduction, stream);
    ncclDataType_t type{};
    if (const Status e = type_of(format, &type); e.code != kOk) return e;
    NCCL_TRY(s.comm, ncclAllReduce(data, data, static_cast<std::size_t>(count), type, reduction == Reduction::sum ? ncclSum : ncclMax, s.comm,
                                   as_stream(stream)));
    return asynchronous_error(s);
}

Status reduce_scatter(void* state, const void* data, void* out, std::int64_t count, NumberFormat format, Stream_* stream) {
    State& s = state_of(state);
    if (count == 0) return {};
    if (!on_device(data, out)) return s.hosts.reduce_scatter(s.hosts.state, data, out, count, format, stream);
    ncclDataType_t type{};
    if (const Status e = type_of(format, &type); e.code != kOk) return e;
    NCCL_TRY(s.comm, ncclReduceScatter(data, out, static_cast<std::size_t>(count), type, ncclSum, s.comm, as_stream(stream)));
    return asynchronous_error(s);
}

/// Blocks may differ in size, so: one broadcast a rank, in a group.
Status all_gather_v(void* state, const void* send, std::int64_t send_bytes, void* receive, const std::int64_t* receive_bytes, Stream_* stream) {
    State& s = state_of(state);
    if (!on_device(receive, send)) return s.hosts.all_gather_v(s.hosts.state, send, send_bytes, receive, receive_bytes, stream);
    char* to = static_cast<char*>(receive);
    NCCL_TRY(s.comm, ncclGroupStart());
    ncclResult_t result = ncclSuccess;
    for (int root = 0; root < s.size && result == ncclSuccess; ++root) {
        if (receive_bytes[root] > 0)
            result = ncclBroadcast(root == s.rank ? send : to, to, static_cast<std::size_t>(receive_bytes[root]), ncclUint8, root, s.comm,
                                   as_stream(stream));
        to += receive_bytes[root];
    }
    const ncclResult_t ended = ncclGroupEnd();
    if (result != ncclSuccess) return failure(result, s.comm, "ncclBroadcast");
    if (ended != ncclSuccess) return failure(ended, s.comm, "ncclGroupEnd");
    return asynchronous_error(s);
}

Status broadcast(void* state, void* data, std::int64_t bytes, int root, Stream_* stream) {
    State& s = state_of(state);
    if (bytes == 0) return {};
    if (!on_device(data, nullptr)) return s.hosts.broadcast(s.hosts.state, data, bytes, root, stream);
    NCCL_TRY(s.comm, ncclBroadcast(data, data, static_cast<std::size_t>(bytes), ncclUint8, root, s.comm, as_stream(stream)));
    return asynchronous_error(s);
}

Status send(void* state, const void* data, std::int64_t bytes, int to, Stream_* stream) {
    State& s = state_of(state);
    if (!on_device(data, nullptr)) return s.hosts.send(s.hosts.state, data, bytes, to, stream);
    NCCL_TRY(s.comm, ncclSend(data, static_cast<std::size_t>(bytes), ncclUint8, to, s.comm, as_stream(stream)));
    return asynchronous_error(s);
}
Status receive(void* state, void* data, std::int64_t bytes, int from, Stream_* stream) {
    State& s = state_of(state);
    if (!on_device(data, nullptr)) return s.hosts.receive(s.hosts.state, data, bytes, from, stream);
    NCCL_TRY(s.comm, ncclRecv(data, static_cast<std::size_t>(bytes), ncclUint8, from, s.comm, as_stream(stream)));
    return asynchronous_error(s);
}

Status barrier(void* state) {
    State& s = state_of(state);
    if (const Status e = asynchronous_error(s); e.code != kOk) return e;
    return s.hosts.barrier(s.hosts.state);
}

/// Asks NCCL while it waits: a kernel that waits for a lost peer would never end.
Status wait(void* state, Stream_* stream) {
    State& s = state_of(state);
    while (true) {
        const cudaError_t done = cudaStreamQuery(as_stream(stream));
        if (done == cudaSuccess) return asynchronous_error(s);
        if (done != cudaErrorNotReady) return failure(done, "cudaStreamQuery");
        if (const Status found = asynchronous_error(s); found.code != kOk) {
            (void)ncclCommAbort(s.comm);                      // its kernels end
            s.comm = nullptr;
            return found;
        }
        std::this_thread::yield();
    }
}

CommunicatorTable table_of(State* s);

Status split(void* state, int color, int key, CommunicatorTable* out) {
    State& s = state_of(state);
    auto part = std::make_unique<State>();
    if (const Status e = s.hosts.split(s.hosts.state, color, key, &part->hosts); e.code != kOk) return e;
    part->owns_hosts = true;
    part->rank = part->hosts.rank, part->size = part->hosts.size;
    if (const ncclResult_t result = ncclCommSplit(s.comm, color, key, &part->comm, nullptr); result != ncclSuccess) {
        part->hosts.release(part->hosts.state);
        return failure(result, s.comm, "ncclCommSplit");
    }
    *out = table_of(part.release());
    return {};
}

void release(void* state) {
    const std::unique_ptr<State> s(&state_of(state));
    if (s->comm) (void)ncclCommDestroy(s->comm);
    if (s->owns_hosts) s->hosts.release(s->hosts.state);
}

void abort(void* state, int exit_status) {
    State& s = state_of(state);
    if (s.comm) (void)ncclCommAbort(s.comm);                  // kernels that wait for a lost peer end
    s.hosts.abort(s.hosts.state, exit_status);
}

CommunicatorTable table_of(State* s) {
    return {.state = s, .rank = s->rank, .size = s->size, .space = Device::cuda, .all_to_all_v = all_to_all_v, .all_reduce = all_reduce,
            .reduce_scatter = reduce_scatter, .all_gather_v = all_gather_v, .broadcast = broadcast, .send = send, .receive = receive,
            .barrier = barrier, .wait = wait, .split = split, .release = release, .abort = abort};
}

}  // namespace
}  // namespace moeplan::nccl

extern "C" __attribute__((visibility("default"))) moeplan::Status moeplan_nccl(std::uint32_t abi, int ordinal,
                                                                               const moeplan::CommunicatorTable* hosts,
                                                                               moeplan::CommunicatorTable* out) {
    using namespace moeplan;
    using namespace moeplan::nccl;
    if (abi != kBackendAbi) return status_of(kFailed, "this NCCL module was built from another source than moeplan");
    // The identity of the group, and whether it could be made, travel together: a failure on rank 0 must not leave others waiting.
    struct Invitation {
        ncclUniqueId id{};
        Status status;
    } invitation;
    const cudaError_t device = cudaSetDevice(ordinal);
    if (hosts->rank == 0) {
        const ncclResult_t made = ncclGetUniqueId(&invitation.id);
        if (made != ncclSuccess) invitation.status = failure(made, nullptr, "ncclGetUniqueId");
        if (device != cudaSuccess) invitation.status = failure(device, "cudaSetDevice");
    }
    if (hosts->size > 1)
        if (const Status e = hosts->broadcast(hosts->state, &invitation, sizeof invitation, 0, nullptr); e.code != kOk) return e;
    if (invitation.status.code != kOk) return invitation.status;
    CUDA_TRY(device);
    auto state = std::make_unique<State>();
    state->hosts = *hosts;
    state->rank = hosts->rank, state->size = hosts->size;
    NCCL_TRY(nullptr, ncclCommInitRank(&state->comm, hosts->size, invitation.id, hosts->rank));
    *out = table_of(state.release());
    return {};
}
