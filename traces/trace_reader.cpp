#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "core/digest.hpp"
#include "core/errors.hpp"
#include "traces/hdf5_file.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

struct TraceReader::File {
    std::string name;
    std::filesystem::path path;
    TraceHeader header;
    hdf5::Handle file;
    std::optional<hdf5::Dataset> expert_ids, gate_weights, document_ids, domain_ids, token_rank,
        token_micro_batch, step_numbers, loss, pool_size, counts;
    std::string digest;

    /// The last layer and the last step's token places, as read: the micro-batches of a layer are
    /// asked for one after the other.
    int cached_step = -1, cached_layer = -1, cached_tokens_step = -1;
    std::vector<std::uint16_t> cached_ids, cached_rank, cached_micro_batch;
    std::vector<std::uint32_t> cached_documents;

    hsize_t rows() const {
        return static_cast<hsize_t>(header.tokens_per_step) *
               static_cast<hsize_t>(header.num_moe_heads);
    }

    void check_shape(const std::optional<hdf5::Dataset>& dataset,
                     const std::vector<hsize_t>& expected) const {
        if (dataset && dataset->shape() != expected)
            throw InputError(name, dataset->name(),
                             "of shape " + hdf5::place_text(dataset->shape()),
                             hdf5::place_text(expected));
    }

    std::vector<std::uint16_t> read_ids(int step, int layer) const {
        const auto s = static_cast<hsize_t>(step), l = static_cast<hsize_t>(layer),
                   k = static_cast<hsize_t>(header.top_k);
        auto ids = expert_ids->read<std::uint16_t>({s, l, 0, 0}, {1, 1, rows(), k});
        const auto wrong = std::find_if(ids.begin(), ids.end(), [&](std::uint16_t id) {
            return id >= header.num_experts && id != kNotRouted;
        });
        if (wrong != ids.end()) {
            const auto at = static_cast<hsize_t>(wrong - ids.begin());
            expert_ids->fail(
                {s, l, at / k, at % k}, std::to_string(*wrong),
                "an expert id below num_experts (" + std::to_string(header.num_experts) + ")");
        }
        return ids;
    }

    std::vector<std::uint16_t> read_places(const std::optional<hdf5::Dataset>& dataset, int step,
                                           int limit) const {
        const auto s = static_cast<hsize_t>(step),
                   tokens = static_cast<hsize_t>(header.tokens_per_step);
        if (!dataset) return {};
        auto places = dataset->read<std::uint16_t>({s, 0}, {1, tokens});
        for (std::size_t i = 0; i < places.size(); ++i)
            if (places[i] >= limit)
                dataset->fail({s, i}, std::to_string(places[i]),
                              "less than " + std::to_string(limit));
        return places;
    }

    void check_place(int step, int layer, int micro_batch) const {
        const auto check = [&](const char* what, int value, int count) {
            if (value < 0 || value >= count)
                throw InputError(name, what, std::to_string(value),
                                 "0 … " + std::to_string(count - 1));
        };
        check("step", step, header.num_steps);
        check("MoE layer", layer, header.num_moe_layers);
        check("micro-batch", micro_batch, header.num_micro_batches);
    }

    void cache(int step, int layer) {
        if (cached_step != step || cached_layer != layer) {
            cached_step = -1;
            cached_ids = read_ids(step, layer);
            cached_step = step;
            cached_layer = layer;
        }
        if (cached_tokens_step != step) {
            cached_tokens_step = -1;
            cached_rank = read_places(token_rank, step, header.num_ranks);
            cached_micro_batch = read_places(token_micro_batch, step, header.num_micro_batches);
            cached_documents.clear();
            if (document_ids)
                cached_documents = document_ids->read<std::uint32_t>(
                    {static_cast<hsize_t>(step), 0},
                    {1, static_cast<hsize_t>(header.tokens_per_step)});
            cached_tokens_step = step;
        }
    }
};

