#pragma once
/// What this hardware can do: curves of kernels and links with spread, conditions and source, and
/// how to look a time up.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/enum_names.hpp"
#include "core/json.hpp"
#include "core/number_format.hpp"
#include "core/units.hpp"
#include "model/step_schedule.hpp"
#include "profiler/calibration.hpp"

namespace moeplan {

/// What is multiplied: [m, k] × [k, n]. The gradient kernels are asked for by the layer's shape,
/// not their own: "gemm_input_gradient" is [m, n] × [n, k] and "gemm_weight_gradient" [k, m] × [m,
/// n] of the same m, n, k.
struct Gemm {
    std::int64_t m = 0, n = 0, k = 0;
};
/// One m an expert: tiles are counted, not means.
struct GroupedGemm {
    std::span<const std::uint32_t> m;
    std::int64_t n = 0, k = 0;
};
/// Causal attention's core (scores, softmax, values); backward kernels are named apart.
struct AttentionShape {
    std::int64_t batch = 0, sequence = 0, num_heads = 0, num_kv_heads = 0, head_size = 0;
    std::optional<int> window;
};
/// A memory-bound kernel. `width` is the length of a row (hidden size, number of experts,
/// vocabulary): some kernels do more a byte on short rows; 0: unknown.
struct Streamed {
    Bytes moved;
    std::int64_t width = 0;
};
using KernelShape = std::variant<Gemm, GroupedGemm, AttentionShape, Streamed>;

enum class Basis : std::uint8_t {
    measured,
    interpolated,
    published,
    roofline
};  ///< how far to trust a time
struct PricedTime {
    Seconds time;
    Basis basis = Basis::roofline;
};

/// What a floor needs to know of a device, in the precision of the curve that was measured there.
struct DeviceRates {
    std::string name;
    FlopsPerSecond peak;
    BytesPerSecond memory_bandwidth;
    int num_sms = 0;
};

/// One measured table of a kernel. Columns are named: shape columns, then median_s,
/// relative_spread, num_samples.
///
/// Shape columns: "m", "n", "k" (gemm…); "m", "n", "k", "num_experts" with m rows in each expert
/// (grouped_gemm…); "batch", "sequence", "num_heads", "num_kv_heads", "head_size" (attention…);
/// "bytes" and, optionally, "width" (all others).
struct KernelCurve {
    std::string kernel;  ///< one of kernel_names()
    Precision precision = Precision::bf16;
    Basis basis = Basis::measured;
    std::string source;  ///< who measured it and where it stands; conditions
    std::vector<std::string> columns;
    std::vector<std::vector<double>> rows;
    /// Another device than the profile's: its efficiencies are kept and the floors are the
    /// profile's own.
    std::optional<DeviceRates> measured_on;
};
/// One measured table of a link: columns bytes, median_s, relative_spread, num_samples.
struct LinkCurve {
    std::string collective;  ///< send_recv, all_reduce, all_gather, reduce_scatter, all_to_all
    int num_ranks = 2;
    Basis basis = Basis::measured;
    std::string source;
    std::vector<std::string> columns;
    std::vector<std::vector<double>> rows;
};

/// How long ranks that compute at the same time wait for the slowest of them: a row says that a
/// stretch of work which takes `stretch_s` undisturbed (by the medians of its parts) takes
/// `slowest` times as long until the last of `num_ranks` ranks has done it, in the median over
/// `window` of such stretches. Interruptions and the unsteadiness of shared memory are in it;
/// unequal work is not. `typical` is the median of one stretch on one rank, likewise: what a kernel
/// that long has of it in its own median.
struct StretchCurve {
    std::string source;
    Seconds window;                         ///< about a step: what is rarer leaves its median alone
    std::vector<std::string> columns;       ///< num_ranks, stretch_s, slowest, typical
    std::vector<std::vector<double>> rows;  ///< a whole grid: every stretch for every num_ranks
};

/// A tile of the output that one multiprocessor computes at a time.
struct Tile {
    int rows = 0, columns = 0;
    bool operator==(const Tile&) const = default;
};

/// How the products of a GPU's library depart from the datasheet, one set of constants a generation
/// of tensor cores: docs/profiles.md has the equation and the fit (profiler/gemm_model.hpp).
struct GemmModel {
    std::vector<Tile> tiles;         ///< that the library chooses from
    double efficiency = 1;           ///< of the main loop on an endless tile, of the peak
    double tile_loss = 0;            ///< operands a tile rereads: /(1 + this · (64/rows + 64/columns))
    double pipeline_depth = 0;       ///< k that passes while a tile's pipeline fills and drains
    double wave_quantisation = 0;    ///< 0: a last wave of half the tiles takes half the time; 1: all
    double memory_efficiency = 1;    ///< share of the bandwidth, where operands bind
    double fp8_efficiency = 1, fp4_efficiency = 1;  ///< of the narrow rate, over bf16's of its own
    Seconds launch, split;           ///< a kernel's ramp; what a split along k costs more
};

/// The same of causal attention's core: eff = efficiency · s/(s + half_sequence) · (head size/128)^head_power,
/// below a head size of 128; whole waves of 128 queries on the multiprocessors.
struct AttentionModel {
    double efficiency = 1, half_sequence = 0, head_power = 0, wave_quantisation = 0;
    Seconds launch;
};

/// Datasheet figures and the stated share of them that is assumed where no curve answers.
struct Roofline {
    std::map<Precision, FlopsPerSecond> peak;
    BytesPerSecond memory_bandwidth;
    int num_sms = 0;  ///< 0 or 1: no wave quantisation (a CPU core)
    Bytes l2;
    std::vector<Tile>
        tiles;  ///< that the GPU's GEMM libraries choose from; empty: no tile quantisation
    double gemm_efficiency = 0.7, attention_efficiency = 0.45,
           memory_efficiency = 0.8;  ///< stated, not measured; see specs/profiles
    double gemm_half_depth =
        0;  ///< k at which a GEMM's main loop reaches half of that: efficiency · k / (k + this)
    double attention_half_sequence = 0;  ///< the same for attention over the sequence length
    double attention_backward = 0.7;     ///< efficiency of attention's backward over its forward's
    Seconds kernel_overhead;             ///< of the shortest kernel, on the device
    double board_power_w = 0;            ///< watts that the GPU may draw for long; 0: not stated
    std::optional<GemmModel> gemm_model;
    std::optional<AttentionModel> attention_model;
};

struct HostCosts {
    Seconds per_launch,  ///< in a profile: bare; in training: with the framework's own time
        per_sync, per_bare_launch;
};

struct CurveIndex;  ///< profiler/curve_index.hpp

struct Profile {
    std::string name, device, driver, source;
    double clocks_mhz = 0;
    std::map<std::string, std::string> conditions;
    Roofline roofline;
    HostCosts host;
    std::vector<KernelCurve> kernels;
    std::vector<LinkCurve> links;
    std::optional<StretchCurve> stretches;
    /// Of a GPU; a CPU's curves were measured as it runs, and only what concerns links applies.
    Calibration calibration;
    double host_overlap = 0;  ///< 0: a CPU device, host work is in the kernel times; 1: launches
                              ///< run ahead of the device
    std::string digest;       ///< of the file it came from; part of every answer
    std::shared_ptr<const CurveIndex> index;  ///< curves sorted for look-up; made by prepare()
};

/// Checks the curves and sorts them for look-up. Whoever builds or edits a Profile by hand calls it
/// last; readers already have.
/// @throws InputError  if a curve names an unknown kernel, lacks a column or holds a value that is
/// no time
void prepare(Profile&);

/// The kernels that have a price: gemm and grouped_gemm with their gradients, attention, the
/// streamed kernels of model/kernel_work.hpp, and "streamed", which stands for any of those that
/// has no curve of its own.
const std::vector<std::string_view>& kernel_names();
/// Whether a streamed kernel's time a byte depends on the length of a row (soft-max, norms,
/// gathers), or on its bytes alone.
bool kernel_depends_on_width(std::string_view kernel);

/// Share of the benchmarked rate that matrix products hold in training: the calibration's constant
/// of this GPU's generation, and of narrow precisions; 1 for a CPU.
double sustained(const Profile&, Precision);
HostCosts host_costs(const Profile&);
/// Achieved share of the link's rate for a collective of this message size (per rank) on that many
/// ranks; 1 if nothing is known.
double link_efficiency(const Profile&, std::string_view collective, Bytes message, int num_ranks);
/// The measured time of a collective itself, interpolated in log(bytes), and in log(ranks) between
/// two curves; empty if no curve, or none on each side, is known.
/// @param message  per rank: the whole buffer of all_reduce and send_recv, what a rank sends in
/// all_to_all (its own share included)
std::optional<PricedTime> link_time(const Profile&, std::string_view collective, Bytes message,
                                    int num_ranks);

/// What a stretch of work takes on the slowest of that many ranks, over its undisturbed time: from
/// `Profile::stretches`, linear in the logarithms of stretch and ranks, the edge's value beyond an
/// edge; 1 if nothing was measured.
double slowest_of(const Profile&, Seconds stretch, int num_ranks);
/// Seconds of a reference piece (kernels/machine_pace.hpp) on the machine that the times were
/// measured on, meanwhile; empty: not known.
std::optional<Seconds> machine_pace(const Profile&);
inline constexpr const char* kMachinePace = "machine_pace_s";  ///< its key in `conditions`
/// Likewise the median of such a stretch on one rank: the time of a kernel that was measured so
/// long is this much above the undisturbed one.
double typical_of(const Profile&, Seconds stretch);

/// Time of one kernel. Efficiency (floor over time, where the floor counts tiles, waves, flops and
/// bytes) is interpolated in the logarithms of the shape; where no curve answers, it is the
/// roofline's stated one.
///
/// Basis: measured on a point of a curve; interpolated between points; published likewise from a
/// published curve; roofline where no curve answers or the shape lies more than a factor of two
/// outside of all of them.
/// @param kernel  one of kernel_names(). Attention under an fp8 or fp4 recipe is priced in bf16, in
/// which it runs.
PricedTime kernel_time(const Profile&, std::string_view kernel, Precision, const KernelShape&);
/// Whether the kernel itself was measured, rather than one that stands for it.
bool has_curve(const Profile&, std::string_view kernel, Precision);

/// The same efficiencies on another device: floors are the target's, curves say where they were
/// measured, their basis is published at best.
Profile moved_to(const Profile&, const std::string& name, const Roofline& target);

Profile profile_from_json(const JsonReader&);  ///< @throws InputError
Json to_json(const Profile&);
/// A shipped name (a GPU id of specs/profiles) or a file. A GPU's profile without a calibration of
/// its own gets the shipped one.
Profile load_profile(const std::string& name_or_file);
std::vector<std::string> shipped_profiles();

template <>
const EnumNames<Basis>& enum_names<Basis>();

}  // namespace moeplan
