#include "simulator/step.hpp"

namespace moeplan {

template <>
const EnumNames<Fidelity>& enum_names<Fidelity>() {
    static const EnumNames<Fidelity> names = {{Fidelity::closed_form, "closed-form"},
                                              {Fidelity::flow, "flow"},
                                              {Fidelity::real_run, "real-run"}};
    return names;
}

}  // namespace moeplan
