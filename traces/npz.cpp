#include "traces/npz.hpp"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include "core/errors.hpp"
#include "core/text.hpp"

namespace moeplan::npz {
namespace {

constexpr std::uint64_t kLargestArray = std::uint64_t{16} << 30;

/// Little-endian numbers of a zip file, with bounds.
class Bytes {
  public:
    Bytes(const std::string& file, std::string_view content) : file_(file), content_(content) {}
    std::uint64_t number(std::uint64_t at, int width) const {
        if (at > content_.size() || content_.size() - at < static_cast<std::uint64_t>(width))
            fail("cut short");
        std::uint64_t out = 0;
        for (int i = width; i-- > 0;)
            out =
                out << 8 | static_cast<unsigned char>(content_[at + static_cast<std::uint64_t>(i)]);
        return out;
    }
    std::string_view part(std::uint64_t at, std::uint64_t length) const {
        if (at > content_.size() || length > content_.size() - at) fail("cut short");
        return content_.substr(at, length);
    }
    [[noreturn]] void fail(const std::string& what) const {
        throw InputError(file_, "", what, "a whole .npz file (a zip of numpy arrays)");
    }

  private:
    const std::string& file_;
    std::string_view content_;
};

std::string inflate_member(const std::string& file, const std::string& name,
                           std::string_view packed, std::uint64_t size) {
    // Deflate expands at most 1032 times: more is a lie of the directory.
    if (size > kLargestArray || size > packed.size() * 1100 + 64)
        throw InputError(file, name, std::to_string(size) + " bytes",
                         "a size that its data can fill");
    std::string out(size, '\0');
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK)
        throw InputError(file, name, "", "deflated data");
    std::size_t in_at = 0, out_at = 0;
    int status = Z_OK;
    while (status == Z_OK) {
        const auto in_now =
            static_cast<uInt>(std::min<std::size_t>(packed.size() - in_at, 1u << 30));
        const auto out_now =
            static_cast<uInt>(std::min<std::size_t>(out.size() - out_at, 1u << 30));
        stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + in_at));
        stream.avail_in = in_now;
        stream.next_out = reinterpret_cast<Bytef*>(out.data() + out_at);
        stream.avail_out = out_now;
        status = inflate(&stream, Z_NO_FLUSH);
        in_at += in_now - stream.avail_in;
        out_at += out_now - stream.avail_out;
        if (in_now == stream.avail_in && out_now == stream.avail_out) break;
    }
    inflateEnd(&stream);
    if (status != Z_STREAM_END || out_at != out.size())
        throw InputError(file, name, "damaged", "whole deflated data");
    return out;
}

/// The value behind "'key':" in a .npy header, a Python literal.
std::string header_value(std::string_view header, std::string_view key) {
    const auto at = header.find(std::string("'") + std::string(key) + "':");
    if (at == std::string_view::npos) return {};
    auto rest = trim(header.substr(at + key.size() + 3));
    if (rest.starts_with('(')) return std::string(rest.substr(0, rest.find(')') + 1));
    if (rest.starts_with('\'')) return std::string(rest.substr(1, rest.find('\'', 1) - 1));
    return std::string(trim(rest.substr(0, rest.find_first_of(",}"))));
}

Array parse_npy(const std::string& file, const std::string& name, std::string_view npy) {
    const Bytes bytes(file, npy);
    if (!npy.starts_with("\x93NUMPY")) throw InputError(file, name, "", "a numpy array");
    const std::uint64_t major = bytes.number(6, 1),
                        length = major >= 2 ? bytes.number(8, 4) : bytes.number(8, 2),
                        begin = major >= 2 ? 12 : 10;
    const std::string_view header = bytes.part(begin, length);
    Array out;
    out.descr = header_value(header, "descr");
    if (header_value(header, "fortran_order") != "False")
        throw InputError(file, name, "in Fortran order", "C order (numpy.ascontiguousarray)");
    std::uint64_t total = 1;
    const std::string shape = header_value(header, "shape");
    for (const auto& word :
         split(shape.size() > 2 ? std::string_view(shape).substr(1, shape.size() - 2) : "", ',')) {
        const auto digits = trim(word);
        if (digits.empty()) continue;
        std::uint64_t extent = 0;
        for (const char c : digits) {
            if (c < '0' || c > '9' || extent > kLargestArray)
                throw InputError(file, name, "of shape " + shape, "whole numbers");
            extent = extent * 10 + static_cast<std::uint64_t>(c - '0');
        }
        if (extent != 0 && total > kLargestArray / extent)
            throw InputError(file, name, "of shape " + shape, "a shape that its data can fill");
        total *= extent;
        out.shape.push_back(extent);
    }
    const std::string& d = out.descr;
    if (d.size() != 3 || (d[0] != '<' && d[0] != '|') ||
        std::string_view("iufb").find(d[1]) == std::string_view::npos ||
        std::string_view("1248").find(d[2]) == std::string_view::npos)
        throw InputError(file, name, "of type \"" + d + "\"", "little-endian integers or floats");
    const auto width = static_cast<std::uint64_t>(d[2] - '0');
    const std::string_view data = npy.substr(begin + length);
    if (total > data.size() / width || data.size() != total * width)
        throw InputError(file, name, std::to_string(data.size()) + " bytes of data",
                         std::to_string(total * width) + " for shape " + shape);
    out.bytes = data;
    return out;
}

