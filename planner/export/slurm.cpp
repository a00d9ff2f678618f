#include "planner/export/parts.hpp"

namespace moeplan {

Exported to_slurm(const StepCase& step) {
    Exported out;
    const int nodes = step.cluster.num_nodes, per_node = step.cluster.gpus_per_node;
    out.notes.push_back("partition, account and time limit are the site's: sbatch -p … -A … -t …");
    out.text =
        "#!/bin/bash\n"
        "#SBATCH --job-name=moeplan\n"
        "#SBATCH --nodes=" +
        std::to_string(nodes) +
        "\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --gpus-per-node=" +
        std::to_string(per_node) +
        "\n"
        "#SBATCH --exclusive\n"
        "#SBATCH --output=%x-%j.log\n" +
        origin(step, "#") + "# " + out.notes.front() +
        "\n"
        "# One task a node starts its GPUs' processes: TRAIN is what `moeplan export --to "
        "megatron` wrote.\n"
        "set -eu\n"
        "export NNODES=\"$SLURM_NNODES\"\n"
        "export MASTER_ADDR=\"$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\"\n"
        "export MASTER_PORT=\"${MASTER_PORT:-29500}\"\n"
        "srun --kill-on-bad-exit=1 bash \"${TRAIN:-train.sh}\"\n";
    return out;
}

}  // namespace moeplan
