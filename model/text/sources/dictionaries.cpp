/// dictd(8) dictionaries and fortune(6) files.

#include <cstdint>
#include <optional>
#include <set>

#include "core/text.hpp"
#include "model/text/sources/sources.hpp"

namespace moeplan::text {
namespace {

/// dictd writes offsets in base 64, most significant digit first.
std::optional<std::uint64_t> base64_number(std::string_view digits) {
    static constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::uint64_t value = 0;
    for (const char c : digits) {
        const auto digit = kDigits.find(c);
        if (digit == std::string_view::npos || value > (std::uint64_t{1} << 50))
            return std::nullopt;
        value = value * 64 + digit;
    }
    return digits.empty() ? std::nullopt : std::optional(value);
}

/// The text under an entry's three spaces of indentation, without link braces and source marks.
std::string entry_text(std::string_view entry) {
    std::string out;
    for (const std::string& line : split(entry, '\n')) {
        std::string_view text = line;
        if (text.starts_with("   ")) text.remove_prefix(3);
        const auto bare = trim(text);
        if (bare == "[1913 Webster]" || bare == "[PJC]" || bare == "[1913 Webster +PJC]" ||
            bare.starts_with("[WordNet"))
            continue;
        for (const char c : text)
            if (c != '{' && c != '}') out += c;
        out += '\n';
    }
    return out;
}

}  // namespace

std::vector<std::string> dictd_entries(std::string_view index, std::string_view dict) {
    std::set<std::pair<std::uint64_t, std::uint64_t>> places;  // in the order of the text
    for (const std::string& line : split(index, '\n')) {
        const auto fields = split(line, '\t');
        if (fields.size() < 3 || fields[0].starts_with("00-database") ||
            fields[0].starts_with("00database"))
            continue;
        const auto offset = base64_number(fields[1]), length = base64_number(trim(fields[2]));
        if (offset && length && *offset < dict.size() && *length <= dict.size() - *offset)
            places.emplace(*offset, *length);
    }
    std::vector<std::string> out;
    std::uint64_t end = 0;
    for (const auto& [offset, length] : places) {
        if (offset < end) continue;  // entries inside others
        out.push_back(entry_text(dict.substr(offset, length)));
        end = offset + length;
    }
    return out;
}

std::vector<std::string> fortune_cookies(std::string_view file) {
    std::vector<std::string> out(1);
    for (const std::string& line : split(file, '\n')) {
        if (trim(line) == "%")
            out.emplace_back();
        else
            out.back() += line + '\n';
    }
    return out;
}

}  // namespace moeplan::text
