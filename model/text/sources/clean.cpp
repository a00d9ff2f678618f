#include <cstdint>

#include "model/text/sources/sources.hpp"

namespace moeplan::text {
namespace {

/// Length of the valid UTF-8 sequence at the front, 0 if there is none (RFC 3629: no overlong
/// forms, no surrogates).
std::size_t valid_sequence(std::string_view s) {
    const auto byte = [&](std::size_t i) {
        return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u;
    };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 0;
    if (length == 0 || first > 0xF4) return 0;
    for (std::size_t i = 1; i < length; ++i)
        if ((byte(i) & 0xC0) != 0x80) return 0;
    if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) >= 0xA0) ||
        (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) >= 0x90))
        return 0;
    return length;
}

}  // namespace

std::string clean(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    const auto end_line = [&] {
        while (!out.empty() && (out.back() == ' ' || out.back() == '\t')) out.pop_back();
        const bool two_ended =
            out.size() >= 2 && out[out.size() - 1] == '\n' && out[out.size() - 2] == '\n';
        if (!out.empty() && !two_ended) out += '\n';
    };
    for (std::size_t i = 0; i < text.size();) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c == '\n') {
            end_line();
            ++i;
        } else if (c == '\t' || (c >= 0x20 && c < 0x7F)) {
            out += text[i++];
        } else if (c < 0x80) {
            ++i;  // other control characters
        } else if (const std::size_t length = valid_sequence(text.substr(i)); length > 0) {
            out += text.substr(i, length);
            i += length;
        } else {
            out += "\xEF\xBF\xBD";
            ++i;
        }
    }
    while (!out.empty() && (out.back() == ' ' || out.back() == '\t' || out.back() == '\n'))
        out.pop_back();
    return out;
}

}  // namespace moeplan::text
