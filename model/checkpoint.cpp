/// A shard is: "moeplan checkpoint 1\n", 8 bytes of the header's length, the header (JSON: tensors
/// with name, count, offset, and where they lie in the whole tensor: elements `begin` and after of
/// a share with first, run, stride), numbers little-endian, 8 bytes of a sum over all that went
/// before (FNV-1a). value, m and v of a parameter are tensors "name", "name/m", "name/v".
#include "model/checkpoint.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <vector>

#include "core/errors.hpp"
#include "core/output_file.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kMagic = "moeplan checkpoint 1\n";

std::uint64_t sum_of(const char* data, std::size_t size, std::uint64_t sum = 1469598103934665603u) {
    // Eight bytes at a time: checkpoints are large, and the sum is against cut or damaged files,
    // not against people.
    std::size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        std::uint64_t word;
        std::memcpy(&word, data + i, 8);
        sum = (sum ^ word) * 1099511628211u;
        sum ^= sum >> 29;
    }
    for (; i < size; ++i) sum = (sum ^ std::uint8_t(data[i])) * 1099511628211u;
    return sum;
}

/// Elements begin … begin + count − 1 of a share of the tensor `name`.
struct Piece {
    std::string name;
    Share share;
    std::int64_t begin = 0, count = 0;
    std::vector<char> bytes;
};

/// `count` elements from `first` on.
std::vector<char> bytes_of(Runtime& rt, const Tensor& tensor, std::int64_t first,
                           std::int64_t count) {
    std::vector<char> out(std::size_t(count) * std::size_t(size_of(tensor.format()).value));
    rt.copy(out.data(), at(tensor.data(), first, tensor.format()), out.size());
    check(rt.backend.synchronise(rt.stream), "synchronise");
    return out;
}

