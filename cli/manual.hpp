#pragma once
/// The manual page and the shell completion, both read off the parser itself, so that they cannot
/// fall behind it.

#include <string>

namespace CLI {
class App;
}

namespace moeplan::cli {

std::string man_page(const CLI::App& app);         ///< troff, section 1
std::string bash_completion(const CLI::App& app);  ///< also loaded by zsh after `bashcompinit`

}  // namespace moeplan::cli
