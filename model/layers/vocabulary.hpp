#pragma once
/// The two ends of a language model: the embedding, and the head with its loss. The vocabulary is
/// split by rows over the tensor parallel ranks.

#include <vector>

#include "model/layers/attention.hpp"
#include "model/layers/parameters.hpp"

namespace moeplan {

/// Rows of the embedding and of the head that this rank holds.
class Vocabulary {
  public:
    Vocabulary(Runtime&, RankGroups&, std::int64_t vocab_size, std::int64_t hidden_size);

    /// A table [our rows, hidden]. @param counted  false where another stage counts it
    Parameter& make(ParameterSet&, const std::string& name, double deviation, bool counted) const;

    Tensor embed(const Parameter& table, const MicroBatch&);
    void embed_backward(Parameter& table, const MicroBatch&, const Tensor& dx);

    /// Cross-entropy by blocks of rows, so that the logits of a whole micro-batch never lie in
    /// memory. The gradient of `hidden` and the table's is taken on the way.
    /// @param dhidden  null: forward alone
    /// @param backward_seconds  added to
    /// @return [num_tokens] nats
    std::vector<double> loss(Parameter& table, const Tensor& hidden, const MicroBatch&,
                             Tensor* dhidden, double& backward_seconds);

  private:
    struct Own;
    Own own_tokens(const Tensor& tokens) const;
    void join(Tensor& losses, Tensor& sums, const std::vector<std::int32_t>& targets);

    Runtime& rt_;
    RankGroups& groups_;
    std::int64_t vocab_size_, hidden_;
    Span rows_;
};

}  // namespace moeplan
