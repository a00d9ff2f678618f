/// Rows to the ranks that hold their experts, and back.

#include <chrono>

#include "model/layers/moe.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

void MoeLayer::exchange(const void* from, const std::vector<std::int64_t>& sent_rows, void* to,
                        const std::vector<std::int64_t>& received_rows, double& seconds) {
    const std::int64_t row = width_ * std::int64_t(size_of(rt_.format).value);
    std::vector<std::int64_t> sent, received;
    for (const std::int64_t rows : sent_rows) sent.push_back(rows * row);
    for (const std::int64_t rows : received_rows) received.push_back(rows * row);
    exchange_over(rt_, groups_.experts, from, sent, to, received, seconds);
}

/// Rows sorted by expert → rows of our own experts, sorted by expert and then by where they came
/// from. Where experts are in parts, the rows go to every part.
Tensor MoeLayer::to_experts(const Tensor& sorted, Saved& saved, double& seconds) {
    Tensor received = rt_.tensor(saved.local_rows * width_), copies;
    if (expert_parts_ > 1) {
        copies = rt_.tensor(saved.kept_rows * width_ * expert_parts_);
        const std::size_t row = std::size_t(width_) * std::size_t(size_of(rt_.format).value);
        const char* from = static_cast<const char*>(sorted.data());
        char* to = static_cast<char*>(copies.data());
        for (std::size_t r = 0; r < saved.sent_rows.size(); ++r) {
            const std::size_t bytes = std::size_t(saved.sent_rows[r]) * row;
            rt_.copy(to, from, bytes);
            to += bytes;
            if ((r + 1) % std::size_t(expert_parts_) == 0) from += bytes;
        }
    }
    exchange(copies ? copies.data() : sorted.data(), saved.sent_rows, received.data(),
             saved.received_rows, seconds);
    Tensor rows = rt_.tensor(saved.local_rows * width_);
    rt_.run(rt_.kernels.permute_forward,
            PermuteForward{received.data(), saved.local_slot_of_row.ids(), rows.data(),
                           saved.local_rows, width_, 1, rt_.format},
            "permute_forward");
    return rows;
}

/// The way back: partial sums of the parts are added up where the rows came from.
Tensor MoeLayer::from_experts(const Tensor& rows, Saved& saved, double& seconds) {
    Tensor to_send = rt_.tensor(saved.local_rows * width_);
    rt_.run(rt_.kernels.permute_backward,
            PermuteBackward{rows.data(), saved.local_row_of_slot.ids(), to_send.data(),
                            saved.local_rows, width_, 1, false, rt_.format},
            "permute_backward");
    Tensor sorted = rt_.tensor(saved.kept_rows * width_), partial;
    if (expert_parts_ > 1) partial = rt_.tensor(saved.kept_rows * width_ * expert_parts_);
    exchange(to_send.data(), saved.received_rows, partial ? partial.data() : sorted.data(),
             saved.sent_rows, seconds);
    if (!partial) return sorted;
    std::int64_t from = 0, to = 0;
    for (std::size_t r = 0; r < saved.sent_rows.size(); ++r) {
        const std::int64_t count = saved.sent_rows[r] * width_;
        void* sum = at(sorted.data(), to, rt_.format);
        const void* part = at(partial.data(), from, rt_.format);
        if (r % std::size_t(expert_parts_) == 0)
            rt_.copy(sum, part, std::size_t(count) * std::size_t(size_of(rt_.format).value));
        else if (count > 0)
            add(rt_, sum, part, sum, count);
        from += count;
        if ((r + 1) % std::size_t(expert_parts_) == 0) to += count;
    }
    return sorted;
}

