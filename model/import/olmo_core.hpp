#pragma once
/// OLMo-core style launch scripts (EMO's): dotted overrides of a configuration that lives in a
/// Python file.

#include <string>
#include <string_view>

namespace moeplan {

bool looks_like_olmo_core(std::string_view text);

/// Such a file is never a whole model: says what it sets and what is missing. @throws InputError
/// always
[[noreturn]] void refuse_olmo_core(std::string_view text, const std::string& file);

}  // namespace moeplan
