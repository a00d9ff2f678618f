#pragma once
/// Page of a profile: rates of its kernels, bandwidths of its links.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

void add_profile_sections(Page&, const JsonReader& profile);

}  // namespace moeplan::cli
