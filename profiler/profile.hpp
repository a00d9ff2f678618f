#pragma once
/// What this hardware can do: curves of kernels and links with spread, conditions and source, and
/// how to look a time up.

#include <cstdint>
#include <filesystem>
#include <map>
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

namespace moeplan {

/// What is multiplied: [m, k] × [k, n].
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
/// A memory-bound kernel.
struct Streamed {
    Bytes moved;
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

/// One measured table of a kernel. Columns are named: shape columns, then median_s,
/// relative_spread, num_samples.
struct KernelCurve {
    std::string kernel;  ///< gemm, grouped_gemm, attention_forward, attention_backward, streamed,
                         ///< or a kernel's own name
    Precision precision = Precision::bf16;
    Basis basis = Basis::measured;
    std::string source;  ///< who measured it and where it stands; conditions
    std::vector<std::string> columns;
    std::vector<std::vector<double>> rows;
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

/// Datasheet figures and the stated share of them that is assumed where no curve answers.
struct Roofline {
    std::map<Precision, FlopsPerSecond> peak;
    BytesPerSecond memory_bandwidth;
    int num_sms = 0;
    Bytes l2;
    double gemm_efficiency = 0.7, attention_efficiency = 0.45,
           memory_efficiency = 0.8;  ///< stated, not measured; see specs/profiles
    Seconds kernel_overhead;         ///< of the shortest kernel, on the device
};

struct HostCosts {
    Seconds per_launch, per_sync;
};

struct Profile {
    std::string name, device, driver, source;
    double clocks_mhz = 0;
    std::map<std::string, std::string> conditions;
    Roofline roofline;
    HostCosts host;
    std::vector<KernelCurve> kernels;
    std::vector<LinkCurve> links;
    double host_overlap = 0;  ///< 0: a CPU device, host work is in the kernel times; 1: launches
                              ///< run ahead of the device
    std::string digest;       ///< of the file it came from; part of every answer
};

HostCosts host_costs(const Profile&, const SoftwareState&);
/// Achieved share of the link's rate for a collective of this message size (per rank) on that many
/// ranks; 1 if nothing is known.
double link_efficiency(const Profile&, std::string_view collective, Bytes message, int num_ranks);
/// @param kernel  "gemm", "grouped_gemm", "attention_forward", "attention_backward", or a
/// memory-bound kernel's name ("rms_norm", "permute" …)
PricedTime kernel_time(const Profile&, std::string_view kernel, Precision, const KernelShape&);

Profile profile_from_json(const JsonReader&);  ///< @throws InputError
Json to_json(const Profile&);
/// A shipped name (a GPU id of specs/profiles) or a file.
Profile load_profile(const std::string& name_or_file);
std::vector<std::string> shipped_profiles();

template <>
const EnumNames<Basis>& enum_names<Basis>();

}  // namespace moeplan
