"""Fuzzing the readers of files: `python -m tests.fuzz.readers READER [--seconds S] [--seed N] [--guided]`.

A reader must return, or raise a TensorGraphsError, within 10 s of CPU time and 2 GiB for each file. All else is a
finding: it is printed with its traceback once for each place that raises it, and the file is kept under --keep. Every
minute and at the end a line says how many files were read, what was covered (with --guided) and how many findings there
are; the exit code is 1 if there were any.

Without --guided, files come from the generator in hostile.py. With it, atheris (a coverage-guided fuzzer, `pip install
atheris`) chooses among its mutations and those of the generator by what they reach in this package.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from .hostile import LONGEST, corpus, hostile

SECONDS, WAIT_S, BYTES = 10.0, 60.0, 2 << 30  # of CPU time, on the clock of a busy machine, and of memory, for one file
#: Modules whose coverage guides the damage: those that read files.
COVERED = [
    f"tensor_graphs.{name}"
    for name in (
        "plain", "models", "costdb", "egraph", "explorer.egraph_file", "explorer.egraph_record", "pipeline.stages.provenance", "cli.explain", "extract.solve", "backends.tuning.jobs",
        "backends.generate.kernel_text", "backends.program", "rules.files", "rules.text",
    )
]  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """Good files, made in an empty folder, and reading of one that may be hostile, in a folder of its own."""

    good: Callable[[Path], list[bytes]]
    read: Callable[[Path, bytes], None]


# ---------------------------------------------------------------- good files and their readers
def _graph(seed: int = 0) -> Any:
    import numpy as np

    import tensor_graphs as tg
    from tensor_graphs.egraph.ir.graph import Graph

    rng = np.random.default_rng(seed)
    n = tg.dim("n", max=64)
    x, w = tg.input("x", (n, 8)), tg.param("w", (8, 8))
    y = tg.softmax(tg.reshape(x @ w, (n, 2, 4)) + np.arange(4, dtype=np.float32), axis=-1)
    outputs = {"a": y, "b": tg.sum(x, axis=0)} if seed else (y,)
    return Graph.of(outputs, params={"w": rng.standard_normal((8, 8)).astype(np.float32)}, name=f"g{seed}")


def _good_safetensors(folder: Path) -> list[bytes]:
    import numpy as np

    from tensor_graphs.models.files.native import save_graph
    from tensor_graphs.models.files.safetensors import write_arrays

    for seed in (0, 1):
        save_graph(_graph(seed), folder / f"{seed}.safetensors")
    write_arrays(
        folder / "w.safetensors", {"a": np.ones((2, 3), np.float16), "b": np.zeros(0, np.int8)}, {"format": "pt"}
    )
    return [p.read_bytes() for p in sorted(folder.glob("*.safetensors"))]


def _read_safetensors(folder: Path, content: bytes) -> None:
    from tensor_graphs.models.files.safetensors import read_header
    from tensor_graphs.models.load import load

    path = folder / "m.safetensors"
    path.write_bytes(content)
    for array in read_header(path).tensors.values():
        array.load()
    load(path)


def _good_onnx(folder: Path) -> list[bytes]:
    import onnx
    from onnx import TensorProto, helper

    def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]) -> bytes:
        graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made)
        return bytes(made.SerializeToString())

    value = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    w = helper.make_tensor("w", TensorProto.FLOAT, (4, 4), [0.5] * 16)
    shape = helper.make_tensor("s", TensorProto.INT64, (2,), [-1, 2])
    mlp = model([helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["r"]), helper.make_node("Softmax", ["r"], ["y"], axis=1)],
                [value("x", "n", 4)], [value("y", "n", 4)], [w])  # fmt: skip
    views = model([helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]),
                   helper.make_node("ReduceSum", ["t"], ["y"], keepdims=0)], [value("x", 4, 4)], [value("y")], [shape])  # fmt: skip
    image = helper.make_tensor("k", TensorProto.FLOAT, (2, 1, 3, 3), [0.1] * 18)
    conv = model([helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2])],
                 [value("x", 1, 1, 5, 5)], [value("y", 1, 2, 4, 4)], [image])  # fmt: skip
    return [mlp, views, conv]


def _read_onnx(folder: Path, content: bytes) -> None:
    from tensor_graphs.models.onnx.load import load_onnx

    (folder / "m.onnx").write_bytes(content)
    load_onnx(folder / "m.onnx", max_bytes=1 << 28)


def _good_egraph(folder: Path) -> list[bytes]:
    import gzip

    import tensor_graphs as tg
    from tensor_graphs.explorer.egraph_file import write

    explorer = tg.saturate(_graph(1).bind({"n": 4}), backend="numpy", budget=10.0)
    write(folder / "e.json", explorer)
    plain = (folder / "e.json").read_bytes()
    small = {"nodes": {"a": {"op": "x", "cost": 1.0, "eclass": "0", "children": []}, "b": {"op": "f", "cost": 2, "eclass": "1", "children": ["a", "a"]}},
             "root_eclasses": ["1"], "class_data": {"2": {}}}  # fmt: skip
    return [plain, json.dumps(small).encode(), gzip.compress(json.dumps(small).encode(), mtime=0)]


def _read_egraph(folder: Path, content: bytes) -> None:
    from tensor_graphs.explorer.egraph_file import read
    from tensor_graphs.extract.solve.solve import solve

    path = folder / "e.json"
    path.write_bytes(content)
    found = read(path)
    if found.record is not None:
        found._view(found.record, found._model(found.record))
    if found.problem.n_nodes < 50:
        solve(found.problem, method="greedy")


PARTS = ("manifest.json", "report.json", "origin.safetensors", "weights.safetensors", "program.py")


def _good_program(folder: Path) -> list[bytes]:
    import tensor_graphs as tg

    tg.optimize(_graph(1), dims={"n": 4}, backend="numpy", measure=False, budget=10.0).save(folder / "p")
    return [bytes([i]) + (folder / "p" / part).read_bytes() for i, part in enumerate(PARTS)]


def _read_program(folder: Path, content: bytes) -> None:
    from tensor_graphs.backends.program.saved_program import load_program
    from tensor_graphs.cli.explain import _explain_program
    from tensor_graphs.egraph.ir.structure import filled
    from tensor_graphs.pipeline.stages.provenance import read_origin

    path = folder / PARTS[content[0] % len(PARTS)] if content else folder / PARTS[0]
    whole = path.read_bytes()
    try:
        path.write_bytes(content[1:])
        program = load_program(folder, device="cpu")
        filled(program.manifest.structure, [0] * len(program.manifest.outputs))
        for name in program._weights:
            program._weights[name]
        repr(program), program.memory(), _explain_program(folder), read_origin(folder)
    finally:
        path.write_bytes(whole)


def _good_shards(folder: Path) -> list[bytes]:
    from tensor_graphs.costdb.keys.key import KernelKey
    from tensor_graphs.costdb.store.schema import FailureRow, TimingRow, to_table
    from tensor_graphs.costdb.store.shards import encode

    key = lambda name: KernelKey(name, name, "f", "b", "e", "s", device="d")
    rows = [
        TimingRow(key=key("a"), samples=(1.0, 2.0)),
        FailureRow(key=key("b"), stage="run", status="crash", message="x"),
    ]
    return [encode(to_table(rows)), encode(to_table(rows[:1]))]


def _read_shards(folder: Path, content: bytes) -> None:
    from tensor_graphs.costdb.store import schema
    from tensor_graphs.costdb.store.store import shards

    path = folder / f"{sha256(content).hexdigest()}.parquet"
    path.write_bytes(content)
    try:
        schema.checked(shards.read(path))
    except shards.BadShard:
        pass
    finally:
        path.unlink()


def _good_rules(folder: Path) -> list[bytes]:
    from tensor_graphs.rules import ALL

    own = [f"{r.name}: {r.left} => {r.right}" + (f" if {' and '.join(r.when)}" if r.when else "") for r in ALL[:60]]
    tensat = "(matmul ?activation ?a (matmul ?activation ?b ?c))==>(matmul ?activation (matmul ?activation ?a ?b) ?c)"
    return ["\n".join(own).encode(), tensat.encode(), "\n".join(own[:3]).encode()]


def _read_rules(folder: Path, content: bytes) -> None:
    from tensor_graphs.cli.console import text_of
    from tensor_graphs.rules.files.rule_file import read

    (folder / "r.txt").write_bytes(content[: 1 << 14])
    read(text_of(folder / "r.txt"))


def _good_jobs(folder: Path) -> list[bytes]:
    import tensor_graphs as tg
    from tensor_graphs.backends.tuning.jobs import write_jobs

    found = tg.saturate(_graph(1).bind({"n": 4}), backend="numpy", budget=10.0).choice.hypergraph.candidates
    for name in ("j.jsonl", "j.parquet"):
        write_jobs(folder / name, found[:20])
    return [(folder / name).read_bytes() for name in ("j.jsonl", "j.parquet")]


def _read_jobs(folder: Path, content: bytes) -> None:
    from tensor_graphs.backends.tuning.jobs import read_job, read_jobs
    from tensor_graphs.errors import TensorGraphsError

    path = folder / ("j.parquet" if content.startswith(b"PAR1") else "j.jsonl")
    path.write_bytes(content)
    for job in read_jobs(path):
        if not isinstance(job, str):
            with contextlib.suppress(TensorGraphsError):
                read_job(job)


CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 11,
    "n_positions": 8,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "architectures": ["GPT2LMHeadModel"],
}


def _good_checkpoint(folder: Path) -> list[bytes]:
    from tensor_graphs.models.random_checkpoints import write_checkpoint

    write_checkpoint(folder, CONFIG)
    index = {"metadata": {}, "weight_map": {"wte.weight": "model.safetensors"}}
    files = [
        (folder / "config.json").read_bytes(),
        (folder / "model.safetensors").read_bytes(),
        json.dumps(index).encode(),
    ]
    return [bytes([i]) + content for i, content in enumerate(files)]


def _read_checkpoint(folder: Path, content: bytes) -> None:
    from tensor_graphs.models.huggingface.load import load_folder

    path = folder / ("config.json", "model.safetensors", "model.safetensors.index.json")[(content or b"\0")[0] % 3]
    whole = path.read_bytes() if path.exists() else None
    try:
        path.write_bytes(content[1:])
        load_folder(folder)
    finally:
        path.unlink() if whole is None else path.write_bytes(whole)


def _good_gguf(folder: Path) -> list[bytes]:
    import numpy as np
    from tests.models.gguf_files import file_of

    rng = np.random.default_rng(0)
    about = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 16, "llama.embedding_length": 32,
        "llama.feed_forward_length": 64, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0, "tokenizer.ggml.tokens": ["a", "b", "c"],
    }  # fmt: skip
    shapes = {
        "token_embd": (3, 32), "output": (3, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,),
        "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32), "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
    }  # fmt: skip
    plain = {f"{n}.weight": (s, 0, rng.standard_normal(s).astype(np.float32).tobytes()) for n, s in shapes.items()}
    packed = {
        n: (s, 8, b"\0<" * 17 * (s[0] * s[-1] // 32)) if len(s) == 2 else (s, 0, c) for n, (s, _, c) in plain.items()
    }
    return [file_of(about, plain), file_of(about, packed)]


def _read_gguf(folder: Path, content: bytes) -> None:
    from tensor_graphs.models.files.gguf import read_gguf
    from tensor_graphs.models.load import load

    path = folder / "m.gguf"
    path.write_bytes(content)
    read_gguf(path)
    graph = load(path)
    for name, data in graph.params.items():
        assert name and data.shape


#: By name; the suffix of a model format without its dot is the name of its reader.
READERS = {
    "gguf": Reader(_good_gguf, _read_gguf),
    "onnx": Reader(_good_onnx, _read_onnx),
    "safetensors": Reader(_good_safetensors, _read_safetensors),
    "egraph": Reader(_good_egraph, _read_egraph),
    "program": Reader(_good_program, _read_program),
    "shards": Reader(_good_shards, _read_shards),
    "rules": Reader(_good_rules, _read_rules),
    "jobs": Reader(_good_jobs, _read_jobs),
    "checkpoint": Reader(_good_checkpoint, _read_checkpoint),
}


# ---------------------------------------------------------------- one file
def prepared(name: str, folder: Path) -> list[bytes]:
    """A reader's good files: those that a parent made, else made now in `folder`."""
    made = folder.parent / "good"
    if not made.is_dir():
        return READERS[name].good(folder)
    return [p.read_bytes() for p in sorted(made.iterdir())]


