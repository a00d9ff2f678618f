#pragma once
/// Small text helpers that every reader and every message needs.

#include <string>
#include <string_view>
#include <vector>

namespace moeplan {

/// The candidate with the smallest edit distance to `word`, or empty if none is near (distance > 1
/// + length / 3).
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

/// The shortest decimal text that reads back to the same double ("0.1", "1e-09"): reports are byte
/// for byte reproducible.
std::string exact_text(double value);

}  // namespace moeplan
