"""The shapes of docs/kernels.md in PyTorch beside ours, cold caches, bf16. Run by scripts/gpu-run.

    gpu-run-pytorch.py [libmoeplan_layer.so]

Ours and PyTorch's run in this one process, on the same stream, by turns: what the clocks do, they do to both.
"""
import ctypes
import statistics
import sys

import torch

if not torch.cuda.is_available():
    sys.exit("no GPU that PyTorch sees")
device = torch.device("cuda")
flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size + (64 << 20), dtype=torch.uint8, device=device)
tokens, hidden, heads, experts, top_k, inner = 16384, 2048, 4, 64, 2, 1408
units, width = tokens * heads, hidden // heads
rows = units * top_k


def once(run):
    flush.zero_()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def by_turns(runs, rounds=15):
    """Medians in microseconds, one for each of `runs`, each run once a round."""
    times = [[] for _ in runs]
    for _ in range(3):
        for run in runs:
            run()
    for _ in range(rounds):
        for run, into in zip(runs, times):
            into.append(once(run))
    return [statistics.median(t) for t in times]


def report(name, run, flops=0.0, moved=0.0, ours=None):
    try:
        microseconds = by_turns([run] if ours is None else [run, ours])
    except Exception as error:  # a release without this operator still gives the others
        print(f"{name:44} left out: {type(error).__name__}: {error}", flush=True)
        return
    t = microseconds[0]
    line = f"{name:44} {t:10.2f} us {flops / t / 1e6:8.1f} TFlop/s {moved / t / 1e3:8.0f} GB/s"
    if ours is not None:
        line += f"   ours {microseconds[1]:10.2f} us, ratio {t / microseconds[1]:.2f}"
    print(line, flush=True)


class Ours:
    """Our kernels and layer, by libmoeplan_layer.so; None where it cannot be had, with the reason printed."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.moeplan_error.restype = ctypes.c_char_p

    def make(self, name, *sizes):
        out = ctypes.c_void_p()
        self.check(getattr(self.library, name)(*[ctypes.c_int64(s) for s in sizes], ctypes.byref(out)))
        return out

    def check(self, status):
        if status:
            raise RuntimeError(self.library.moeplan_error().decode())

    def call(self, name, what):
        function = getattr(self.library, name)
        return lambda: self.check(function(what))


def or_none(make):
    try:
        return make()
    except Exception as error:
        print(f"ours left out: {type(error).__name__}: {error}", flush=True)
        return None


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype, device=device)


ours = or_none(lambda: Ours(sys.argv[1])) if len(sys.argv) > 1 else None
grouped = forward = both = None
if ours:
    grouped = or_none(lambda: ours.call("moeplan_kernel_run", ours.make("moeplan_grouped", rows, experts, 2 * inner, width)))
    our_layer = or_none(lambda: ours.make("moeplan_layer", tokens, hidden, heads, experts, top_k, inner))
    if our_layer:
        forward = ours.call("moeplan_layer_forward", our_layer)
        backward = ours.call("moeplan_layer_backward", our_layer)

        def both():
            forward()
            backward()


print("torch", torch.__version__, torch.cuda.get_device_name(0))
x = random(tokens, hidden).requires_grad_()
w, w_out = random(hidden, hidden).requires_grad_(), random(hidden, hidden).requires_grad_()
router, up, down = (random(*s).requires_grad_() for s in ((experts, width), (experts, 2 * inner, width), (experts, width, inner)))
sent = random(rows, width)
offsets = torch.arange(1, experts + 1, device=device, dtype=torch.int32) * (rows // experts)


def layer():
    """A plain MH-MoE sub-layer: what one writes with PyTorch alone."""
    u = (x @ w.T).view(units, width)
    p = torch.softmax((u @ router.T).float(), -1)
    gates, ids = torch.topk(p, top_k)
    gates = gates / gates.sum(-1, keepdim=True)
    flat = ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=experts).tolist()
    parts = []
    for e, part in enumerate(torch.split(u[order // top_k], counts)):
        h = part @ up[e].T
        parts.append((torch.nn.functional.silu(h[:, :inner]) * h[:, inner:]) @ down[e].T)
    back = torch.empty(rows, width, dtype=x.dtype, device=device).index_copy(0, order, torch.cat(parts))
    out = (back.view(units, top_k, width) * gates.to(x.dtype).unsqueeze(-1)).sum(1)
    return out.view(tokens, hidden) @ w_out.T


dy = random(tokens, hidden)
layer_flops = 4.0 * tokens * hidden * hidden + 2.0 * units * width * experts + 6.0 * rows * width * inner
with torch.no_grad():
    report("grouped 131072 rows, 64 experts, 512 -> 2816", lambda: torch._grouped_mm(sent, up.transpose(-2, -1), offs=offsets),
           2.0 * rows * width * 2 * inner, ours=grouped)
    report("plain MH-MoE sub-layer, forward", layer, layer_flops, ours=forward)
report("the same, forward and backward", lambda: layer().backward(dy), 3 * layer_flops, ours=both)
with torch.no_grad():
    a, b = random(8192, 8192), random(8192, 8192)
    report("dense 16384x2048x2048", lambda: x @ w.T, 2.0 * tokens * hidden * hidden)
    report("dense 8192x8192x8192", lambda: a @ b, 2.0 * 8192**3)
    each = rows // experts
    report("loop over experts, as grouped", lambda: [sent[i * each:(i + 1) * each] @ up[i].T for i in range(experts)], 2.0 * rows * width * 2 * inner)
    gate_up = random(rows, 2 * inner)
    report("swiglu", lambda: torch.nn.functional.silu(gate_up[:, :inner]) * gate_up[:, inner:], moved=6.0 * rows * inner)
    logits = random(units, experts, dtype=torch.float32)
    report("softmax and top-2", lambda: torch.topk(torch.softmax(logits, -1), top_k), moved=8.0 * units * experts)
    index = torch.randint(0, units, (rows,), device=device)
    y = random(units, width)
    report("gather of rows", lambda: y[index], moved=4.0 * rows * width)
    report("rms_norm", lambda: torch.nn.functional.rms_norm(x, (hidden,)), moved=4.0 * tokens * hidden)
