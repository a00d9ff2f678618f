#include "profiler/curve_index.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

Profile moved_to(const Profile& profile, const std::string& name, const Roofline& target) {
    Profile moved = profile;
    moved.name = name;
    moved.roofline = target;
    moved.conditions["moved_from"] = profile.name;
    for (KernelCurve& curve : moved.kernels) {
        if (!curve.measured_on)
            curve.measured_on =
                DeviceRates{profile.name, peak_of(profile.roofline, curve.precision),
                            profile.roofline.memory_bandwidth, profile.roofline.num_sms};
        if (curve.basis != Basis::roofline) curve.basis = Basis::published;
    }
    prepare(moved);
    return moved;
}

}  // namespace moeplan
