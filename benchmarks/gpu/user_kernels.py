"""User kernels on a GPU: the checks of the examples, a kernel that must be refused, and searches in which they compete.

    python -m benchmarks.gpu.user_kernels --out OUT [--budget 20]

Writes OUT/user_kernels.json: verdicts with seconds, and for each search the chosen kernels, the best measured time of
the user kernel and the time of the plan without it. Each step has its own process and time limit; a failure is
recorded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernels"
HOSTILE = '''
import tensor_graphs as tg

@tg.kernel("triton", reference=lambda x: x + 1.0, inputs={"x": "float32[N]"})
def beyond(N):
    return tg.Launch(source="""
@triton.jit
def beyond(x, out, N: tl.constexpr):
    i = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(out + i, tl.load(x + i, i < N, 0.0) + 1.0, i <= N)
""", grid=(-(-N // 128) + 1,), constants={"N": N})
'''


def check(path: str) -> dict[str, Any]:
    """The verdicts on the user kernels of a file."""
    from tensor_graphs.backends.admission.use import verdicts_of
    from tensor_graphs.backends.user.files import kernel_file

    return {"verdicts": [v.to_json() for v in verdicts_of(kernel_file(path), again=True)]}


def search(name: str, budget: float) -> dict[str, Any]:
    """Figures of one search in which a user kernel competes with all others."""
    import tensor_graphs as tg

    x, y = tg.input("x", (4096, 2048), "float16"), tg.input("y", (4096, 2048), "float16")
    w = tg.input("w", (1, 2048), "float16")
    rows = x * tg.rsqrt(tg.mean(x * x, axis=-1, keepdims=True) + 1e-6) * w
    terms = {"rms_norm.py": rows, "swiglu_cuda.py": tg.silu(x) * y}
    options: dict[str, Any] = {"backend": "gpu", "kernels": [EXAMPLES / name]}
    program = tg.optimize(terms[name], budget=budget, again=True, **options)
    explorer = tg.saturate(terms[name], budget=budget, **options)
    own = [
        (c.template.name, p.us, p.source, dict(p.schedule))
        for c, p in zip(explorer.choice.hypergraph.candidates, explorer.choice.prices)
        if c.template.name.startswith("user.")
    ]
    steps = [(s.name, s.us, s.source, s.limit_us) for s in program.report.steps]
    latency = program.report.latency_before_us, program.report.latency_after_us
    rivals = sorted(
        (p.us, c.template.name)
        for c, p in zip(explorer.choice.hypergraph.candidates, explorer.choice.prices)
        if p.source == "measured" and not c.template.name.startswith("user.")
    )
    return {
        "chosen": steps,
        "user": own,
        "latency_us": latency,
        "verified": program.report.verification,
        "rivals": rivals[:5],
    }


def started(step: list[str], seconds: float) -> subprocess.Popen[str]:
    """Start a step in its own process, which `timeout` ends after `seconds`."""
    command = ["timeout", str(seconds), sys.executable, "-m", "benchmarks.gpu.user_kernels", "--step", *step]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str], began: float) -> dict[str, Any]:
    """The result of a step, or why it failed; `began`: its start on the monotonic clock."""
    out, err = process.communicate()
    try:
        return {**json.loads(out.splitlines()[-1]), "seconds": time.monotonic() - began}
    except (ValueError, IndexError):
        return {"failed": process.returncode, "error": err[-2000:], "seconds": time.monotonic() - began}


def main() -> None:
    """Run all steps; write and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--step", nargs="*")
    given = parser.parse_args()
    if given.step:
        kind, name, *_ = given.step
        print(json.dumps(check(name) if kind == "check" else search(name, float(given.step[2])), default=str))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "beyond.py").write_text(HOSTILE)
    names = ("rms_norm.py", "swiglu_cuda.py")
    found: dict[str, Any] = {}
    for steps, seconds in (
        ([["check", str(p)] for p in (*(EXAMPLES / n for n in names), given.out / "beyond.py")], 30.0),
        ([["search", n, str(given.budget)] for n in names[:1]], 40.0),
        ([["search", n, str(given.budget)] for n in names[1:]], 40.0),
    ):
        began = time.monotonic()
        running = [(f"{s[0]} {Path(s[1]).name}", started(s, seconds)) for s in steps]
        for title, process in running:
            found[title] = finished(process, began)
            print(title, json.dumps(found[title])[:1500], flush=True)
            (given.out / "user_kernels.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
