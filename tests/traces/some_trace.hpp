#pragma once
/// Small traces and a folder that goes with the test.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/errors.hpp"
#include "core/seed.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

class TraceFolder : public ::testing::Test {
  protected:
    TraceFolder() {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        folder_ = std::filesystem::temp_directory_path() /
                  ("moeplan_traces_" + std::string(info->name()) + "_" + std::to_string(getpid()));
        std::filesystem::create_directories(folder_);
    }
    ~TraceFolder() override { std::filesystem::remove_all(folder_); }
    std::filesystem::path file(const std::string& name) const { return folder_ / name; }
    std::filesystem::path folder_;
};

inline std::string content_of(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

/// What the error said, or "" if nothing was thrown.
template <class F>
std::string input_error(F&& f) {
    try {
        f();
    } catch (const InputError& error) {
        return error.what();
    }
    return "";
}

inline TraceHeader some_header() {
    TraceHeader h;
    h.model = "tiny";
    h.source = "training";
    h.num_moe_layers = 3;
    h.num_experts = 8;
    h.top_k = 2;
    h.num_moe_heads = 2;
    h.tokens_per_step = 64;
    h.num_ranks = 2;
    h.num_micro_batches = 2;
    h.sequence_length = 16;
    h.gates = "renormalised";
    h.document_order = "shuffled";
    h.seed = 0xFFFFFFFFFFFFFFFFULL;
    return h;
}

/// Random choices, k distinct a sub-token; the tokens of a micro-batch and rank are contiguous.
inline TraceStep some_step(const TraceHeader& h, int number) {
    TraceStep s;
    s.step = number;
    s.loss = 5.5 - number;
    DrawStream draws(derive({h.seed}, "some_step", static_cast<std::uint64_t>(number)));
    for (int layer = 0; layer < h.num_moe_layers; ++layer) {
        auto& ids = s.expert_ids.emplace_back();
        auto& gates = s.gate_weights.emplace_back();
        for (std::int64_t row = 0; row < h.tokens_per_step * h.num_moe_heads; ++row) {
            const auto first = draws.below(static_cast<std::uint64_t>(h.num_experts));
            for (int slot = 0; slot < h.top_k; ++slot) {
                ids.push_back(
                    static_cast<std::uint16_t>((first + static_cast<std::uint64_t>(slot)) %
                                               static_cast<std::uint64_t>(h.num_experts)));
                gates.push_back(0.5f / static_cast<float>(slot + 1));  // exact in half precision
            }
        }
        s.pool_size.push_back(std::vector<std::uint16_t>(static_cast<std::size_t>(4 + number), 5));
    }
    s.expert_ids[1][3] = kNotRouted;
    const std::int64_t block = h.tokens_per_step / (h.num_ranks * h.num_micro_batches);
    for (std::int64_t token = 0; token < h.tokens_per_step; ++token) {
        s.document_ids.push_back(static_cast<std::uint32_t>(70000 + token / 10));
        s.domain_ids.push_back(static_cast<std::uint16_t>(token / 20));
        s.token_rank.push_back(static_cast<std::uint16_t>(token / block % h.num_ranks));
        s.token_micro_batch.push_back(static_cast<std::uint16_t>(token / block / h.num_ranks));
    }
    return s;
}

inline void write_trace(const std::filesystem::path& file, const TraceHeader& header, int steps) {
    TraceWriter writer(file, header);
    for (int i = 0; i < steps; ++i) writer.add(some_step(header, i));
    writer.finish();
}

}  // namespace moeplan