float half_to_float(std::uint16_t h) {
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                       : exponent == 31
                           ? (mantissa ? std::numeric_limits<float>::quiet_NaN()
                                       : std::numeric_limits<float>::infinity())
                           : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    return h & 0x8000 ? -size : size;
}

template <class Out, class In>
std::vector<Out> as(const std::string& bytes) {
    std::vector<Out> out(bytes.size() / sizeof(In));
    for (std::size_t i = 0; i < out.size(); ++i) {
        In value;
        std::memcpy(&value, bytes.data() + i * sizeof(In), sizeof(In));
        out[i] = static_cast<Out>(value);
    }
    return out;
}

void put(std::string& out, std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i));
}

}  // namespace

std::uint64_t Array::size() const {
    std::uint64_t out = 1;
    for (const auto extent : shape) out *= extent;
    return out;
}

std::map<std::string, Array> read(const std::filesystem::path& path) {
    const std::string file = path.string();
    std::ifstream in(path, std::ios::binary);
    if (!in) throw InputError(file, "", "", "a readable file");
    const std::string content((std::istreambuf_iterator<char>(in)), {});
    const Bytes bytes(file, content);
    // The end of a zip's directory stands in the last 64 KiB; its fields say where the directory
    // begins.
    const auto end = content.rfind("PK\5\6");
    if (end == std::string::npos) bytes.fail("without a directory");
    std::uint64_t count = bytes.number(end + 10, 2), at = bytes.number(end + 16, 4);
    if (count == 0xFFFF || at == 0xFFFFFFFF) {  // zip64
        if (end < 20 || content.compare(end - 20, 4, "PK\6\7") != 0)
            bytes.fail("without its zip64 directory");
        const std::uint64_t end64 = bytes.number(end - 12, 8);
        if (bytes.part(end64, 4) != "PK\6\6") bytes.fail("without its zip64 directory");
        count = bytes.number(end64 + 32, 8);
        at = bytes.number(end64 + 48, 8);
    }
    std::map<std::string, Array> out;
    for (std::uint64_t i = 0; i < count; ++i) {
        if (bytes.part(at, 4) != "PK\1\2") bytes.fail("of a damaged directory");
        const std::uint64_t method = bytes.number(at + 10, 2),
                            name_length = bytes.number(at + 28, 2),
                            extra_length = bytes.number(at + 30, 2),
                            comment_length = bytes.number(at + 32, 2);
        std::uint64_t packed = bytes.number(at + 20, 4), size = bytes.number(at + 24, 4),
                      local = bytes.number(at + 42, 4);
        std::string name(bytes.part(at + 46, name_length));
        // Fields that do not fit 32 bits stand in the zip64 extra field, in this order.
        for (std::uint64_t extra = at + 46 + name_length, extra_end = extra + extra_length;
             extra + 4 <= extra_end;) {
            const std::uint64_t id = bytes.number(extra, 2), length = bytes.number(extra + 2, 2);
            if (id == 1) {
                std::uint64_t field = extra + 4;
                for (std::uint64_t* value : {&size, &packed, &local})
                    if (*value == 0xFFFFFFFF && field + 8 <= extra + 4 + length) {
                        *value = bytes.number(field, 8);
                        field += 8;
                    }
            }
            extra += 4 + length;
        }
        at += 46 + name_length + extra_length + comment_length;
        if (!name.ends_with(".npy")) continue;
        if (bytes.part(local, 4) != "PK\3\4") bytes.fail("of a damaged member " + name);
        const std::uint64_t data =
            local + 30 + bytes.number(local + 26, 2) + bytes.number(local + 28, 2);
        const std::string_view raw = bytes.part(data, packed);
        name.resize(name.size() - 4);
        if (method == 0)
            out[name] = parse_npy(file, name, raw);
        else if (method == 8)
            out[name] = parse_npy(file, name, inflate_member(file, name, raw, size));
        else
            throw InputError(file, name, "compressed by method " + std::to_string(method),
                             "stored or deflated members (numpy.savez, numpy.savez_compressed)");
    }
    return out;
}

