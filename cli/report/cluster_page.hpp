#pragma once
/// Page of a cluster, from the answer of `cluster show`: what it is, a drawing, its links.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

/// "dgx-h100, 4 nodes of 8 GPUs"
std::string cluster_title(const JsonReader& cluster);
void add_cluster_sections(Page&, const JsonReader& cluster);

}  // namespace moeplan::cli
