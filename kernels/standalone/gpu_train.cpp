// The trainer on ready token ids, where there is a GPU and little else: the same sources as `moeplan train`.
//
//   gpu_train --model mh-moe|emo|top-k [--tokens FILE] [--steps 50] [--seconds N] [--precision bf16|fp32] [--device cuda|cuda:N|cpu] [--tiny]
//
// One JSON line a step on standard output, a summary on standard error. Without --tokens (docs/corpus.md gives the format; the quickstart
// leaves such a file) it trains on seeded text of a few domains, each with its own Markov chain, and says so.
// Exit status: 0 done, 2 wrong words, 3 no GPU, or a loss or router that gives no numbers.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "model/train.hpp"

namespace moeplan {
namespace {

struct Words {
    std::string model = "mh-moe", tokens, precision = "bf16", device = "cuda";
    int steps = 50;
    double seconds = 1e9;
    bool tiny = false;
};

Words words_from(int count, char** words) {
    Words out;
    for (int i = 1; i < count; ++i) {
        const std::string flag = words[i];
        if (flag == "--tiny") {
            out.tiny = true;
            continue;
        }
        if (i + 1 >= count) throw InputError(flag, "", "", "one of --model --tokens --steps --seconds --precision --device with its value, or --tiny");
        const std::string value = words[++i];
        const auto number = [&](double least) {
            char* end = nullptr;
            const double n = std::strtod(value.c_str(), &end);
            if (value.empty() || *end || !(n >= least)) throw InputError(flag, "", value, "a number of " + std::to_string(int(least)) + " or more");
            return n;
        };
        if (flag == "--model") out.model = value;
        else if (flag == "--tokens") out.tokens = value;
        else if (flag == "--precision") out.precision = value;
        else if (flag == "--device") out.device = value;
        else if (flag == "--steps") out.steps = int(number(1));
        else if (flag == "--seconds") out.seconds = number(1);
        else throw InputError(flag, "", value, "--model, --tokens, --steps, --seconds, --precision, --device or --tiny");
    }
    if (out.precision != "bf16" && out.precision != "fp32") throw InputError("--precision", "", out.precision, "bf16 or fp32");
    return out;
}

/// Large enough to fill a GPU, small enough to learn something in 50 steps; tiny: for the shim.
ModelSpec model_of(const Words& words, int vocab_size) {
    const int hidden = words.tiny ? 32 : 1024, layers = words.tiny ? 2 : 8, head = words.tiny ? 16 : 64;
    MoeFeedForward moe;
    moe.num_experts = words.tiny ? 8 : 64;
    moe.top_k = 2;
    moe.activation = Activation::swiglu;
    moe.expert_hidden_size = words.tiny ? 16 : 704;
    moe.balance_coefficient = 0.01;
    moe.z_loss_coefficient = 1e-4;
    moe.renormalise_gates = true;
    if (words.model == "mh-moe") {
        moe.num_moe_heads = words.tiny ? 2 : 4;
    } else if (words.model == "emo") {
        moe.routing = "emo";
        moe.pool = DocumentPool{words.tiny ? 2 : 8, moe.num_experts};
        moe.num_shared_experts = 1;
        moe.shared_expert_hidden_size = moe.expert_hidden_size;
        moe.balance = BalanceScope::global;
    } else if (words.model != "top-k") {
        throw InputError("--model", "", words.model, "mh-moe, emo or top-k");
    }
    ModelSpec model;
    model.name = words.model;
    model.hidden_size = hidden;
    model.vocab_size = vocab_size;
    LayerSpec layer;
    layer.attention = GroupedQueryAttention{.num_attention_heads = hidden / head, .num_kv_heads = hidden / head, .head_size = head};
    layer.feed_forward = moe;
    model.layers.assign(std::size_t(layers), layer);
    return model;
}

int run(const Words& words) {
    TokenData text;
    if (words.tokens.empty()) {
        text = synthetic_tokens(words.tiny ? 64 : 8192, words.tiny ? 20'000 : 2'000'000, 6, Seed{1});
        std::fprintf(stderr, "%s: no --tokens: seeded text of 6 domains, each with its own Markov chain, stands in for a corpus\n", words.model.c_str());
    } else {
        text = read_tokens(words.tokens);
        std::fprintf(stderr, "%s: %zu tokens of %zu domains from %s\n", words.model.c_str(), text.tokens.size(), text.domains.size(), words.tokens.c_str());
    }
    TrainOptions options;
    options.model = model_of(words, text.vocab_size);
    options.schedule.sequence_length = words.tiny ? 32 : 1024;
    options.schedule.micro_batch_size = words.tiny ? 2 : 16;
    options.steps = words.steps;
    options.optimizer.learning_rate = words.tiny ? 1e-2 : 1e-3;
    options.optimizer.warmup_steps = 10;
    options.format = words.precision == "bf16" ? NumberFormat::bf16 : NumberFormat::f32;
    const DeviceName device = device_from("--device", words.device);
    options.device = device.device;
    options.device_ordinal = device.ordinal;
    options.seed = Seed{1};
    options.data_digest = text.digest;
    Packing packing;
    packing.sequence_length = options.schedule.sequence_length;
    packing.held_out = 0;
    packing.seed = options.seed;
    options.data = std::make_shared<PackedTokens>(pack(text, Part::train, packing));

    const auto begin = std::chrono::steady_clock::now();
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepRecord& step) {
        Json line = to_json(step);
        line["model"] = words.model;
        line["precision"] = words.precision;
        std::printf("%s\n", line.dump().c_str());
        std::fflush(stdout);
    };
    callbacks.stop = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > words.seconds; };
    Communicator alone;
    const TrainResult result = train(options, alone, callbacks);