TraceReader::TraceReader(const std::filesystem::path& path) : file_(std::make_unique<File>()) {
    const hdf5::Session session;
    File& f = *file_;
    f.name = path.string();
    f.path = path;
    {
        std::ifstream in(path, std::ios::binary);
        char signature[8] = {};
        if (!in || std::filesystem::is_directory(path))
            throw InputError(f.name, "", "", "a readable routing trace");
        in.read(signature, sizeof signature);
        if (std::string_view(signature, 8) != std::string_view("\x89HDF\r\n\x1a\n", 8))
            throw InputError(
                f.name, "", "",
                "a routing trace in HDF5 (other forms: moeplan trace import FILE --out TRACE.h5)");
    }
    f.file = hdf5::Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
    if (!f.file)
        throw InputError(f.name, "", "", "a whole HDF5 file (this one is damaged or cut short)");
    const hid_t id = f.file.get();
    TraceHeader& h = f.header;
    const auto integer = [&](const char* name, std::int64_t least, std::int64_t most,
                             std::optional<std::int64_t> otherwise = {}) {
        const auto value = hdf5::integer_attribute(f.name, id, name);
        if (!value && otherwise) return *otherwise;
        if (!value)
            throw InputError(f.name, std::string("attribute ") + name, "",
                             "a routing trace (docs/routing-traces.md)");
        if (*value < least || *value > most)
            throw InputError(f.name, std::string("attribute ") + name, std::to_string(*value),
                             std::to_string(least) + " … " + std::to_string(most));
        return *value;
    };
    integer("version", 1, 1);
    h.num_experts = static_cast<int>(integer("num_experts", 1, kNotRouted - 1));
    h.top_k = static_cast<int>(integer("top_k", 1, h.num_experts));
    h.num_moe_heads = static_cast<int>(integer("num_moe_heads", 1, 4096, 1));
    h.num_ranks = static_cast<int>(integer("num_ranks", 1, 65535, 1));
    h.num_micro_batches = static_cast<int>(integer("num_micro_batches", 1, 65535, 1));
    h.sequence_length = static_cast<int>(integer("sequence_length", 0, 1 << 30, 0));
    h.model = hdf5::text_attribute(f.name, id, "model").value_or("");
    h.source = hdf5::text_attribute(f.name, id, "source").value_or("");
    h.gates = hdf5::text_attribute(f.name, id, "gates").value_or("raw");
    h.document_order = hdf5::text_attribute(f.name, id, "document_order").value_or("");
    if (H5Aexists(id, "seed") > 0) {
        const hdf5::Handle seed(H5Aopen(id, "seed", H5P_DEFAULT), H5Aclose);
        H5Aread(seed.get(), H5T_NATIVE_UINT64, &h.seed);
    }

    f.expert_ids = hdf5::Dataset::find(f.name, id, "expert_ids", 4, true);
    f.counts = hdf5::Dataset::find(f.name, id, "tokens_per_expert", 5, true);
    h.counts_only = !f.expert_ids;
    if (!f.expert_ids && !f.counts)
        throw InputError(f.name, "/expert_ids", "",
                         "a routing trace with /expert_ids or /tokens_per_expert");
    constexpr hsize_t kMost = 1 << 30;
    const auto& main = h.counts_only ? f.counts : f.expert_ids;
    for (const hsize_t extent : main->shape())
        if (extent < 1 || extent > (hsize_t{1} << 40))
            throw InputError(f.name, main->name(), "of shape " + hdf5::place_text(main->shape()),
                             "positive extents");
    if (main->shape()[0] > kMost || main->shape()[1] > 65536)
        throw InputError(f.name, main->name(), "of shape " + hdf5::place_text(main->shape()),
                         "at most 2^30 steps and 65536 layers");
    h.num_steps = static_cast<int>(main->shape()[0]);
    h.num_moe_layers = static_cast<int>(main->shape()[1]);
    const auto steps = static_cast<hsize_t>(h.num_steps),
               layers = static_cast<hsize_t>(h.num_moe_layers);
    if (h.counts_only) {
        h.num_micro_batches = static_cast<int>(std::min<hsize_t>(main->shape()[2], kMost));
        h.num_ranks = static_cast<int>(std::min<hsize_t>(main->shape()[3], kMost));
        h.tokens_per_step = integer("tokens_per_step", 0, std::int64_t{1} << 40, 0);
        f.check_shape(f.counts,
                      {steps, layers, static_cast<hsize_t>(h.num_micro_batches),
                       static_cast<hsize_t>(h.num_ranks), static_cast<hsize_t>(h.num_experts)});
    } else {
        const hsize_t rows = main->shape()[2];
        if (rows % static_cast<hsize_t>(h.num_moe_heads) != 0)
            throw InputError(
                f.name, "/expert_ids", "of " + std::to_string(rows) + " rows",
                "a multiple of num_moe_heads (" + std::to_string(h.num_moe_heads) + ")");
        h.tokens_per_step = static_cast<std::int64_t>(rows / static_cast<hsize_t>(h.num_moe_heads));
        const auto tokens = static_cast<hsize_t>(h.tokens_per_step),
                   k = static_cast<hsize_t>(h.top_k);
        f.check_shape(f.expert_ids, {steps, layers, rows, k});
        f.gate_weights = hdf5::Dataset::find(f.name, id, "gate_weights", 4, false);
        f.check_shape(f.gate_weights, {steps, layers, rows, k});
        const std::pair<const char*, std::optional<hdf5::Dataset>*> by_token[] = {
            {"document_ids", &f.document_ids},
            {"domain_ids", &f.domain_ids},
            {"token_rank", &f.token_rank},
            {"token_micro_batch", &f.token_micro_batch}};
        for (const auto& [name, dataset] : by_token) {
            *dataset = hdf5::Dataset::find(f.name, id, name, 2, true);
            f.check_shape(*dataset, {steps, tokens});
        }
        f.pool_size = hdf5::Dataset::find(f.name, id, "pool_size", 3, true);
        if (f.pool_size) f.check_shape(f.pool_size, {steps, layers, f.pool_size->shape()[2]});
        if ((!f.token_rank && h.num_ranks > 1) || (!f.token_micro_batch && h.num_micro_batches > 1))
            throw InputError(f.name, f.token_rank ? "/token_micro_batch" : "/token_rank", "",
                             "this dataset, or num_ranks and num_micro_batches of 1");
    }
    f.step_numbers = hdf5::Dataset::find(f.name, id, "step", 1, true);
    f.check_shape(f.step_numbers, {steps});
    f.loss = hdf5::Dataset::find(f.name, id, "loss", 1, false);
    f.check_shape(f.loss, {steps});
}

