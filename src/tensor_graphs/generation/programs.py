"""Makes the programs of a generator: steps of a decoder and samplers, over one set of states and one copy of the
weights.

Each program is optimized when it is first needed. States: the caches of the steps; `token` [batch, 1], `length` [batch]
(tokens in the caches), `logits` [batch, vocabulary]; those of the samplers (sampling.py) and of speculative decoding
(speculation_graphs.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..backends.program.program import Program
from ..backends.program.weights import SharedWeights
from ..backends.registry import on_gpu, select
from ..egraph.builders import builders as t
from ..egraph.ir.graph import Graph
from ..models.common.quantized_graph import Known, codes_kept, quantized
from ..models.huggingface.step import Caches, Folder, build_step
from ..options import Options
from ..pipeline.optimize import optimize
from ..pipeline.recall import unchecked
from .sampling import Kind, sampler
from .speculation_graphs import acceptor, follow_graph, proposer, verify_graph

PREFILL, SAMPLE = 0.5, 0.15  # share of the decode program's budget that a prefill program and a sampler have


def host_array(values: Any) -> np.ndarray[Any, Any]:
    """A program's output as an array on the host."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def later_arrays(values: Sequence[Any]) -> Callable[[], list[np.ndarray[Any, Any]]]:
    """Function that returns outputs of one type as arrays on the host. From a GPU they are copied behind the work that
    it has been given so far, and the function waits for that work only, not for what it is given afterwards."""
    if not getattr(values[0], "is_cuda", False):
        found = [np.array(host_array(x)) for x in values]  # the next call may overwrite outputs
        return lambda: found
    torch = sys.modules["torch"]
    with torch.cuda.device(values[0].device):
        stacked = torch.stack(list(values))
        copy = torch.empty(stacked.shape, dtype=stacked.dtype, pin_memory=True)
        copy.copy_(stacked, non_blocking=True)
        done = torch.cuda.Event()
        done.record()

    def taken() -> list[np.ndarray[Any, Any]]:
        done.synchronize()
        return list(copy.numpy())

    return taken


def step_graph(folder: Folder, caches: Caches, tokens: int, *, fresh: bool = False) -> Graph:
    """Graph of a decoder step over `tokens` tokens a row, whose logits and lengths are states (`build_step`). `fresh`:
    all rows begin at position 0.

    With one token there are no inputs: token and length are states. Output: `length` [batch] int64 after the step.
    """
    batch = caches.batch
    if tokens == 1 and not fresh:
        length = t.state("length", (batch,), "int64")
        step = build_step(
            folder.config, folder.weights(), caches, 1, ids=t.state("token", (batch, 1), "int64"), start=length
        )
        after = length + 1
    else:
        step = build_step(folder.config, folder.weights(), caches, tokens, fresh=fresh)
        given = {str(leaf.attr("name")): leaf for leaf in step.inputs}
        after = t.zeros((batch,), "int64")
        for name in ("start", "last"):
            after = after + given[name] if name in given else after
        after = after + 1
    logits = t.cast(step.outputs[0], "float32")
    return replace(
        step, outputs=(after,), names=("length",), structure={"length": 0},
        updates={**step.updates, "logits": logits, "length": after}, name=step.name if tokens == 1 else f"{step.name}-{tokens}",
    )  # fmt: skip


@dataclass(frozen=True)
class QuantizedForm:
    """How weights are quantized: `name` is an encoding of `models/common/quantization.py`; `head`: whether the output
    matrix is quantized as well."""

    name: str
    head: bool = True