    // The first fifth warms up: handles are made, memory is found.
    const std::size_t skip = result.steps.size() / 5, counted = result.steps.size() - skip;
    StepTimes mean;
    for (std::size_t i = skip; i < result.steps.size(); ++i) {
        const StepTimes& t = result.steps[i].times;
        mean.total += t.total / double(counted), mean.forward += t.forward / double(counted), mean.backward += t.backward / double(counted);
        mean.optimizer += t.optimizer / double(counted), mean.other += t.other / double(counted);
    }
    const StepRecord &first = result.steps.front(), &last = result.steps.back();
    std::fprintf(stderr,
                 "%s on %s, %s, %.1f M parameters: loss %.4f at step %d, %.4f at step %d%s; a step %.2f ms (forward %.2f, backward %.2f, optimizer %.2f, "
                 "other %.2f), %.0f tokens/s, peak %s\n",
                 words.model.c_str(), backend_for(options.device, options.device_ordinal).facts->name, words.precision.c_str(),
                 double(result.parameters) / 1e6, first.loss, first.step, last.loss, last.step, result.stopped ? " (time was up)" : "",
                 mean.total.value * 1e3, mean.forward.value * 1e3, mean.backward.value * 1e3, mean.optimizer.value * 1e3, mean.other.value * 1e3,
                 double(last.tokens) / mean.total.value, to_text(result.peak_memory.front()).c_str());
    std::fprintf(stderr, "%s: CUDA graphs: %llu recorded, launched %llu times more; %llu stretches ran kernel by kernel\n", words.model.c_str(),
                 static_cast<unsigned long long>(result.stretches.recorded), static_cast<unsigned long long>(result.stretches.replayed),
                 static_cast<unsigned long long>(result.stretches.one_by_one));
    for (const std::string& line : result.choices) std::fprintf(stderr, "%s: %s\n", words.model.c_str(), line.c_str());
    return 0;
}

}  // namespace
}  // namespace moeplan

int main(int count, char** words) {
    try {
        return moeplan::run(moeplan::words_from(count, words));
    } catch (const moeplan::InputError& error) {
        std::fprintf(stderr, "gpu_train: %s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "gpu_train: %s\n", error.what());
        return 3;
    }
}
