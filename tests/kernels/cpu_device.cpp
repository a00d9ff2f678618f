/// The device under test is the CPU itself, in f32 and bf16, against its f64.

#include "tests/cuda/two_sides.hpp"

namespace moeplan::test {

const Backend* device_under_test(std::string*) { return &cpu_backend(); }
void under_every_schedule(const std::function<void()>& body) { body(); }
bool small_shapes_only() { return false; }

}  // namespace moeplan::test
