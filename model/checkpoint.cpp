/// A shard is: "moeplan checkpoint 1\n", 8 bytes of the header's length, the header (JSON: tensors
/// with name, first, count, offset), numbers little-endian, 8 bytes of a sum over all that went
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

struct Piece {
    std::string name;
    std::int64_t first = 0, count = 0;
    std::vector<char> bytes;
};

std::vector<char> bytes_of(Runtime& rt, const Tensor& tensor) {
    std::vector<char> out(tensor.bytes());
    rt.copy(out.data(), tensor.data(), out.size());
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
                                     {"first", piece.first},
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
        std::int64_t first, count;
        std::size_t offset;
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
        shard.entries.emplace(entry.at("name").text(),
                              Shard::Entry{entry.at("first").integer(0), count, offset});
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

}  // namespace

void save_checkpoint(const fs::path& folder, const CheckpointState& state, Runtime& rt,
                     Transformer& model, const Communicator& world, bool writes_experts) {
    const fs::path target = folder / step_name(state.step),
                   pending = folder / ("." + step_name(state.step) + ".writing");
    std::string fault;
    if (world.rank() == 0) {
        std::error_code error;
        fs::create_directories(folder, error);
        fs::remove_all(pending, error);
        fs::create_directories(pending, error);
        if (error) fault = error.message();
    }
    if (world.all_reduce_max(fault.empty() ? 0 : 1) > 0)
        throw InputError(folder.string(), "", "",
                         "a folder to write checkpoints in" + (fault.empty() ? "" : ": " + fault));
    std::vector<Piece> pieces;
    for (const Parameter* parameter : model.parameters().all()) {
        if (parameter->held == Held::by_all ? world.rank() != 0 : !writes_experts) continue;
        pieces.push_back({parameter->name, parameter->first, parameter->count(),
                          bytes_of(rt, parameter->full())});
        pieces.push_back({parameter->name + "/m", parameter->first, parameter->count(),
                          bytes_of(rt, parameter->m)});
        pieces.push_back({parameter->name + "/v", parameter->first, parameter->count(),
                          bytes_of(rt, parameter->v)});
    }
    if (world.rank() == 0) {
        int index = 0;
        for (MoeLayer* layer : model.moe_layers()) {
            const std::string name = "selection_bias." + std::to_string(index++);
            if (layer->selection_bias())
                pieces.push_back({name, 0, layer->selection_bias().count(),
                                  bytes_of(rt, layer->selection_bias())});
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
    const auto read = [&](const std::string& name, std::int64_t first, const Tensor& tensor) {
        const std::int64_t last = first + tensor.count();
        std::vector<double> values(std::size_t(tensor.count()), 0);
        std::int64_t filled = 0;
        for (const Shard& shard : shards) {
            const auto [begin, end] = shard.entries.equal_range(name);
            for (auto it = begin; it != end; ++it) {
                const std::int64_t from = std::max(first, it->second.first),
                                   to = std::min(last, it->second.first + it->second.count);
                if (from >= to) continue;
                const std::size_t element = std::size_t(size_of(shard.format).value);
                std::vector<char> raw(std::size_t(to - from) * element);
                std::ifstream in(shard.file, std::ios::binary);
                in.seekg(std::streamoff(shard.data_at + it->second.offset +
                                        std::size_t(from - it->second.first) * element));
                in.read(raw.data(), std::streamsize(raw.size()));
                if (!in)
                    throw InputError(shard.file.string(), name, "", "numbers up to the file's end");
                for (std::int64_t i = from; i < to; ++i) {
                    const char* at = raw.data() + std::size_t(i - from) * element;
                    float narrow;
                    double wide;
                    if (shard.format == NumberFormat::f32) {
                        std::memcpy(&narrow, at, sizeof narrow);
                        wide = narrow;
                    } else {
                        std::memcpy(&wide, at, sizeof wide);
                    }
                    values[std::size_t(i - first)] = wide;
                }
                filled += to - from;
            }
        }
        if (filled != tensor.count())
            throw InputError(checkpoint.string(), name, std::to_string(filled) + " numbers",
                             std::to_string(tensor.count()) + ", as the model's shape asks");
        rt.upload(tensor.data(), values, tensor.format());
    };
    for (Parameter* parameter : model.parameters().all()) {
        read(parameter->name, parameter->first, parameter->full());
        if (parameter->master) rt.convert(parameter->master, parameter->value);
        read(parameter->name + "/m", parameter->first, parameter->m);
        read(parameter->name + "/v", parameter->first, parameter->v);
    }
    int index = 0;
    for (MoeLayer* layer : model.moe_layers()) {
        if (layer->selection_bias())
            read("selection_bias." + std::to_string(index), 0, layer->selection_bias());
        ++index;
    }
}

}  // namespace moeplan
