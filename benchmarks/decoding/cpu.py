"""Decoding of a language model on a CPU beside ONNX Runtime, in turns: `python -m benchmarks.decoding.cpu [kernels]
[step] [--threads N] [--forms ...]`.

The model has the sizes of Qwen2-0.5B, random weights, and an output matrix apart from the embedding. Parts:

- `kernels`: products of one row (`--rows N`) with each matrix, packed (int4, int8) and bfloat16: the generated C
  kernel, ONNX Runtime's MatMulNBits (activations in int8: accuracy level 4; of int4 also in float32: level 1),
  PyTorch's bfloat16 product. µs, GB/s of the weight's bytes, and GB/s as a share of those of a plain pass over the
  same bytes.
- `step`: a whole decode step after half of the caches, for each of `--forms` of weights: this library's program, and
  the same layers in ONNX Runtime (GroupQueryAttention with float32 caches; MatMulNBits for int4 and int8, MatMul of
  float32 for float32 and bfloat16, of which it has no product on a CPU), float32 and bfloat16 also in PyTorch, eager
  and compiled (torch_step.py), with `--ggml FOLDER` in ggml (ggml.c; Q4_0
  and Q8_0), the library of llama.cpp, whose source and build lie in FOLDER and FOLDER/b.

Rivals run in turns, and each has its fastest run: other processes on the machine only add time. With one thread (the
default) times are CPU times, which other processes disturb less; with `--realtime` (Linux, root) the timed runs have
real-time priority, so that other processes wait for both. Weights rotate through more memory than caches hold. Results:
standard output, and out/bench/llm_cpu.json (BENCH_WORK), with the machine and its load.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..common import WORK

CONFIG: dict[str, Any] = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "max_position_embeddings": 32768, "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
#: Matrix -> (columns of the product, its sum's length).
SHAPES = {"q": (896, 896), "k": (128, 896), "gate": (4864, 896), "down": (896, 4864), "head": (151936, 896)}
FORMS = ("int4", "int8", "bfloat16")
STEPS = (*FORMS, "float32")
LENGTH, BYTES = 1024, 200_000_000  # positions of the caches; bytes of weights that a kernel's runs rotate through
SETTLED, RUNS = 0.1, 3  # of a turn with several threads: seconds before it, runs that count
Call = Callable[[], object]


@contextmanager
def undisturbed(wanted: bool) -> Iterator[None]:
    """Real-time priority for all threads of the process, if wanted. Raises PermissionError where that is not
    allowed."""

    def give(policy: int, priority: int) -> None:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))

    if not wanted:
        yield
        return
    give(os.SCHED_FIFO, 10)
    try:
        yield
    finally:
        give(os.SCHED_OTHER, 0)


def in_turns(calls: dict[str, Call], seconds: float, threads: int = 1, realtime: bool = False) -> dict[str, float]:
    """µs of the fastest run of each call, which take turns for some seconds.

    CPU time with one thread, wall-clock time with several. Idle threads of ONNX Runtime, OpenBLAS and ggml keep their
    cores busy for up to 25 ms: with several threads, each turn waits until they sleep, and its first run, which wakes
    its library's threads, does not count.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for name, call in calls.items():
            if threads > 1:
                time.sleep(SETTLED)
            with undisturbed(realtime):
                if threads > 1:
                    call()
                for _ in range(1 if threads == 1 else RUNS):
                    begun = clock()
                    call()
                    best[name] = min(best[name], clock() - begun)
    return {name: 1e6 * s for name, s in best.items()}


