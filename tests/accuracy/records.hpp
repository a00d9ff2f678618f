#pragma once
/// A sound record to spoil: each test changes one field of it.

#include <nlohmann/json.hpp>
#include <string>

#include "core/json.hpp"
#include "planner/accuracy/record.hpp"

namespace moeplan {

/// A dense model on two DGX H100: 16 GPUs, TP 2, PP 2, DP 4; 64 sequences of 2048 tokens in 2 s.
inline Json dense_record() {
    return Json::parse(R"json({
      "id": "dense", "group": "training",
      "source": {"title": "A paper", "url_or_repo": "https://example.org", "commit": null,
                 "path": null, "table": "1", "date": "2026-01"},
      "hardware": {"gpu": "H100 SXM5 80GB", "gpus": 16, "nodes": 2, "gpus_per_node": 8,
                   "intra": "NVLink4", "inter": "InfiniBand NDR 400 Gb/s per GPU (8 NICs per node)",
                   "nic": "8x ConnectX-7"},
      "software": "NeMo container 26.04 (Megatron Bridge / Megatron Core)",
      "workload": {"kind": "pretrain", "model": "Llama-like",
        "architecture": {"type": "dense", "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 8,
          "head_dim": 128, "attention": "gqa", "ffn": 8192, "activation": "swiglu", "vocab": 32000},
        "precision": "BF16", "seq": 2048, "gbs": 64, "mbs": 1, "tp": 2, "pp": 2, "dp": 4},
      "measured": {"metric": "step_time", "value": 2000, "unit": "ms"},
      "notes": "",
      "canonical": {"kind": "pretrain", "gpu": "h100-sxm", "gpus": 16, "gpus_per_node": 8,
        "seq": 2048, "micro_batch": 1, "global_batch": 64, "tp": 2, "pp": 2, "vpp": 1, "cp": 1,
        "ep": 1, "etp": null, "precision": "bf16", "recompute": "none", "recompute_modules": null,
        "sharding": "zero1", "routing": null, "step_time_s": 2.0, "tflops_per_gpu": null,
        "tflops_convention": null, "peak_memory_gib": null, "peak_memory_kind": null,
        "missing": [], "unstated": []}})json");
}

/// A mixture of experts on one DGX H100: 8 GPUs, EP 8.
inline Json moe_record() {
    Json record = dense_record();
    record["id"] = "moe";
    record["hardware"]["gpus"] = 8;
    record["hardware"]["nodes"] = 1;
    record["workload"]["architecture"] = Json::parse(R"json({
      "type": "moe", "layers": 8, "hidden": 1024, "heads": 16, "kv_heads": 4, "head_dim": 64,
      "attention": "gqa", "num_experts": 32, "topk": 4, "moe_ffn": 512, "dense_layers": 1,
      "dense_ffn": 4096, "shared_expert_ffn": 1024, "activation": "swiglu", "vocab": 32000})json");
    Json& canonical = record["canonical"];
    canonical["gpus"] = 8;
    canonical["tp"] = 1;
    canonical["pp"] = 1;
    canonical["ep"] = 8;
    canonical["etp"] = 1;
    canonical["routing"] = "balanced";
    return record;
}

inline Record read_one(const Json& record) {
    return read_records(JsonReader::from_value(Json::array({record}), "records.json")).at(0);
}

}  // namespace moeplan
