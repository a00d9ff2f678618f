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
              "memory": 0.81},
    "ampere": {"tiles": [[128, 256], [128, 128], [64, 128], [64, 64]], "gemm": (0.93, 239, 4), "attention": (0.60, 450),
               "memory": 0.81},
    "hopper": {"tiles": [[128, 256], [128, 128], [64, 128]], "gemm": (0.85, 202, 2), "attention": (0.78, 900),
               "memory": 0.81},
    "blackwell": {"tiles": [[256, 256], [128, 256], [128, 128], [64, 128]], "gemm": (0.77, 247, 2), "attention": (0.73, 1700),
                  "memory": 0.81},
}
# Half of the bf16 tensor rate where the datasheet gives TF32; V100 has no TF32: its fp32 rate.
FP32_TFLOPS = {"v100-sxm2-16": 15.7, "v100-sxm2-32": 15.7, "v100-sxm3-32": 16.4}


def generation(gpu):
    for start, name in (("v100", "volta"), ("a100", "ampere"), ("h", "hopper"), ("b", "blackwell"), ("gb", "blackwell")):
        if gpu.startswith(start):
            return name
    raise SystemExit(f"{gpu}: of which generation? Add it to generation().")


# Names that the published tables use. A GPU without a table of its own takes the times of a sibling with the same tensor cores
# and memory: (its table, the sibling's name).
TABLES = {
    "a100-sxm-80": "A100 SXM4 80GB",
    "h100-sxm": "H100 SXM5 80GB",
    "h200-sxm": "H200 SXM 141GB",
    "b200-sxm": "B200 SXM",
    "gb200": "GB200 (one 4-GPU compute tray of an NVL72)",
}
SIBLINGS = {"h800-sxm": "h100-sxm", "b300-sxm": "b200-sxm", "gb300": "gb200"}
PRECISIONS = {"bfloat16": "bf16", "BF16": "bf16", "fp8": "fp8"}


def source_text(record, sibling):
    source = record["source"]
    text = f"{source['title']}, {record['software']}, {source['url_or_repo']} {source.get('commit', '')[:12]} {source.get('path') or ''}".strip()
    return text + (f"; measured on {sibling}, which has the same tensor cores and memory" if sibling else "")


def kernel_curves(gpu, records):
    """GEMM by (n, k) over m, causal attention forward over sequence and batch. fp8 tables of Blackwell are left out: they time the
    inference fallback kernels (0.13 to 0.34 of the peak), which training does not run."""
    table = TABLES.get(gpu) or TABLES.get(SIBLINGS.get(gpu, ""))
    sibling = SIBLINGS.get(gpu) if gpu not in TABLES else None
    gemms, attention, sources = {}, [], {}
    for record in records:
        if record["hardware"].get("gpu") != table:
            continue
        workload, measured = record["workload"], record["measured"]
        if measured["metric"] == "latency_by_m" and workload["kernel"] == "gemm":
            precision = PRECISIONS[workload["dtype"]]
            if precision == "fp8" and generation(gpu) == "blackwell":
                continue
            rows = [[m, workload["n"], workload["k"], float(f"{ms * 1e-3:.6g}")] for m, ms in zip(measured["value"]["m"], measured["value"]["ms"])]
            gemms.setdefault(precision, []).extend(rows)
            sources.setdefault(precision, source_text(record, sibling))
        elif measured["metric"] == "latency_table" and workload["kernel"] == "causal attention forward":
            for sequence, batch, ms in measured["value"]:
                attention.append([batch, sequence, workload["heads"], workload["kv_heads"], workload["head_dim"], float(f"{ms * 1e-3:.6g}")])
            sources.setdefault("attention", source_text(record, sibling))
    curves = [{"kernel": "gemm", "precision": precision, "basis": "published", "source": sources[precision],
               "columns": ["m", "n", "k", "median_s"], "rows": sorted(rows)} for precision, rows in sorted(gemms.items())]
    if attention:
        curves.append({"kernel": "attention_forward", "precision": "bf16", "basis": "published", "source": sources["attention"],
                       "columns": ["batch", "sequence", "num_heads", "num_kv_heads", "head_size", "median_s"], "rows": sorted(attention)})
    return curves


def number(value):
    return f"{value:.10g}"


def profile(gpu, data, kernels):
    family = GENERATIONS[generation(gpu)]
    peak = {"fp32": f"{number(FP32_TFLOPS.get(gpu, data.get('tf32', (data['peak_tflops']['bf16'] or 0) / 2)))} TFlop/s"}
    for precision in ("fp16", "bf16", "fp8", "mxfp8", "nvfp4"):
        if data["peak_tflops"].get(precision):
            peak[precision] = f"{number(data['peak_tflops'][precision])} TFlop/s"
    efficiency, half_depth, overhead = family["gemm"]
    attention, half_sequence = family["attention"]
    return {
        "$schema": "moeplan/profile.schema.json",
        "version": 1,
        "name": gpu,
        "device": data["name"],
        "driver": "",
        "source": "datasheet figures of validation/published/hardware.json; published curves of kernels.json beside it; stated efficiencies where they have none (docs/profiles.md); written by scripts/make_gpu_profiles.py",
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
            "attention_backward": 1,
            "memory_efficiency": family["memory"],
            "kernel_overhead": f"{overhead} us",
        },
        # Host time a kernel launch in eager training, and of reading a token count back: fitted on published training steps.
        "host": {"per_launch": "5 us", "per_sync": "30 us"},
        "host_overlap": 1,
        "kernels": kernel_curves(gpu, kernels),
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
    published = ROOT / "validation" / "published"
    kernels = json.loads((published / "kernels.json").read_text())
    arguments.out.mkdir(parents=True, exist_ok=True)
    for gpu, data in hardware["gpus"].items():
        (arguments.out / f"{gpu}.json").write_text(text(profile(gpu, data, kernels)) + "\n")


if __name__ == "__main__":
    main()
