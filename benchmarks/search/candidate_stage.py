"""CPU seconds of the stage that makes candidate kernels: `python -m benchmarks.search.candidate_stage [NAMES] [--repeat
N] [--parts] [--profile FILE]`.

Each model is rewritten once; then its candidates are made in this process alone, without lowering workers, timers or
measurements, with empty caches each time. Printed are CPU seconds of the stage, the number of
candidates, and a digest of them (kernel, operand types and layouts, candidate schedules): a change of speed leaves the
digest as it is. `--parts`: also of `lower` (terms to kernel IR), `rank` (finding and ranking schedules), `emit`
(whether the first schedule can be emitted), `rest` (growing fusion groups, matching, binding); the clock itself takes
time. Models of a GPU are those of an H200, which need not be there. `--profile` writes the functions that take most
time.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import math
import os
import pstats
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from tensor_graphs.backends.generate import template
from tensor_graphs.backends.generate.generator import KernelGenerator
from tensor_graphs.backends.generate.lowering_pool import LowerPool
from tensor_graphs.backends.generate.strategy import StrategyEmitter
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.registry import select
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.memo import forget
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.sources.source import as_graph
from tensor_graphs.pipeline.stages.match import match_kernels
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.rewrite import rewrite

from ..decoding.search import config_of, decode_graph
from ..fingerprint import GPU, digest

FUNCTIONS = 60  # lines of a profile


def peer(title: str, narrow: bool) -> Graph:
    """Graph of a model of peer_models.py; `narrow`: in bfloat16."""
    from ..models.peer_models import build

    module, inputs = build(title)
    return as_graph(module.bfloat16() if narrow else module, inputs)


#: name -> (backend, maker of the graph)
MODELS: dict[str, tuple[str, Callable[[], Graph]]] = {
    "gpt2": ("gpu", lambda: peer("GPT-2, 4 layers, T 128, with lm_head", True)),
    "llama-step": ("gpu", lambda: decode_graph(config_of("llama-1b", 3))),
    "gemma-step": ("gpu", lambda: decode_graph(config_of("gemma-270m", 7))),
    "resnet50": ("auto", lambda: peer("ResNet-50", False)),
    "bert": ("auto", lambda: peer("BERT-base, 4 layers, T 128", False)),
}


class Parts:
    """CPU seconds of functions of lowering, by part. A part does not contain others."""

    def __init__(self) -> None:
        self.seconds = {"lower": 0.0, "rank": 0.0, "emit": 0.0}

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose CPU seconds are added to a part."""

        def call(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*given, **named)
            finally:
                self.seconds[part] += time.process_time() - began

        return call

    def installed(self) -> ExitStack:
        """Context in which the parts are timed."""
        stack, kernel = ExitStack(), template.GeneratedKernel
        for owner, name, part in (
            (kernel, "_read", "lower"),
            (kernel, "_space", "rank"),
            (StrategyEmitter, "emits", "emit"),
        ):
            stack.enter_context(mock.patch.object(owner, name, self.timed(part, getattr(owner, name))))
        return stack


def described(candidate: Any) -> str:
    """Text of a candidate: kernel, operands, outputs and candidate schedules."""
    kernel, call = candidate.template, candidate.call
    places = ", ".join(f"{n}:{o.type}{list(o.strides)}" for n, o in call.buffers.items())
    schedules = [sorted(s.items()) for s in kernel.space(call)] if kernel.space is not None else []
    return (
        f"{kernel.backend} {kernel.name} {kernel.identity} ({places}) {candidate.inputs} {candidate.output} {schedules}"
    )


def main() -> None:
    """Parse the command line; print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], default=list(MODELS))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TENSOR_GRAPHS_GPU", GPU)
    for name in options.names:
        backend, source = MODELS[name]
        for run in range(options.repeat):
            with ExitStack() as stack:
                if backend == "gpu":
                    for one in (TorchCudaBackend, KernelGenerator):
                        stack.enter_context(mock.patch.object(one, "unavailable", lambda self: ""))
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                if run == 0:
                    session = Session(
                        Options(backend=backend, budget=math.inf, deterministic=True, costdb=Path(folder))
                    )
                    view = rewrite(session, prepare(session, source(), None).work).view
                session = Session(Options(backend=backend, budget=math.inf, deterministic=True, costdb=Path(folder)))
                session.lowerings.pool = LowerPool(0)
                forget()
                gc.collect()
                parts, profile = Parts(), cProfile.Profile()
                if options.parts:
                    stack.enter_context(parts.installed())
                if options.profile is not None:
                    profile.enable()
                began = time.process_time()
                found = match_kernels(session, view, select(backend), lambda: False, lambda bound: False)
                seconds = time.process_time() - began
                profile.disable()
            rest = seconds - sum(parts.seconds.values())
            shown = ", ".join(f"{part} {s:.2f}" for part, s in {**parts.seconds, "rest": rest}.items())
            shown = f" ({shown})" if options.parts else ""
            texts = digest("\n".join(map(described, found.candidates)))
            print(
                f"{name}: {seconds:.2f} CPU s{shown}, {len(view)} e-classes, {len(found.candidates)} candidates, {texts}",
                flush=True,
            )
            if options.profile is not None:
                with options.profile.open("a") as out:
                    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(FUNCTIONS)
                    pstats.Stats(profile, stream=out).sort_stats("cumulative").print_stats(2 * FUNCTIONS)


if __name__ == "__main__":
    main()
