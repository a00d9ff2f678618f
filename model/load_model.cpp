/// A model by name or file; what kind a file is shows in its content.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/import/hugging_face.hpp"
#include "model/import/megatron.hpp"
#include "model/import/olmo_core.hpp"
#include "model/import/text_file.hpp"
#include "model/model_spec.hpp"

namespace moeplan {
namespace {

/// "…/samples/mixtral-8x7b.config.json" → "mixtral-8x7b"; a bare "config.json" takes its folder's
/// name.
std::string name_from(const std::filesystem::path& file) {
    std::string stem = file.stem().string();
    if (stem == "config") {
        std::error_code error;
        const auto folder =
            std::filesystem::absolute(file, error).parent_path().filename().string();
        return folder.empty() ? stem : folder;
    }
    if (stem.ends_with(".config")) stem.resize(stem.size() - 7);
    return stem;
}

}  // namespace

ModelSpec load_model(const std::string& name_or_file) {
    const std::filesystem::path file = shipped_or_file("--model", "specs/models", name_or_file);
    const std::string text = read_text_file(file);
    const std::string name = name_from(file);
    if (const auto start = trim(text); !start.empty() && start.front() == '{') {
        const JsonReader json = JsonReader::from_text(text, file.string());
        if (json.has("layers") && json.at("layers").is_array()) return model_from_json(json);
        // An answer of ours that carries its model (a plan's candidate).
        if (const auto inner = json.find("model");
            inner && inner->is_object() && inner->has("layers"))
            return model_from_json(*inner);
        if (is_hugging_face(json)) return model_from_hugging_face(json, name);
        json.fail(
            "a model: our own JSON (\"layers\" and so on), or a Hugging Face config.json "
            "(\"model_type\", \"num_hidden_layers\" …)");
    }
    if (looks_like_script(text))
        return looks_like_yaml(text) ? model_from_megatron(arguments_of_yaml(text, file.string()),
                                                           file.string(), name)
                                     : model_from_megatron(arguments_of_script(text, file.string()),
                                                           file.string(), name);
    if (looks_like_olmo_core(text)) refuse_olmo_core(text, file.string());
    if (looks_like_yaml(text))
        return model_from_megatron(arguments_of_yaml(text, file.string()), file.string(), name);
    throw InputError(
        file.string(), "", "",
        "a model: our own JSON, a Hugging Face config.json, a Megatron launch script or YAML");
}

std::vector<std::string> shipped_models() { return shipped_names("specs/models"); }

}  // namespace moeplan
