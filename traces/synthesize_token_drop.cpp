#include "traces/routing_law.hpp"

namespace moeplan {

/// Free multinomial choices (or Zipf's, with an exponent); what goes beyond ⌈f·T·k/E⌉ tokens an
/// expert is dropped from each exchange (`synthetic_step`, `synthetic_loads`), in the order of
/// tokens.
ExpertShares token_drop_shares(const RoutingLaw& law, const LawLayer& layer,
                               std::uint64_t document) {
    return zipf_shares(law, layer, document);
}

}  // namespace moeplan