void write_shard(const fs::path& file, const std::vector<Piece>& pieces, NumberFormat format) {
    Json header;
    header["format"] = std::string(name_of(format));
    header["tensors"] = Json::array();
    std::size_t offset = 0;
    for (const Piece& piece : pieces) {
        header["tensors"].push_back({{"name", piece.name},
                                     {"first", piece.share.first},
                                     {"run", piece.share.run},
                                     {"stride", piece.share.stride},
                                     {"begin", piece.begin},
                                     {"count", piece.count},
                                     {"offset", offset}});
        offset += piece.bytes.size();
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::ofstream out(file, std::ios::binary);
    std::uint64_t sum = sum_of(text.data(), text.size());
    out.write(kMagic.data(), std::streamsize(kMagic.size()));
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(text.data(), std::streamsize(text.size()));
    for (const Piece& piece : pieces) {
        out.write(piece.bytes.data(), std::streamsize(piece.bytes.size()));
        sum = sum_of(piece.bytes.data(), piece.bytes.size(), sum);
    }
    out.write(reinterpret_cast<const char*>(&sum), sizeof sum);
    out.flush();
    if (!out)
        throw InputError(file.string(), "", "",
                         "room to write a checkpoint of " + std::to_string(offset) + " bytes");
}

std::string shard_name(int rank) {
    std::string number = std::to_string(rank);
    return "shard-" + std::string(number.size() < 5 ? 5 - number.size() : 0, '0') + number + ".bin";
}
std::string step_name(std::int64_t step) {
    std::string number = std::to_string(step);
    return "step-" + std::string(number.size() < 6 ? 6 - number.size() : 0, '0') + number;
}

struct Shard {
    fs::path file;
    NumberFormat format = NumberFormat::f32;
    std::size_t data_at = 0;
    struct Entry {
        Share share;
        std::int64_t begin = 0, count = 0;
        std::size_t offset = 0;
    };
    std::multimap<std::string, Entry> entries;
};

Shard read_header(const fs::path& file) {
    const auto broken = [&](const std::string& what) {
        throw InputError(file.string(), "", "", "a whole shard of a checkpoint: " + what);
    };
    std::ifstream in(file, std::ios::binary);
    if (!in) broken("it cannot be read");
    std::error_code ignored;
    const std::uint64_t size = fs::file_size(file, ignored);
    std::string magic(kMagic.size(), 0);
    std::uint64_t length = 0;
    in.read(magic.data(), std::streamsize(magic.size()));
    if (!in || magic != kMagic) broken("it does not begin like one");
    in.read(reinterpret_cast<char*>(&length), sizeof length);
    if (!in || length > size) broken("its header is cut off");
    std::string text(length, 0);
    in.read(text.data(), std::streamsize(length));
    if (!in) broken("its header is cut off");
    Shard shard;
    shard.file = file;
    shard.data_at = kMagic.size() + sizeof length + length;
    std::size_t end = 0;
    const JsonReader header = JsonReader::from_text(text, file.string());
    shard.format = header.at("format").choice<NumberFormat>();
    if (shard.format != NumberFormat::f32 && shard.format != NumberFormat::f64)
        broken("its number format is not f32 or f64");
    const std::size_t element = std::size_t(size_of(shard.format).value);
    for (const JsonReader& entry : header.at("tensors").items()) {
        const auto count = entry.at("count").integer(0, std::int64_t(size));
        const auto offset = std::size_t(entry.at("offset").integer(0, std::int64_t(size)));
        const auto whole = [&](const char* key) { return entry.at(key).integer(0); };
        const Share share(whole("first"), whole("run"), whole("stride"));
        if (share.run > 0 && share.stride < share.run) broken("its runs overlap");
        shard.entries.emplace(entry.at("name").text(),
                              Shard::Entry{share, whole("begin"), count, offset});
        end = std::max(end, offset + std::size_t(count) * element);
    }
    if (shard.data_at + end + sizeof(std::uint64_t) != size)
        broken("it is cut off (" + std::to_string(size) + " bytes)");
    return shard;
}

void check_sum(const Shard& shard) {
    std::ifstream in(shard.file, std::ios::binary);
    std::vector<char> all((std::istreambuf_iterator<char>(in)), {});
    const std::size_t header_at = kMagic.size() + sizeof(std::uint64_t);
    std::uint64_t sum = sum_of(all.data() + header_at, shard.data_at - header_at), stored = 0;
    const std::size_t element = std::size_t(size_of(shard.format).value);
    std::map<std::size_t, std::size_t> pieces;  // each piece was summed alone, in order
    for (const auto& [name, entry] : shard.entries)
        pieces[entry.offset] = std::max(pieces[entry.offset], std::size_t(entry.count) * element);
    for (const auto& [offset, bytes] : pieces)
        sum = sum_of(all.data() + shard.data_at + offset, bytes, sum);
    std::memcpy(&stored, all.data() + all.size() - sizeof stored, sizeof stored);
    if (sum != stored)
        throw InputError(shard.file.string(), "", "",
                         "a whole shard of a checkpoint: its content does not fit its check sum");
}

/// For every stretch of elements that both spans of shares hold: where it begins in each span's
/// share, and its length.
template <class Visit>
void for_each_overlap(const Share& a, Span of_a, const Share& b, Span of_b, Visit visit) {
    const auto run_at = [](const Share& share, std::int64_t i, std::int64_t end) {
        return share.run > 0 ? std::min(end, (i / share.run + 1) * share.run) : end;
    };
    for (std::int64_t i = of_a.first; i < of_a.end;) {
        const std::int64_t next = run_at(a, i, of_a.end), low = a.whole_index(i),
                           high = low + next - i;
        // The first run of b that could reach `low`.
        std::int64_t j = of_b.first;
        if (b.run > 0) j = std::max(j, (low - b.first) / b.stride * b.run);
        while (j < of_b.end) {
            const std::int64_t stop = run_at(b, j, of_b.end), begin = b.whole_index(j),
                               end = begin + stop - j;
            if (begin >= high) break;
            const std::int64_t from = std::max(low, begin), to = std::min(high, end);
            if (from < to) visit(i + from - low, j + from - begin, to - from);
            j = stop;
        }
        i = next;
    }
}

/// A piece's numbers, as doubles (exact from f32 and f64).
std::vector<double> read_piece(const Shard& shard, const std::string& name,
                               const Shard::Entry& entry) {
    const std::size_t element = std::size_t(size_of(shard.format).value),
                      count = std::size_t(entry.count);
    std::vector<char> raw(count * element);
    std::ifstream in(shard.file, std::ios::binary);
    in.seekg(std::streamoff(shard.data_at + entry.offset));
    in.read(raw.data(), std::streamsize(raw.size()));
    if (!in) throw InputError(shard.file.string(), name, "", "numbers up to the file's end");
    std::vector<double> out(count);
    if (shard.format == NumberFormat::f64) {
        std::memcpy(out.data(), raw.data(), raw.size());
        return out;
    }
    std::vector<float> narrow(count);
    std::memcpy(narrow.data(), raw.data(), raw.size());
    std::copy(narrow.begin(), narrow.end(), out.begin());
    return out;
}

/// What a run left that was killed while it wrote: only one run writes in a folder at a time.
void remove_unfinished(const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with(".step-") && name.ends_with(".writing")) found.push_back(entry.path());
    }
    for (const fs::path& unfinished : found) fs::remove_all(unfinished, error);
}

}  // namespace

