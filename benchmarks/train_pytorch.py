"""One training step of benchmarks/train_model.json in PyTorch, timed: what `moeplan train` is held against.

usage: train_pytorch.py --steps N --batch SEQUENCES [--gloo]      prints one JSON line a step
       with --gloo, under mpirun: data-parallel over the ranks (gradients summed by gloo), the batch is each rank's

Written as one would for speed in plain PyTorch: rows sorted by expert, one product an expert with a parameter of its own (indexing one stacked
parameter makes autograd fill a gradient of all experts for each), batched attention products, fused cross-entropy, AdamW with foreach.
"""
import argparse
import json
import math
import os
import pathlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, d, heads, size):
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv, self.out = nn.Linear(d, 3 * heads * size, bias=False), nn.Linear(heads * size, d, bias=False)

    def forward(self, x, cos, sin, mask):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)

        def rotate(t):
            a, c = t.chunk(2, -1)
            return torch.cat([a * cos - c * sin, c * cos + a * sin], -1)
        scores = torch.matmul(rotate(q), rotate(k).transpose(-1, -2)) * self.size ** -0.5 + mask
        return self.out(torch.matmul(scores.softmax(-1), v).transpose(1, 2).reshape(b, s, -1))


class Expert(nn.Module):
    def __init__(self, d, inner):
        super().__init__()
        self.inner = inner
        self.up, self.down = nn.Linear(d, 2 * inner, bias=False), nn.Linear(inner, d, bias=False)

    def forward(self, x):
        gate, up = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    def __init__(self, d, count, k, inner, balance, z):
        super().__init__()
        self.k, self.count, self.balance, self.z = k, count, balance, z
        self.router = nn.Linear(d, count, bias=False)
        self.experts = nn.ModuleList(Expert(d, inner) for _ in range(count))

    def forward(self, x):
        logits = self.router(x)
        p = logits.softmax(-1)
        gates, ids = p.topk(self.k, -1)
        gates = gates / gates.sum(-1, keepdim=True)
        flat = ids.reshape(-1)
        order = flat.argsort()
        counts = flat.bincount(minlength=self.count)
        rows = torch.div(order, self.k, rounding_mode="floor")
        parts = x[rows].split(counts.tolist())
        y = torch.cat([expert(part) for expert, part in zip(self.experts, parts)]) * gates.reshape(-1)[order, None]
        share = counts.to(p.dtype) / len(x)
        losses = self.balance * self.count / self.k * (share * p.mean(0)).sum() + self.z * logits.logsumexp(-1).pow(2).mean()
        return torch.zeros_like(x).index_add(0, rows, y), losses


class RmsNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Model(nn.Module):
    def __init__(self, spec):
        super().__init__()
        d, layer = spec["hidden_size"], spec["layers"][0]
        moe, heads = layer["feed_forward"]["moe"], layer["attention"]["grouped_query"]
        self.embedding = nn.Embedding(spec["vocab_size"], d)
        self.blocks = nn.ModuleList(nn.ModuleList([
            RmsNorm(d), Attention(d, heads["num_attention_heads"], heads["head_size"]), RmsNorm(d),
            Experts(d, moe["num_experts"], moe["top_k"], moe["expert_hidden_size"], moe["balance_coefficient"], moe["z_loss_coefficient"])])
            for _ in range(layer["count"]))
        self.norm, self.head = RmsNorm(d), nn.Linear(d, spec["vocab_size"], bias=False)
        self.size, self.theta = heads["head_size"], spec["rope_theta"]

    def forward(self, tokens, targets, mask):
        b, s = tokens.shape
        angle = torch.arange(s)[:, None] * self.theta ** (-2.0 * torch.arange(self.size // 2) / self.size)
        cos, sin = angle.cos(), angle.sin()
        x, losses = self.embedding(tokens), 0.0
        for attention_norm, attention, norm, experts in self.blocks:
            x = x + attention(attention_norm(x), cos, sin, mask)
            y, extra = experts(norm(x).reshape(b * s, -1))
            x, losses = x + y.view_as(x), losses + extra
        return F.cross_entropy(self.head(self.norm(x)).reshape(b * s, -1), targets.reshape(-1)) + losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=pathlib.Path(__file__).parent / "train_model.json")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--gloo", action="store_true")
    o = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks = 1
    if o.gloo:
        import torch.distributed as dist
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29517")
        rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = Model(json.loads(pathlib.Path(o.model).read_text()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    # Documents of 100 to 200 tokens, as causal attention within documents sees them.
    index = torch.arange(o.sequence)
    document = torch.div(index, 150, rounding_mode="floor")
    visible = (index[:, None] >= index[None, :]) & (document[:, None] == document[None, :])
    mask = torch.zeros(o.sequence, o.sequence).masked_fill(~visible, -math.inf)
    for step in range(o.steps):
        tokens = torch.randint(0, 2048, (o.batch, o.sequence + 1))
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(tokens[:, :-1], tokens[:, 1:], mask).backward()
        if ranks > 1:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            whole = torch.cat([g.reshape(-1) for g in gradients])   # one message: gloo's cost is by message
            dist.all_reduce(whole)
            for gradient, summed in zip(gradients, whole.split([g.numel() for g in gradients])):
                gradient.copy_(summed.view_as(gradient) / ranks)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds = time.perf_counter() - begin
        if not o.gloo or rank == 0:
            print(json.dumps({"step": step, "seconds": seconds, "tokens_per_second": ranks * o.batch * o.sequence / seconds}), flush=True)


if __name__ == "__main__":
    main()