TraceReader::TraceReader(TraceReader&&) noexcept = default;
TraceReader& TraceReader::operator=(TraceReader&& other) noexcept {
    const hdf5::Session session;
    file_ = std::move(other.file_);
    return *this;
}
TraceReader::~TraceReader() {
    const hdf5::Session session;
    file_.reset();
}

const TraceHeader& TraceReader::header() const { return file_->header; }

const std::string& TraceReader::digest() const {
    const hdf5::Session session;  // also guards the digest, made when first asked for
    if (file_->digest.empty()) file_->digest = digest_of_file(file_->path);
    return file_->digest;
}

TraceStep TraceReader::step(int index) const {
    const hdf5::Session session;
    const File& f = *file_;
    const TraceHeader& h = f.header;
    f.check_place(index, 0, 0);
    const auto s = static_cast<hsize_t>(index), tokens = static_cast<hsize_t>(h.tokens_per_step);
    TraceStep out;
    out.step =
        f.step_numbers ? static_cast<int>(f.step_numbers->read<std::int64_t>({s}, {1})[0]) : index;
    out.loss = f.loss ? f.loss->read<double>({s}, {1})[0] : 0;
    for (int layer = 0; layer < h.num_moe_layers; ++layer) {
        const auto l = static_cast<hsize_t>(layer);
        if (h.counts_only) {
            const auto& shape = f.counts->shape();
            out.counts.push_back(f.counts->read<std::uint32_t>(
                {s, l, 0, 0, 0}, {1, 1, shape[2], shape[3], shape[4]}));
            continue;
        }
        out.expert_ids.push_back(f.read_ids(index, layer));
        if (f.gate_weights)
            out.gate_weights.push_back(f.gate_weights->read<float>(
                {s, l, 0, 0}, {1, 1, f.rows(), static_cast<hsize_t>(h.top_k)}));
        if (f.pool_size) {
            auto pools =
                f.pool_size->read<std::uint16_t>({s, l, 0}, {1, 1, f.pool_size->shape()[2]});
            while (!pools.empty() && pools.back() == 0)
                pools.pop_back();  // padding: other steps have more documents
            out.pool_size.push_back(std::move(pools));
        }
    }
    if (f.document_ids) out.document_ids = f.document_ids->read<std::uint32_t>({s, 0}, {1, tokens});
    if (f.domain_ids) out.domain_ids = f.domain_ids->read<std::uint16_t>({s, 0}, {1, tokens});
    out.token_rank = f.read_places(f.token_rank, index, h.num_ranks);
    out.token_micro_batch = f.read_places(f.token_micro_batch, index, h.num_micro_batches);
    return out;
}

