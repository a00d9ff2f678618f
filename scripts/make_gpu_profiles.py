#!/usr/bin/env python3
"""Writes specs/profiles/<gpu>.json for every GPU of validation/published/hardware.json.

Datasheet figures and stated efficiencies come from the tables below, curves from kernels.json and collectives.json beside it. Run it
again after either changed: the files it writes are committed, and a test checks that they are what it writes.

Example: scripts/make_gpu_profiles.py --out specs/profiles
"""
import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent

# One set of constants a generation of tensor cores, fitted on the published tables of all its GPUs together so that siblings are
# priced by one surface (docs/profiles.md: equation, fit, held-out errors). Volta has no table: Ampere's constants, said to be stated.
# fp8 and fp4: share of the narrow rate over bf16's share of its own (cuBLASLt and best-shape records; fp4 stated).
AMPERE_TILES = [[256, 128], [256, 64], [128, 256], [128, 128], [128, 64], [64, 256], [64, 128], [64, 64]]
HOPPER_TILES = [[192, 128], [128, 192], *AMPERE_TILES]
BLACKWELL_TILES = [[256, 256], [256, 192], [256, 128], [192, 256], [192, 128], [128, 256], [128, 192], [128, 128], [128, 64], [64, 256], [64, 128]]
GEMM_KEYS = ("tiles", "efficiency", "pipeline_depth", "launch", "wave_quantisation", "tile_loss", "memory_efficiency", "split", "fp8_efficiency", "fp4_efficiency")
ATTENTION_KEYS = ("efficiency", "half_sequence", "launch", "wave_quantisation", "head_power")
GENERATIONS = {
    "volta": {"gemm": (AMPERE_TILES, 1.0, 154, "5.2 us", 0.58, 0.169, 0.61, "3.4 us", 1, 1), "attention": (0.35, 450, "15.5 us", 0.6, 0.15)},
    "ampere": {"gemm": (AMPERE_TILES, 1.0, 154, "5.2 us", 0.58, 0.169, 0.61, "3.4 us", 1, 1), "attention": (0.586, 458, "15.5 us", 0.6, 0.15)},
    "hopper": {"gemm": (HOPPER_TILES, 1.0, 161, "2.2 us", 0.006, 0.328, 0.76, "5 us", 0.95, 1), "attention": (0.751, 691, "12.2 us", 0, 0.86)},
    "blackwell": {"gemm": (BLACKWELL_TILES, 0.71, 20.9, "2.2 us", 0.30, 0.0106, 0.66, "5.2 us", 0.95, 0.67), "attention": (0.657, 681, "16.9 us", 1, 0.86)},
}
MEMORY_EFFICIENCY = 0.81  # achieved over datasheet bandwidth, BabelStream triad and copy records
# Tiles and waves of the floor itself, for curves that somebody measures.
FLOOR_TILES = {"volta": [[128, 256], [128, 128], [64, 128], [64, 64]], "ampere": [[128, 256], [128, 128], [64, 128], [64, 64]],
               "hopper": [[128, 256], [128, 128], [64, 128]], "blackwell": [[256, 256], [128, 256], [128, 128], [64, 128]]}
# Half of the bf16 tensor rate where the datasheet gives TF32; V100 has no TF32: its fp32 rate.
FP32_TFLOPS = {"v100-sxm2-16": 15.7, "v100-sxm2-32": 15.7, "v100-sxm3-32": 16.4}
# Watts that a GPU may draw (datasheets: NVIDIA's pages of the parts; GB200 and GB300: one GPU of the superchip; the 500 W limit is its source's).
BOARD_POWER_W = {"v100-sxm2-16": 300, "v100-sxm2-32": 300, "v100-sxm3-32": 450, "a100-sxm-40": 400, "a100-sxm-80": 400, "h100-sxm": 700, "h100-96-hbm2e-500w": 500,
                 "h200-sxm": 700, "h800-sxm": 700, "b200-sxm": 1000, "b300-sxm": 1100, "gb200": 1200, "gb300": 1400}


def generation(gpu):
    for start, name in (("v100", "volta"), ("a100", "ampere"), ("h", "hopper"), ("b", "blackwell"), ("gb", "blackwell")):
        if gpu.startswith(start):
            return name
    raise SystemExit(f"{gpu}: of which generation? Add it to generation().")


# Names that the published tables use.
TABLES = {
    "a100-sxm-80": "A100 SXM4 80GB",
    "h100-sxm": "H100 SXM5 80GB",
    "h200-sxm": "H200 SXM 141GB",
    "b200-sxm": "B200 SXM",
    "gb200": "GB200 (one 4-GPU compute tray of an NVL72)",
}


def source_text(record):
    source = record["source"]
    return f"{source['title']}, {record['software']}, {source['url_or_repo']} {source.get('commit', '')[:12]} {source.get('path') or ''}".strip()


def rates(gpu, data):
    """The device of a curve that is not the profile's own: its efficiencies are kept, the floors are the profile's."""
    return {"name": gpu, "peak": f"{number(data['peak_tflops']['bf16'])} TFlop/s", "memory_bandwidth": f"{number(data['hbm_gbps'])} GB/s", "num_sms": data["sms"]}


