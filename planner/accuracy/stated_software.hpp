#pragma once
/// What a published record states of its training software, in one vocabulary: framework, release,
/// graph scope, FP8 recipe, dispatcher, overlaps, fusions.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/json.hpp"
#include "model/step_schedule.hpp"

namespace moeplan {

/// Nothing here is inferred from a measured time or an id. What the source does not say stays
/// empty.
struct StatedSoftware {
    /// framework: megatron-bridge, megatron-core, megatron-lm, megatron-deepspeed, nemo,
    ///   nemo-automodel, torchtitan, llm-foundry, oneflow, deepspeed, megascale; else the text.
    /// release: container or version as printed ("26.04.01", "0.14", "dev"), else the source's
    /// date. graph_scope: "none", "full_iteration", or modules with commas, sorted:
    /// "attn,moe_preprocess,
    ///   moe_router".
    /// fp8_recipe: delayed, tensorwise, rowwise, blockwise, mxfp8, nvfp4.
    /// fusion: words with commas, sorted: compile, eager, permute, no_permute, cross_entropy,
    ///   paged_stash, delay_wgrad, flex_attention, pure_16_bit.
    /// moe_backend: deepep, hybridep or alltoall, where the dispatcher is named.
    SoftwareState state;
    std::optional<Dispatcher> dispatcher;
    std::optional<bool> sequence_parallel, overlap_gradients, overlap_parameters, overlap_tensor,
        overlap_experts;
    std::optional<std::string> pipeline_layout;  ///< a Megatron layout string
    bool embedding_counts_as_layer = false, head_counts_as_layer = false;
};

/// @param software  the record's text  @param date  of the source, empty if it states none
/// @param workload  the record's object of that name
StatedSoftware stated_software(const std::string& software, const std::string& date,
                               const Json& workload, const std::string& notes);

/// Megatron and recipe arguments of a workload as one list: keys with `_`, values as plain text
/// ("true", "attn moe_router").
std::map<std::string, std::string> stated_arguments(const Json& workload);

/// Words of a text in lower case, cut at anything but letters, digits, `_` and `.`.
std::vector<std::string> lower_words(std::string_view text);

}  // namespace moeplan
