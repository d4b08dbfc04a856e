"""Emits the softmax weights of a chunk of positions in clustered attention: scores from the products of queries and
keys, and weights from scores."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...ir.expr import Expr, walk
from ...ir.index import Axis
from ...ir.kernel import Kernel
from ...ir.loop_fusion import exponential_of
from ...ir.tiling import Shape
from ...ir.unfusable import Unfusable
from ..emit.frame import CudaScope, Local, ThreadFrame, nest_of
from ..emit.kernel import SimtEmitter
from ..emit.nest import ThreadNest
from ..emit.spelling import all_of, enclosed
from ..emit.thread_layout import DimensionThreads, ThreadLayout
from .new_rows import first_loads
from .positions import BlockPositions, trimmed

POWERS = {"exp": "Exp", "exp2": "Exp2"}


class ChunkFrame(ThreadFrame):
    """Emitter state for the scores of one chunk of positions, which a block computes in each iteration of its loop over
    the axis of positions. Bounds are checked along that axis only."""

    def __init__(self, kernel: Kernel, layout: ThreadLayout, name: str, shape: Shape, positions: Axis) -> None:
        super().__init__(kernel, layout, name, shape)
        self.walked.add(positions.name)
        self.top.bound.discard(positions)

    def ragged(self, dim: str) -> bool:
        """Whether the emitted code checks bounds along `dim`, a dimension of the thread layout ("m", "n" or a reduction
        axis): it does along dimensions that a block loops over, and where the last block is partial."""
        return dim in self.walked or super().ragged(dim)


@dataclass(frozen=True)
class ScoreLines:
    """CUDA lines that compute the softmax weights of a chunk of positions.

    `before`: lines before the loop over chunks, which load the operands of scores other than keys. `masks`: lines that
    compute the parts of scores that do not depend on products of queries and keys. `weights`: lines that compute the
    weights from these products.
    """

    before: list[str]
    masks: list[str]
    weights: list[str]


class ChunkScores(BlockPositions):
    """Emitter part of clustered attention for the scores of a chunk of positions."""

    def _scores(self) -> ScoreLines:
        """The lines by which the last warps compute the weights of a chunk; the first warps compute queries."""
        s, found, dim = self.s, self.found, self.found.positions.name
        rows = self._row_threads(32)
        skipped = s.threads // 32 - rows.threads
        layout = ThreadLayout({dim: DimensionThreads(32, 1, -(-s.chunk // 32)), "m": rows}, s.early, least=s.threads)
        frame = ChunkFrame(self.kernel, layout, self.name, self.shape, found.positions)
        frame.counter = self.counter
        emitter = SimtEmitter(frame)
        head = CudaScope(1, set())
        with frame.inside(head):
            if rows.threads > 1:
                frame.line(f"const int m_0 = thread / 32{f' - {skipped}' if skipped else ''};")
            frame.line(f"float tops[{rows.repeat}];")
            frame.line("fill(tops, -infinity());")
        for e in self._beside_scores():
            emitter.loads.need(e)
        inner = CudaScope(1, frame.top.bound | {found.positions}, outside=frame.top)
        with frame.inside(inner):
            body = found.maximum.args[0]
            for e in nest_of(body):
                if e.op == "load":
                    emitter.loads.need(e)
            for e in self._unscored(body):
                frame.scope.known[e] = emitter.loads.kept(e)
            masks, inner.lines = inner.lines, []
            self._weights(frame, rows)
        self.counter = frame.counter
        warps = f"if (thread >= {32 * skipped}) {{" if skipped else "{"
        declared = [line for line in masks if re.fullmatch(r"\s*[\w<>, ]+ \w+(\[\d+\])?;", line)]
        masks = [line for line in masks if line not in declared]
        return ScoreLines(
            before=trimmed([*head.lines, *frame.top.lines]),
            masks=[
                f"const int {dim}_0 = chunk + attention.lane;", *trimmed(declared), *([warps, *masks, "}"] if masks else [])
            ],
            weights=[warps, *inner.lines, "}"],
        )  # fmt: skip

    def _weights(self, frame: ChunkFrame, rows: DimensionThreads) -> None:
        """Write the lines that read the products of queries and keys, compute scores and turn them into weights.

        Raises Unfusable if the scores contain another reduction.
        """
        s, found, dim = self.s, self.found, self.found.positions.name
        body = found.maximum.args[0]
        names = ("m", dim) if self.rows > 1 else (dim,)
        count = frame.count(names)
        dots = Local(frame.fresh("dots"), names, "float32")
        frame.line(f"float {dots.name}[{count}];")
        nest = ThreadNest(frame, names)
        row = nest.coordinate("m") if self.rows > 1 else "0"
        nest.line(f"{nest.at(dots)} = attention.score({row}, {nest.coordinate(dim)} - chunk);")
        nest.close()
        frame.scope.known[found.scores] = dots
        if any(x.op == "reduce" and frame.scope.find(x) is None for x in nest_of(body)):
            raise Unfusable("a reduction beside the scores")
        scores = Local(frame.fresh("scores"), names, "float32")
        frame.line(f"float {scores.name}[{count}];")
        nest = ThreadNest(frame, names)
        text = nest.scalar(body, nest.deepest)
        at = nest.coordinate(dim)
        there = [f"{at} < end", *([f"{at} - chunk < {s.chunk}"] if s.chunk % 32 else [])]
        nest.line(f"{nest.at(scores)} = {all_of(there)} ? {enclosed(text)} : -infinity();")
        nest.close()
        power = POWERS[exponential_of(self.kernel, found.maximum)]
        first, each = "m_0" if rows.threads > 1 else "0", -(-s.chunk // 32)
        frame.line(f"attention.weights<{power}, {rows.threads}, {each}>(tops, {scores.name}, {first});")

    def _beside_scores(self) -> list[Expr]:
        """The loads that scores need besides queries and keys, which are issued first."""
        loads = first_loads(self.found.maximum.args[0], [self.found.scores])
        return [e for e in loads if e.axes.isdisjoint({self.found.positions, self.found.head})]

    def _unscored(self, body: Expr) -> list[Expr]:
        """The masks in `body`, which are computed while keys are loaded: its largest float expressions that vary along
        the positions and do not depend on the scores."""
        found, positions = self.found, self.found.positions
        scored = {x for x in walk([body]) if found.scores in walk([x])}
        parts = dict.fromkeys(
            a for x in walk([body]) if x in scored and x != found.scores for a in x.args
            if a not in scored and a.kind == "float" and positions in a.axes and a.op != "load"
        )  # fmt: skip
        return list(parts)
