/// Loss of a model on text it was not trained on.

#include <algorithm>
#include <limits>

#include "model/micro_batch.hpp"
#include "model/pipeline.hpp"
#include "model/training_run.hpp"

namespace moeplan {

Evaluation held_out_loss(TrainingRun& run, const PackedTokens& text, int sequences,
                         const std::vector<std::vector<std::uint8_t>>& kept) {
    const TrainOptions& options = run.options;
    const int size = options.schedule.micro_batch_size, ranks = run.shape.num_ranks;
    const std::int64_t batches = std::max<std::int64_t>(
        1, (sequences + std::int64_t(size) * ranks - 1) / (std::int64_t(size) * ranks));
    std::size_t domains = 0;
    for (const std::uint16_t domain : text.domains)
        domains = std::max(domains, std::size_t(domain) + 1);
    const auto layers = run.model->moe_layers();
    for (std::size_t i = 0; i < layers.size(); ++i) {
        layers[i]->use_pools = false;  // as at inference
        if (!kept.empty())
            layers[i]->keep_experts(kept.at(i + std::size_t(run.model->first_moe_layer())));
    }
    std::vector<double> sums(2 * (domains + 1), 0);  // loss and tokens, of all and of each domain
    for (std::int64_t b = 0; b < batches; ++b) {
        const TokenBatch batch = read_batch(text, (b * ranks + run.groups.place.data) * size, size);
        const MicroBatch device = on_device(run.rt, batch, b, 1);
        Tensor out;
        const auto result = run.model->evaluate(
            device, nullptr, {}, receive_hidden(run.rt, run.groups, run.hidden_count()), &out);
        send_hidden(run.rt, run.groups, std::move(out));
        if (!run.reports()) continue;
        for (std::size_t t = 0; t < result.token_loss.size(); ++t)
            for (const std::size_t slot : {std::size_t(0), std::size_t(batch.domains[t]) + 1}) {
                sums[2 * slot] += result.token_loss[t];
                sums[2 * slot + 1] += 1;
            }
    }
    run.world.all_reduce(sums.data(), std::int64_t(sums.size()), NumberFormat::f64);
    for (MoeLayer* layer : layers) {
        layer->use_pools = true;
        layer->keep_experts({});
    }
    Evaluation out;
    out.loss = sums[0] / sums[1];
    out.tokens = std::int64_t(sums[1]);
    for (std::size_t d = 0; d < domains; ++d)
        out.by_domain.push_back(sums[2 * d + 3] > 0 ? sums[2 * d + 2] / sums[2 * d + 3]
                                                    : std::numeric_limits<double>::quiet_NaN());
    return out;
}

}  // namespace moeplan
