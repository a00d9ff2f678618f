#pragma once
/// In which order a step runs, in which numbers, by which software.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "core/json.hpp"
#include "core/number_format.hpp"

namespace moeplan {

enum class Pipeline : std::uint8_t {
    gpipe,
    one_f_one_b,
    interleaved,
    zero_bubble,    ///< ZB-H1
    zero_bubble_v,  ///< ZB-V: two chunks a stage, laid out as a V
    dual_pipe       ///< from both ends of the pipeline, each stage a copy of two stages' layers
};
enum class Sharding : std::uint8_t { none, zero1, zero2, zero3 };
enum class Dispatcher : std::uint8_t { all_gather, all_to_all, deduplicating };

struct Recompute {
    bool full = false;
    std::set<std::string> modules;  ///< selective: core_attn, moe_act, layernorm, mla_up_proj, mlp,
                                    ///< moe, shared_experts
    bool operator==(const Recompute&) const = default;
};
struct Overlap {
    bool gradients = true, parameters = true, tensor = false;
    bool experts = false;  ///< dispatch and combine travel while another micro-batch computes
    int communication_sms = 0;    ///< held by a collective while it lasts; 0: as the software does
    bool shared_experts = false;  ///< dispatch and combine travel while shared experts compute
    bool operator==(const Overlap&) const = default;
};
/// Decides host time and legality; named by the user, never inferred from results.
struct SoftwareState {
    std::string framework, release, fusion, graph_scope, fp8_recipe;
    std::string moe_backend,
        load_balancing;  ///< as the framework names them (deep_gemm_mega_moe; aux_loss, none …)
    bool operator==(const SoftwareState&) const = default;
};

struct StepSchedule {
    int sequence_length = 4096, micro_batch_size = 1, num_micro_batches = 1,
        virtual_pipeline_size = 1;
    Precision precision = Precision::bf16;
    NumberFormat main_gradients = NumberFormat::f32;
    bool sequence_parallel = false;
    Pipeline pipeline = Pipeline::one_f_one_b;
    std::vector<int> stage_layers;  ///< layers of each (virtual) stage in order; empty: even
    Sharding sharding = Sharding::zero1;
    Recompute recompute;
    Overlap overlap;
    Dispatcher dispatcher = Dispatcher::all_to_all;
    SoftwareState software;
    bool operator==(const StepSchedule&) const = default;
};

/// Keys are the flags of the command line (seq, micro_batch, vpp, schedule, …); `global_batch` is
/// layout × schedule and lives in model/layout_words.hpp, which reads a whole layout file.
Json to_json(const StepSchedule&);

template <>
const EnumNames<Pipeline>& enum_names<Pipeline>();  ///< 1f1b reads as one_f_one_b
template <>
const EnumNames<Sharding>& enum_names<Sharding>();  ///< 0…3 read too
template <>
const EnumNames<Dispatcher>& enum_names<Dispatcher>();  ///< alltoall, deepep, hybridep read too

}  // namespace moeplan
