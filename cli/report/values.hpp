#pragma once
/// Values of JSON answers, as pages take and show them.

#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.hpp"

namespace moeplan::cli {

constexpr std::size_t kMostPoints = 1500;  ///< of one curve
constexpr std::size_t kMostRows = 64;  ///< of a table or of bars; a page is to be looked at

/// A key as words, without its unit.
std::string spaced(std::string_view key);
/// The first letter as a capital.
std::string capital(std::string words);
std::string percent(double share);
/// A value with the unit that its key names.
std::string value_text(std::string_view key, const JsonReader& at);

/// Empty unless it is an array.
std::vector<double> numbers(const std::optional<JsonReader>& at);
std::vector<std::string> texts(const std::optional<JsonReader>& at);
double number_at(const JsonReader& at, std::initializer_list<const char*> path,
                 double otherwise = std::numeric_limits<double>::quiet_NaN());

/// At most `most` of n, evenly, the last among them.
std::vector<std::size_t> evenly(std::size_t n, std::size_t most);

}  // namespace moeplan::cli
