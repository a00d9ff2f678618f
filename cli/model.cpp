/// `moeplan model`: what a model is made of, and other programs' configurations turned into ours.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/table.hpp"
#include "core/number_format.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "model/model_spec.hpp"
#include "model/op_counts.hpp"

namespace moeplan::cli {
namespace {

Json attention_json(const Attention& attention) {
    Json out = Json::object();
    if (const auto* mla = std::get_if<LatentAttention>(&attention)) {
        out["kind"] = "latent";
        out["num_attention_heads"] = mla->num_attention_heads;
        out["q_lora_rank"] = mla->q_lora_rank;
        out["kv_lora_rank"] = mla->kv_lora_rank;
    } else {
        const auto& gqa = std::get<GroupedQueryAttention>(attention);
        out["kind"] = "grouped_query";
        out["num_attention_heads"] = gqa.num_attention_heads;
        out["num_kv_heads"] = gqa.num_kv_heads;
        out["head_dim"] = gqa.head_size;
    }
    return out;
}

Json moe_json(const MoeFeedForward& moe) {
    Json out = Json::object();
    out["num_experts"] = moe.num_experts;
    out["top_k"] = moe.top_k;
    out["expert_hidden_size"] = moe.expert_hidden_size;
    out["num_shared_experts"] = moe.num_shared_experts;
    out["shared_expert_hidden_size"] = moe.shared_expert_hidden_size;
    out["num_moe_heads"] = moe.num_moe_heads;
    out["routing"] = moe.routing;
    return out;
}

Json answer(const ModelSpec& model, int sequence_length) {
    const ParameterCounts counts = count_parameters(model);
    const TokenFlops flops = flops_per_token(model, sequence_length);
    Json out = Json::object();
    out["name"] = model.name;
    out["parameters"] = {{"total", counts.total},
                         {"active",
                          {{"with_embeddings", counts.active_with_embeddings},
                           {"without_input_embedding", counts.active_without_input_embedding},
                           {"without_embeddings", counts.active_without_embeddings}}},
                         {"parts", counts.parts},
                         {"mtp", counts.mtp}};
    out["flops_per_token"] = {{"sequence_length", sequence_length},
                              {"forward", flops.forward.value},
                              {"training", flops.training.value},
                              {"training_causal_half", flops.training_causal_half.value}};
    out["bytes"] = {
        {"bf16", (size_of(NumberFormat::bf16) * static_cast<double>(counts.total)).value},
        {"fp32", (size_of(NumberFormat::f32) * static_cast<double>(counts.total)).value}};
    out["layers"] = model.layers.size();
    out["moe_layers"] = num_moe_layers(model);
    out["hidden_size"] = model.hidden_size;
    out["vocab_size"] = model.vocab_size;
    out["attention"] = attention_json(model.layers.front().attention);
    if (const MoeFeedForward* moe = first_moe(model)) out["moe"] = moe_json(*moe);
    return out;
}

std::string attention_text(const Attention& attention) {
    if (const auto* mla = std::get_if<LatentAttention>(&attention))
        return std::to_string(mla->num_attention_heads) + " heads, latent " +
               std::to_string(mla->kv_lora_rank) + " (query " + std::to_string(mla->q_lora_rank) +
               ")";
    const auto& gqa = std::get<GroupedQueryAttention>(attention);
    return std::to_string(gqa.num_attention_heads) + " heads of " + std::to_string(gqa.head_size) +
           ", " + std::to_string(gqa.num_kv_heads) + " for keys and values" +
           (gqa.sinks ? ", sinks" : "") +
           (gqa.qk_norm || gqa.qk_norm_full ? ", q and k normed" : "");
}

std::string moe_text(const MoeFeedForward& moe) {
    std::string out = std::to_string(moe.num_experts) + " experts of width " +
                      std::to_string(moe.expert_hidden_size) + ", top-" + std::to_string(moe.top_k);
    if (moe.num_shared_experts > 0)
        out += ", " + std::to_string(moe.num_shared_experts) + " shared of width " +
               std::to_string(moe.shared_expert_hidden_size);
    if (moe.num_moe_heads > 1) out += ", " + std::to_string(moe.num_moe_heads) + " MoE heads";
    if (moe.pool)
        out += ", document pools of " + std::to_string(moe.pool->smallest) + " … " +
               std::to_string(moe.pool->largest);
    return out;
}

/// 46702792704 → "46 702 792 704".
std::string grouped(long long value) {
    std::string digits = std::to_string(value), out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) out += ' ';
        out += digits[i];
    }
    return out;
}

