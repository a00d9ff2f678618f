"""The same layers and models in PyTorch, by autograd, in f64: what `parity_cases` printed must agree.

usage: reference.py PARITY_CASES        exit status 77 where PyTorch is missing (the test is skipped)

Written from the papers' formulas and not from our kernels: masks are matrices, experts are loops. Only the integer hash that begins a
model's parameters and draws pools and chances is ours (core/seed.cpp).
"""
import json
import math
import subprocess
import sys

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
MASK = (1 << 64) - 1


# --- the integer hash ----------------------------------------------------------------------------------------------------------------

def mix(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def draw(seed, name, index=0):
    state = mix(seed)
    for byte in name.encode():
        state = mix(state ^ byte)
    return mix(state ^ mix((index + len(name)) & MASK))


def uniform_numbers(seed, name, count):
    """Uniform in (−√3, √3): variance 1."""
    key = draw(seed, name)
    bits = [mix((key + 0x9E3779B97F4A7C15 * (i + 1)) & MASK) >> 11 for i in range(count)]
    return (torch.tensor(bits, dtype=torch.float64) * 2.0 ** -53 - 0.5) * 2 * 1.7320508075688772


class Parameters:
    """Made by name when first asked for, so that every test begins alike."""

    def __init__(self, seed):
        self.seed, self.made = draw(seed, "parameters"), {}

    def get(self, name, shape, deviation, mean=0.0, decays=True):
        if name not in self.made:
            count = math.prod(shape)
            value = torch.full((count,), float(mean))
            if deviation > 0:
                value = value + deviation * uniform_numbers(self.seed, name, count)
            value = value.float().double() if self.narrow else value
            self.made[name] = (value.reshape(shape).requires_grad_(), decays)
        return self.made[name][0]

    narrow = False          # True: begin with the numbers that f32 holds


# --- layers --------------------------------------------------------------------------------------------------------------------------

def rms_norm(x, weight, epsilon=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def rotate(x, positions, theta):
    """x: [tokens, heads, size]; the pairs are (i, i + size/2)."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * theta ** (-2.0 * torch.arange(half) / x.shape[-1])
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def documents_of(batch):
    number = torch.zeros(len(batch["tokens"]), dtype=torch.long)
    for begin in batch["document_begin"][1:]:
        number[begin:] += 1
    return number


def attention(p, name, model, layer, x, batch):
    spec = layer["attention"]["grouped_query"]
    heads, kv, size = spec["num_attention_heads"], spec["num_kv_heads"], spec["head_size"]
    d, layers, tokens = model["hidden_size"], len(model["layers"]), x.shape[0]
    inward, outward = d ** -0.5, (heads * size) ** -0.5 / math.sqrt(2.0 * layers)
    projected = {}
    for part, count in (("q", heads), ("k", kv), ("v", kv)):
        y = x @ p.get(f"{name}.{part}", (count * size, d), inward).T
        if spec.get("bias"):
            y = y + p.get(f"{name}.{part}_bias", (count * size,), 0, decays=False)
        if spec.get("qk_norm") and part != "v":
            full = spec.get("qk_norm_full", False)
            weight = p.get(f"{name}.{part}_norm", (count * size if full else size,), 0, 1, False)
            y = rms_norm(y if full else y.reshape(tokens, count, size), weight).reshape(tokens, -1)
        y = y.reshape(tokens, count, size)
        if part != "v":
            positions = torch.arange(tokens) % batch["length"]
            y = rotate(y, positions, model.get("rope_theta", 10000.0))
        projected[part] = y if part == "q" else y.repeat_interleave(heads // kv, 1)
    index, document = torch.arange(tokens), documents_of(batch)
    sequence = index // batch["length"]
    far = index[:, None] - index[None, :]
    visible = (far >= 0) & (document[:, None] == document[None, :]) & (sequence[:, None] == sequence[None, :])
    if layer.get("window"):
        visible &= far < layer["window"]
    scores = torch.einsum("thi,shi->hts", projected["q"], projected["k"]) / math.sqrt(size)
    scores = scores.masked_fill(~visible, -math.inf)
    mixed = torch.einsum("hts,shi->thi", scores.softmax(-1), projected["v"]).reshape(tokens, heads * size)
    y = mixed @ p.get(f"{name}.out", (d, heads * size), outward).T
    return y + p.get(f"{name}.out_bias", (d,), 0, decays=False) if spec.get("output_bias") else y


def experts_of(p, name, count, width, inner, spec, layers):
    """One function an expert."""
    activation = spec.get("activation", "swiglu")
    wide = 2 * inner if activation == "swiglu" else inner
    up = p.get(f"{name}.up", (count, wide, width), width ** -0.5)
    down = p.get(f"{name}.down", (count, width, inner), inner ** -0.5 / math.sqrt(2.0 * layers))
    up_bias = p.get(f"{name}.up_bias", (count, wide), 0, decays=False) if spec.get("bias") else None
    down_bias = p.get(f"{name}.down_bias", (count, width), 0, decays=False) if spec.get("bias") else None
    norm = None
    if spec.get("sub_norm"):
        norm = (p.get(f"{name}.sub_norm", (count, inner), 0, 1, False), p.get(f"{name}.sub_norm_bias", (count, inner), 0, decays=False))

    def expert(e):
        def run(x):
            z = x @ up[e].T
            if up_bias is not None:
                z = z + up_bias[e]
            if activation == "swiglu":
                z = F.silu(z[..., :inner]) * z[..., inner:]
            else:
                z = F.relu(z) if activation == "relu" else F.gelu(z)
            if norm:
                z = F.layer_norm(z, (inner,), norm[0][e], norm[1][e], 1e-5)
            y = z @ down[e].T
            return y if down_bias is None else y + down_bias[e]
        return run
    return [expert(e) for e in range(count)]


def best(values, count):
    """Indices of the largest; equal ones: the lower index first."""
    return torch.sort(values, descending=True, stable=True)[1][:count].tolist()


def allowed_experts(moe, logits, batch, seed, layer_index, heads):
    """[units, experts] of booleans, or None."""
    units, experts = logits.shape
    if moe.get("routing") == "domain":
        blocks = moe.get("num_groups") or experts // moe["top_k"]
        of_unit = torch.tensor(batch["domains"]).repeat_interleave(heads) % blocks
        return of_unit[:, None] == (torch.arange(experts) // (experts // blocks))[None, :]
    if not moe.get("pool"):
        return None
    key = draw(draw(seed, "document pool", batch["index"]), "layer", layer_index)
    before = logits.detach().softmax(-1)
    allowed = torch.zeros(units, experts, dtype=torch.bool)
    ends = batch["document_begin"][1:] + [units // heads]
    for number, (begin, end) in enumerate(zip(batch["document_begin"], ends)):
        smallest, largest = moe["pool"]["smallest"], moe["pool"]["largest"]
        size = smallest + draw(key, "size", number) % (largest - smallest + 1)
        rows = slice(begin * heads, end * heads)
        allowed[rows, best(before[rows].sum(0), size)] = True
    return allowed


def moe_layer(p, name, model, moe, x, batch, seed, layer_index, bias=None, of_step=None):
    """@param of_step  (choices of every expert that count, units) of all micro-batches of the step, for a global balance loss
    @return (y, losses by coefficient, balance loss, choices of every expert, those that count)"""
    d, tokens, layers = model["hidden_size"], x.shape[0], len(model["layers"])
    heads, experts, k = moe.get("num_moe_heads", 1), moe["num_experts"], moe["top_k"]
    width, units = d // heads, tokens * heads
    routing = moe.get("routing", "softmax_top_k")
    split = x
    if heads > 1:
        split = x @ p.get(f"{name}.head", (d, d), math.sqrt(0.5 / d)).T
        merge = p.get(f"{name}.merge", (d, d), math.sqrt(1.0 / d))
        if moe.get("head_bias"):
            split = split + p.get(f"{name}.head_bias", (d,), 0, decays=False)
            merge_bias = p.get(f"{name}.merge_bias", (d,), 0, decays=False)
    split = split.reshape(units, width)
    if routing.startswith("x_moe"):
        small = moe["router_size"]
        reduced = split @ p.get(f"{name}.router_reduce", (small, width), width ** -0.5).T
        if routing == "x_moe_cosine":
            reduced = F.normalize(reduced, dim=-1)
        logits = reduced @ F.normalize(p.get(f"{name}.router", (experts, small), small ** -0.5), dim=-1).T
        if routing == "x_moe_cosine":
            logits = logits / p.get(f"{name}.router_temperature", (1,), 0, 0.3, False)
    else:
        logits = split @ p.get(f"{name}.router", (experts, width), 0.5 * width ** -0.5).T
    if moe.get("router_bias"):
        logits = logits + p.get(f"{name}.router_bias", (experts,), 0, decays=False)
    allowed = allowed_experts(moe, logits, batch, seed, layer_index, heads)
    visible = logits if allowed is None else logits.masked_fill(~allowed, -math.inf)
    sigmoid = routing == "sigmoid_top_k"
    probability = torch.sigmoid(logits) if sigmoid else visible.softmax(-1)
    selection = probability.detach().clone()
    if bias is not None:
        selection = selection + bias
    if moe.get("num_groups") and routing != "domain":
        size = experts // moe["num_groups"]
        by_group = selection.reshape(units, moe["num_groups"], size)
        score = by_group.sort(-1, descending=True)[0][..., :2].sum(-1)
        for unit in range(units):
            keep = set(best(score[unit], moe["top_k_groups"]))
            for group in set(range(moe["num_groups"])) - keep:
                selection[unit, group * size:(group + 1) * size] = -math.inf
    ids = torch.tensor([best(selection[unit], k) for unit in range(units)])
    gates = probability.gather(1, ids)
    if moe.get("renormalise_gates", False) or routing.startswith("gshard"):
        gates = gates / gates.sum(-1, keepdim=True)
    gates = gates * moe.get("routed_scale", 1.0)

    # Balance: E/n · Σ f P, with f the share of the choices that count; GShard's is 1/E² of it.
    counted = 1 if routing.startswith(("gshard", "x_moe")) else k
    scopes = batch["sequences"] if moe.get("balance") == "sequence" else 1
    balance = 0.0
    for scope in range(scopes):
        rows = slice(scope * units // scopes, (scope + 1) * units // scopes)
        share = torch.bincount(ids[rows, :counted].reshape(-1), minlength=experts).double() / (units / scopes)
        if of_step and moe.get("balance") == "global":
            share = of_step[0] / of_step[1]
        balance = balance + experts / counted * (share * probability[rows].mean(0)).sum() / scopes
    if routing.startswith("gshard"):
        balance = balance / experts ** 2
    z = visible.logsumexp(-1).pow(2).mean() if not sigmoid else torch.zeros(())

    # Places: first choices in order of units, then the second ones.
    capacity = math.inf
    if moe.get("capacity_factor"):
        capacity = max(1, math.ceil(moe["capacity_factor"] * k * units / experts - 1e-9))
    kept = torch.zeros(units, k, dtype=torch.bool)
    taken = [0] * experts
    key = draw(draw(seed, "second choice", batch["index"]), "layer", layer_index)
    for j in range(k):
        for unit in range(units):
            expert = int(ids[unit, j])
            kept[unit, j] = taken[expert] < capacity
            taken[expert] += 1
            if routing.startswith("gshard") and j > 0:
                g = float(gates[unit, j] if routing == "gshard" else probability[unit, expert])
                kept[unit, j] &= 2 * g > (draw(key, "chance", unit) >> 11) * 2.0 ** -53
    functions = experts_of(p, f"{name}.experts", experts, width, moe["expert_hidden_size"], moe, layers)
    combined = torch.zeros(units, width)
    for expert in range(experts):
        for j in range(k):
            rows = ((ids[:, j] == expert) & kept[:, j]).nonzero()[:, 0]
            if len(rows):
                combined = combined.index_add(0, rows, gates[rows, j:j + 1] * functions[expert](split[rows]))
    if moe.get("inner_residual"):
        combined = combined + split
    y = combined.reshape(tokens, d)
    if heads > 1:
        y = y @ merge.T
        if moe.get("head_bias"):
            y = y + merge_bias
    if moe.get("num_shared_experts"):
        inner = moe["num_shared_experts"] * moe["shared_expert_hidden_size"]
        y = y + experts_of(p, f"{name}.shared", 1, d, inner, moe, layers)[0](x)
    losses = moe.get("balance_coefficient", 0.0) * balance + moe.get("z_loss_coefficient", 0.0) * z
    return y, losses, balance, torch.bincount(ids.reshape(-1), minlength=experts), torch.bincount(ids[:, :counted].reshape(-1), minlength=experts), units


def normalise(p, name, model, x):
    d = model["hidden_size"]
    weight = p.get(name, (d,), 0, 1, False)
    if model.get("norm", "rms") == "layer":
        return F.layer_norm(x, (d,), weight, p.get(name + "_bias", (d,), 0, decays=False), 1e-5)
    return rms_norm(x, weight)


def forward(p, model, batch, seed, biases, of_step):
    """@param of_step  {layer: (choices that count, units)} of the whole step, where known
    @return (loss to descend, cross-entropy, [balance by MoE layer], [(layer, choices, choices that count, units)])"""
    d, vocabulary = model["hidden_size"], model["vocab_size"]
    table = p.get("embedding", (vocabulary, d), 0.02 if model.get("tied_embeddings") else 0.1)
    x = table[torch.tensor(batch["tokens"])]
    extra, balances, counts = 0.0, [], []
    for i, layer in enumerate(model["layers"]):
        name = f"layers.{i}"
        x = x + attention(p, name + ".attention", model, layer, normalise(p, name + ".attention_norm", model, x), batch)
        y = normalise(p, name + ".feed_forward_norm", model, x)
        feed_forward = layer["feed_forward"]
        if "dense" in feed_forward:
            spec = feed_forward["dense"]
            y = experts_of(p, name + ".dense", 1, d, spec["dense_hidden_size"], spec, len(model["layers"]))[0](y)
        else:
            y, losses, balance, *chosen = moe_layer(p, name + ".moe", model, feed_forward["moe"], y, batch, seed, i, biases.get(i), of_step.get(i))
            extra = extra + losses
            balances.append(float(balance))
            counts.append((i, *chosen))
        x = x + y
    x = normalise(p, "final_norm", model, x)
    head = table if model.get("tied_embeddings") else p.get("lm_head", (vocabulary, d), 0.02)
    cross_entropy = F.cross_entropy(x @ head.T, torch.tensor(batch["targets"]))
    return cross_entropy + extra, float(cross_entropy), balances, counts


# --- comparison ----------------------------------------------------------------------------------------------------------------------

class Report:
    def __init__(self):
        self.failures, self.worst = [], {}

    def near(self, what, ours, theirs, tolerance, kind):
        """Relative to the largest number of the whole tensor: rounding errors of a sum are."""
        ours, theirs = torch.as_tensor(ours, dtype=torch.float64).reshape(-1), torch.as_tensor(theirs).detach().reshape(-1)
        if ours.shape != theirs.shape:
            self.failures.append(f"{what}: {len(ours)} numbers, PyTorch has {len(theirs)}")
            return
        size = float(theirs.abs().max())
        difference = float((ours - theirs).abs().max()) / (size if size > 0 else 1.0)
        self.worst[kind] = max(self.worst.get(kind, 0.0), difference)
        if not difference <= tolerance:
            self.failures.append(f"{what}: differs by {difference:.2e} of the largest, {tolerance:.0e} allowed")


def expanded(model):
    """Layers that the file writes once, one by one."""
    layers = []
    for entry in model["layers"]:
        pattern = entry.get("pattern", [entry])
        layers += pattern * entry.get("count", 1)
    return {**model, "layers": layers}


def check_layer(report, name, case):
    model, seed = expanded(case["model"]), int(case["seed"])
    p = Parameters(seed)
    p.narrow = True
    batch, d = case["batch"], model["hidden_size"]
    tokens = len(batch["tokens"])
    x = uniform_numbers(seed, "x", tokens * d).float().double().reshape(tokens, d).requires_grad_()
    dy = uniform_numbers(seed, "dy", tokens * d).float().double().reshape(tokens, d)
    layer = model["layers"][-1]
    losses = 0.0
    if case["part"] == "attention":
        y = attention(p, "layer", model, layer, x, batch)
    elif case["part"] == "dense":
        spec = layer["feed_forward"]["dense"]
        y = experts_of(p, "layer", 1, d, spec["dense_hidden_size"], spec, len(model["layers"]))[0](x)
    else:
        y, losses, *_ = moe_layer(p, "layer", model, layer["feed_forward"]["moe"], x, batch, seed, 1)
    ((y * dy).sum() + losses).backward()
    # f32 rounds to 6e-8; sums of some ten to a hundred products of that size, twice or thrice in a row.
    report.near(f"{name}: y", case["y"], y, 2e-6, "layer forward, f32")
    report.near(f"{name}: dx", case["dx"], x.grad, 5e-6, "layer gradients, f32")
    if set(case["gradients"]) != set(p.made):
        report.failures.append(f"{name}: parameters {sorted(set(case['gradients']) ^ set(p.made))} are on one side alone")
        return
    for parameter, (value, _) in p.made.items():
        gradient = value.grad if value.grad is not None else torch.zeros_like(value)
        report.near(f"{name}: gradient of {parameter}", case["gradients"][parameter], gradient, 5e-6, "layer gradients, f32")


def check_model(report, name, case):
    model, seed = expanded(case["model"]), int(case["seed"])
    p, biases, optimizer = Parameters(seed), {}, None
    for i, layer in enumerate(model["layers"]):
        if layer["feed_forward"].get("moe", {}).get("selection_bias"):
            biases[i] = torch.zeros(layer["feed_forward"]["moe"]["num_experts"])
    for step, batches in enumerate(case["text"]):
        cross_entropy, balance, counts = 0.0, 0.0, {}
        if optimizer:
            optimizer.zero_grad()
        of_step = {}
        with torch.no_grad():
            for batch in batches:
                for i, _, that_count, units in forward(p, model, batch, seed, biases, {})[3]:
                    before = of_step.get(i, (0, 0))
                    of_step[i] = (before[0] + that_count.double(), before[1] + units)
        for batch in batches:
            loss, ce, balances, chosen = forward(p, model, batch, seed, biases, of_step)
            (loss * batch["weight"]).backward()
            cross_entropy += ce * batch["weight"]
            balance += sum(balances) / max(1, len(balances)) * batch["weight"]
            for i, count, *_ in chosen:
                counts[i] = counts.get(i, 0) + count
        values = [(value, decays) for value, decays in p.made.values() if value.grad is not None]
        norm = math.sqrt(sum(float(value.grad.pow(2).sum()) for value, _ in values))
        rate = case["f64"][step]["learning_rate"]
        for ours, kind, loose in ((case["f64"][step], "f64", 1e-10), (case["f32"][step], "f32", 1e-6)):
            at = f"{name}, step {step}, {kind}"
            report.near(f"{at}: loss", ours["loss"], cross_entropy, loose, f"loss, {kind}")
            report.near(f"{at}: gradient norm", ours["gradient_norm"], norm, loose * 3, f"gradient norm, {kind}")
            report.near(f"{at}: balance loss", ours["balance_loss"], balance, loose, f"balance loss, {kind}")
        if optimizer is None:
            groups = [{"params": [v for v, d in values if d], "weight_decay": case["weight_decay"]},
                      {"params": [v for v, d in values if not d], "weight_decay": 0.0}]
            optimizer = torch.optim.AdamW(groups, betas=tuple(case["betas"]), eps=case["epsilon"])
        for value, _ in values:
            value.grad *= min(1.0, case["clip"] / norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        for i, bias in biases.items():
            mean = counts[i].double().mean()
            biases[i] = bias + case["selection_bias_rate"] * torch.sign(mean - counts[i].double())


def main():
    printed = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True)
    cases = json.loads(printed.stdout)
    report = Report()
    for name, case in cases["layers"].items():
        check_layer(report, name, case)
    for name, case in cases["models"].items():
        check_model(report, name, case)
    print(f"PyTorch {torch.__version__}: {len(cases['layers'])} layers, {len(cases['models'])} models of 4 steps")
    for kind, difference in sorted(report.worst.items()):
        print(f"  largest difference, {kind}: {difference:.1e}")
    for failure in report.failures:
        print(failure)
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()
