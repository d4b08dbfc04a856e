"""Text generation end to end, as a user runs it: `python -m benchmarks.decoding.generate NAMES [--budget S] [--new N]
[--quantize F] [--runs N] [--limit S] [--to FILE]`.

For each model of `llm.py` a folder with random weights is written. Then processes of `tensor-graphs generate
FOLDER --prompt-tokens ... --json` run one after another with one home: the first searches the programs, `--runs`
others find their plans. Rows: seconds until the answer (checks may follow it) and of the process, of its programs,
from the prompt to the first token, tokens per second and the share of the device's bandwidth. Beside them, on a GPU:
the same folder by `transformers` if it is installed (`peer`: "transformers"), and the same sizes in plain PyTorch
layers with static caches: launched from the host, the step in a CUDA graph, and compiled ("reduce-overhead"); with
`--runs -1` the peers alone. Each model's folder is deleted afterwards, unless it is kept. What `--limit` leaves no
time for is named.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensor_graphs.models.files.safetensors import write_arrays
from tensor_graphs.models.random_checkpoints import random_checkpoint

from .llm import CONFIGS, LENGTH, Repeated

PROMPT = 48  # tokens
LEAST = 10.0  # seconds below which a process is not begun
FIELDS = ("first_token_s", "tokens_per_second", "bandwidth_share", "programs", "end")


def written(folder: Path, name: str) -> Path:
    """Write a model's folder: config.json and safetensors with random weights; returns the folder."""
    folder.mkdir(parents=True)
    arrays = {n: Repeated(w) for n, w in random_checkpoint(CONFIGS[name]).items()}  # type: ignore[arg-type]
    write_arrays(folder / "model.safetensors", arrays, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    return folder


def prompt(name: str) -> list[int]:
    """Token ids of the prompt."""
    vocabulary = int(CONFIGS[name]["vocab_size"])
    return [(7919 * i + 13) % vocabulary for i in range(PROMPT)]


def generated(folder: Path, name: str, options: argparse.Namespace, home: str, seconds: float) -> dict[str, Any]:
    """Figures of one process of the command; an error in their place if it fails or takes longer than `seconds`."""
    command = [sys.executable, "-m", "tensor_graphs", "generate", str(folder), "--json", "--max-length", str(LENGTH)]
    command += ["--prompt-tokens", ",".join(map(str, prompt(name))), "--max-new-tokens", str(options.new)]
    command += ["--verbose"] if options.stages else []
    command += ["--budget", str(options.budget), *(("--quantize", options.quantize) if options.quantize else ())]
    begun = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env={**os.environ, "TENSOR_GRAPHS_HOME": home}
        ) as process,
    ):
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        assert process.stdout is not None
        text = process.stdout.read(1)
        answered = time.perf_counter() - begun
        text += process.stdout.read()
        timer.cancel()  # before its id may name another process
        code = process.wait()
        said.seek(0)
        stages = said.read()
    took = {"answer_s": round(answered, 2), "process_s": round(time.perf_counter() - begun, 2)}
    if options.stages:
        print(stages, flush=True)
    if code:
        return {"error": (stages or text)[-600:], **took}
    answer = json.loads(text)
    return {**took, **{k: answer[k] for k in FIELDS}, "count": len(answer["tokens"])}


def by_transformers(folder: Path, name: str, new: int) -> dict[str, Any]:
    """Figures of `transformers` for the same folder, prompt and number of tokens, the second call of two."""
    import torch

    model = import_module("transformers").AutoModelForCausalLM.from_pretrained(folder, torch_dtype="auto").to("cuda")
    ids = torch.tensor([prompt(name)], device="cuda")

    def seconds(count: int) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False)
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    seconds(4)
    first = seconds(1)
    return {"peer": "transformers", "first_token_s": first, "tokens_per_second": (new - 1) / (seconds(new) - first)}


