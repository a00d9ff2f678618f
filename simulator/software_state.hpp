#pragma once
/// What a training framework costs beside its kernels: launches, waits, bytes that it does not
/// fuse. Named states in a table (validation/software_states.json); nothing is inferred from
/// results.

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "core/json.hpp"
#include "simulator/step.hpp"

namespace moeplan {

/// Parts of a layer as frameworks cut it: launches are counted by them, CUDA graphs capture them.
enum class Module : std::uint8_t {
    attention,
    feed_forward,
    shared_experts,
    router,
    preprocess,  ///< token counts, masks and maps before the dispatch
    dispatch,    ///< permute, the two exchanges, unpermute
    experts,
    ends,       ///< embedding; final norm, head and loss
    optimizer,  ///< of a step
    parameters  ///< gathering and freeing the sharded parameters of a layer (ZeRO-3)
};
inline constexpr int kNumModules = 10;

/// Kernels that the host launches, forward and backward.
struct Launches {
    double forward = 0, backward = 0;
};
/// Where the host waits for token counts before it can launch what follows.
enum class CountSync : std::uint8_t {
    none,
    before_dispatch,
    after_dispatch  ///< the dispatch itself tells them
};

/// One row of the table, or the row that stands for a step.
struct SoftwareCosts {
    std::string name, source;
    bool assumed = false;  ///< no row names this framework and release
    bool counted = false;  ///< our own trainer: what is launched is what is priced
    std::array<Launches, kNumModules> launches;
    Launches per_expert;          ///< of `experts`, more for each local expert, from a compiled
                                  ///< loop: a bare launch each
    Launches tensor_parallel;     ///< more of `attention` and `feed_forward`, shared out
    Launches checkpoint;          ///< more for each part of a layer that is recomputed: states of
                                  ///< random numbers are kept and restored
    double latent_attention = 1;  ///< factor on launches of `attention` where it is latent
    double narrow_launches = 1;   ///< factor on launches of products in fp8 and fp4
    CountSync sync = CountSync::before_dispatch;
    bool sorts_chunks = true;      ///< rows are sorted again after the exchange
    bool fused_attention = true;   ///< else scores lie in memory: batched products and a soft-max
    double attention_forward = 0,  ///< most that this stack's attention reaches of the peak on
        attention_backward = 0;    ///< this generation of GPU; 0: as the profile
    bool overlaps_weight_gradient = true;  ///< tensor parallelism's exchange of an input gradient
                                           ///< runs beside the weight gradient
    bool waits_for_messages = false;  ///< of stages, without chunks: the host waits until each is
                                      ///< sent and received before it launches another pass
    bool keeps_gathered = false;  ///< sequence parallelism: the gathered input is kept for the weight
                                  ///< gradient, not gathered again
    bool scatters_messages = false;  ///< between stages each tensor-parallel rank sends its part
    bool pxn = true;  ///< NCCL from 2.12: a GPU reaches an adapter that is not beside it over NVLink
                      ///< and the GPU that is, not across the CPUs
    double sharded_gradient_bytes = 0;  ///< of an element that is reduced where parameters are
                                        ///< sharded (ZeRO-3); 0: as gradient_bytes
    double overlapped_share = 1;  ///< of an exchange among experts that another micro-batch hides,
                                  ///< where the two are not walked in turns
    double expert_sms = 20, collective_sms = 20;  ///< SMs that an exchange among experts, and any
                                                  ///< other collective, hold while they last
    double step_work = 1;          ///< factor on the calibration's host time a step
    double elementwise_bytes = 1;  ///< factors on what memory-bound kernels move
    double router_bytes = 1, loss_bytes = 1, permute_bytes = 1;
    double biased_activation_bytes = 1;  ///< of experts' gated activations with biases
    double gradient_bytes = 0;           ///< of an element that is reduced; 0: as the schedule says
    double narrow_rate = 1;              ///< of this recipe's products over the best recipe's
    double cast_bytes = 5;       ///< of an element of a product's input, in narrow precisions
    double captured_launch = 0;  ///< launches a captured module costs: one graph
    std::set<Module> captured;
    bool captures(Module module) const { return captured.contains(module); }
};

/// The row for this step's software, with its dispatcher, graph scope and recipe applied.
SoftwareCosts software_costs(const StepCase&);

/// The table: rows of frameworks and releases, and what dispatchers, recipes and fusions change in
/// them. Parts are kept as they stand in the file and were checked when it was read.
struct SoftwareTable {
    struct Row {
        std::string name;
        std::vector<std::string> frameworks;
        std::string from, before;       ///< releases; "": open
        std::vector<JsonReader> parts;  ///< of the row it is like, then its own
    };
    std::vector<Row> rows;                        ///< the first that matches decides
    std::map<std::string, std::string> defaults;  ///< generation of GPU → name of a row
    std::map<std::string, JsonReader> dispatchers, recipes, fusions, routings;
};
SoftwareTable software_table_from_json(const JsonReader&);  ///< @throws InputError
const SoftwareTable& software_table();                      ///< the shipped one, read once
SoftwareCosts software_costs(const StepCase&, const SoftwareTable&);

/// Whether release `a` comes before `b`: numbers between dots and dashes, compared one by one.
bool release_before(const std::string& a, const std::string& b);

template <>
const EnumNames<Module>& enum_names<Module>();
template <>
const EnumNames<CountSync>& enum_names<CountSync>();

}  // namespace moeplan