void save_checkpoint(const fs::path& folder, const CheckpointState& state, Runtime& rt,
                     Transformer& model, const RankGroups& groups, const Communicator& world) {
    const fs::path target = folder / step_name(state.step),
                   pending = folder / ("." + step_name(state.step) + ".writing");
    std::string fault;
    if (world.rank() == 0) {
        std::error_code error;
        fs::create_directories(folder, error);
        remove_unfinished(folder);
        fs::create_directories(pending, error);
        if (error) fault = error.message();
    }
    if (world.all_reduce_max(fault.empty() ? 0 : 1) > 0)
        throw InputError(folder.string(), "", "",
                         "a folder to write checkpoints in" + (fault.empty() ? "" : ": " + fault));
    std::vector<Piece> pieces;
    for (const Parameter* parameter : model.parameters().all()) {
        const bool first = holders(groups, parameter->held).rank() == 0;
        if (!parameter->counted || (!model.parameters().is_sharded() && !first)) continue;
        const Span span = parameter->updated;
        if (span.count() == 0) continue;
        const auto add = [&](const char* part, const Tensor& tensor, std::int64_t from) {
            pieces.push_back({parameter->name + part, parameter->share, span.first, span.count(),
                              bytes_of(rt, tensor, from, span.count())});
        };
        add("", parameter->full(), span.first);
        add("/m", parameter->m, 0);
        add("/v", parameter->v, 0);
    }
    if (groups.stage.rank() == 0) {
        int index = model.first_moe_layer();
        for (MoeLayer* layer : model.moe_layers()) {
            const std::string name = "selection_bias." + std::to_string(index++);
            const Tensor& bias = layer->selection_bias();
            if (bias)
                pieces.push_back({name, {}, 0, bias.count(), bytes_of(rt, bias, 0, bias.count())});
        }
    }
    try {
        if (!pieces.empty()) write_shard(pending / shard_name(world.rank()), pieces, rt.stat);
    } catch (const InputError& error) {
        fault = error.what();
    }
    const bool failed = world.all_reduce_max(fault.empty() ? 0 : 1) > 0;
    if (world.rank() == 0) {
        std::error_code error;
        if (!failed) {
            Json out = json_header("checkpoint");
            out["step"] = state.step;
            out["seed"] = state.seed;
            out["data_digest"] = state.data_digest;
            out["model"] = state.model;
            out["layout"] = state.layout;
            write_whole(pending / "state.json", to_file_text(out));
            fs::remove_all(target, error);
            fs::rename(pending, target, error);
        }
        if (failed || error) fs::remove_all(pending, error);
    }
    world.barrier();
    if (failed)
        throw InputError(
            target.string(), "", "",
            "a checkpoint that could be written" + (fault.empty() ? "" : ": " + fault));
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
    std::error_code error;
    if (fs::exists(folder / "state.json", error)) return folder;
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder, error))
        if (entry.path().filename().string().starts_with("step-") &&
            fs::exists(entry.path() / "state.json", error))
            found.push_back(entry.path());
    if (found.empty()) return std::nullopt;
    return *std::max_element(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
        const std::string x = a.filename().string(), y = b.filename().string();
        return x.size() != y.size() ? x.size() < y.size() : x < y;
    });
}

