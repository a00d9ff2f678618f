#pragma once
/// How long work tells the one who waits how far it is. Library code calls it and prints nothing
/// itself.

#include <functional>
#include <string_view>

namespace moeplan {

/// @param done   share of the work, 0…1
/// @param doing  what is being done now, a few words; may be empty
using Progress = std::function<void(double done, std::string_view doing)>;

}  // namespace moeplan
