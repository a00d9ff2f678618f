/// Layout of the file: docs/routing-traces.md.

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "traces/hdf5_file.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {
namespace {

/// Rows of a chunk at most: 64 Ki tokens decompress in a millisecond and still compress as well as
/// a whole layer.
constexpr hsize_t kChunkRows = 65536;

}  // namespace

struct TraceWriter::File {
    std::string name;
    TraceHeader header;
    PendingFile pending;
    hdf5::Handle file;
    std::map<std::string, hdf5::Growing> datasets;
    hsize_t steps = 0;
    bool finished = false;

    File(const std::filesystem::path& path, TraceHeader h)
        : name(path.string()), header(std::move(h)), pending(path) {}

    [[noreturn]] void wrong(const std::string& what, std::size_t got, std::size_t expected) const {
        throw InputError(name, what, std::to_string(got), std::to_string(expected));
    }

    /// A dataset either holds every step or none: `values` empty at the first step means it stays
    /// away.
    template <class T>
    void add(const char* dataset, const std::vector<T>& values, std::vector<hsize_t> shape,
             std::vector<hsize_t> chunk, hid_t stored, const std::vector<hsize_t>& start,
             const std::vector<hsize_t>& count) {
        auto at = datasets.find(dataset);
        if (at == datasets.end()) {
            if (values.empty()) return;
            if (steps > 0)
                throw InputError(name, std::string("/") + dataset, "given for a later step",
                                 "the same parts in every step");
            shape[0] = 0;
            at = datasets
                     .emplace(dataset, hdf5::create_growing(file.get(), dataset, stored,
                                                            std::move(shape), std::move(chunk)))
                     .first;
            if (!at->second.dataset)
                throw InputError(name, std::string("/") + dataset, "", "room to write");
        } else if (values.empty()) {
            throw InputError(name, std::string("/") + dataset, "absent from a later step",
                             "the same parts in every step");
        }
        hdf5::write_block(at->second, name, start, count, hdf5::memory_type<T>(), values.data());
    }
};

TraceWriter::TraceWriter(const std::filesystem::path& path, TraceHeader header)
    : file_(std::make_unique<File>(path, std::move(header))) {
    const hdf5::Session session;
    const TraceHeader& h = file_->header;
    if (h.num_experts < 1 || h.num_experts >= kNotRouted)
        throw InputError(file_->name, "num_experts", std::to_string(h.num_experts), "1 … 65534");
    if (h.num_moe_layers < 1 || h.top_k < 1 || h.num_moe_heads < 1 || h.tokens_per_step < 0 ||
        h.num_ranks < 1 || h.num_micro_batches < 1)
        throw InputError(
            file_->name, "header", "",
            "positive num_moe_layers, top_k, num_moe_heads, num_ranks and num_micro_batches");
    const hdf5::Handle create(H5Pcreate(H5P_FILE_CREATE), H5Pclose),
        access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_obj_track_times(create.get(), false);
    H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18);
    file_->file = hdf5::Handle(
        H5Fcreate(file_->pending.temporary().c_str(), H5F_ACC_TRUNC, create.get(), access.get()),
        H5Fclose);
    if (!file_->file) throw InputError(file_->name, "", "", "a file that HDF5 can create");
    const hid_t id = file_->file.get();
    hdf5::write_attribute(id, "version", std::int64_t{1});
    hdf5::write_attribute(id, "model", h.model);
    hdf5::write_attribute(id, "source", h.source);
    hdf5::write_attribute(id, "num_experts", std::int64_t{h.num_experts});
    hdf5::write_attribute(id, "top_k", std::int64_t{h.top_k});
    hdf5::write_attribute(id, "num_moe_heads", std::int64_t{h.num_moe_heads});
    hdf5::write_attribute(id, "tokens_per_step", h.tokens_per_step);
    hdf5::write_attribute(id, "num_ranks", std::int64_t{h.num_ranks});
    hdf5::write_attribute(id, "num_micro_batches", std::int64_t{h.num_micro_batches});
    hdf5::write_attribute(id, "sequence_length", std::int64_t{h.sequence_length});
    hdf5::write_attribute(id, "gates", h.gates);
    hdf5::write_attribute(id, "document_order", h.document_order);
    hdf5::write_attribute(id, "seed", h.seed);
}

TraceWriter::~TraceWriter() {
    const hdf5::Session session;
    file_.reset();
}

