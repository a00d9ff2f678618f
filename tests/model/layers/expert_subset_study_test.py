"""scripts/expert-subset-study --short: its numbers follow from each other, and a second call trains and evaluates nothing again.

usage: expert_subset_study_test.py STUDY MOEPLAN
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def main():
    study, moeplan = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        words = [sys.executable, study, "--short", "--moeplan", moeplan, "--out", out / "study", "--report", out / "page.md"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        results = json.loads((out / "study/results.json").read_text())["results"]
        # 2 models, each by greedy, routing, easy-ep and greedy with unpruned gates.
        assert len(results) == 8, len(results)
        assert {r["system"] for r in results} == {"standard", "emo"}
        for r in results:
            whole, none = r["whole"]["loss"], r["no_routed_expert"]["loss"]
            assert set(r["test_tokens"]) == set(r["whole"]["by_domain"]) and min(r["test_tokens"].values()) > 0, r
            for subset in r["subsets"]:
                assert abs(subset["increase"] - (subset["loss"] - whole)) < 1e-12, subset
                assert abs(subset["retained"] - (1 - subset["increase"] / (none - whole))) < 1e-9, subset
        page = (out / "page.md").read_text()
        assert "| standard | raw, greedy |" in page and "| emo | raw, greedy, unpruned gates |" in page, page
        files = {path: path.stat().st_mtime_ns for path in (out / "study").rglob("*") if path.name not in ("results.json", "settings.json")}
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        assert files == {path: path.stat().st_mtime_ns for path in files}, "something was done twice"
        other = subprocess.run([*words, "--held-out", "0.3"], capture_output=True, text=True)
        assert other.returncode != 0 and "other settings" in other.stderr, other.stderr
    print("ok")


if __name__ == "__main__":
    main()
