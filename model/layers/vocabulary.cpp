#include "model/layers/vocabulary.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kHeadRows = 1024;  ///< tokens whose logits are in memory at once

}  // namespace

/// Tokens of a micro-batch whose rows of the table are ours, and the way between them and all.
struct Vocabulary::Own {
    Tensor rows;         ///< i32 [count] of our table
    Tensor slot_of_row;  ///< i32 [count] index of the token
    Tensor row_of_slot;  ///< i32 [num_tokens] −1 where the token is another rank's
    std::int64_t count = 0;
};

Vocabulary::Vocabulary(Runtime& rt, RankGroups& groups, std::int64_t vocab_size,
                       std::int64_t hidden_size)
    : rt_(rt),
      groups_(groups),
      vocab_size_(vocab_size),
      hidden_(hidden_size),
      rows_(part_of(vocab_size, groups.tensor.rank(), groups.tensor.size())) {}

Parameter& Vocabulary::make(ParameterSet& parameters, const std::string& name, double deviation,
                            bool counted) const {
    const Held held = groups_.tensor.size() > 1 ? Held::by_tensor_rank : Held::by_all;
    return parameters.make(name, {rows_.count(), hidden_}, deviation, 0, held,
                           rows_.first * hidden_, true, counted);
}

Vocabulary::Own Vocabulary::own_tokens(const Tensor& tokens) const {
    const std::vector<std::int32_t> ids = rt_.download_ids(tokens.data(), tokens.count());
    std::vector<std::int32_t> rows, slots, row_of_slot(ids.size(), -1);
    for (std::size_t t = 0; t < ids.size(); ++t)
        if (ids[t] >= rows_.first && ids[t] < rows_.end) {
            row_of_slot[t] = std::int32_t(rows.size());
            rows.push_back(ids[t] - std::int32_t(rows_.first));
            slots.push_back(std::int32_t(t));
        }
    Own own;
    own.count = std::int64_t(rows.size());
    own.rows = rt_.upload(rows);
    own.slot_of_row = rt_.upload(slots);
    own.row_of_slot = rt_.upload(row_of_slot);
    return own;
}

Tensor Vocabulary::embed(const Parameter& table, const MicroBatch& batch) {
    const std::int64_t tokens = batch.num_tokens();
    Tensor x = rt_.tensor(tokens * hidden_);
    const auto look_up = [&](const std::int32_t* ids, Tensor& y, std::int64_t count) {
        rt_.run(rt_.kernels.embedding_forward,
                EmbeddingForward{ids, table.value.data(), y.data(), count, hidden_, rows_.count(),
                                 rt_.format},
                "embedding_forward");
    };
    if (groups_.tensor.size() == 1) {
        look_up(batch.tokens.ids(), x, tokens);
        return x;
    }
    const Own own = own_tokens(batch.tokens);
    Tensor found = rt_.tensor(own.count * hidden_);
    look_up(own.rows.ids(), found, own.count);
    rt_.run(rt_.kernels.permute_backward,  // to their places, zeros elsewhere
            PermuteBackward{found.data(), own.row_of_slot.ids(), x.data(), tokens, hidden_, 1,
                            false, rt_.format},
            "permute_backward");
    sum_over(rt_, groups_.tensor, x.data(), x.count(), rt_.format, groups_.times.tensor);
    return x;
}

void Vocabulary::embed_backward(Parameter& table, const MicroBatch& batch, const Tensor& dx) {
    const auto add_rows = [&](const std::int32_t* ids, const Tensor& dy, std::int64_t count) {
        rt_.run(rt_.kernels.embedding_backward,
                EmbeddingBackward{ids, dy.data(), table.gradient.data(), count, hidden_,
                                  rows_.count(), rt_.format},
                "embedding_backward");
    };
    if (groups_.tensor.size() == 1) {
        add_rows(batch.tokens.ids(), dx, batch.num_tokens());
        return;
    }
    const Own own = own_tokens(batch.tokens);
    Tensor rows = rt_.tensor(own.count * hidden_);
    rt_.run(rt_.kernels.permute_forward,
            PermuteForward{dx.data(), own.slot_of_row.ids(), rows.data(), own.count, hidden_, 1,
                           rt_.format},
            "permute_forward");
    add_rows(own.rows.ids(), rows, own.count);
}

