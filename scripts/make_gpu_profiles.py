#!/usr/bin/env python3
"""Writes specs/profiles/<gpu>.json for every GPU of validation/published/hardware.json.

Datasheet figures and stated efficiencies come from the tables below, curves from validation/published/kernels.json. Run it
again after either changed: the files it writes are committed, and a test checks that they are what it writes.

Example: scripts/make_gpu_profiles.py --out specs/profiles
"""
import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What a GEMM library chooses from, and the fit of published GEMM tables with it (docs/profiles.md): efficiency of the main
# loop, depth at which half of it is reached, launch overhead. Attention: efficiency and sequence at which half is reached.
GENERATIONS = {
    "volta": {"tiles": [[128, 256], [128, 128], [64, 128], [64, 64]], "gemm": (0.90, 239, 5), "attention": (0.35, 450),
              "sustained": 0.86, "memory": 0.81},
    "ampere": {"tiles": [[128, 256], [128, 128], [64, 128], [64, 64]], "gemm": (0.93, 239, 4), "attention": (0.60, 450),
               "sustained": 0.86, "memory": 0.81},
    "hopper": {"tiles": [[128, 256], [128, 128], [64, 128]], "gemm": (0.85, 202, 2), "attention": (0.78, 900),
               "sustained": 0.78, "sustained_fp8": 0.69, "memory": 0.81},
    "blackwell": {"tiles": [[256, 256], [128, 256], [128, 128], [64, 128]], "gemm": (0.77, 247, 2), "attention": (0.73, 1700),
                  "sustained": 0.63, "sustained_fp8": 0.56, "memory": 0.81},
}
# Half of the bf16 tensor rate where the datasheet gives TF32; V100 has no TF32: its fp32 rate.
FP32_TFLOPS = {"v100-sxm2-16": 15.7, "v100-sxm2-32": 15.7, "v100-sxm3-32": 16.4}


def generation(gpu):
    for start, name in (("v100", "volta"), ("a100", "ampere"), ("h", "hopper"), ("b", "blackwell"), ("gb", "blackwell")):
        if gpu.startswith(start):
            return name
    raise SystemExit(f"{gpu}: of which generation? Add it to generation().")


def number(value):
    return f"{value:.10g}"


def profile(gpu, data):
    family = GENERATIONS[generation(gpu)]
    peak = {"fp32": f"{number(FP32_TFLOPS.get(gpu, data.get('tf32', (data['peak_tflops']['bf16'] or 0) / 2)))} TFlop/s"}
    for precision in ("fp16", "bf16", "fp8", "mxfp8", "nvfp4"):
        if data["peak_tflops"].get(precision):
            peak[precision] = f"{number(data['peak_tflops'][precision])} TFlop/s"
    efficiency, half_depth, overhead = family["gemm"]
    attention, half_sequence = family["attention"]
    sustained = {"fp16": family["sustained"], "bf16": family["sustained"]}
    for precision in ("fp8", "mxfp8", "nvfp4"):
        if precision in peak:
            sustained[precision] = family["sustained_fp8"]
    return {
        "$schema": "moeplan/profile.schema.json",
        "version": 1,
        "name": gpu,
        "device": data["name"],
        "driver": "",
        "source": "datasheet figures of validation/published/hardware.json with stated efficiencies (docs/profiles.md); written by scripts/make_gpu_profiles.py",
        "clocks_mhz": 0,
        "conditions": {},
        "roofline": {
            "peak": peak,
            "memory_bandwidth": f"{number(data['hbm_gbps'])} GB/s",
            "num_sms": data["sms"],
            "l2": f"{number(data['l2_mb'])} MB",
            "tiles": family["tiles"],
            "gemm_efficiency": efficiency,
            "gemm_half_depth": half_depth,
            "attention_efficiency": attention,
            "attention_half_sequence": half_sequence,
            "attention_backward": 0.67,
            "memory_efficiency": family["memory"],
            "kernel_overhead": f"{overhead} us",
        },
        # Host time a kernel launch in eager training, and of reading a token count back: fitted on published training steps.
        "host": {"per_launch": "19.6 us", "per_sync": "30 us"},
        "host_overlap": 1,
        "sustained": sustained,
        "kernels": [],
        "links": [],
    }


def text(value, indent=0):
    """Two-space indentation, arrays of plain values on one line: as the program writes its own files."""
    pad = " " * indent
    if isinstance(value, dict) and value:
        inner = ",\n".join(f"{pad}  {json.dumps(k)}: {text(v, indent + 2)}" for k, v in value.items())
        return "{\n" + inner + "\n" + pad + "}"
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        inner = ",\n".join(f"{pad}  {text(v, indent + 2)}" for v in value)
        return "[\n" + inner + "\n" + pad + "]"
    return json.dumps(value, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "specs" / "profiles")
    arguments = parser.parse_args()
    hardware = json.loads((ROOT / "validation" / "published" / "hardware.json").read_text())
    arguments.out.mkdir(parents=True, exist_ok=True)
    for gpu, data in hardware["gpus"].items():
        (arguments.out / f"{gpu}.json").write_text(text(profile(gpu, data)) + "\n")


if __name__ == "__main__":
    main()
