#include "planner/accuracy/gpu_names.hpp"

#include <algorithm>
#include <vector>

#include "planner/accuracy/stated_software.hpp"

namespace moeplan {
namespace {

bool has(const std::vector<std::string>& words, const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::optional<std::string> gpu_id_of_name(const std::string& name) {
    const auto words = lower_words(name);
    if (has(words, "pcie") || has(words, "nvl")) return std::nullopt;
    int parts = 0;
    for (const char* part :
         {"v100", "a100", "h100", "h200", "h800", "b200", "b300", "gb200", "gb300"})
        parts += has(words, part);
    if (parts != 1) return std::nullopt;
    if (has(words, "gb300")) return "gb300";
    if (has(words, "gb200")) return "gb200";
    if (has(words, "b300")) return "b300-sxm";
    if (has(words, "b200")) return "b200-sxm";
    if (has(words, "h200")) return "h200-sxm";
    if (has(words, "h800")) return "h800-sxm";
    if (has(words, "h100")) return has(words, "96gb") ? "h100-96-hbm2e-500w" : "h100-sxm";
    if (has(words, "a100")) return has(words, "40gb") ? "a100-sxm-40" : "a100-sxm-80";
    if (has(words, "sxm3")) return "v100-sxm3-32";
    return has(words, "32gb") ? "v100-sxm2-32" : "v100-sxm2-16";
}

}  // namespace moeplan