@dataclass
class Programs:
    """Programs of a generator by name, made on demand, and the memory that they share.

    `folder`: the model. `vocabulary`: number of tokens. `budget`: seconds to optimize each program. `options`: further
    options of `optimize`. `form`: how weights are quantized (None: not at all).
    """

    folder: Folder
    caches: Caches
    vocabulary: int
    budget: float
    options: Mapping[str, Any]
    states: dict[str, Any] = field(default_factory=dict)
    weights: SharedWeights = field(default_factory=SharedWeights)
    seconds: dict[str, float] = field(default_factory=dict)  # program -> time until it was ready
    form: QuantizedForm | None = None
    quantization: str = ""  # what quantization did, once a step was made
    prefix: str = ""  # of the programs' names in `seconds` and reports
    _made: dict[str, Program] = field(default_factory=dict)
    _graphs: dict[str, tuple[Callable[[], Graph], float]] = field(default_factory=dict)  # of `_program`, by program
    _quantized_weights: Known = field(default_factory=dict)
    _reads: int | None = None  # bytes of weights that a decode step reads whole, once its graph was made

    def prefill(self, tokens: int, *, fresh: bool) -> Program:
        """Program of a prefill step of `tokens` tokens a row (`step_graph`). Inputs: `input_ids`; the first position
        `start` of each row (sequence of the batch) unless `fresh` (all rows begin at position 0); the index `last` of
        each row's last token if `tokens` > 1."""
        name = f"prefill-{tokens}" + ("" if fresh else "-further")
        return self._program(name, lambda: self.step(tokens, fresh=fresh), PREFILL)

    def step(self, tokens: int, *, fresh: bool = False) -> Graph:
        """Graph of a step over `tokens` tokens a row (`step_graph`), with quantized weights if the generator
        quantizes."""
        return self._quantized(step_graph(self.folder, self.caches, tokens, fresh=fresh))

    def _quantized(self, graph: Graph) -> Graph:
        if self.form is None:
            return graph
        names = dict(zip(graph.updates, graph.roots[len(graph.outputs) :], strict=True))
        kept = () if self.form.head else (names["logits" if "logits" in names else "scores"],)
        graph, done = quantized(graph, self.form.name, but=kept, known=self._quantized_weights)
        self.quantization = str(done)
        return graph

    def decode(self) -> Program:
        """Program of a decode step: one further token, without inputs."""
        return self._program("decode", self._decode_graph, 1.0)

    def _decode_graph(self) -> Graph:
        graph = self.step(1)
        self._reads = _read_whole(graph)
        return graph

    def sample(self, kind: Kind) -> Program:
        """Program that chooses tokens from logits, without inputs; its output is [batch] int64."""

        def graph() -> Graph:
            gpu = on_gpu(select(self.options.get("backend")))
            return sampler(kind, self.caches.batch, self.vocabulary, gpu=gpu)

        return self._program(f"sample-{kind}", graph, SAMPLE)

    def follow(self) -> Program:
        """Program of a draft model's first step in a round of speculative decoding (`follow_graph`)."""
        return self._program("follow", lambda: self._quantized(follow_graph(self.folder, self.caches)), PREFILL)

    def verify(self, count: int) -> Program:
        """Program of the large model's step over `count` proposals (`verify_graph`)."""
        graph = lambda: self._quantized(verify_graph(self.folder, self.caches, count))
        return self._program(f"verify-{count}", graph, 1.0)

    def propose(self, kind: Kind, count: int) -> Program:
        """Program that chooses the next token that a draft model proposes, of `count` in a round (`proposer`)."""
        graph = lambda: proposer(kind, self.caches.batch, self.vocabulary, count)
        return self._program(f"propose-{kind}-{count}", graph, SAMPLE)

    def accept(self, kind: Kind, count: int) -> Program:
        """Program that accepts the first of `count` proposed tokens and chooses a further token (`acceptor`)."""
        graph = lambda: acceptor(kind, self.caches.batch, self.vocabulary, count)
        return self._program(f"accept-{kind}-{count}", graph, SAMPLE)

    def borrow(self, other: Programs, names: Mapping[str, str]) -> None:
        """Share the states of other programs. `names`: name of a state here -> its name there. To be called before the
        programs that use them are made."""
        self.states |= {own: other.states[there] for own, there in names.items() if there in other.states}

    @property
    def tensors(self) -> str:
        """Torch device that the programs work on; "" for arrays on the host. Makes the decode program if there is
        none."""
        return (next(iter(self._made.values())) if self._made else self.decode()).tensors

    def _program(self, name: str, graph: Callable[[], Graph], share: float) -> Program:
        name = self.prefix + name
        if name not in self._made:
            begun = time.perf_counter()
            self._graphs[name] = graph, share
            self._made[name] = self._optimized(name, **{"complete_checks": False, **self.options})
            self.seconds[name] = time.perf_counter() - begun
        return self._made[name]

    def _optimized(self, name: str, **more: Any) -> Program:
        """The program `name`, searched or from the plan cache, with further options of `optimize`."""
        graph, share = self._graphs[name]
        built, given = graph(), {"budget": share * self.budget, **self.options, **more}
        with codes_kept(built.params):
            return optimize(built, **given).share(self.states, self.weights)

    def unchecked(self) -> dict[str, list[str]]:
        """Checks of each program that its search had no time for (names as in `Report.omitted`), by program; only
        programs with any."""
        found = {name: unchecked(program.report.omitted) for name, program in self._made.items() if program.report}
        return {name: checks for name, checks in found.items() if checks}

    def complete(self) -> None:
        """Complete the checks of all programs whose plans are cached; a program that fails one is replaced."""
        if Options(**self.options).keeps_plans:
            for name in self.unchecked():
                self._made[name] = self._optimized(name, complete_checks=True, again=False)

    def set(self, name: str, value: Any, dtype: str) -> None:
        """Overwrite the state `name` on the programs' device, if some program has it. `dtype`: the state's."""
        for program in self._made.values():
            if name in program.states:
                return program.set_state(name, np.asarray(value, dtype))

    def get(self, name: str) -> np.ndarray[Any, Any]:
        """A copy of a state that some program has."""
        return next(p for p in self._made.values() if name in p.states).get_state(name)

    def clear(self, prefixes: tuple[str, ...]) -> None:
        """Fill the states whose names begin with one of `prefixes` with zeros."""
        for name in self.states:
            if name.startswith(prefixes):
                value = np.zeros_like(self.get(name))
                self.set(name, value, value.dtype.name)

    def read_bytes(self) -> int:
        """Bytes of the weights that a decode step reads completely: all except tables from which it only gathers
        rows.
        """
        if self._reads is None:
            self._decode_graph()
        assert self._reads is not None
        return self._reads

    def memory(self) -> dict[str, int]:
        """Bytes of memory of these programs by purpose: "weights", "caches", "states" and "workspace"."""
        graph = self.step(1)
        found = {"weights": sum(leaf.type.nbytes for leaf in graph.leaves("param")), "caches": 0, "states": 0}
        for leaf in graph.leaves("state"):
            is_cache = str(leaf.attr("name")).startswith(("keys.", "values."))
            found["caches" if is_cache else "states"] += leaf.type.nbytes
        found["workspace"] = sum(program.memory_by_kind()["workspace"] for program in self._made.values())
        return found

    def reports(self) -> dict[str, Any]:
        """Optimization report of each program, by program name."""
        return {name: program.report for name, program in self._made.items()}


def _read_whole(graph: Graph) -> int:
    """Bytes of a graph's weights without tables from which it only gathers rows."""
    gathered = {n.args[0] for n in graph.nodes() if n.op == "gather"}
    whole = {a for n in graph.nodes() if n.op != "gather" for a in n.args}
    casts = {a.args[0] if a.op == "cast" else a for a in gathered - whole}
    return sum(p.type.nbytes for p in graph.leaves("param") if p not in casts)