def curves_measured_on(gpu, records):
    """bf16 GEMM by (n, k) over m, causal attention forward over sequence and batch. Left out: fp8 tables, which time inference kernels
    (activations quantised inside, fallbacks of 0.13 to 0.34 of the peak on Blackwell), and fused MoE, an inference kernel too; training's
    grouped products run as dense ones (docs/profiles.md)."""
    gemm, attention, sources = [], [], {}
    for record in records:
        if record["hardware"].get("gpu") != TABLES[gpu]:
            continue
        workload, measured = record["workload"], record["measured"]
        if measured["metric"] == "latency_by_m" and workload["kernel"] == "gemm" and workload["dtype"] == "bfloat16":
            gemm += [[m, workload["n"], workload["k"], float(f"{ms * 1e-3:.6g}")] for m, ms in zip(measured["value"]["m"], measured["value"]["ms"])]
            sources.setdefault("gemm", source_text(record))
        elif measured["metric"] == "latency_table" and workload["kernel"] == "causal attention forward":
            attention += [[batch, sequence, workload["heads"], workload["kv_heads"], workload["head_dim"], float(f"{ms * 1e-3:.6g}")]
                          for sequence, batch, ms in measured["value"]]
            sources.setdefault("attention", source_text(record))
    return [{"kernel": "gemm", "precision": "bf16", "basis": "published", "source": sources["gemm"],
             "columns": ["m", "n", "k", "median_s"], "rows": sorted(gemm)},
            {"kernel": "attention_forward", "precision": "bf16", "basis": "published", "source": sources["attention"],
             "columns": ["batch", "sequence", "num_heads", "num_kv_heads", "head_size", "median_s"], "rows": sorted(attention)}]


def kernel_curves(gpu, hardware, records):
    """The tables of every GPU of the generation: one surface prices siblings alike."""
    curves = []
    for other in TABLES:
        if generation(other) != generation(gpu):
            continue
        for curve in curves_measured_on(other, records):
            if other != gpu:
                curve = {**{key: curve[key] for key in ("kernel", "precision", "basis", "source")}, "measured_on": rates(other, hardware[other]),
                         "columns": curve["columns"], "rows": curve["rows"]}
            curves.append(curve)
    return curves


# Whose collective tables a GPU takes: its own, or those of a sibling on the same NVLink generation.
LINKS = {"a100-sxm-40": "a100_sxm", "a100-sxm-80": "a100_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "b200-sxm": "b200_sxm", "b300-sxm": "b200_sxm",
         "gb200": "gb200", "gb300": "gb200"}
COLLECTIVES = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}


def link_curves(gpu, records):
    """nccl-tests inside one NVLink domain, in its own sizes. Curves across nodes are points of single clusters: the cluster files state efficiencies."""
    prefix = f"aic-nccl-{LINKS.get(gpu)}-"
    curves = []
    for record in records:
        if not record["id"].startswith(prefix):
            continue
        value = record["measured"]["value"]
        curves.append({"collective": COLLECTIVES[record["workload"]["collective"]], "num_ranks": record["hardware"]["gpus"], "basis": "published",
                       "source": source_text(record) + ("" if TABLES.get(gpu) == record["hardware"]["gpu"] else f"; measured on {record['hardware']['gpu']}, which has the same NVLink"),
                       "columns": ["bytes", "median_s"], "rows": [[size, float(f"{us * 1e-6:.6g}")] for size, us in zip(value["size_bytes"], value["time_us"])]})
    return sorted(curves, key=lambda curve: (curve["collective"], curve["num_ranks"]))


def number(value):
    return f"{value:.10g}"


def profile(gpu, hardware, kernels, collectives):
    data = hardware[gpu]
    family = GENERATIONS[generation(gpu)]
    peak = {"fp32": f"{number(FP32_TFLOPS.get(gpu, data.get('tf32', (data['peak_tflops']['bf16'] or 0) / 2)))} TFlop/s"}
    for precision in ("fp16", "bf16", "fp8", "mxfp8", "nvfp4"):
        if data["peak_tflops"].get(precision):
            peak[precision] = f"{number(data['peak_tflops'][precision])} TFlop/s"
    gemm, attention = dict(zip(GEMM_KEYS, family["gemm"])), dict(zip(ATTENTION_KEYS, family["attention"]))
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
            "tiles": FLOOR_TILES[generation(gpu)],
            "attention_backward": 1,
            "memory_efficiency": MEMORY_EFFICIENCY,
            "kernel_overhead": gemm["launch"],
            "board_power_w": BOARD_POWER_W[gpu],
            "gemm_model": gemm,
            "attention_model": attention,
        },
        # Host time a kernel launch in eager training, and of reading a token count back: fitted on published training steps.
        "host": {"per_launch": "5 us", "per_sync": "30 us"},
        "host_overlap": 1,
        "kernels": kernel_curves(gpu, hardware, kernels),
        "links": link_curves(gpu, collectives),
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
    collectives = json.loads((published / "collectives.json").read_text())
    arguments.out.mkdir(parents=True, exist_ok=True)
    for gpu in hardware["gpus"]:
        (arguments.out / f"{gpu}.json").write_text(text(profile(gpu, hardware["gpus"], kernels, collectives)) + "\n")


if __name__ == "__main__":
    main()