std::vector<std::int64_t> integers(const std::string& file, const std::string& name,
                                   const Array& a) {
    const std::string kind = a.descr.substr(1);
    if (kind == "i1") return as<std::int64_t, std::int8_t>(a.bytes);
    if (kind == "i2") return as<std::int64_t, std::int16_t>(a.bytes);
    if (kind == "i4") return as<std::int64_t, std::int32_t>(a.bytes);
    if (kind == "i8") return as<std::int64_t, std::int64_t>(a.bytes);
    if (kind == "u1" || kind == "b1") return as<std::int64_t, std::uint8_t>(a.bytes);
    if (kind == "u2") return as<std::int64_t, std::uint16_t>(a.bytes);
    if (kind == "u4") return as<std::int64_t, std::uint32_t>(a.bytes);
    if (kind == "u8") return as<std::int64_t, std::uint64_t>(a.bytes);
    throw InputError(file, name, "of type \"" + a.descr + "\"", "integers");
}

std::vector<float> floats(const std::string& file, const std::string& name, const Array& a) {
    const std::string kind = a.descr.substr(1);
    if (kind == "f4") return as<float, float>(a.bytes);
    if (kind == "f8") return as<float, double>(a.bytes);
    if (kind == "f2") {
        std::vector<float> out;
        for (const auto h : as<std::uint16_t, std::uint16_t>(a.bytes))
            out.push_back(half_to_float(h));
        return out;
    }
    throw InputError(file, name, "of type \"" + a.descr + "\"", "floats");
}

std::string write(const std::map<std::string, Array>& arrays, const std::string& file) {
    std::string out, directory;
    for (const auto& [name, array] : arrays) {
        std::string shape;
        for (const auto extent : array.shape) shape += std::to_string(extent) + ", ";
        std::string header =
            "{'descr': '" + array.descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
        header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1,
                      ' ');  // data begin at a multiple of 64
        header += '\n';
        std::string npy("\x93NUMPY\x01\x00", 8);
        put(npy, header.size(), 2);
        npy += header + array.bytes;
        const std::string member = name + ".npy";
        if (npy.size() >= 0xFFFFFFFFu || out.size() >= 0xFFFFFFFFu)
            throw InputError(file, name, std::to_string(npy.size()) + " bytes",
                             "less than 4 GiB (export fewer steps: --steps)");
        const std::uint64_t crc =
            crc32(crc32(0, nullptr, 0), reinterpret_cast<const Bytef*>(npy.data()),
                  static_cast<uInt>(npy.size()));
        const std::uint64_t local = out.size();
        const auto common = [&](std::string& to) {
            put(to, 20, 2), put(to, 0, 2), put(to, 0, 2);  // version, flags, stored
            put(to, 0, 2), put(to, 0x21, 2);               // 1980-01-01: same trace, same bytes
            put(to, crc, 4), put(to, npy.size(), 4), put(to, npy.size(), 4),
                put(to, member.size(), 2), put(to, 0, 2);
        };
        out += "PK\3\4";
        common(out);
        out += member + npy;
        directory += "PK\1\2";
        put(directory, 20, 2);
        common(directory);
        put(directory, 0, 2), put(directory, 0, 2), put(directory, 0, 2), put(directory, 0, 4),
            put(directory, local, 4);
        directory += member;
    }
    const std::uint64_t begin = out.size();
    if (begin >= 0xFFFFFFFFu)
        throw InputError(file, "", std::to_string(begin) + " bytes",
                         "less than 4 GiB (export fewer steps: --steps)");
    out += directory;
    out += "PK\5\6";
    put(out, 0, 2), put(out, 0, 2), put(out, arrays.size(), 2), put(out, arrays.size(), 2),
        put(out, directory.size(), 4), put(out, begin, 4), put(out, 0, 2);
    return out;
}

}  // namespace moeplan::npz
