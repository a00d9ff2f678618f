#include "planner/export.hpp"

namespace moeplan {

Exported export_to(ExportTarget target, const StepCase& step) {
    switch (target) {
        case ExportTarget::megatron:
            return to_megatron(step);
        case ExportTarget::deepspeed:
            return to_deepspeed(step);
        case ExportTarget::torchtitan:
            return to_torchtitan(step);
        case ExportTarget::slurm:
            return to_slurm(step);
    }
    return {};
}

template <>
const EnumNames<ExportTarget>& enum_names<ExportTarget>() {
    static const EnumNames<ExportTarget> names = {{ExportTarget::megatron, "megatron"},
                                                  {ExportTarget::deepspeed, "deepspeed"},
                                                  {ExportTarget::torchtitan, "torchtitan"},
                                                  {ExportTarget::slurm, "slurm"}};
    return names;
}

}  // namespace moeplan
