#include "model/import/olmo_core.hpp"

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/import/megatron.hpp"

namespace moeplan {

bool looks_like_olmo_core(std::string_view text) {
    return text.find("--model.") != std::string_view::npos ||
           text.find("model.block.") != std::string_view::npos ||
           text.find("--model-type=") != std::string_view::npos;
}

void refuse_olmo_core(std::string_view text, const std::string& file) {
    const auto arguments = arguments_of_script(text, file);
    std::vector<std::string> set, missing;
    const std::pair<const char*, const char*> shape[] = {
        {"model.d-model", "d_model"},
        {"model.n-layers", "n_layers"},
        {"model.vocab-size", "vocab_size"},
        {"model.block.sequence-mixer.n-heads", "sequence_mixer.n_heads"},
        {"model.block.feed-forward-moe.hidden-size", "feed_forward_moe.hidden_size"},
        {"model.block.feed-forward-moe.router.top-k", "router.top_k"}};
    for (const auto& [key, name] : shape)
        if (!arguments.count(key)) missing.push_back(name);
    for (const auto& [key, argument] : arguments)
        if (key.starts_with("model.") || key == "model-type" || key == "num-shared-experts" ||
            key.ends_with("expert-pool"))
            set.push_back(key + " = " + argument.value);
    throw InputError(file, "", "overrides of an OLMo-core configuration (" + join(set, ", ") + ")",
                     "a whole model; the rest of its shape stands in the Python script that is "
                     "launched (missing: " +
                         join(missing, ", ") +
                         "). Give the checkpoint's config.json, or start from a shipped model: "
                         "moeplan model import emo-1b14b --out my-model.json");
}

}  // namespace moeplan
