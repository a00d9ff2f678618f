#include "model/trace_recorder.hpp"

#include <cstring>

namespace moeplan {
namespace {

template <class T>
void put(std::vector<char>& out, const std::vector<T>& values) {
    const std::uint64_t count = values.size();
    const auto* head = reinterpret_cast<const char*>(&count);
    out.insert(out.end(), head, head + sizeof count);
    const auto* data = reinterpret_cast<const char*>(values.data());
    out.insert(out.end(), data, data + values.size() * sizeof(T));
}
/// Appends what `put` wrote.
template <class T>
void get(const char*& from, std::vector<T>& values) {
    std::uint64_t count = 0;
    std::memcpy(&count, from, sizeof count);
    from += sizeof count;
    const std::size_t old = values.size();
    values.resize(old + count);
    if (count) std::memcpy(values.data() + old, from, count * sizeof(T));
    from += count * sizeof(T);
}

}  // namespace

TraceRecorder::TraceRecorder(const std::filesystem::path& file, const TraceHeader& header,
                             const Communicator& world, const RankPlace& place, bool gates)
    : world_(world), place_(place), gates_(gates), header_(header) {
    if (world.rank() == 0) writer_ = std::make_unique<TraceWriter>(file, header);
    mine_.expert_ids.resize(std::size_t(header.num_moe_layers));
    mine_.gate_weights.resize(std::size_t(header.num_moe_layers));
    mine_.pool_size.resize(std::size_t(header.num_moe_layers));
}

void TraceRecorder::add(int micro_batch, const TokenBatch& batch, std::vector<MoeChoices> choices,
                        int first_layer) {
    const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
    };
    for (std::size_t i = 0; i < choices.size(); ++i) {
        const std::size_t layer = i + std::size_t(first_layer);
        append(mine_.expert_ids[layer], choices[i].expert_ids);
        if (gates_) append(mine_.gate_weights[layer], choices[i].gates);
        append(mine_.pool_size[layer], choices[i].pool_sizes);
    }
    if (place_.stage > 0) return;  // the tokens are the same in every stage
    append(mine_.document_ids, batch.documents);
    append(mine_.domain_ids, batch.domains);
    mine_.token_rank.insert(mine_.token_rank.end(), batch.tokens.size(),
                            std::uint16_t(place_.data));
    mine_.token_micro_batch.insert(mine_.token_micro_batch.end(), batch.tokens.size(),
                                   std::uint16_t(micro_batch));
}

void TraceRecorder::end_step(int step, double loss) {
    std::vector<char> bytes;
    for (std::size_t layer = 0; layer < mine_.expert_ids.size(); ++layer) {
        put(bytes, mine_.expert_ids[layer]);
        put(bytes, mine_.gate_weights[layer]);
        put(bytes, mine_.pool_size[layer]);
    }
    put(bytes, mine_.document_ids);
    put(bytes, mine_.domain_ids);
    put(bytes, mine_.token_rank);
    put(bytes, mine_.token_micro_batch);
    const std::vector<char> all = world_.gather_bytes(bytes, 0);
    const std::size_t layers = mine_.expert_ids.size();
    mine_ = {};
    mine_.expert_ids.resize(layers);
    mine_.gate_weights.resize(layers);
    mine_.pool_size.resize(layers);
    if (!writer_) return;
    TraceStep whole;
    whole.step = step;
    whole.loss = loss;
    whole.expert_ids.resize(layers);
    whole.gate_weights.resize(layers);
    whole.pool_size.resize(layers);
    const char* from = all.data();
    for (int rank = 0; rank < world_.size(); ++rank) {
        for (std::size_t layer = 0; layer < layers; ++layer) {
            get(from, whole.expert_ids[layer]);
            get(from, whole.gate_weights[layer]);
            get(from, whole.pool_size[layer]);
        }
        get(from, whole.document_ids);
        get(from, whole.domain_ids);
        get(from, whole.token_rank);
        get(from, whole.token_micro_batch);
    }
    if (!gates_) whole.gate_weights.clear();
    bool pools = false;
    for (const auto& sizes : whole.pool_size) pools = pools || !sizes.empty();
    if (!pools) whole.pool_size.clear();
    writer_->add(whole);
}

void TraceRecorder::finish() {
    if (writer_) writer_->finish();
}

}  // namespace moeplan
