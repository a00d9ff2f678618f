#pragma once
/// The two ways something outside our control goes wrong. A layout that does not fit is an answer,
/// not an error
/// (`model/check.hpp`); a broken invariant of ours is an `assert`.

#include <stdexcept>
#include <string>

namespace moeplan {

/// The user's words or file are wrong. Exit status 2.
/// Reads "mixtral.json: /moe/top_k is 12, expected 1 … num_experts (8)".
class InputError : public std::runtime_error {
  public:
    /// @param file      path, or the flag ("--cluster")
    /// @param field     JSON pointer, line ("line 12") or empty
    /// @param value     what stands there; empty if nothing does
    /// @param expected  what would have been right, and where it helps, what to do next
    InputError(std::string file, std::string field, std::string value, std::string expected);

    std::string file, field, value, expected;
};

/// The machine lacks something, or said no. Exit status 3. The message says what and how to get it.
class EnvironmentError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace moeplan
