#pragma once
/// Exchange between the ranks of a group: MPI on host memory, NCCL (a module) on device memory, or
/// nobody (one rank).

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.hpp"

namespace moeplan {

enum class Reduction : std::int32_t { sum, max };

/// Plain C at the border: what an implementation fills in. All sizes are bytes or elements as
/// named; 64 bits, so nothing overflows at 2 GiB.
struct CommunicatorTable {
    void* state = nullptr;
    int rank = 0, size = 1;
    Device space = Device::cpu;  ///< whose memory the buffers are in
    /// Blocks lie one after another in order of ranks in both buffers. A rank's receive sizes must
    /// be what its peers send.
    Status (*all_to_all_v)(void* state, const void* send, const std::int64_t* send_bytes,
                           void* receive, const std::int64_t* receive_bytes, Stream_*) = nullptr;
    Status (*all_reduce)(void* state, void* data, std::int64_t count, NumberFormat format,
                         Reduction, Stream_*) = nullptr;  ///< in place
    /// data holds size · count elements; rank r ends with the sum of block r in `out`.
    Status (*reduce_scatter)(void* state, const void* data, void* out, std::int64_t count,
                             NumberFormat format, Stream_*) = nullptr;
    Status (*all_gather_v)(void* state, const void* send, std::int64_t send_bytes, void* receive,
                           const std::int64_t* receive_bytes, Stream_*) = nullptr;
    Status (*broadcast)(void* state, void* data, std::int64_t bytes, int root, Stream_*) = nullptr;
    Status (*send)(void* state, const void* data, std::int64_t bytes, int to, Stream_*) = nullptr;
    Status (*receive)(void* state, void* data, std::int64_t bytes, int from, Stream_*) = nullptr;
    Status (*barrier)(void* state) = nullptr;
    /// Until what was asked for on this stream is done, or its library has found an error (a peer
    /// that is gone); null where calls return when they are done.
    Status (*wait)(void* state, Stream_*) = nullptr;
    Status (*split)(void* state, int color, int key, CommunicatorTable* out) = nullptr;
    void (*release)(void* state) = nullptr;
    void (*abort)(void* state, int exit_status) = nullptr;  ///< ends every rank of the job
};

/// Owns a table. A failed call throws EnvironmentError with the library's own text.
class Communicator {
  public:
    Communicator();  ///< alone: one rank
    explicit Communicator(const CommunicatorTable& table);
    Communicator(Communicator&&) noexcept;
    Communicator& operator=(Communicator&&) noexcept;
    ~Communicator();

    int rank() const { return table_.rank; }
    int size() const { return table_.size; }
    bool accepts(Device space) const { return table_.space == space || table_.size == 1; }
    const CommunicatorTable& table() const { return table_; }

    void all_to_all_v(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                      std::span<const std::int64_t> receive_bytes, Stream_* stream = nullptr) const;
    void all_reduce(void* data, std::int64_t count, NumberFormat format,
                    Reduction reduction = Reduction::sum, Stream_* stream = nullptr) const;
    void reduce_scatter(const void* data, void* out, std::int64_t count, NumberFormat format,
                        Stream_* stream = nullptr) const;
    void all_gather_v(const void* send, std::int64_t send_bytes, void* receive,
                      std::span<const std::int64_t> receive_bytes, Stream_* stream = nullptr) const;
    void broadcast(void* data, std::int64_t bytes, int root, Stream_* stream = nullptr) const;
    void send(const void* data, std::int64_t bytes, int to, Stream_* stream = nullptr) const;
    void receive(void* data, std::int64_t bytes, int from, Stream_* stream = nullptr) const;
    void barrier() const;
    /// Until all that was asked for on this stream is done. A peer's failure is an error, not a
    /// wait without end.
    void wait(const Backend& device, Stream_* stream) const;
    /// The ranks of equal color form a group each, ordered by key.
    Communicator split(int color, int key) const;
    /// End every rank of the job (an error on one rank must not leave the others waiting).
    [[noreturn]] void abort(int exit_status) const;

    double all_reduce_max(double value) const;  ///< of a host number
    double all_reduce_sum(double value) const;
    std::vector<char> gather_bytes(const std::vector<char>& mine, int root,
                                   std::vector<std::int64_t>* sizes = nullptr) const;

  private:
    CommunicatorTable table_;
};

/// All processes of this job: MPI if it was launched by mpirun or srun and we were built with MPI,
/// else one rank. MPI starts at the first call and ends with the process.
/// @throws EnvironmentError if launched as several ranks without MPI in the build
Communicator world_communicator();
bool built_with_mpi();
/// Of how many ranks the launcher's environment says this process is one (1: not launched by one).
int launched_ranks();
/// Which of this node's ranks this process is, as the launcher's environment says (0: not launched
/// by one): one rank, one GPU.
int local_rank();
/// What `doctor` prints: "Open MPI v4.1.4 …", or empty without MPI.
std::string mpi_library();

}  // namespace moeplan
