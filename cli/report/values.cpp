#include "cli/report/values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/quantity_text.hpp"

namespace moeplan::cli {
namespace {

/// Files hold quantities exactly ("0.0007799999999999999 ms"); people read 780 ns. Other texts stay
/// as they are.
std::string quantity_text(const std::string& text) {
    if (text.empty() || !std::isdigit(static_cast<unsigned char>(text[0]))) return text;
    const auto in_words = [&](auto parse) {
        try {
            return to_text(parse(text));
        } catch (const std::invalid_argument&) {
            return std::string();
        }
    };
    for (const std::string& words : {in_words(parse_seconds), in_words(parse_bytes_per_second),
                                     in_words(parse_flops_per_second)})
        if (!words.empty()) return words;
    return text;
}

}  // namespace

std::string spaced(std::string_view key) {
    std::string out(key);
    for (const std::string_view unit : {"_s", "_bytes"})
        if (out.size() > unit.size() && out.ends_with(unit)) out.resize(out.size() - unit.size());
    std::replace(out.begin(), out.end(), '_', ' ');
    return out;
}

std::string capital(std::string words) {
    if (!words.empty())
        words[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(words[0])));
    return words;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string value_text(std::string_view key, const JsonReader& at) {
    if (at.is_string()) return quantity_text(at.text());
    if (at.is_bool()) return at.boolean() ? "yes" : "no";
    if (at.is_null()) return "–";
    if (!at.is_number()) return at.value().dump(-1, ' ', false, Json::error_handler_t::replace);
    const double value = at.number();
    if (key.ends_with("_s") || key.find("time_s") != std::string_view::npos)
        return to_text(Seconds{value});
    if (key.ends_with("bytes")) return to_text(Bytes{value});
    if (key.ends_with("bandwidth")) return to_text(BytesPerSecond{value});
    if (std::abs(value) >= 1e15) return fmt::format("{:.4g}", value);
    return value == std::floor(value) ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::vector<double> numbers(const std::optional<JsonReader>& at) {
    std::vector<double> out;
    if (at && at->is_array())
        for (const auto& item : at->items()) out.push_back(item.number());
    return out;
}

std::vector<std::string> texts(const std::optional<JsonReader>& at) {
    std::vector<std::string> out;
    if (at && at->is_array())
        for (const auto& item : at->items())
            out.push_back(item.is_string()
                              ? item.text()
                              : item.value().dump(-1, ' ', false, Json::error_handler_t::replace));
    return out;
}

double number_at(const JsonReader& at, std::initializer_list<const char*> path, double otherwise) {
    JsonReader place = at;
    for (const char* key : path) {
        const auto found = place.is_object() ? place.find(key) : std::nullopt;
        if (!found) return otherwise;
        place = *found;
    }
    return place.is_number() ? place.number() : otherwise;
}

std::vector<std::size_t> evenly(std::size_t n, std::size_t most) {
    std::vector<std::size_t> out;
    const std::size_t count = std::min(n, most);
    for (std::size_t i = 0; i < count; ++i)
        out.push_back(count == 1 ? 0 : i * (n - 1) / (count - 1));
    return out;
}

}  // namespace moeplan::cli