def by_plain_layers(name: str, new: int) -> Iterator[dict[str, Any]]:
    """Figures of plain PyTorch layers with static caches (peers.py), the second generation of two, in turn: launched
    from the host, the step in a CUDA graph, the step compiled in the mode "reduce-overhead". Tokens stay on the
    device until the last."""
    import torch

    from .peers import Decoder, captured

    decoder = Decoder(CONFIGS[name], 1, LENGTH)
    gpu, device = decoder.device == "cuda", decoder.device
    wait = torch.cuda.synchronize if gpu else lambda: None
    ids, at = (torch.zeros(shape, dtype=torch.int64, device=device) for shape in ((1, 1), (1,)))
    given = torch.tensor([prompt(name)], device=device)

    def recorded() -> Callable[[], object]:
        def step() -> None:
            ids.copy_(decoder.step(ids, at))
            at.add_(1)

        return captured(torch, step)

    def launched(step: Callable[[Any, Any], Any]) -> Callable[[], object]:
        def one() -> None:
            ids.copy_(step(ids, at))
            at.add_(1)

        return one

    ways: dict[str, Callable[[], Callable[[], object]]] = {"eager": lambda: launched(decoder.step)}
    if gpu:
        fast = torch.compile(decoder.step, mode="reduce-overhead", dynamic=False, fullgraph=True)
        ways |= {"eager step in a CUDA graph": recorded, "reduce-overhead": lambda: launched(fast)}
    for way, make in ways.items():
        with torch.inference_mode():
            step = make()
            for _ in range(2):
                wait()
                begun = time.perf_counter()
                ids.copy_(decoder.prefill(given))
                first = int(ids)
                at.fill_(PROMPT)
                middle, tokens = time.perf_counter(), [first]
                found = torch.zeros(new, dtype=torch.int64, device=device)
                for n in range(new - 1):
                    step()
                    found[n : n + 1].copy_(ids[0])
                tokens += found.tolist()
                end = time.perf_counter()
        yield {"peer": way, "first_token_s": middle - begun, "tokens_per_second": (new - 1) / (end - middle)}


def peers(folder: Path, name: str, options: argparse.Namespace, seconds: float) -> Iterator[dict[str, Any]]:
    """Figures of the peers, in a process of its own, as they come; those that are done within `seconds`."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.decoding.generate",
        name,
        "--peer",
        str(folder),
        "--new",
        str(options.new),
    ]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True) as process,
    ):
        late = threading.Event()

        def end() -> None:  # with its compilers, which hold the pipe as well
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds, end)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield dict(json.loads(line))
        timer.cancel()  # before its id may name another process
        code = process.wait()
        said.seek(0)
        if code:
            yield {"error": f"not done in {seconds:.0f} s" if late.is_set() else said.read()[-400:]}


def rows(name: str, options: argparse.Namespace, left: float) -> list[dict[str, Any]]:
    """All rows of a model, printed as they come, within `left` seconds."""
    end, found = time.monotonic() + left, list[dict[str, Any]]()

    def add(what: str, make: Callable[[float], Iterable[dict[str, Any]]]) -> None:
        seconds = end - time.monotonic()
        for row in make(seconds) if seconds >= LEAST else [{"error": "no time was left"}]:
            found.append({"model": name, "what": what, **row})
            print(json.dumps(found[-1]), flush=True)

    with nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory() as top:
        begun = time.perf_counter()
        alone = options.runs < 0 and find_spec("transformers") is None  # of peers that read no folder
        folder = Path(top) / "model" if alone else written(Path(top) / "model", name)
        print(f"{name}: folder written in {time.perf_counter() - begun:.1f} s", flush=True)
        for n in range(1 + options.runs):
            what = "first process" if n == 0 else "later process"
            add(what, lambda seconds: [generated(folder, name, options, f"{top}/home", seconds)])
        if not options.no_peer:
            add("peer", lambda seconds: peers(folder, name, options, seconds))
    return found


def main() -> None:
    """Parse the command line and measure each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=sorted(CONFIGS))
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of search for the decode program")
    parser.add_argument("--new", type=int, default=256, help="number of new tokens")
    parser.add_argument("--quantize", default="", help="format of the weights, if not the folder's")
    parser.add_argument("--runs", type=int, default=2, help="processes after the first one")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of the whole run")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--stages", action="store_true", help="print what the processes say to standard error")
    parser.add_argument(
        "--keep", type=Path, help="folder for the model and the processes' home, otherwise a temporary one"
    )
    parser.add_argument("--to", type=Path, help="write the rows as JSON")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer is not None:
        installed = find_spec("transformers") is not None
        for row in [by_transformers(options.peer, options.names[0], options.new)] if installed else []:
            print(json.dumps(row), flush=True)
        for row in by_plain_layers(options.names[0], options.new):
            print(json.dumps(row), flush=True)
        return
    end, found = time.monotonic() + options.limit, list[dict[str, Any]]()
    for name in options.names:
        found += rows(name, options, end - time.monotonic())
    if options.to:
        options.to.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
