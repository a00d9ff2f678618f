#pragma once
/// Enumerations and their snake_case names, as files, flags and answers spell them.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moeplan {

template <class E>
using EnumNames = std::vector<std::pair<E, std::string_view>>;

/// The table of an enumeration; specialised beside it. Several names may map to one value: the
/// first is written.
template <class E>
const EnumNames<E>& enum_names();

template <class E>
std::string_view name_of(E value) {
    for (const auto& [candidate, name] : enum_names<E>())
        if (candidate == value) return name;
    return "unknown";
}

template <class E>
std::optional<E> from_name(std::string_view text) {
    for (const auto& [value, name] : enum_names<E>())
        if (name == text) return value;
    return std::nullopt;
}

/// "a, b or c": for messages that say what was expected.
template <class E>
std::string choices() {
    const auto& names = enum_names<E>();
    std::string out;
    for (std::size_t i = 0; i < names.size(); ++i)
        out += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + std::string(names[i].second);
    return out;
}

}  // namespace moeplan