@dataclass
class Bench:
    """Reads files one after the other and keeps what is wrong: place -> what was said of the first file."""

    name: str
    folder: Path
    keep: Path | None = None
    findings: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.reader = READERS[self.name]
        self.good = prepared(self.name, self.folder)
        inner = self.folder / "p"
        self.place = inner if inner.is_dir() else self.folder

    def warm(self, content: bytes) -> None:
        """Read a good file, so that everything is imported; whatever time that takes."""
        from tensor_graphs.errors import TensorGraphsError

        with contextlib.suppress(TensorGraphsError):
            self.reader.read(self.place, content)

    def read(self, content: bytes) -> str:
        """What is wrong with how a file is read; empty if it is read or refused."""
        from tensor_graphs.errors import TensorGraphsError

        self.count += 1
        begin = time.process_time()
        try:
            with _in_time():
                self.reader.read(self.place, content)
        except TensorGraphsError as error:
            words = "" if error.exit_code != 1 else traceback.format_exc(limit=-6)
        except Exception:
            words = traceback.format_exc(limit=-6)
        else:
            words = ""
        if not words and (took := time.process_time() - begin) > SECONDS:
            words = f"took {took:.0f} s"
        if words:
            self._note(content, words)
        return words

    def _note(self, content: bytes, words: str) -> None:
        where = "|".join(
            re.findall(r'File ".*?([^/"]+)", line (\d+)', words)[-1:][0] if "File" in words else [words[:20]]
        )
        if where in self.findings:
            return
        self.findings[where] = words
        if self.keep is not None:
            self.keep.mkdir(parents=True, exist_ok=True)
            (self.keep / f"{self.name}-{sha256(content).hexdigest()[:12]}").write_bytes(content)
            print(f"FINDING {self.name} at {where}\n{words}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Context manager that raises TimeoutError if its block takes too long."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {WAIT_S:g} s")

    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, WAIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def bounded_memory() -> None:
    """From here on this process gets 2 GiB more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES,) * 2)


# ---------------------------------------------------------------- many files
def _child(given: argparse.Namespace, folder: Path) -> None:
    """Read files until the time is up; `current` holds the one under way."""
    warnings.simplefilter("ignore")
    bench_of = lambda: Bench(given.reader, folder, Path(given.keep))
    current = folder.parent / "current"
    if given.guided:
        _guided(given, bench_of, current)
        return
    bench = bench_of()
    for content in bench.good:
        bench.warm(content)
    bounded_memory()
    end = time.monotonic() + given.seconds
    for content in corpus(bench.good, 1 << 60, given.seed):
        if time.monotonic() > end:
            break
        current.write_bytes(content)
        bench.read(content)
        if bench.count % 50 == 0:
            _tell(bench)
    _tell(bench)


def _tell(bench: Bench) -> None:
    print(f"STATE {bench.count} {len(bench.findings)}", file=sys.stderr, flush=True)


def _guided(given: argparse.Namespace, bench_of: Callable[[], Bench], current: Path) -> None:
    import atheris

    bench = bench_of()
    with atheris.instrument_imports(include=COVERED):
        for content in bench.good:
            bench.warm(content)
    bounded_memory()

    def one(content: bytes) -> None:
        current.write_bytes(content)
        bench.read(content)
        if bench.count % 50 == 0:
            _tell(bench)

    def mutated(content: bytes, size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(content, size))
        return hostile(content, rng.choice(bench.good), rng)[:size]

    seeds = current.parent / "corpus"
    seeds.mkdir(exist_ok=True)
    for i, content in enumerate(bench.good):
        current.write_bytes(content)
        (seeds / f"{i}").write_bytes(content)
    arguments = [f"-max_total_time={int(given.seconds)}", f"-max_len={min(LONGEST, 1 << 17)}", f"-seed={given.seed + 1}", "-rss_limit_mb=0",
                 f"-artifact_prefix={given.keep}/", "-timeout=60", str(seeds)]  # fmt: skip
    atheris.Setup([sys.argv[0], *arguments], one, custom_mutator=mutated)
    atheris.Fuzz()


@dataclass
class Seen:
    """What a child has told: files read, coverage in libFuzzer's edges, findings, and its last words."""

    count: int = 0
    covered: str = "-"
    findings: int = 0
    last: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """Take in a line of the child's."""
        if found := re.match(r"STATE (\d+) (\d+)", line):
            self.count, self.findings = int(found[1]), int(found[2])
        elif found := re.search(r"#(\d+)\s.*cov: (\d+)", line):
            self.count, self.covered = max(self.count, int(found[1])), found[2]
        else:
            self.last = [*self.last[-30:], line]
            if line.startswith(("FINDING", "Traceback", "  ", "Error")) or "Error" in line:
                print(line, end="", flush=True)


def main() -> int:
    """Run the command line that the module describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=list(READERS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    parser.add_argument("--keep", default="fuzz-findings", help="folder of the files that are findings")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _child(given, Path(given.child))
        return 0
    crashes, seen, begin, told = 0, Seen(), time.monotonic(), time.monotonic()
    total, findings = 0, 0
    warnings.simplefilter("ignore")
    Path(given.keep).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="readers-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as scratch:
        os.environ["TENSOR_GRAPHS_HOME"] = str(Path(scratch) / "home")
        (Path(scratch) / "made").mkdir()
        good = READERS[given.reader].good(Path(scratch) / "made")
        (Path(scratch) / "good").mkdir()
        for i, content in enumerate(good):
            (Path(scratch) / "good" / f"{i:03}").write_bytes(content)
        begin = time.monotonic()
        while (left := given.seconds - (time.monotonic() - begin)) > 1 and crashes < 20:
            shutil.rmtree(Path(scratch) / "work", ignore_errors=True)
            shutil.copytree(Path(scratch) / "made", Path(scratch) / "work")
            command = [sys.executable, "-m", __spec__.name, given.reader, "--seconds", str(left), "--seed", str(given.seed + crashes), "--keep", given.keep,
                       *(["--guided"] if given.guided else []), "--child", str(Path(scratch) / "work")]  # fmt: skip
            with subprocess.Popen(
                command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, errors="replace"
            ) as child:
                assert child.stderr is not None
                for line in child.stderr:
                    seen.hear(line)
                    if time.monotonic() - told > 60:
                        told = time.monotonic()
                        print(f"{given.reader}: {total + seen.count} files, coverage {seen.covered}, {findings + seen.findings} findings", flush=True)  # fmt: skip
            total, findings = total + seen.count, findings + seen.findings
            seen.count = seen.findings = 0
            if child.returncode == 0:
                break
            crashes += 1
            findings += 1
            Path(given.keep).mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copy(Path(scratch) / "current", Path(given.keep) / f"{given.reader}-crash-{crashes}")
            print(f"CRASH {given.reader}: exit code {child.returncode}\n{''.join(seen.last[-8:])}", flush=True)
    took = time.monotonic() - begin
    print(f"{given.reader}: {total} files in {took:.0f} s, coverage {seen.covered}, {findings} findings", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
