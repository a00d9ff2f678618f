#!/usr/bin/env python3
"""Rewrites the tables and the picture of docs/accuracy.md from the answer of `moeplan accuracy`.

usage: scripts/accuracy_docs.py [ANSWER.json]
Without an answer it runs build/moeplan on validation/published. Tables stand between <!-- tables --> and <!-- end --> in the page;
the picture is docs/accuracy-step-times.svg.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ["training.json", "vtrain_single_node.json", "kernels.json", "collectives.json"]


def answer():
    if len(sys.argv) > 1:
        return json.loads(pathlib.Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "accuracy.json"
        records = [f"validation/published/{name}" for name in RECORDS]
        subprocess.run(["build/moeplan", "accuracy", *records, "--json", str(file)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return json.loads(file.read_text())


def percent(share):
    return "–" if share is None else f"{100 * share:.1f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def errors(summary):
    return [percent(summary[key]) for key in ("median_error", "mean_error", "p90_error")] + [f"{summary['bias']:.2f}"]


def tables(found):
    summary, by = found["summary"], found["by"]
    steps = summary["step_times"]
    parts = [f"{summary['predicted']} figures are predicted, {summary['with_assumptions']} of them with assumptions; {summary['skipped']} records are skipped. "
             f"By the memory estimate {summary['memory_refuses']} of {summary['memory_runs']} runs that took place do not fit.\n"]
    rows = []
    for key, name in (("summary_neutral", "neutral constants"), ("summary", "fitted"), ("summary_source_left_out", "fitted without the record's source")):
        one = found.get(key)
        if one and one.get("step_times", one["records"]):
            rows.append([name, *errors(one), percent(one.get("coverage"))])
    parts.append(f"Step times of {steps} training records, errors in %:\n\n" +
                 table(["prediction", "median", "mean", "p90", "predicted / measured", "in the 80 % interval"], rows))
    for key, title in (("architecture", "architecture"), ("source", "source"), ("gpu", "GPU"), ("precision", "precision")):
        parts.append(table([f"step time by {title}", "records", "median", "mean", "p90", "predicted / measured"],
                           [[name, str(part["records"]), *errors(part)] for name, part in by[key].items()]))
    parts.append("Every kind of figure:\n\n" + table(["metric", "figures", "median", "mean", "p90", "predicted / measured"],
                 [[name.replace("_", " "), str(part["records"]), *errors(part)] for name, part in by["metric"].items()]))
    if found.get("sweeps"):
        parts.append("Order of layouts (how much longer than the best measured, in %):\n\n" +
                     table(["sweeps of", "sweeps", "runs", "rank correlation, median", "lowest", "our pick, mean", "best of our three, mean"],
                           [[one["family"], str(one["sweeps"]), str(one["runs"]), f"{one['median_spearman']:.3f}", f"{one['lowest_spearman']:.3f}",
                             percent(one["mean_regret"]), percent(one["mean_best_of_3_regret"])] for one in found["sweep_families"]]))
    if found.get("held_out"):
        parts.append("Kernels and collectives, from profiles built without them:\n\n" +
                     table(["kind", "variant", "left out", "points", "median", "mean", "p90", "predicted / measured"],
                           [[one["kind"].replace("_", " "), one["variant"], one["held_out"], str(one["records"]), *errors(one)] for one in found["held_out"]]))
    parts.append("Furthest off:\n\n" + table(["record", "predicted / measured", "where to look"],
                 [[f"`{one['id']}`", f"{one['predicted_over_measured']:.2f}", one["cause"]] for one in found["worst"]]))
    return "\n".join(parts)


def picture(found):
    """Predicted over measured against the measured time, both logarithmic; dense and MoE apart."""
    rows = [r for r in found["records"] if r.get("metric") == "step_time"]
    width, height, left, top = 880, 420, 60, 24
    low, high = (f(math.log10(r["measured"]) for r in rows) for f in (min, max))
    low, high = math.floor(low * 2) / 2, math.ceil(high * 2) / 2
    span = max(math.log(2.2), max(abs(math.log(r["predicted"] / r["measured"])) for r in rows))
    x = lambda seconds: left + (math.log10(seconds) - low) / (high - low) * (width - left - 16)
    y = lambda ratio: top + (1 - math.log(ratio) / span) / 2 * (height - top - 48)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for ratio in (0.5, 0.8, 1, 1.25, 2):
        out.append(f'<line x1="{left}" x2="{width - 16}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}" stroke="{"#333" if ratio == 1 else "#ccc"}"/>')
        out.append(f'<text x="{left - 8}" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio:g}</text>')
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        seconds = 10.0**exponent
        out.append(f'<text x="{x(seconds):.1f}" y="{height - 26}" text-anchor="middle">{seconds:g} s</text>')
    colours = {"dense": "#2f6db3", "moe": "#d2571f"}
    for kind, colour in colours.items():
        for r in rows:
            if r["architecture"] == kind:
                out.append(f'<circle cx="{x(r["measured"]):.1f}" cy="{y(r["predicted"] / r["measured"]):.1f}" r="3.2" fill="{colour}" fill-opacity="0.55"/>')
    for i, (kind, colour) in enumerate(colours.items()):
        out.append(f'<circle cx="{left + 14 + 90 * i}" cy="12" r="4" fill="{colour}"/><text x="{left + 24 + 90 * i}" y="16">{ {"dense": "dense", "moe": "MoE"}[kind] }</text>')
    out.append(f'<text x="{(left + width) / 2}" y="{height - 6}" text-anchor="middle">measured step time; upwards: predicted / measured</text></svg>')
    return "\n".join(out) + "\n"


def main():
    found = answer()
    page = ROOT / "docs" / "accuracy.md"
    text = page.read_text()
    begin, end = "<!-- tables -->\n", "<!-- end -->"
    before, rest = text.split(begin)
    after = rest.split(end, 1)[1]
    page.write_text(before + begin + "\n" + tables(found) + "\n" + end + after)
    (ROOT / "docs" / "accuracy-step-times.svg").write_text(picture(found))


if __name__ == "__main__":
    main()
