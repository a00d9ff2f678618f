#pragma once
/// Everything of a training run that lives on one rank.

#include <memory>

#include "model/layers/transformer.hpp"
#include "model/train.hpp"

namespace moeplan {

struct TrainingRun {
    /// Collective. @throws InputError for options that do not fit each other or the ranks
    TrainingRun(const TrainOptions&, Communicator& world);

    const TrainOptions& options;
    Communicator& world;
    std::string exchange;                 ///< TrainResult's
    std::optional<Communicator> devices;  ///< NCCL between the GPUs of all ranks, where it is
    RankGroups groups;
    Runtime rt;
    std::unique_ptr<Transformer> model;
    BatchShape shape;
    std::vector<const MoeFeedForward*> moe_specs;  ///< [MoE layers of the whole model]

    /// Of tensor parallel ranks, which see the same tokens, the first reports on them.
    bool reports() const { return groups.place.tensor == 0; }
    bool is_sharded() const { return options.schedule.sharding == Sharding::zero1; }
    std::int64_t hidden_count() const;  ///< elements of a micro-batch's hidden states
    double micro_batch_weight() const;  ///< its share of the step's loss
    TokenBatch read(int step, int micro_batch) const;
    MicroBatch on_device(const TokenBatch&, int step, int micro_batch);
};

/// Loss on held-out text, without document pools and, if `kept` is not empty, with those experts
/// alone. Collective.
Evaluation held_out_loss(TrainingRun&, const PackedTokens&, int sequences,
                         const std::vector<std::vector<std::uint8_t>>& kept);

}  // namespace moeplan
