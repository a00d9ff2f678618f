/// One rank alone, what the owner of a table does, and how a job of several ranks is launched.
#include "kernels/communicator.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/errors.hpp"

namespace moeplan {

// mpi_communicator.cpp, where the build has MPI.
CommunicatorTable mpi_world();
std::string mpi_library_text();

namespace {

void copy_block(const void* from, void* to, std::int64_t bytes) {
    if (bytes > 0 && from != to) std::memmove(to, from, std::size_t(bytes));
}

CommunicatorTable alone() {
    CommunicatorTable table;
    table.all_to_all_v = [](void*, const void* send, const std::int64_t* bytes, void* receive,
                            const std::int64_t*, Stream_*) {
        copy_block(send, receive, bytes[0]);
        return Status{};
    };
    table.all_reduce = [](void*, void*, std::int64_t, NumberFormat, Reduction, Stream_*) {
        return Status{};
    };
    table.reduce_scatter = [](void*, const void* data, void* out, std::int64_t count,
                              NumberFormat format, Stream_*) {
        copy_block(data, out, count * std::int64_t(size_of(format).value));
        return Status{};
    };
    table.all_gather_v = [](void*, const void* send, std::int64_t bytes, void* receive,
                            const std::int64_t*, Stream_*) {
        copy_block(send, receive, bytes);
        return Status{};
    };
    table.broadcast = [](void*, void*, std::int64_t, int, Stream_*) { return Status{}; };
    table.send = [](void*, const void*, std::int64_t, int, Stream_*) {
        return status_of(kFailed, "a rank alone has nobody to send to");
    };
    table.receive = [](void*, void*, std::int64_t, int, Stream_*) {
        return status_of(kFailed, "a rank alone has nobody to receive from");
    };
    table.barrier = [](void*) { return Status{}; };
    table.split = [](void*, int, int, CommunicatorTable* out) {
        *out = alone();
        return Status{};
    };
    table.release = [](void*) {};
    table.abort = [](void*, int status) { std::_Exit(status); };
    return table;
}

}  // namespace

Communicator::Communicator() : table_(alone()) {}
Communicator::Communicator(const CommunicatorTable& table) : table_(table) {}
Communicator::Communicator(Communicator&& other) noexcept
    : table_(std::exchange(other.table_, alone())) {}
Communicator& Communicator::operator=(Communicator&& other) noexcept {
    std::swap(table_, other.table_);
    return *this;
}
Communicator::~Communicator() { table_.release(table_.state); }

void Communicator::all_to_all_v(const void* send, std::span<const std::int64_t> send_bytes,
                                void* receive, std::span<const std::int64_t> receive_bytes,
                                Stream_* stream) const {
    check(table_.all_to_all_v(table_.state, send, send_bytes.data(), receive, receive_bytes.data(),
                              stream),
          "all_to_all_v");
}
void Communicator::all_reduce(void* data, std::int64_t count, NumberFormat format,
                              Reduction reduction, Stream_* stream) const {
    check(table_.all_reduce(table_.state, data, count, format, reduction, stream), "all_reduce");
}
void Communicator::reduce_scatter(const void* data, void* out, std::int64_t count,
                                  NumberFormat format, Stream_* stream) const {
    check(table_.reduce_scatter(table_.state, data, out, count, format, stream), "reduce_scatter");
}
void Communicator::all_gather_v(const void* send, std::int64_t send_bytes, void* receive,
                                std::span<const std::int64_t> receive_bytes,
                                Stream_* stream) const {
    check(
        table_.all_gather_v(table_.state, send, send_bytes, receive, receive_bytes.data(), stream),
        "all_gather_v");
}
void Communicator::broadcast(void* data, std::int64_t bytes, int root, Stream_* stream) const {
    check(table_.broadcast(table_.state, data, bytes, root, stream), "broadcast");
}
void Communicator::send(const void* data, std::int64_t bytes, int to, Stream_* stream) const {
    check(table_.send(table_.state, data, bytes, to, stream), "send");
}
void Communicator::receive(void* data, std::int64_t bytes, int from, Stream_* stream) const {
    check(table_.receive(table_.state, data, bytes, from, stream), "receive");
}
void Communicator::barrier() const { check(table_.barrier(table_.state), "barrier"); }
void Communicator::wait(const Backend& device, Stream_* stream) const {
    if (table_.wait) check(table_.wait(table_.state, stream), "exchange");
    check(device.synchronise(stream), "synchronise");
}
Communicator Communicator::split(int color, int key) const {
    CommunicatorTable out;
    check(table_.split(table_.state, color, key, &out), "split");
    return Communicator(out);
}
void Communicator::abort(int exit_status) const {
    table_.abort(table_.state, exit_status);
    std::_Exit(exit_status);
}

double Communicator::all_reduce_max(double value) const {
    all_reduce(&value, 1, NumberFormat::f64, Reduction::max);
    return value;
}
double Communicator::all_reduce_sum(double value) const {
    all_reduce(&value, 1, NumberFormat::f64, Reduction::sum);
    return value;
}

std::vector<char> Communicator::gather_bytes(const std::vector<char>& mine, int root,
                                             std::vector<std::int64_t>* sizes) const {
    std::vector<std::int64_t> bytes(std::size_t(size()), 0),
        of_one(std::size_t(size()), sizeof(std::int64_t));
    const auto my_bytes = std::int64_t(mine.size());
    all_gather_v(&my_bytes, sizeof my_bytes, bytes.data(), of_one);
    // To the root alone: everyone sends there, nobody elsewhere.
    std::vector<std::int64_t> sent(std::size_t(size()), 0), received(std::size_t(size()), 0);
    sent[std::size_t(root)] = my_bytes;
    std::int64_t total = 0;
    if (rank() == root) {
        received = bytes;
        for (const std::int64_t b : bytes) total += b;
    }
    std::vector<char> out(static_cast<std::size_t>(total));
    all_to_all_v(mine.data(), sent, out.data(), received);
    if (sizes) *sizes = bytes;
    return out;
}

int launched_ranks() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
        if (std::strcmp(name, "SLURM_NTASKS") == 0 && !std::getenv("SLURM_PROCID"))
            continue;  // inside an allocation, not inside srun
        if (const char* text = std::getenv(name)) return std::max(1, std::atoi(text));
    }
    return 1;
}

int local_rank() {
    for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
        if (const char* text = std::getenv(name)) return std::max(0, std::atoi(text));
    return 0;
}

#ifdef MOEPLAN_HAVE_MPI
bool built_with_mpi() { return true; }
std::string mpi_library() { return mpi_library_text(); }
#else
bool built_with_mpi() { return false; }
std::string mpi_library() { return {}; }
#endif

Communicator world_communicator() {
    const int ranks = launched_ranks();
#ifdef MOEPLAN_HAVE_MPI
    if (ranks > 1 || std::getenv("OMPI_COMM_WORLD_SIZE")) return Communicator(mpi_world());
#else
    if (ranks > 1)
        throw EnvironmentError("launched as " + std::to_string(ranks) +
                               " ranks, but this moeplan was built without MPI. Debian: apt-get "
                               "install libopenmpi-dev openmpi-bin, then configure "
                               "with -DMOEPLAN_MPI=ON");
#endif
    return {};
}

}  // namespace moeplan
