"""The shapes of docs/kernels.md in PyTorch, cold caches, bf16: what our kernels are compared with. Run by scripts/gpu-run."""
import statistics
import sys

import torch

if not torch.cuda.is_available():
    sys.exit("no GPU that PyTorch sees")
device = torch.device("cuda")
flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size + (64 << 20), dtype=torch.uint8, device=device)


def time_of(run):
    for _ in range(3):
        run()
    times = []
    for _ in range(15):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device=device)


def report(name, run, flops=0.0, moved=0.0):
    try:
        microseconds = time_of(run)
        print(f"{name:44} {microseconds:10.2f} us {flops / microseconds / 1e6:8.1f} TFlop/s {moved / microseconds / 1e3:8.0f} GB/s", flush=True)
    except Exception as error:  # a release without this operator still gives the others
        print(f"{name:44} left out: {type(error).__name__}: {error}", flush=True)


print("torch", torch.__version__, torch.cuda.get_device_name(0))
tokens, hidden, heads, experts, top_k, inner = 16384, 2048, 4, 64, 2, 1408
units, width = tokens * heads, hidden // heads
rows = units * top_k
x, w = random(tokens, hidden), random(hidden, hidden)
report("dense 16384x2048x2048", lambda: x @ w.T, 2.0 * tokens * hidden * hidden)
a, b = random(8192, 8192), random(8192, 8192)
report("dense 8192x8192x8192", lambda: a @ b, 2.0 * 8192**3)
sent, up = random(rows, width), random(experts, 2 * inner, width)
offsets = torch.arange(1, experts + 1, device=device, dtype=torch.int32) * (rows // experts)
report("grouped 131072 rows, 64 experts, 512 -> 2816", lambda: torch._grouped_mm(sent, up.transpose(-2, -1), offs=offsets),
       2.0 * rows * width * 2 * inner)
report("loop over experts, the same", lambda: [sent[i * (rows // experts):(i + 1) * (rows // experts)] @ up[i].T for i in range(experts)],
       2.0 * rows * width * 2 * inner)
gate_up = random(rows, 2 * inner)
report("swiglu", lambda: torch.nn.functional.silu(gate_up[:, :inner]) * gate_up[:, inner:], moved=6.0 * rows * inner)
logits = random(units, experts, dtype=torch.float32)
report("softmax and top-2", lambda: torch.topk(torch.softmax(logits, -1), top_k), moved=8.0 * units * experts)
index = torch.randint(0, units, (rows,), device=device)
y = random(units, width)
report("gather of rows", lambda: y[index], moved=4.0 * rows * width)
report("rms_norm", lambda: torch.nn.functional.rms_norm(x, (hidden,)), moved=4.0 * tokens * hidden)


def layer():
    """A plain MH-MoE sub-layer, forward: what one writes with PyTorch alone."""
    u = (x @ w.T).view(units, width)
    p = torch.softmax((u @ router.T).float(), -1)
    gates, ids = torch.topk(p, top_k)
    flat = ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=experts).tolist()
    parts = []
    for e, part in enumerate(torch.split(u[order // top_k], counts)):
        h = part @ up[e].T
        parts.append((torch.nn.functional.silu(h[:, :inner]) * h[:, inner:]) @ down[e].T)
    back = torch.empty(rows, width, dtype=x.dtype, device=device)
    back[order] = torch.cat(parts)
    out = (back.view(units, top_k, width) * gates.to(x.dtype).unsqueeze(-1)).sum(1)
    return out.view(tokens, hidden) @ w.T


router, down = random(experts, width), random(experts, width, inner)
report("plain MH-MoE sub-layer, forward", layer, 4.0 * tokens * hidden * hidden + 2.0 * units * width * experts + 6.0 * rows * width * inner)
