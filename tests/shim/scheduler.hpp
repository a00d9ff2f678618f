#pragma once
/// CUDA threads as fibers: one block at a time on each OS worker, every CUDA thread with its own stack and program counter.
///
/// What it checks for free: launch limits, barriers that not all threads of a block reach (or reach at different places),
/// warp collectives with lanes missing, ended or disagreeing, shuffles from a lane outside the mask; with AddressSanitizer
/// every byte outside a buffer, with ThreadSanitizer every unordered pair of accesses to shared or global memory.
/// docs/cuda-shim.md tells how, and what it cannot see.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace shim {

struct Index3 { unsigned x = 1, y = 1, z = 1; };

/// Where a CUDA thread is. `threadIdx` and its kin read it.
struct Here { Index3 thread, block, block_dim, grid_dim; };
extern thread_local const Here* here;

/// The order in which ready CUDA threads, and the blocks of a worker, run.
enum class Order { forward, reverse, random };
struct Schedule { Order order = Order::forward; std::uint64_t seed = 1; int workers = 1; };
void set_schedule(const Schedule&);
Schedule schedule();

/// The place of a barrier or collective in the source.
struct Site { const char* file; int line; };

/// Runs a kernel over the grid and waits for it.
/// @return  0, or the cudaError_t of a launch that a GPU would refuse (9), or 719 where the kernel misbehaved: `failure()` says how
int launch(const char* name, Index3 grid, Index3 block, std::size_t dynamic_shared, std::size_t dynamic_shared_limit,
           const std::function<void()>& thread);

/// The last failed launch in words, e.g. "router_forward, block (0,0,0): threads 0…31 wait at router.cu:55, 32…63 have ended".
const std::string& failure();
void clear_failure();

/// Counts since the program started: how much a test really ran.
struct Work { std::uint64_t launches = 0, blocks = 0, threads = 0, switches = 0; };
Work work_done();

/// What a test makes of the machine: how long each of cuBLAS's ways takes (seconds a call, added to what events see), what its heuristic
/// and its algorithms refuse, and how often each was called.
struct Blas {
    double lt_seconds = 0, grouped_seconds = 0;
    bool knows_no_algorithm = false, refuses_smaller_shapes = false, refuses_grouped = false;
    int heuristics = 0, lt_calls = 0, grouped_calls = 0, plain_calls = 0;
};
Blas& blas();
/// Whether the next recording of a graph fails.
extern bool graphs_fail;
/// The barriers at one place in the source do nothing: a mistake, made on purpose. $MOEPLAN_SHIM_LEAVE_OUT names it ("norm.cu:61").
/// @return how often they were left out so far; no value where nothing is
std::optional<std::uint64_t> times_left_out();

/// Null, or says whether work on streams never ends now: an exchange whose peer is gone.
extern bool (*streams_hang)();

// What kernels call ------------------------------------------------------------------------------------------------------

void sync_threads(Site);
enum class Collective : int { sync, shuffle, ballot, match };
/// Deposits a value, waits for the lanes of the mask, returns this lane's result.
/// @param source  shuffle: the lane read; −1: the lane's own value (it reads past the edge of its segment)
std::uint64_t warp_collective(Collective, unsigned mask, std::uint64_t value, int source, Site);
void* dynamic_shared();
/// The block's array that belongs to this place in the source: exactly `bytes` long, all bits set (floats are NaN) when the block starts.
void* shared_array(const void* key, std::size_t bytes);
int lane();

}  // namespace shim
