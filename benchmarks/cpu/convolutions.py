"""Convolutions on one CPU thread: `python -m benchmarks.cpu.convolutions [--kernels] [--nets TITLE ...] [--budget S]
[--store FOLDER]`.

Kernels in C (backends/c/convolutions.py) beside oneDNN's through Torch, and whole networks of peer_models.py beside
eager PyTorch and ONNX Runtime, called in turn. Times are lower quartiles of CPU time of the process, so that waits for
a core do not count; ratios of networks are medians over rounds. Results go to results/raw/convolutions_cpu.json and
results/convolutions_cpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "results"
NETS = ("ResNet-50", "MobileNetV2", "U-Net, 64 channels, 32 x 32")
#: (input channels, image side, output channels, window side, stride, groups), batch 1
SHAPES = (
    (3, 224, 64, 7, 2, 1), (64, 56, 64, 1, 1, 1), (64, 56, 256, 1, 1, 1), (256, 56, 64, 1, 1, 1), (256, 14, 1024, 1, 1, 1), (2048, 7, 512, 1, 1, 1),
    (64, 56, 64, 3, 1, 1), (128, 28, 128, 3, 1, 1), (256, 14, 256, 3, 1, 1), (512, 7, 512, 3, 1, 1), (128, 56, 128, 3, 2, 1),
    (32, 112, 32, 3, 1, 32), (96, 112, 96, 3, 2, 96), (384, 14, 384, 3, 1, 384), (576, 14, 576, 5, 1, 576), (96, 56, 96, 7, 1, 96),
)  # fmt: skip
KINDS = {
    "oneDNN": "torch.onednn_conv_bias_relu",
    "direct": "c.tiled_conv_bias_relu",
    "Winograd": "c.winograd_conv_bias_relu",
    "depthwise": "c.depthwise_conv_bias_relu",
}


def in_turn(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """CPU µs of each call in each round, after two calls of each."""
    for call in (*calls.values(), *calls.values()):
        call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            began = time.process_time_ns()
            calls[name]()
            found[name].append((time.process_time_ns() - began) / 1e3)
    return found


def quartile(samples: list[float]) -> float:
    """The lower quartile."""
    return float(np.percentile(samples, 25))


def kernels() -> dict[str, dict[str, float]]:
    """Shape -> kind -> CPU µs of a convolution with bias and ReLU on channels-last values."""
    from tensor_graphs.backends.registry import template
    from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout
    from tensor_graphs.egraph.ops.ops import Type
    from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

    kind = lambda *shape: Type(shape, "float32")
    last = lambda n, c, h, w: Operand(kind(n, c, h, w), (h * w * c, 1, w * c, c))
    rng, found = np.random.default_rng(0), {}
    for c, side, k, window, stride, groups in SHAPES:
        pad, out = window // 2, (side + 2 * (window // 2) - window) // stride + 1
        w = (k, c // groups, window, window)
        operands = {"x": last(1, c, side, side), "w": Operand(kind(*w), contiguous(w)), "b": Operand(kind(k), (1,))}
        attrs = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1), "groups": groups, "s": (1, k, 1, 1)}
        call = Call(operands, last(1, k, out, out), attrs)
        values = {n: in_layout(rng.standard_normal(o.type.shape).astype(np.float32), o) for n, o in operands.items()}
        runs = {}
        for name, full in KINDS.items():
            chosen = template(full.partition(".")[0], full)
            if chosen.applies is None or chosen.applies(call):
                runs[name] = compiled(chosen, replace(call))(values)
        shape = f"{c} x {side} x {side} to {k}, {window} x {window}, stride {stride}, groups {groups}"
        found[shape] = {name: quartile(us) for name, us in in_turn(runs, 30).items()}
    return found


def net(title: str, budget: float, store: str, rounds: int = 60) -> dict[str, Any]:
    """CPU µs of a network in eager PyTorch, ONNX Runtime and ours, and the ratios to ours. `store`: folder of stored
    measurements."""
    import torch

    import tensor_graphs as tg
    from benchmarks.cpu.onnxruntime_call import onnxruntime_call
    from benchmarks.models.peer_models import build

    module, inputs = build(title)
    program = tg.optimize(module, inputs, budget=budget, costdb=store, again=True)
    values = [x.numpy() for x in inputs]
    with torch.no_grad():
        calls = {"eager": lambda: module(*inputs), "onnxruntime": onnxruntime_call(module, inputs), "ours": lambda: program.flat(*values)}  # fmt: skip
        exact = module.double()(*(x.double() for x in inputs)).numpy()
        module.float()
        error = lambda y: float(np.linalg.norm(np.asarray(y, np.float64) - exact) / np.linalg.norm(exact))
        errors = {
            "ours": error(calls["ours"]()[0]), "eager": error(module(*inputs).numpy()), "onnxruntime": error(calls["onnxruntime"]()[0])
        }  # fmt: skip
        times = in_turn(calls, rounds)
    ratio = {n: median(a / b for a, b in zip(times[n], times["ours"])) for n in ("eager", "onnxruntime")}
    report = program.report
    return {
        "us": {n: quartile(t) for n, t in times.items()}, "ratio": ratio, "errors": errors, "budget": budget, "stopped": report.search_stopped,
        "kernels": [[k.name, k.count, round(k.us, 1)] for k in report.kernels], "runs": report.runs,
    }  # fmt: skip


def rendered(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = list(KINDS)
    lines = ["# Convolutions on one CPU thread", "", __doc__.split("\n\n")[1].replace("\n", " "), "",
             f"{found['machine']}; commit {found['commit']}, {found['date']}.", "",
             "| convolution with bias and ReLU, float32, µs | " + " | ".join(names) + " | oneDNN / best |",
             "|" + "---|" * (len(names) + 2)]  # fmt: skip
    for shape, us in found.get("kernels", {}).items():
        cells = [f"{us[n]:.0f}" if n in us else "" for n in names]
        best = min(v for n, v in us.items() if n != "oneDNN")
        lines.append(f"| {shape} | {' | '.join(cells)} | {us['oneDNN'] / best:.2f} |")
    lines += ["", "| network, float32, ms | eager | ONNX Runtime | ours | eager / ours | ONNX Runtime / ours | error: ours, eager | budget, s; ended by |",
              "|" + "---|" * 8]  # fmt: skip
    for title, r in found.get("nets", {}).items():
        us = [f"{r['us'][n] / 1e3:.2f}" for n in ("eager", "onnxruntime", "ours")]
        ratios = [f"{r['ratio'][n]:.2f}" for n in ("eager", "onnxruntime")]
        errors = f"{r['errors']['ours']:.1e}, {r['errors']['eager']:.1e}"
        lines.append(f"| {title} | {' | '.join((*us, *ratios, errors))} | {r['budget']:g}; {r['stopped']} |")
    kernels_of = lambda r: ", ".join(f"{name} x{count}" for name, count, _ in r["kernels"])
    lines += ["", *(f"- {title}: {kernels_of(r)}" for title, r in found.get("nets", {}).items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse the command line, measure, store and render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", action="store_true", help="measure kernels")
    parser.add_argument("--nets", nargs="*", default=[], metavar="TITLE", help=f"networks, such as {', '.join(NETS)}")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of each optimization")
    parser.add_argument("--store", help="cost store with which searches begin; default: an empty one for each network")
    options = parser.parse_args()
    import torch

    from benchmarks.run import commit
    from tensor_graphs.costdb.keys.device import device_key

    torch.set_num_threads(1)
    raw = RESULTS / "raw/convolutions_cpu.json"
    found: dict[str, Any] = json.loads(raw.read_text()) if raw.exists() else {}
    found |= {"machine": device_key(), "commit": commit(), "date": time.strftime("%Y-%m-%d %H:%M")}
    if options.kernels:
        found["kernels"] = kernels()
    for title in options.nets:
        found.setdefault("nets", {})[title] = net(title, options.budget, options.store or tempfile.mkdtemp())
    raw.write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "convolutions_cpu.md").write_text(rendered(found))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
