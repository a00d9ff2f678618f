#pragma once
/// One device: its memory, its kernels, its clocks. Plain C at the border, so that a module can be
/// loaded at run time and nothing is thrown across it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.hpp"
#include "core/number_format.hpp"

namespace moeplan {

enum class Device : std::uint8_t { cpu, cuda };
template <>
const EnumNames<Device>& enum_names<Device>();

struct Stream_;  ///< cpu: null, runs at once; cuda: a cudaStream_t
struct Event_;   ///< a point in a stream's time
struct Graph_;   ///< work that was recorded and can be launched again as one

/// What a call says instead of throwing.
enum StatusCode : int {
    kOk = 0,
    kUnsupported = 1,  ///< this device has no such kernel for this number format or shape: an
                       ///< answer, not a fault
    kOutOfMemory = 2,
    kFailed = 3,  ///< the library's own text is in `message`
};
struct Status {
    int code = kOk;
    char message[256] = {};
};
/// A status with its text (cut at 255 bytes). Inline: modules use it too.
inline Status status_of(StatusCode code, std::string_view message) {
    Status status;
    status.code = code;
    const std::size_t length =
        message.size() < sizeof status.message - 1 ? message.size() : sizeof status.message - 1;
    std::memcpy(status.message, message.data(), length);
    status.message[length] = 0;
    return status;
}
/// @throws EnvironmentError with the call's name and the library's text unless the status is kOk
void check(const Status& status, std::string_view call);

struct KernelSet;  ///< kernels/kernel_set.hpp

/// Streams and events. `elapsed` is in seconds, between two recorded events whose work is done.
struct StreamSet {
    Status (*create_stream)(Stream_** out);
    Status (*release_stream)(Stream_*);
    Status (*create_event)(Event_** out);
    Status (*release_event)(Event_*);
    Status (*record)(Event_*, Stream_*);
    Status (*wait)(Event_*);  ///< the host waits
    Status (*elapsed)(const Event_* begin, const Event_* end, double* seconds);
    /// What `later` is given from now on runs after what `earlier` has been given so far.
    Status (*follow)(Stream_* later, Stream_* earlier);
};

/// Work put on a stream once and launched again and again, without the host's work for each kernel.
struct GraphSet {
    /// What `recording` is given from now on is kept instead of run, as work of `owner`.
    Status (*begin)(Stream_* owner, Stream_** recording);
    /// @param out  null if the status is not kOk: what was given is lost, and nothing of it has run
    Status (*end)(Stream_* recording, Graph_** out);
    Status (*launch)(Graph_*, Stream_*);  ///< on the owner
    Status (*release)(Graph_*);
};

struct DeviceFacts {
    char name[128] = {};   ///< as the driver or /proc/cpuinfo says
    char driver[64] = {};  ///< driver and runtime versions; cpu: instruction set in use
    std::uint64_t memory_bytes = 0;
    std::uint64_t l2_bytes =
        0;            ///< last-level cache (cpu) or L2 (gpu): what a cold measurement must flush
    int num_sms = 0;  ///< cpu: cores of this process
    int compute_major = 0, compute_minor = 0;  ///< cuda only
    double clock_hz = 0;                       ///< nominal; 0: unknown
};

inline constexpr std::uint32_t kBackendAbi =
    3;  ///< of this header, communicator.hpp and kernel_set.hpp together; a module of another number is refused

struct Backend {
    Device device = Device::cpu;
    int ordinal = 0;
    Status (*allocate)(std::size_t bytes,
                       void** out) = nullptr;  ///< aligned to 64 bytes at least; content undefined
    Status (*release)(void*) = nullptr;
    Status (*copy)(void* to, const void* from, std::size_t bytes,
                   Stream_*) = nullptr;  ///< any direction between host and this device
    Status (*set_zero)(void* to, std::size_t bytes, Stream_*) = nullptr;
    Status (*synchronise)(Stream_*) = nullptr;
    const StreamSet* streams = nullptr;
    const DeviceFacts* facts = nullptr;
    const KernelSet* kernels = nullptr;
    const GraphSet* graphs = nullptr;  ///< null: none
    /// What the device found out about itself and chose (which way products are launched), a line
    /// each; null: nothing to choose.
    void (*choices)(void* to, void (*say)(void* to, const char* line)) = nullptr;
};

/// What a device module (moeplan_cuda.so) exports under this name.
extern "C" typedef Status (*ModuleEntry)(std::uint32_t abi, int ordinal, Backend* out);
inline constexpr const char* kModuleEntry = "moeplan_backend";

/// The CPU is built in. Others are modules, looked for beside the binary, in ../lib/moeplan and in
/// $MOEPLAN_MODULES. The object lives as long as the process.
/// @throws EnvironmentError if built or run without it: what is missing, and how to get it
const Backend& backend_for(Device device, int ordinal = 0);

/// The lines of `choices`.
std::vector<std::string> choices_of(const Backend& backend);

/// Why `backend_for` would throw, or empty: for `doctor`.
std::string why_missing(Device device, int ordinal = 0);

/// "cpu", "cuda", "cuda:1". @throws InputError
struct DeviceName {
    Device device = Device::cpu;
    int ordinal = 0;
};
DeviceName device_from(std::string_view flag, std::string_view text);

}  // namespace moeplan
