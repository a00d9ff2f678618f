#include "planner/accuracy/kernel_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "core/errors.hpp"
#include "planner/accuracy/gpu_names.hpp"

namespace moeplan {
namespace {

std::optional<Precision> precision_of(std::string words) {
    std::transform(words.begin(), words.end(), words.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (words == "bfloat16" || words == "bf16") return Precision::bf16;
    if (words == "float16" || words == "fp16") return Precision::fp16;
    if (words.rfind("fp8", 0) == 0) return Precision::fp8;
    if (words.rfind("mxfp8", 0) == 0) return Precision::mxfp8;
    return std::nullopt;
}

/// Number of a shape in the order of first meeting: curves of one shape on several GPUs share it.
template <class Key>
int ordinal(std::map<Key, int>& known, const Key& key) {
    return known.emplace(key, static_cast<int>(known.size())).first->second;
}

class Reading {
  public:
    KernelTables tables;

    void read(const CurveRecord& record) {
        const JsonReader workload = record.value.at("workload"),
                         measured = record.value.at("measured");
        const std::string metric = measured.at("metric").text(),
                          kernel = workload.text_or("kernel", "");
        const auto skip = [&](const char* rule, const std::string& reason) {
            tables.skipped.push_back({record.id, record.group, record.source, reason, rule});
        };
        const std::string words = record.value.at("hardware").text_or("gpu", "");
        const auto gpu = gpu_id_of_name(words);
        const bool wanted = metric == "latency_by_m" || metric == "latency_by_tokens" ||
                            metric == "latency_table" || metric == "tflops_table" ||
                            metric == "bandwidth" || metric == "tflops";
        if (!wanted || kernel.empty())
            return skip("not_a_target",
                        kernel + ": " + metric + " is no time of one kernel whose shape is stated");
        if (!gpu) return skip("unknown_gpu", "\"" + words + "\" is no GPU with a profile");
        const auto precision =
            precision_of(workload.text_or("dtype", kernel.substr(0, kernel.find(' '))));
        const JsonReader value = measured.at("value");
        if (metric == "latency_by_m") {
            if (!precision) return skip("precision", "precision not stated");
            gemm_curve(record.id, *gpu, *precision, workload, value);
        } else if (metric == "latency_by_tokens") {
            if (!precision) return skip("precision", "precision not stated");
            fused_curve(record.id, *gpu, *precision, workload, value);
        } else if (metric == "latency_table") {
            attention_table(record.id, *gpu, workload, value);
        } else if (metric == "tflops_table") {
            int place = 0;
            for (const JsonReader& row : value.items())
                single(record.id, *gpu, *precision, place++, row.at("m").number(),
                       row.at("n").number(), row.at("k").number(), row.at("tflops").number());
        } else if (metric == "bandwidth") {
            HeldOutRow row{record.id, "bandwidth", *gpu, "", "triad", "nothing_fitted", "", 0, 0};
            row.measured = value.at("Triad").number() * 1e12;
            tables.bandwidth.push_back(row);
        } else {
            rate(record, *gpu, precision, workload, value, skip);
        }
    }

  private:
    std::map<std::tuple<double, double>, int> gemm_shapes_;
    std::map<std::tuple<double, double, double>, int> attention_shapes_;
    std::map<std::tuple<int, int, int, int>, int> fused_shapes_;

    void gemm_curve(const std::string& id, const std::string& gpu, Precision precision,
                    const JsonReader& workload, const JsonReader& value) {
        const double n = workload.at("n").number(1), k = workload.at("k").number(1);
        auto& into = precision == Precision::fp8 ? tables.gemm_fp8 : tables.gemm;
        const auto m = value.at("m").items(), ms = value.at("ms").items();
        if (m.size() != ms.size()) value.fail("as many ms as m");
        for (std::size_t i = 0; i < m.size(); ++i)
            into.push_back({id,
                            gpu,
                            ordinal(gemm_shapes_, {n, k}),
                            static_cast<int>(i),
                            {m[i].number(1), n, k},
                            ms[i].number(1e-9) * 1e-3});
    }

    void fused_curve(const std::string& id, const std::string& gpu, Precision precision,
                     const JsonReader& workload, const JsonReader& value) {
        FusedMoePoint point;
        point.id = id, point.gpu = gpu, point.precision = precision;
        point.top_k = workload.at("topk").count(1), point.hidden = workload.at("hidden").count(1);
        point.ffn = workload.at("moe_ffn").count(1);
        point.num_experts = workload.at("num_experts").count(1);
        point.local_experts = workload.at("local_experts").count(1);
        const std::string distribution = workload.at("token_distribution").text();
        const std::string law = "power_law_";
        if (distribution.rfind(law, 0) == 0)
            point.exponent = std::stod(distribution.substr(law.size()));
        point.curve = ordinal(fused_shapes_,
                              {point.hidden, point.ffn, point.num_experts, point.local_experts});
        const auto tokens = value.at("tokens").items(), ms = value.at("ms").items();
        if (tokens.size() != ms.size()) value.fail("as many ms as tokens");
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            point.place = static_cast<int>(i), point.tokens = tokens[i].count(1);
            point.seconds = ms[i].number(1e-9) * 1e-3;
            tables.fused.push_back(point);
        }
    }

    void attention_table(const std::string& id, const std::string& gpu, const JsonReader& workload,
                         const JsonReader& value) {
        const double heads = workload.at("heads").number(1);
        // Latent attention multiplies queries and keys of 192 by values of 128: the flops of their
        // mean.
        const bool latent = !workload.has("head_dim");
        const double kv = latent ? heads : workload.at("kv_heads").number(1),
                     size = latent ? 160 : workload.at("head_dim").number(1);
        int place = 0;
        for (const JsonReader& row : value.items())
            tables.attention.push_back({id,
                                        gpu,
                                        ordinal(attention_shapes_, {heads, kv, size}),
                                        place++,
                                        {row.at(std::size_t{1}).number(1),
                                         row.at(std::size_t{0}).number(1), heads, kv, size},
                                        row.at(std::size_t{2}).number(1e-9) * 1e-3});
    }

    void single(const std::string& id, const std::string& gpu, Precision precision, int place,
                double m, double n, double k, double tflops) {
        tables.single.push_back({id, gpu, 0, place, {m, n, k}, 2 * m * n * k / (tflops * 1e12)});
        tables.single_precision.push_back(precision);
    }

    template <class Skip>
    void rate(const CurveRecord& record, const std::string& gpu, std::optional<Precision> precision,
              const JsonReader& workload, const JsonReader& value, const Skip& skip) {
        if (!precision)
            return skip("not_a_target", "precision, or whether the mask is causal, is not stated");
        if (const auto mnk = workload.find("mnk")) {
            std::array<double, 3> shape{};
            const std::string words = mnk->text();
            if (std::sscanf(words.c_str(), "%lfx%lfx%lf", &shape[0], &shape[1], &shape[2]) != 3)
                mnk->fail("MxNxK");
            return single(record.id, gpu, *precision, 0, shape[0], shape[1], shape[2],
                          value.number());
        }
        if (workload.has("m") && value.is_object())
            return single(record.id, gpu, *precision, 0, workload.at("m").number(),
                          workload.at("n").number(), workload.at("k").number(),
                          value.at("optimised").number());
        skip("not_a_target", "the product's shape is not stated in full");
    }
};

}  // namespace

KernelTables kernel_tables(const std::vector<CurveRecord>& records) {
    Reading reading;
    for (const CurveRecord& record : records) {
        if (record.group != "kernels") continue;
        try {
            reading.read(record);
        } catch (const InputError& error) {
            reading.tables.skipped.push_back(
                {record.id, record.group, record.source, error.what(), "missing"});
        }
    }
    return reading.tables;
}

}  // namespace moeplan
