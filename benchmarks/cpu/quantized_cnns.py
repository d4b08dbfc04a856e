"""Quantized CNNs on a CPU beside ONNX Runtime: `python -m benchmarks.cpu.quantized_cnns [--make] [--models NAME ...]
[--threads N ...] [--budget S] [--folder F]`.

ResNet-50, MobileNetV2 and blocks of MobileNetV2 with random weights, quantized by ONNX Runtime's `quantize_static`
(bytes without sign for values, with sign for weights, a scale for each output channel): as float operators between
QuantizeLinear and DequantizeLinear (QDQ), and as QLinearConv. `--make` writes the models to the folder; it needs onnx
and torch. Each model is searched and measured in a process of its own, with a cost store that all share. Programs and
ONNX Runtime's session (its default optimizations) are called in turn, in CPU time of the process with one thread and in
wall time with more; times are lower quartiles, ratios medians over rounds. `float32`: ONNX Runtime on the model before
quantization. Results go to results/raw/quantized_cnns.json and results/quantized_cnns.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "results"
#: name -> (module that builds it, title there)
MODELS = {
    "ResNet-50": ("peer_models", "ResNet-50"),
    "MobileNetV2": ("peer_models", "MobileNetV2"),
    "MobileNetV2-like": ("cpu_peer_models", "MobileNetV2-like, 4 blocks, 56 x 56"),
}
FORMATS = {"QDQ": "QDQ", "QLinearConv": "QOperator"}
ROUNDS, LIMIT_S = 40, 900


def make(folder: Path, name: str) -> None:
    """Write a model and its two quantized forms to the folder."""
    from importlib import import_module

    import torch

    module, title = MODELS[name]
    torch.manual_seed(0)
    net, inputs = import_module(f"benchmarks.models.{module}").build(title)
    shape = tuple(inputs[0].shape)
    write_quantized(
        folder, name, net.eval(), inputs, lambda rng: rng.standard_normal(shape).astype(np.float32), FORMATS
    )


def write_quantized(
    folder: Path, name: str, net: Any, inputs: tuple[Any, ...], draw: Callable[[np.random.Generator], Any],
    forms: dict[str, str],
) -> Path:  # fmt: skip
    """Write a PyTorch module as an ONNX file in float32, and quantized statically in each of `forms` (name -> ONNX
    Runtime's QuantFormat), calibrated with four inputs that `draw` makes; returns the path of the former."""
    import onnx
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    exported = torch.onnx.export(net, inputs, dynamo=True, verbose=False)
    assert exported is not None
    plain = folder / f"{name}.float32.onnx"
    exported.save(folder / "exported.onnx")
    quant_pre_process(folder / "exported.onnx", plain, skip_symbolic_shape=True)
    (folder / "exported.onnx").unlink()
    given = onnx.load(plain).graph.input[0].name

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.rest = [draw(rng) for _ in range(4)]

        def get_next(self) -> Any:
            return {given: self.rest.pop()} if self.rest else None

    for form, kind in forms.items():
        quantize_static(
            plain, folder / f"{name}.{form}.onnx", Reader(), quant_format=QuantFormat[kind], per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    return plain


def session_of(path: Path, threads: int) -> tuple[Callable[[Any], Any], Any]:
    """A call of a model in ONNX Runtime, and its input: images, or numbers of tokens below 1,000."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    rng, shape = np.random.default_rng(1), tuple(given.shape)
    x = rng.integers(0, 1000, shape) if "int64" in given.type else rng.standard_normal(shape).astype(np.float32)
    return lambda x: session.run(None, {given.name: x})[0], x


def in_turn(calls: dict[str, Callable[[], Any]], threads: int) -> dict[str, list[float]]:
    """µs of each call in each round, after two calls of each: CPU time with one thread, wall time with more. With
    more, a pause before each call lets the threads of the others sleep."""
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 2):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            if threads > 1:
                time.sleep(0.05)
                calls[name]()
            began = clock()
            calls[name]()
            if turn > 1:
                found[name].append((clock() - began) / 1e3)
    return found


def measure(folder: str, name: str, form: str, threads: int, budget: float) -> dict[str, Any]:
    """µs of ours and of ONNX Runtime's program for a model, how results differ, and what our program consists of."""
    import tensor_graphs as tg

    warnings.simplefilter("ignore")
    path = Path(folder) / f"{name}.{form}.onnx"
    began = time.monotonic()
    program = tg.optimize(path, budget=budget, again=True)
    seconds = time.monotonic() - began
    peer, x = session_of(path, threads)
    before = Path(folder) / f"{name}.float32.onnx"
    calls = {"ours": lambda: program(x), "onnxruntime": lambda: peer(x)}
    if before.exists():
        plain, _ = session_of(before, threads)
        calls["float32"] = lambda: plain(x)
    results = {n: np.asarray(call()).reshape(-1) for n, call in calls.items()}
    got, want, real = (results.get(n) for n in ("ours", "onnxruntime", "float32"))
    times = in_turn(calls, threads)
    error = lambda y: None if real is None else float(np.linalg.norm(y - real) / np.linalg.norm(real))
    report = program.report
    return {
        "us": {n: float(np.percentile(t, 25)) for n, t in times.items()}, "runs": report.runs, "seconds": round(seconds, 1),
        "ratio": {n: median(a / b for a, b in zip(t, times["ours"])) for n, t in times.items()},
        "differing": float((got != want).mean()), "largest": float(np.abs(got - want).max() / np.abs(want).max()),
        "errors": {"ours": error(got), "onnxruntime": error(want)}, "budget": budget,
        "kernels": [[k.name, k.count, round(k.us, 1)] for k in report.kernels],
    }  # fmt: skip


def rendered(found: dict[str, Any], title: str, doc: str) -> str:
    """The results as Markdown, under a title and the second paragraph of a benchmark's docstring."""
    lines = [f"# {title}", "", doc.split("\n\n")[1].replace("\n", " ").strip(), "",
             f"{found['machine']}.", "",
             "| model, batch 1 | threads | ours, ms | ONNX Runtime, ms (times ours) | ONNX Runtime in float32, ms (times ours) | results that differ from ONNX"
             " Runtime's; largest difference | error against float32: ours, ONNX Runtime | runs | optimize, s; load | commit, date |",
             "|" + "---|" * 10]  # fmt: skip
    for r in found["rows"].values():
        cells = [
            f"{r['us'][n] / 1e3:.2f} ({r['ratio'][n]:.2f})" if n in r["us"] else "" for n in ("onnxruntime", "float32")
        ]
        errors = ", ".join("" if e is None else f"{e:.3f}" for e in r["errors"].values())
        lines.append(
            f"| {r['title']} | {r['threads']} | {r['us']['ours'] / 1e3:.2f} | {' | '.join(cells)} | {100 * r['differing']:.1f} %; {r['largest']:.1e} | "
            f"{errors} | {r['runs']} | {r['seconds']}; {r['load']:.0f} | {r['at']} |"
        )
    parts = lambda r: ", ".join(f"{name} x{count}" for name, count, _ in r["kernels"])
    lines += ["", *(f"- {r['title']}, {r['threads']} threads: {parts(r)}" for r in found["rows"].values())]
    return "\n".join(lines) + "\n"


def run(
    models: dict[str, Any], formats: dict[str, str], make: Callable[[Path, str], None], file: str, title: str, doc: str
) -> None:
    """Parse the command line, make models, measure them one after another, store and render after each."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", action="store_true", help="write the models")
    parser.add_argument("--models", nargs="*", default=list(models), choices=list(models), metavar="NAME")
    parser.add_argument("--formats", nargs="*", default=list(formats), choices=list(formats), metavar="FORMAT")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each optimization")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / file)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True, parents=True)
    for name in options.models if options.make else ():
        make(options.folder, name)
    from benchmarks.common import in_process
    from benchmarks.run import commit
    from tensor_graphs.costdb.keys.device import device_key

    raw = options.out / f"raw/{file}.json"
    raw.parent.mkdir(exist_ok=True, parents=True)
    found: dict[str, Any] = json.loads(raw.read_text()) if raw.exists() else {"rows": {}}
    found["machine"] = device_key()
    for name, form, threads in [(m, f, t) for m in options.models for f in options.formats for t in options.threads]:
        load = os.getloadavg()[0]
        try:
            call = f"measure({str(options.folder)!r}, {name!r}, {form!r}, {threads}, {options.budget})"
            row = in_process(name, f"quantized_cnns.{call}", threads, LIMIT_S)
        except RuntimeError as error:
            print(error, flush=True)
            continue
        at = f"{commit()}, {time.strftime('%Y-%m-%d %H:%M')}"
        found["rows"][f"{name} {form} {threads}"] = row | {
            "load": load,
            "at": at,
            "title": f"{name}, {form}",
            "threads": threads,
        }
        raw.write_text(json.dumps(found, indent=1) + "\n")
        (options.out / f"{file}.md").write_text(rendered(found, title, doc))
        times, ratios = ({n: round(v, 2) for n, v in row[key].items()} for key in ("us", "ratio"))
        print(name, form, threads, times, ratios, row["runs"], f"{row['differing']:.4f}", flush=True)


if __name__ == "__main__":
    run(MODELS, FORMATS, make, "quantized_cnns", "Quantized CNNs on a CPU", str(__doc__))