/// Losses and sums of a part of the vocabulary → those of the whole: ln Σ_r exp(s_r), less the
/// target's logit, which is s_r − loss_r on the rank that has it.
/// @param targets  [rows] of our rows; −1: another rank's
void Vocabulary::join(Tensor& losses, Tensor& sums, const std::vector<std::int32_t>& targets) {
    const std::size_t rows = targets.size(), parts = std::size_t(groups_.tensor.size());
    const std::vector<double> loss = rt_.download(losses.data(), std::int64_t(rows), rt_.stat),
                              sum = rt_.download(sums.data(), std::int64_t(rows), rt_.stat);
    std::vector<double> shared(rows * (parts + 1), 0);  // a sum of each part; the target's logit
    for (std::size_t t = 0; t < rows; ++t) {
        shared[t * (parts + 1) + std::size_t(groups_.tensor.rank())] = sum[t];
        if (targets[t] >= 0) shared[t * (parts + 1) + parts] = sum[t] - loss[t];
    }
    const auto begin = Clock::now();
    groups_.host_tensor.all_reduce(shared.data(), std::int64_t(shared.size()), NumberFormat::f64);
    groups_.times.tensor += std::chrono::duration<double>(Clock::now() - begin).count();
    std::vector<double> whole_loss(rows), whole_sum(rows);
    for (std::size_t t = 0; t < rows; ++t) {
        const double* of = shared.data() + t * (parts + 1);
        const double most = *std::max_element(of, of + parts);
        double total = 0;
        for (std::size_t r = 0; r < parts; ++r) total += std::exp(of[r] - most);
        whole_sum[t] = most + std::log(total);
        whole_loss[t] = whole_sum[t] - of[parts];
    }
    rt_.upload(losses.data(), whole_loss, rt_.stat);
    rt_.upload(sums.data(), whole_sum, rt_.stat);
}

std::vector<double> Vocabulary::loss(Parameter& table, const Tensor& hidden,
                                     const MicroBatch& batch, Tensor* dhidden,
                                     double& backward_seconds) {
    const std::int64_t tokens = batch.num_tokens(), most = std::min(kHeadRows, tokens),
                       ours = rows_.count();
    const bool split = groups_.tensor.size() > 1;
    const double scale = batch.loss_weight / double(tokens);
    Tensor losses = rt_.statistic(most), sums = rt_.statistic(most),
           logits = rt_.tensor(most * ours);
    std::vector<double> out;
    for (std::int64_t first = 0; first < tokens; first += kHeadRows) {
        const std::int64_t rows = std::min(kHeadRows, tokens - first);
        const void* x = at(hidden.data(), first * hidden_, rt_.format);
        const std::int32_t* targets = batch.targets.ids() + first;
        Tensor own_targets, foreign;
        std::vector<std::int32_t> own;
        if (split) {
            own = rt_.download_ids(targets, rows);
            for (std::int32_t& target : own)
                target = target >= rows_.first && target < rows_.end
                             ? target - std::int32_t(rows_.first)
                             : -1;
            own_targets = rt_.upload(own);
            targets = own_targets.ids();
        }
        linear_forward(rt_, x, table.value.data(), logits.data(), rows, hidden_, ours);
        // Parts of a vocabulary must join before there is a gradient.
        const bool at_once = dhidden && !split;
        if (at_once)
            rt_.run(rt_.kernels.cross_entropy_in_place,
                    CrossEntropyInPlace{logits.data(), targets, losses.data(), rows, ours, scale,
                                        rt_.format},
                    "cross_entropy_in_place");
        else
            rt_.run(rt_.kernels.cross_entropy_forward,
                    CrossEntropyForward{logits.data(), targets, losses.data(), sums.data(), rows,
                                        ours, rt_.format},
                    "cross_entropy_forward");
        if (split) join(losses, sums, own);
        const std::vector<double> block = rt_.download(losses.data(), rows, rt_.stat);
        out.insert(out.end(), block.begin(), block.end());
        if (!dhidden) continue;
        const auto begin = Clock::now();
        if (split) {
            // The kernel skips a row without a target, but softmax has a gradient in every part:
            // such a row takes column 0 for its target, and gets back there what that took off.
            std::vector<double> taken(own.size(), 0);
            for (std::size_t t = 0; t < own.size(); ++t)
                if (own[t] < 0) {
                    own[t] = 0;
                    taken[t] = scale;
                }
            own_targets = rt_.upload(own);
            targets = own_targets.ids();
            foreign = rt_.tensor(rows);
            rt_.upload(foreign.data(), taken, rt_.format);
        }
        if (!at_once)
            rt_.run(rt_.kernels.cross_entropy_backward,
                    CrossEntropyBackward{logits.data(), sums.data(), targets, logits.data(), rows,
                                         ours, scale, rt_.format},
                    "cross_entropy_backward");
        if (split) {
            Tensor one = rt_.tensor(1);
            rt_.upload(one.data(), {1}, rt_.format);
            GemmCall column;
            column.a = foreign.data();
            column.b = one.data();
            column.c = logits.data();
            column.m = rows;
            column.n = column.k = 1;
            column.lda = column.ldb = 1;
            column.ldc = ours;
            column.beta = 1;
            column.format = column.out_format = rt_.format;
            rt_.run(rt_.kernels.gemm, column, "gemm");
        }
        linear_backward(rt_, x, table.value.data(), logits.data(),
                        at(dhidden->data(), first * hidden_, rt_.format), table.gradient.data(),
                        rows, hidden_, ours);
        backward_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    }
    if (dhidden)
        sum_over(rt_, groups_.tensor, dhidden->data(), dhidden->count(), rt_.format,
                 groups_.times.tensor);
    return out;
}

}  // namespace moeplan