std::string page(const ModelSpec& model, int sequence_length) {
    const ParameterCounts counts = count_parameters(model);
    const TokenFlops flops = flops_per_token(model, sequence_length);
    std::string out = model.name + ": " + std::to_string(model.layers.size()) + " layers (" +
                      std::to_string(num_moe_layers(model)) + " MoE), hidden " +
                      std::to_string(model.hidden_size) + ", vocabulary " +
                      std::to_string(model.vocab_size) +
                      (model.tied_embeddings ? ", tied embeddings" : "") + "\n";
    out += "  attention  " + attention_text(model.layers.front().attention) + "\n";
    if (const MoeFeedForward* moe = first_moe(model))
        out += "  MoE        " + moe_text(*moe) + "\n";
    out += "\n";
    Table table({"parameters", "count"});
    table.row({"total", grouped(counts.total)});
    for (const auto& [part, count] : counts.parts)
        if (count > 0) table.row({"  " + part, grouped(count)});
    if (counts.mtp > 0) table.row({"beside it: multi-token prediction", grouped(counts.mtp)});
    table.row({"active, with both embeddings", grouped(counts.active_with_embeddings)});
    table.row({"active, without input embedding", grouped(counts.active_without_input_embedding)});
    table.row({"active, without embeddings", grouped(counts.active_without_embeddings)});
    out += table.text() + "\n";
    Table work({"work of a token, sequences of " + std::to_string(sequence_length), ""});
    work.row({"forward", to_text(flops.forward)});
    work.row({"training", to_text(flops.training)});
    work.row({"training, causal attention halved", to_text(flops.training_causal_half)});
    work.row({"weights in bf16",
              to_text(size_of(NumberFormat::bf16) * static_cast<double>(counts.total))});
    return out + work.text();
}

}  // namespace

void add_model(CLI::App& app, Run& run) {
    CLI::App* model = app.add_subcommand("model", "What a model is made of; import other formats");
    model->require_subcommand(1);
    model->footer("Example: moeplan model show mixtral-8x7b");

    struct Words {
        std::string spec, out, name;
        int sequence_length = 4096;
        OutputWords output;
    };
    const auto words = std::make_shared<Words>();

    CLI::App* show = model->add_subcommand(
        "show", "Parameters (total, active, by part), flops of a token, bytes");
    show->footer("Example: moeplan model show deepseek-v3 --seq 4096\nShipped models: " +
                 join(shipped_models(), ", "));
    show->add_option("SPEC", words->spec,
                     "A shipped name, or a file: own JSON, Hugging Face config.json, Megatron "
                     "script or YAML")
        ->required();
    show->add_option("--seq", words->sequence_length, "Tokens of a sequence, for attention's share")
        ->check(CLI::Range(1, 1 << 26))
        ->capture_default_str();
    add_output_flags(*show, words->output);
    show->callback([words, &run] {
        run = [words]() -> int {
            const ModelSpec spec = load_model(words->spec);
            if (!words->output.quiet())
                std::fputs(page(spec, words->sequence_length).c_str(), stdout);
            write_answer(words->output, answer(spec, words->sequence_length));
            return kDone;
        };
    });

    CLI::App* import = model->add_subcommand("import", "Write any model we read as our own JSON");
    import->footer("Example: moeplan model import mixtral-8x7b --out my-model.json");
    import->add_option("FILE", words->spec, "A Hugging Face config.json, Megatron script or YAML …")
        ->required();
    import->add_option("--out", words->out, "The file to write (-: standard output)")->required();
    import->add_option("--name", words->name, "The model's name in it");
    import->callback([words, &run] {
        run = [words]() -> int {
            ModelSpec spec = load_model(words->spec);
    if (!words->name.empty()) spec.name = words->name;
    write_whole(words->out, to_file_text(to_json(spec)));
    return kDone;
};
}  // namespace moeplan::cli
);
}

}  // namespace moeplan::cli
