#include "model/micro_batch.hpp"

namespace moeplan {

MicroBatch on_device(Runtime& rt, const TokenBatch& batch, std::int64_t index, double loss_weight) {
    MicroBatch out;
    out.num_sequences = batch.num_sequences;
    out.sequence_length = batch.sequence_length;
    out.index = index;
    out.loss_weight = loss_weight;
    out.domains = batch.domains;
    std::vector<std::int32_t> positions(batch.tokens.size()), documents(batch.tokens.size());
    for (std::size_t t = 0; t < positions.size(); ++t)
        positions[t] = std::int32_t(t % std::size_t(batch.sequence_length));
    std::int32_t number = 0;
    for (const DocumentSpan& span : document_spans(batch)) {
        for (std::int32_t t = span.begin; t < span.end; ++t) documents[std::size_t(t)] = number;
        out.document_begin.push_back(span.begin);
        out.document_ids.push_back(span.document);
        ++number;
    }
    out.document_begin.push_back(std::int32_t(batch.tokens.size()));
    out.tokens = rt.upload(std::vector<std::int32_t>(batch.tokens.begin(), batch.tokens.end()));
    out.targets = rt.upload(std::vector<std::int32_t>(batch.targets.begin(), batch.targets.end()));
    out.positions = rt.upload(positions);
    out.documents = rt.upload(documents);
    return out;
}

}  // namespace moeplan