CheckpointState read_checkpoint_state(const fs::path& checkpoint) {
    const JsonReader file = JsonReader::from_file(checkpoint / "state.json");
    CheckpointState state;
    state.step = file.at("step").integer(0);
    const Json& seed = file.at("seed").value();
    if (!seed.is_number_unsigned()) file.at("seed").fail("a whole number");
    state.seed = seed.get<std::uint64_t>();
    state.data_digest = file.text_or("data_digest", "");
    state.model = file.at("model").value();
    return state;
}

void load_checkpoint(const fs::path& checkpoint, Runtime& rt, Transformer& model) {
    std::vector<Shard> shards;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(checkpoint, error))
        if (entry.path().extension() == ".bin") shards.push_back(read_header(entry.path()));
    if (error || shards.empty())
        throw InputError(checkpoint.string(), "", "",
                         "a checkpoint: a folder with state.json and shard-*.bin");
    std::sort(shards.begin(), shards.end(),
              [](const Shard& a, const Shard& b) { return a.file < b.file; });
    for (const Shard& shard : shards) check_sum(shard);
    const auto read = [&](const std::string& name, const Share& share, Span span,
                          const Tensor& tensor) {
        if (span.count() == 0) return;
        std::vector<double> values(std::size_t(span.count()), 0);
        const std::int64_t low = share.whole_index(span.first),
                           high = share.whole_index(span.end - 1);
        std::int64_t filled = 0;
        for (const Shard& shard : shards) {
            const auto [begin, end] = shard.entries.equal_range(name);
            for (auto it = begin; it != end; ++it) {
                const Shard::Entry& entry = it->second;
                const Span stored{entry.begin, entry.begin + entry.count};
                if (entry.count == 0 || entry.share.whole_index(stored.first) > high ||
                    entry.share.whole_index(stored.end - 1) < low)
                    continue;
                const std::vector<double> piece = read_piece(shard, name, entry);
                for_each_overlap(share, span, entry.share, stored,
                                 [&](std::int64_t to, std::int64_t from, std::int64_t count) {
                                     std::copy_n(piece.begin() + (from - stored.first), count,
                                                 values.begin() + (to - span.first));
                                     filled += count;
                                 });
            }
        }
        if (filled != span.count())
            throw InputError(checkpoint.string(), name, std::to_string(filled) + " numbers",
                             std::to_string(span.count()) + ", as the model's shape asks");
        rt.upload(tensor.data(), values, tensor.format());
    };
    for (Parameter* parameter : model.parameters().all()) {
        const Share& share = parameter->share;
        read(parameter->name, share, {0, parameter->count()}, parameter->full());
        if (parameter->master) rt.convert(parameter->master, parameter->value);
        read(parameter->name + "/m", share, parameter->updated, parameter->m);
        read(parameter->name + "/v", share, parameter->updated, parameter->v);
    }
    int index = model.first_moe_layer();
    for (MoeLayer* layer : model.moe_layers()) {
        if (layer->selection_bias())
            read("selection_bias." + std::to_string(index), {},
                 {0, layer->selection_bias().count()}, layer->selection_bias());
        ++index;
    }
}

}  // namespace moeplan
