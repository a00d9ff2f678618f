#pragma once
/// Megatron's arguments, from a launch script (bash arrays or strings) or a YAML file, as a model
/// and as layout words.

#include <map>
#include <string>
#include <string_view>

#include "model/layout_words.hpp"
#include "model/model_spec.hpp"

namespace moeplan {

/// One argument: "num-layers" → "61" of line 5. A flag without a value has the text "true".
struct MegatronArgument {
    std::string value;
    int line = 0;
};
using MegatronArguments = std::map<std::string, MegatronArgument>;

bool looks_like_script(std::string_view text);  ///< has --flags in it
bool looks_like_yaml(
    std::string_view text);  ///< has "key: value" lines that are Megatron's arguments

/// What the shell would hand over: comments, quotes, line ends with a backslash, arrays, `NAME=…`,
/// $NAME, ${NAME}, ${NAME:-default} and simple $((…)) are understood; nothing is run. Later words
/// replace earlier ones. A value that needs a variable nobody set keeps its "$".
/// @throws InputError for an unclosed quote, or a variable that branches set differently
MegatronArguments arguments_of_script(std::string_view text, const std::string& file);
/// Flat or nested "key: value" lines; `--` and `_` do not matter.
MegatronArguments arguments_of_yaml(std::string_view text, const std::string& file);

/// @throws InputError naming the arguments that are missing
ModelSpec model_from_megatron(const MegatronArguments&, const std::string& file,
                              const std::string& name);
/// The layout's part; the framework is megatron-core.
LayoutWords layout_from_megatron(const MegatronArguments&, const std::string& file);

/// "([0]*3+[1]*58)" or "2" → one entry a layer, 1: MoE. @throws InputError
std::vector<int> moe_layer_pattern(std::string_view expression, int num_layers,
                                   const std::string& file, int line);

/// A pipeline layout string, "Et|(tt|)*30mL": virtual stages apart by |, E embedding, t layer, m
/// MTP layer, L loss.
struct PipelineLayout {
    std::vector<int> layers;  ///< [virtual stages]
    int num_layers = 0, num_mtp_layers = 0;
};
bool looks_like_pipeline_layout(std::string_view text);
/// @param flag  named in messages  @throws InputError
PipelineLayout parse_pipeline_layout(std::string_view text, const std::string& flag);

}  // namespace moeplan
