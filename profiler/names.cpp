#include "profiler/profile.hpp"

namespace moeplan {

template <>
const EnumNames<Basis>& enum_names<Basis>() {
    static const EnumNames<Basis> names = {{Basis::measured, "measured"},
                                           {Basis::interpolated, "interpolated"},
                                           {Basis::published, "published"},
                                           {Basis::roofline, "roofline"}};
    return names;
}

}  // namespace moeplan
