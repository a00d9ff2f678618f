// The device under test is this machine's GPU, if there is one.

#include <cstdlib>

#include "core/errors.hpp"
#include "tests/cuda/two_sides.hpp"

namespace moeplan::test {

const Backend* device_under_test(std::string* why) {
    *why = why_missing(Device::cuda);
    return why->empty() ? &backend_for(Device::cuda) : nullptr;
}
void under_every_schedule(const std::function<void()>& body) { body(); }
bool small_shapes_only() { return std::getenv("MOEPLAN_SMALL_SHAPES") != nullptr; }

}  // namespace moeplan::test