def machine() -> dict[str, Any]:
    """Processor, cores and load of this machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"processor": name, "cores": os.cpu_count(), "load": [round(v, 1) for v in os.getloadavg()]}


# ---------------------------------------------------------------- kernels
def parts_of(form: str, columns: int, length: int, group: int = 128) -> dict[str, np.ndarray[Any, Any]]:
    """Random operands of a weight [columns, length] in a form, with a scale for each `group` numbers of a column, as
    the generated kernel reads them."""
    rng = np.random.default_rng(0)
    if form == "bfloat16":
        return {"w": rng.integers(0x3C00, 0x3C80, (columns, length), np.uint16)}
    size = (columns, length // 2) if form == "int4" else (columns, length)
    codes = rng.integers(0, 255, size, np.uint8)
    return {
        "q": codes if form == "int4" else codes.view(np.int8),
        "scale": np.full((columns, length // group), 0x3C00, np.uint16),
    }


def generated_call(form: str, columns: int, length: int, rows: int = 1, group: int = 128) -> tuple[Call, int]:
    """(the generated C kernel of float32 rows times a weight, over rotating copies; bytes of the weight)."""
    import tensor_graphs.egraph.builders.builders as t
    from tensor_graphs.backends.c.emit.kernel import emit
    from tensor_graphs.backends.c.helpers import c_library
    from tensor_graphs.backends.ir.kernel import Buffer
    from tensor_graphs.backends.lowering.lower import kernel_of
    from tensor_graphs.backends.program.helpers.cpu_helpers import library_text
    from tensor_graphs.extract.model.kernel import contiguous
    from tensor_graphs.models.common import quantization

    parts = parts_of(form, columns, length, group)
    kinds = {n: "bfloat16" if v.dtype == np.uint16 else v.dtype.name for n, v in parts.items()}
    leaves = {n: t.input(n, v.shape, kinds[n]) for n, v in parts.items()}
    weight = leaves["w"] if form == "bfloat16" else quantization.dequantized(form, leaves["q"], leaves["scale"])
    x = t.input("x", (rows, length))
    shapes = {n: (v.shape, kinds[n]) for n, v in parts.items()} | {
        "x": ((rows, length), "float32"),
        "out": ((rows, columns), "float32"),
    }
    kernel = kernel_of(
        t.matmul(x, t.transpose(t.cast(weight, "float32"))), {leaf: n for n, leaf in (*leaves.items(), ("x", x))},
        {n: Buffer(kind, shape, contiguous(shape)) for n, (shape, kind) in shapes.items()},
    )  # fmt: skip
    text = library_text({"product": emit(kernel, "product")})
    function = c_library(text.split('r"""')[1].split('"""')[0]).product
    nbytes = sum(v.nbytes for v in parts.values())
    copies = [parts, *({n: v.copy() for n, v in parts.items()} for _ in range(min(40, BYTES // nbytes)))]
    ends = {
        "x": np.random.default_rng(1).standard_normal((rows, length), np.float32),
        "out": np.empty((rows, columns), np.float32),
    }
    given = [[ctypes.c_void_p({**copy, **ends}[n].ctypes.data) for n in kernel.buffers] for copy in copies]
    return _rotating([lambda g=g, keep=(copies, ends): function(*g) for g in given]), nbytes


def runtime_call(
    form: str, columns: int, length: int, level: int, threads: int, rows: int = 1, group: int = 128
) -> Call:  # fmt: skip
    """ONNX Runtime's MatMulNBits of some rows, over rotating copies, each a model (nodes of one model would run as one
    call).
    """
    from onnx import TensorProto, helper

    bits, rng = (4 if form == "int4" else 8), np.random.default_rng(0)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=length, N=columns, bits=bits,
                            block_size=group, accuracy_level=level)  # fmt: skip
    weights = _packed_initializers(helper, TensorProto, "w", "s", columns, length, bits, rng, group)
    graph = helper.make_graph(
        [node], "product", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, length])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])], weights,
    )  # fmt: skip
    count = 1 + min(40, BYTES // (columns * length * bits // 8))
    sessions = [_session(helper, graph, threads) for _ in range(count)]
    x = {"x": rng.standard_normal((rows, length), np.float32)}
    return _rotating([lambda s=s: s.run(None, x) for s in sessions])


def _packed_initializers(
    helper: Any, kinds: Any, w: str, s: str, columns: int, length: int, bits: int, rng: Any, group: int = 128
) -> list[Any]:
    blocks = length // group
    codes = rng.integers(0, 255, (columns, blocks, group * bits // 8), np.uint8)
    scales = np.full((columns, blocks), 0.02 / 2**bits, np.float32)
    return [
        helper.make_tensor(w, kinds.UINT8, codes.shape, codes.tobytes(), raw=True),
        helper.make_tensor(s, kinds.FLOAT, scales.shape, scales.tobytes(), raw=True),
    ]


def _session(helper: Any, graph: Any, threads: int) -> Any:
    import onnxruntime

    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if threads > 1 else "0")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def torch_call(columns: int, length: int) -> Call:
    """PyTorch's product of a bfloat16 row with a weight [columns, length], over rotating copies."""
    import torch

    weights = [
        torch.randn(columns, length, dtype=torch.bfloat16) for _ in range(1 + min(40, BYTES // (2 * columns * length)))
    ]
    x = torch.randn(1, length, dtype=torch.bfloat16)
    return _rotating([lambda w=w: torch.nn.functional.linear(x, w) for w in weights])


def read_call(nbytes: int) -> Call:
    """One pass over `nbytes` bytes that are not in caches, by NumPy's dot product (memory speed of one thread)."""
    numbers = np.ones(max(nbytes, BYTES) // 4, np.float32)
    count = nbytes // 4
    pieces = [numbers[i : i + count] for i in range(0, numbers.size - count + 1, count)]
    return _rotating([lambda p=p: np.dot(p, p) for p in pieces])


def _rotating(calls: list[Call]) -> Call:
    at = [0]

    def call() -> object:
        at[0] += 1
        return calls[at[0] % len(calls)]()

    return call


def kernels(
    threads: int, seconds: float, names: list[str], realtime: bool = False, count: int = 1, group: int = 128
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of the table of products of `count` rows, for the matrices in `names`; bfloat16 of one row only."""
    rows = []
    for name, (columns, length) in ((n, SHAPES[n]) for n in names):
        for form in FORMS if count == 1 else FORMS[:2]:
            own, nbytes = generated_call(form, columns, length, count, group)
            calls = {"ours": own, "read": read_call(nbytes)}
            if form == "bfloat16":
                calls["torch"] = torch_call(columns, length)
            else:
                levels = {"int8": 4, "float": 1} if form == "int4" else {"int8": 4}
                calls |= {
                    f"onnxruntime-{n}": runtime_call(form, columns, length, v, threads, count, group)
                    for n, v in levels.items()
                }
            us = in_turns(calls, seconds, threads, realtime)
            best = min(v for n, v in us.items() if n not in ("ours", "read"))
            row = {"matrix": name, "form": form, "rows": count, "group": group, "bytes": nbytes, "us": {n: round(v, 1) for n, v in us.items()},
                   "gb_per_s": round(nbytes / us["ours"] / 1e3, 1), "of_reading": round(us["read"] / us["ours"], 2),
                   "times_best_peer": round(best / us["ours"], 2)}  # fmt: skip
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


# ---------------------------------------------------------------- a decode step
def runtime_step(threads: int, layers: int, form: str) -> Call:
    """A decode step of the same layers in ONNX Runtime, with the caches half full."""
    from onnx import TensorProto, helper

    c, rng = CONFIG, np.random.default_rng(0)
    hidden, heads, kv, ffn = (
        c["hidden_size"],
        c["num_attention_heads"],
        c["num_key_value_heads"],
        c["intermediate_size"],
    )
    head = hidden // heads
    nodes: list[Any] = []
    made: list[Any] = [
        helper.make_tensor("gain", TensorProto.FLOAT, [hidden], np.ones(hidden, np.float32).tobytes(), raw=True)
    ]
    angles = np.outer(np.arange(LENGTH), c["rope_theta"] ** (-np.arange(0, head, 2) / head)).astype(np.float32)
    for n, v in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
        made.append(helper.make_tensor(n, TensorProto.FLOAT, v.shape, v.tobytes(), raw=True))
    for n, v in (("seen", [[LENGTH // 2]]), ("total", LENGTH // 2 + 1)):
        array = np.asarray(v, np.int32).reshape(-1 if n == "seen" else ())
        made.append(helper.make_tensor(n, TensorProto.INT32, array.shape, array.tobytes(), raw=True))

    def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> str:
        domain = (
            "com.microsoft" if op in ("MatMulNBits", "GroupQueryAttention", "SkipSimplifiedLayerNormalization") else ""
        )
        nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attrs))
        return outputs[0]

    def product(x: str, name: str, columns: int, length: int) -> str:
        if form not in ("int4", "int8"):
            weight = np.resize(rng.standard_normal(1_000_003, np.float32) * np.float32(0.02), (length, columns))
            made.append(helper.make_tensor(f"{name}.w", TensorProto.FLOAT, weight.shape, weight.tobytes(), raw=True))
            return node("MatMul", [x, f"{name}.w"], [name])
        bits = 4 if form == "int4" else 8
        made.extend(_packed_initializers(helper, TensorProto, f"{name}.w", f"{name}.s", columns, length, bits, rng))
        return node(
            "MatMulNBits",
            [x, f"{name}.w", f"{name}.s"],
            [name],
            K=length,
            N=columns,
            bits=bits,
            block_size=128,
            accuracy_level=4,
        )

    def norm(x: str, other: str, name: str) -> tuple[str, str]:
        node("SkipSimplifiedLayerNormalization", [x, other, "gain"], [name, "", "", f"{name}.sum"], epsilon=1e-6)
        return name, f"{name}.sum"

    x, update, caches = "x", "zero", []
    for i in range(layers):
        y, x = norm(x, update, f"norm{i}")
        q, k, v = (
            product(y, f"{n}{i}", size, hidden) for n, size in (("q", hidden), ("k", kv * head), ("v", kv * head))
        )
        past = [f"past{i}.k", f"past{i}.v"]
        caches += past
        att = node("GroupQueryAttention", [q, k, v, *past, "seen", "total", "cos", "sin"], [f"att{i}", f"new{i}.k", f"new{i}.v"],
                   num_heads=heads, kv_num_heads=kv, do_rotary=1)  # fmt: skip
        y, x = norm(x, product(att, f"o{i}", hidden, hidden), f"norm{i}b")
        gate, up = (product(y, f"{n}{i}", ffn, hidden) for n in ("gate", "up"))
        silu = node("Mul", [gate, node("Sigmoid", [gate], [f"sigmoid{i}"])], [f"silu{i}"])
        update = product(node("Mul", [silu, up], [f"act{i}"]), f"down{i}", hidden, ffn)
    y, _ = norm(x, update, "last")
    logits = product(y, "logits", c["vocab_size"], hidden)
    info = lambda n, shape: helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
    inputs = [info(n, [1, 1, hidden]) for n in ("x", "zero")] + [info(n, [1, kv, LENGTH, head]) for n in caches]
    outputs = [info(logits, [1, 1, c["vocab_size"]])] + [
        info(n.replace("past", "new"), [1, kv, LENGTH, head]) for n in caches
    ]
    session = _session(helper, helper.make_graph(nodes, "step", inputs, outputs, made), threads)
    import onnxruntime

    bound = session.io_binding()
    for n in ("x", "zero"):
        bound.bind_cpu_input(n, rng.standard_normal((1, 1, hidden), np.float32))
    for n in caches:
        cache = onnxruntime.OrtValue.ortvalue_from_numpy(rng.standard_normal((1, kv, LENGTH, head), np.float32))
        bound.bind_ortvalue_input(n, cache)
        bound.bind_ortvalue_output(n.replace("past", "new"), cache)
    bound.bind_output(logits)
    return lambda: session.run_with_iobinding(bound)


def ggml_step(threads: int, layers: int, form: str, folder: Path) -> Call:
    """A decode step of the same layers in ggml; `folder`: llama.cpp's source, built in its folder b."""
    made, place = WORK / "llm_ggml.so", folder.resolve() / "b" / "bin"
    WORK.mkdir(parents=True, exist_ok=True)
    text = Path(__file__).with_name("ggml.c")
    found = [f"-l{name}" for name in ("ggml-base", "ggml-cpu", "ggml")]
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-I", folder / "ggml" / "include", text, "-o", made, "-L", place, *found,
                    f"-Wl,-rpath,{place}"], check=True)  # fmt: skip
    library = ctypes.CDLL(str(made))
    library.step_make.restype, library.step_run.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    kept = library.step_make({"float32": 0, "int4": 2, "int8": 8, "bfloat16": 30}[form], layers, threads)
    return lambda: library.step_run(kept)


def step(
    threads: int, seconds: float, budget: float, layers: int, form: str, ggml: Path | None = None,
    realtime: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Times of a decode step with weights in a form: this library, ONNX Runtime, and ggml if its folder is given."""
    from tensor_graphs.generation import Generator
    from tensor_graphs.models.huggingface.step import Folder
    from tensor_graphs.models.random_checkpoints import random_checkpoint

    from .llm import Repeated, kernel_table, text_table
    from .torch_step import torch_steps

    config = {**CONFIG, "num_hidden_layers": layers, "torch_dtype": "float32" if form == "float32" else "bfloat16"}
    weights = {n: Repeated(w).load() for n, w in random_checkpoint(config).items()}  # type: ignore[arg-type]
    begun = time.perf_counter()
    packed = form if form in ("int4", "int8") else None
    made = Generator(Folder.of(config, weights), budget=budget, max_length=LENGTH, quantize=packed, verify=False)  # type: ignore[arg-type]
    decode = made._programs.decode()
    found = time.perf_counter() - begun
    made._programs.set("length", [LENGTH // 2], "int64")
    nbytes = made._programs.read_bytes()
    report = decode.report
    assert report is not None
    calls = {"ours": decode.flat_near, "onnxruntime": runtime_step(threads, layers, form), "read": read_call(nbytes)}
    if packed is None:
        calls |= torch_steps(config, LENGTH, threads)
    if ggml is not None:
        calls["ggml"] = ggml_step(threads, layers, form, ggml)
    us = in_turns(calls, seconds, threads, realtime)
    print(text_table(kernel_table(report, nbytes / us["read"])), flush=True)
    row = {"form": form, "layers": layers, "bytes": nbytes, "us": {n: round(v) for n, v in us.items()}, "kernels": decode.manifest.kernels,
           "plan_us": round(report.cost_us), "priced": report.priced, "search_s": round(found), "of_reading": round(us["read"] / us["ours"], 2),
           "times_best_peer": round(min(v for n, v in us.items() if n not in ("ours", "read")) / us["ours"], 2)}  # fmt: skip
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Run the parts named on the command line."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    ask.add_argument("parts", nargs="*", choices=["kernels", "step", []])
    ask.add_argument("--threads", type=int, default=1)
    ask.add_argument("--seconds", type=float, default=3.0, help="of each comparison")
    ask.add_argument("--budget", type=float, default=120.0, help="seconds of search of the step")
    ask.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    ask.add_argument("--only", nargs="+", choices=[*SHAPES], default=[*SHAPES], help="matrices of `kernels`")
    ask.add_argument("--rows", type=int, default=1, help="rows of `kernels`")
    ask.add_argument("--group", type=int, default=128, help="numbers of a weight with one scale, of `kernels`")
    ask.add_argument("--forms", nargs="+", choices=STEPS, default=["int4"], help="weights of `step`")
    ask.add_argument("--ggml", type=Path, help="folder of llama.cpp's source with a build in its folder b")
    ask.add_argument("--realtime", action="store_true", help="timed runs at real-time priority (root)")
    options = ask.parse_args()
    os.environ |= dict.fromkeys(
        ("OMP_NUM_THREADS", "TENSOR_GRAPHS_THREADS", "OPENBLAS_NUM_THREADS"), str(options.threads)
    )
    found: dict[str, Any] = {"machine": machine(), "threads": options.threads}
    for part in options.parts or ["kernels", "step"]:
        if part == "kernels":
            given = options.seconds, options.only, options.realtime, options.rows, options.group
            found["kernels"] = kernels(options.threads, *given)
        else:
            found["step"] = [
                step(
                    options.threads,
                    options.seconds,
                    options.budget,
                    options.layers,
                    form,
                    options.ggml,
                    options.realtime,
                )
                for form in options.forms
            ]
        WORK.mkdir(parents=True, exist_ok=True)
        (WORK / "llm_cpu.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