RoutingLoads TraceReader::loads(int step, int moe_layer, int micro_batch) const {
    const hdf5::Session session;
    File& f = *file_;
    const TraceHeader& h = f.header;
    f.check_place(step, moe_layer, micro_batch);
    RoutingLoads out{h.num_ranks, h.num_experts, {}};
    if (h.counts_only) {
        const auto& shape = f.counts->shape();
        out.sub_tokens = f.counts->read<std::uint32_t>(
            {static_cast<hsize_t>(step), static_cast<hsize_t>(moe_layer),
             static_cast<hsize_t>(micro_batch), 0, 0},
            {1, 1, 1, shape[3], shape[4]});
        return out;
    }
    f.cache(step, moe_layer);
    out.sub_tokens.assign(
        static_cast<std::size_t>(h.num_ranks) * static_cast<std::size_t>(h.num_experts), 0);
    const auto per_token =
        static_cast<std::size_t>(h.num_moe_heads) * static_cast<std::size_t>(h.top_k);
    for (std::size_t token = 0; token < static_cast<std::size_t>(h.tokens_per_step); ++token) {
        if (!f.cached_micro_batch.empty() && f.cached_micro_batch[token] != micro_batch) continue;
        const std::size_t source = f.cached_rank.empty() ? 0 : f.cached_rank[token];
        for (std::size_t slot = token * per_token; slot < (token + 1) * per_token; ++slot)
            if (f.cached_ids[slot] != kNotRouted)
                ++out.sub_tokens[source * static_cast<std::size_t>(h.num_experts) +
                                 f.cached_ids[slot]];
    }
    return out;
}

TraceStepFacts TraceReader::facts(int index) const {
    const hdf5::Session session;
    const File& f = *file_;
    f.check_place(index, 0, 0);
    const auto s = static_cast<hsize_t>(index),
               tokens = static_cast<hsize_t>(f.header.tokens_per_step);
    TraceStepFacts out;
    out.step =
        f.step_numbers ? static_cast<int>(f.step_numbers->read<std::int64_t>({s}, {1})[0]) : index;
    out.loss = f.loss ? f.loss->read<double>({s}, {1})[0] : 0;
    if (f.domain_ids) out.domain_ids = f.domain_ids->read<std::uint16_t>({s, 0}, {1, tokens});
    out.token_micro_batch = f.read_places(f.token_micro_batch, index, f.header.num_micro_batches);
    return out;
}

std::vector<std::uint16_t> TraceStepFacts::domains(int micro_batch) const {
    if (token_micro_batch.empty()) return domain_ids;
    std::vector<std::uint16_t> out;
    for (std::size_t i = 0; i < domain_ids.size(); ++i)
        if (token_micro_batch[i] == micro_batch) out.push_back(domain_ids[i]);
    return out;
}

std::vector<float> TraceReader::gates(int step, int moe_layer) const {
    const hdf5::Session session;
    const File& f = *file_;
    f.check_place(step, moe_layer, 0);
    if (!f.gate_weights) return {};
    return f.gate_weights->read<float>(
        {static_cast<hsize_t>(step), static_cast<hsize_t>(moe_layer), 0, 0},
        {1, 1, f.rows(), static_cast<hsize_t>(f.header.top_k)});
}

RoutedTokens TraceReader::tokens(int step, int moe_layer, int micro_batch) const {
    const hdf5::Session session;
    File& f = *file_;
    const TraceHeader& h = f.header;
    f.check_place(step, moe_layer, micro_batch);
    if (h.counts_only)
        throw InputError(f.name, "/expert_ids", "",
                         "the choices of single tokens (this trace holds counts only)");
    f.cache(step, moe_layer);
    const std::vector<std::uint32_t>& documents = f.cached_documents;
    RoutedTokens out;
    const auto per_token = static_cast<std::ptrdiff_t>(h.num_moe_heads) * h.top_k;
    for (std::size_t token = 0; token < static_cast<std::size_t>(h.tokens_per_step); ++token) {
        if (!f.cached_micro_batch.empty() && f.cached_micro_batch[token] != micro_batch) continue;
        const auto begin = f.cached_ids.begin() + static_cast<std::ptrdiff_t>(token) * per_token;
        out.expert_ids.insert(out.expert_ids.end(), begin, begin + per_token);
        out.token_rank.push_back(f.cached_rank.empty() ? 0 : f.cached_rank[token]);
        if (!documents.empty()) out.document.push_back(documents[token]);
    }
    return out;
}

}  // namespace moeplan