/// Which rows go to which expert: by all ids first, because capacity is the micro-batch's, then of
/// our own span of the units alone.
void MoeLayer::map_rows(const std::int32_t* routed_ids, std::int64_t capacity,
                        const std::vector<std::int32_t>& ids, const std::vector<double>& gates,
                        const MicroBatch& batch, Saved& saved, MoeReport& report,
                        MoeChoices* choices) {
    const std::int64_t tokens = batch.num_tokens(), units = tokens * heads_,
                       experts = spec_.num_experts, k = spec_.top_k, slots = units * k;
    saved.rows_per_expert = rt_.ids(experts);
    saved.offsets = rt_.ids(experts + 1);
    const auto map = [&](const std::int32_t* of, std::int64_t of_units, std::int64_t most) {
        saved.row_of_slot = rt_.ids(of_units * k);
        saved.slot_of_row = rt_.ids(of_units * k);
        rt_.run(rt_.kernels.permutation_map,
                PermutationMap{of, saved.rows_per_expert.ids(), saved.offsets.ids(),
                               saved.row_of_slot.ids(), saved.slot_of_row.ids(), of_units, k,
                               experts, most},
                "permutation_map");
    };
    map(routed_ids, units, capacity);
    std::vector<std::int32_t> counts = rt_.download_ids(saved.rows_per_expert.data(), experts);
    saved.kept_rows = 0;
    for (const std::int32_t count : counts) saved.kept_rows += count;
    report.dropped_units = slots - saved.kept_rows;
    const bool split = groups_.tensor.size() > 1;
    if (report.dropped_units > 0 || choices || split) {
        const std::vector<std::int32_t> rows = rt_.download_ids(saved.row_of_slot.data(), slots);
        report.dropped_tokens = 0;
        for (std::int64_t t = 0; t < tokens; ++t) {
            bool any = false;
            for (std::int64_t s = t * heads_ * k; s < (t + 1) * heads_ * k; ++s)
                any = any || rows[std::size_t(s)] >= 0;
            report.dropped_tokens += !any;
        }
        if (choices) {
            choices->expert_ids.resize(std::size_t(slots));
            for (std::size_t s = 0; s < rows.size(); ++s)
                choices->expert_ids[s] = rows[s] < 0 ? kNotRouted : std::uint16_t(ids[s]);
            choices->gates.assign(gates.begin(), gates.end());
        }
        if (split) {
            const Span own = part_of(tokens, groups_.tensor.rank(), groups_.tensor.size());
            const std::int64_t first = own.first * heads_ * k;
            std::vector<std::int32_t> own_ids(std::size_t(own.count() * heads_ * k));
            for (std::size_t s = 0; s < own_ids.size(); ++s)
                own_ids[s] = rows[std::size_t(first) + s] < 0 ? -1 : ids[std::size_t(first) + s];
            const Tensor device_ids = rt_.upload(own_ids);
            map(device_ids.ids(), own.count() * heads_, 0);
            counts = rt_.download_ids(saved.rows_per_expert.data(), experts);
            saved.kept_rows = 0;
            for (const std::int32_t count : counts) saved.kept_rows += count;
        }
    }
    saved.host_offsets.assign(1, 0);
    if (groups_.experts.size() == 1) {
        for (const std::int32_t count : counts)
            saved.host_offsets.push_back(saved.host_offsets.back() + count);
        saved.local_rows = saved.kept_rows;
        return;
    }
    // Counts first, so that both sides know the sizes; then the rows. Every part of an expert gets
    // the same rows.
    const std::size_t ranks = std::size_t(groups_.experts.size()),
                      local = std::size_t(local_experts_);
    std::vector<std::int32_t> sent(ranks * local), received(ranks * local);
    saved.sent_rows.assign(ranks, 0);
    saved.received_rows.assign(ranks, 0);
    for (std::size_t r = 0; r < ranks; ++r)
        for (std::size_t e = 0; e < local; ++e) {
            sent[r * local + e] = counts[r / std::size_t(expert_parts_) * local + e];
            saved.sent_rows[r] += sent[r * local + e];
        }
    const std::vector<std::int64_t> bytes(ranks, std::int64_t(local * sizeof(std::int32_t)));
    const auto begin = Clock::now();
    groups_.host_experts.all_to_all_v(sent.data(), bytes, received.data(), bytes);
    groups_.times.dispatch += seconds_since(begin);
    std::vector<std::int32_t> expert_of_row;
    for (std::size_t r = 0; r < ranks; ++r)
        for (std::size_t e = 0; e < local; ++e) {
            const std::int32_t rows = received[r * local + e];
            saved.received_rows[r] += rows;
            expert_of_row.insert(expert_of_row.end(), std::size_t(rows), std::int32_t(e));
        }
    saved.local_rows = std::int64_t(expert_of_row.size());
    const Tensor local_ids = rt_.upload(expert_of_row);
    Tensor local_counts = rt_.ids(local_experts_);
    saved.local_offsets = rt_.ids(local_experts_ + 1);
    saved.local_row_of_slot = rt_.ids(saved.local_rows);
    saved.local_slot_of_row = rt_.ids(saved.local_rows);
    rt_.run(rt_.kernels.permutation_map,
            PermutationMap{local_ids.ids(), local_counts.ids(), saved.local_offsets.ids(),
                           saved.local_row_of_slot.ids(), saved.local_slot_of_row.ids(),
                           saved.local_rows, 1, local_experts_, 0},
            "permutation_map");
    for (std::size_t e = 0; e < local; ++e) {
        std::int32_t rows = 0;
        for (std::size_t r = 0; r < ranks; ++r) rows += received[r * local + e];
        saved.host_offsets.push_back(saved.host_offsets.back() + rows);
    }
}

/// What each tensor parallel rank computed for its own tokens, and partial sums of all tokens, as
/// one whole on every rank: zeros where others' tokens are, and one sum.
Tensor MoeLayer::whole_of(Tensor own, std::int64_t tokens, const Tensor* partial) {
    if (groups_.tensor.size() == 1) {
        if (partial) add(rt_, own.data(), partial->data(), own.data(), own.count());
        return own;
    }
    const Span span = part_of(tokens, groups_.tensor.rank(), groups_.tensor.size());
    Tensor whole = rt_.tensor(tokens * hidden_);
    void* place = at(whole.data(), span.first * hidden_, rt_.format);
    if (partial) {
        rt_.copy(whole.data(), partial->data(), whole.bytes());
        if (own.count() > 0) add(rt_, place, own.data(), place, own.count());
    } else {
        rt_.zero(whole);
        rt_.copy(place, own.data(), own.bytes());
    }
    sum_over(rt_, groups_.tensor, whole.data(), whole.count(), rt_.format, groups_.times.tensor);
    return whole;
}

}  // namespace moeplan