void TraceWriter::add(const TraceStep& step) {
    const hdf5::Session session;
    File& f = *file_;
    const TraceHeader& h = f.header;
    const auto layers = static_cast<hsize_t>(h.num_moe_layers),
               tokens = static_cast<hsize_t>(h.tokens_per_step),
               rows = tokens * static_cast<hsize_t>(h.num_moe_heads),
               k = static_cast<hsize_t>(h.top_k), s = f.steps;
    const hsize_t chunk_rows = std::min(rows, kChunkRows);
    if (h.counts_only) {
        if (step.counts.size() != layers) f.wrong("layers of counts", step.counts.size(), layers);
        const auto micro_batches = static_cast<hsize_t>(h.num_micro_batches),
                   sources = static_cast<hsize_t>(h.num_ranks),
                   experts = static_cast<hsize_t>(h.num_experts);
        for (hsize_t layer = 0; layer < layers; ++layer) {
            if (step.counts[layer].size() != micro_batches * sources * experts)
                f.wrong("counts of a layer", step.counts[layer].size(),
                        micro_batches * sources * experts);
            f.add("tokens_per_expert", step.counts[layer],
                  {0, layers, micro_batches, sources, experts},
                  {1, 1, micro_batches, sources, experts}, H5T_STD_U32LE, {s, layer, 0, 0, 0},
                  {1, 1, micro_batches, sources, experts});
        }
    } else {
        if (step.expert_ids.size() != layers)
            f.wrong("layers of expert ids", step.expert_ids.size(), layers);
        if (!step.gate_weights.empty() && step.gate_weights.size() != layers)
            f.wrong("layers of gate weights", step.gate_weights.size(), layers);
        const hdf5::Handle half = hdf5::half_type();
        for (hsize_t layer = 0; layer < layers; ++layer) {
            const auto& ids = step.expert_ids[layer];
            if (ids.size() != rows * k) f.wrong("expert ids of a layer", ids.size(), rows * k);
            for (const std::uint16_t id : ids)
                if (id >= h.num_experts && id != kNotRouted)
                    f.wrong("expert id", id, static_cast<std::size_t>(h.num_experts) - 1);
            f.add("expert_ids", ids, {0, layers, rows, k}, {1, 1, chunk_rows, k}, H5T_STD_U16LE,
                  {s, layer, 0, 0}, {1, 1, rows, k});
            if (step.gate_weights.empty()) continue;
            if (step.gate_weights[layer].size() != rows * k)
                f.wrong("gate weights of a layer", step.gate_weights[layer].size(), rows * k);
            f.add("gate_weights", step.gate_weights[layer], {0, layers, rows, k},
                  {1, 1, chunk_rows, k}, half.get(), {s, layer, 0, 0}, {1, 1, rows, k});
        }
        const auto by_token = [&](const char* name, const auto& values, hid_t stored) {
            if (!values.empty() && values.size() != tokens) f.wrong(name, values.size(), tokens);
            f.add(name, values, {0, tokens}, {1, std::min(tokens, kChunkRows)}, stored, {s, 0},
                  {1, tokens});
        };
        by_token("document_ids", step.document_ids, H5T_STD_U32LE);
        by_token("domain_ids", step.domain_ids, H5T_STD_U16LE);
        by_token("token_rank", step.token_rank, H5T_STD_U16LE);
        by_token("token_micro_batch", step.token_micro_batch, H5T_STD_U16LE);
        if (!step.pool_size.empty() && step.pool_size.size() != layers)
            f.wrong("layers of pool sizes", step.pool_size.size(), layers);
        for (hsize_t layer = 0; layer < step.pool_size.size(); ++layer) {
            const auto documents = static_cast<hsize_t>(step.pool_size[layer].size());
            f.add("pool_size", step.pool_size[layer], {0, layers, documents},
                  {1, 1, std::max<hsize_t>(documents, 64)}, H5T_STD_U16LE, {s, layer, 0},
                  {1, 1, documents});
        }
    }
    f.add("step", std::vector<std::int64_t>{step.step}, {0}, {256}, H5T_STD_I64LE, {s}, {1});
    f.add("loss", std::vector<double>{step.loss}, {0}, {256}, H5T_IEEE_F64LE, {s}, {1});
    ++f.steps;
}

void TraceWriter::finish() {
    const hdf5::Session session;
    File& f = *file_;
    if (f.finished) return;
    if (f.steps == 0) throw InputError(f.name, "", "no step", "at least one step");
    f.datasets.clear();
    if (H5Fflush(f.file.get(), H5F_SCOPE_LOCAL) < 0)
        throw InputError(f.name, "", "", "room to write");
    f.file = {};
    f.pending.keep();
    f.finished = true;
}

}  // namespace moeplan
