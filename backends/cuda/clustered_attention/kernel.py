"""Emits attention of few rows on tensor cores in CUDA C++ for Hopper (decode steps): one cluster per set of keys and
values.

Each block of a cluster processes a slice of the positions. Keys and values are loaded from global memory straight into
mma fragments (kernel.cuh); partial results are combined through distributed shared memory. The operations around the
two products are emitted from the kernel IR in three thread layouts, each with a frame of its own: the queries (norms,
rotary embedding), the scores (scale, mask, soft cap), and the results (division by the sum, gates, casts).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from pathlib import Path

from ...ir.expr import walk
from ...ir.index import Index
from ...ir.kernel import Kernel, OutputStore
from ...ir.loop_fusion import exponential_of
from ...ir.source_text import words
from ...ir.tiling import Shape
from ...ir.unfusable import Unfusable
from ..emit.frame import CudaScope, Local, ThreadFrame, nest_of
from ..emit.nest import ThreadNest
from ..emit.spelling import CTYPES, CudaLaunch, all_of
from ..emit.thread_layout import DimensionThreads, ThreadLayout
from .decode_attention import attention_of
from .new_rows import compute_early, first_loads, place_lines, row_bytes, row_layout, row_lines
from .parameters import ClusteredAttentionSchedule
from .positions import indented, trimmed
from .scores import POWERS, ChunkScores

_TEXT = [Path(__file__).with_name(f"{part}.cuh").read_text(encoding="utf-8") for part in ("intrinsics", "kernel")]
CLUSTER_INTRINSICS, CLUSTER_LIBRARY = _TEXT[0], "".join(_TEXT)


def emit_clusters(
    kernel: Kernel, shape: Shape, s: ClusteredAttentionSchedule, name: str, constant: frozenset[str] = frozenset()
) -> CudaLaunch:
    """Emit the CUDA source of attention of few rows with the schedule `s`; returns its launch.

    `name`: of the emitted function. `shape`: roles of the kernel's axes (row, column, batch, reduction). `constant`:
    operands that no earlier kernel of the program writes, which are therefore read before the wait for the previous
    kernel (programmatic dependent launch; `Call.constant`). Raises Unfusable if the kernel is not such attention or the
    schedule does not fit it.
    """
    found = attention_of(kernel, shape)
    if found is None:
        raise Unfusable("no attention of few rows over 16-bit keys and values")
    return ClusteredAttentionEmitter(kernel, shape, s, found, name, constant).launch()


class ClusteredAttentionEmitter(ChunkScores):
    """Emitter of one kernel of clustered attention."""

    def launch(self) -> CudaLaunch:
        """Emit the whole kernel; returns its launch: CUDA source, grid (one cluster of blocks for each set of keys and
        values) and shared memory."""
        s, found = self.s, self.found
        begin = self._batch()
        loads, slice_ = self._loads("first"), self._slice()
        early = loads if self._known([found.keys, found.values, *self._ends()]) else []
        ahead, queries = self._queries([] if early else loads)
        known = bool(early) and self._known([*self.places, *self._beside_scores()])
        waiting = s.threads - 32 * len(found.rows)  # threads before the warps of new rows
        apart = known and s.early and bool(found.rows) and waiting >= 32 * self.query_warps
        places, fresh = self._new_rows(self.constant if apart else frozenset())
        before, loop = self._chunks(masks_first=known and self._known(self._unscored(found.maximum.args[0])))
        results = self._results()
        wait = f"if (thread < {waiting}) await_previous();" if apart else "await_previous();"
        waits = [*ahead, *([wait] if s.early else [])]
        if known:
            waits = [*slice_, *early, *places, *before, *waits]
        elif early:
            waits = [*slice_, *early, *waits, *places, *before]
        else:
            waits = [*waits, *places, *slice_, *before]
        begun = ["begin_next();"] if s.early else []
        return self._launch([*begun, *self._opening(), *begin, *waits, *queries, *fresh, *loop, *results])

    def _opening(self) -> list[str]:
        """Lines that define the kernel's objects in shared memory: those of the library's class, then the new rows."""
        s, found = self.s, self.found
        whole = self.slice == s.chunk and found.positions.size == self.slice * s.parts and not s.seen
        dtype = CTYPES[found.keys.value[3]]
        numbers = [dtype, self.rows, self.head, self.columns, s.warps, s.across, s.deep, s.parts]
        shared_bytes = s.shared_bytes(self.rows, self.head, self.columns)
        starts = accumulate((row_bytes([r]) for r in found.rows), initial=shared_bytes)
        return [
            f"using Attention = ClusteredAttention<{', '.join(map(str, numbers))}, {str(whole).lower()}>;",
            f'static_assert(Attention::SIZE == {shared_bytes}, "shared memory");',
            "ROOM(float, room);",
            "Attention attention(room);",
            "const int thread = threadIdx.x;",
            *(
                f"{dtype}* const new_{r.what} = reinterpret_cast<{dtype}*>(room + {at // 4});"
                for r, at in zip(found.rows, starts)
            ),
        ]

    def _launch(self, lines: Sequence[str]) -> CudaLaunch:
        """The launch of the kernel whose body are `lines`."""
        s, rows = self.s, self.found.rows
        body = ["    " + line for line in lines]
        written = {x.buffer for x in self.kernel.stores}
        param = ThreadFrame(self.kernel, ThreadLayout({}), self.name, self.shape).param
        mentioned = words("\n".join(body))
        used = [n for n in self.kernel.buffers if param[n] in mentioned]
        # without __restrict__ also where the kernel writes into what it reads
        plain = ThreadFrame(self.kernel, ThreadLayout({}, s.early or bool(rows)), self.name, self.shape)
        parameters = [plain.parameter(n, self.kernel.buffers[n], n in written) for n in used]
        # also of one block: stores to shared memory are those of clusters
        cluster = f" __cluster_dims__({s.parts}, 1, 1)"
        text = "\n".join([
            f'extern "C" __global__ void __launch_bounds__({s.threads}, 1){cluster}',
            f"{self.name}({', '.join(parameters)}) {{", *body, "}", "",
        ])  # fmt: skip
        blocks = prod(a.size for a in self.shape.batch) * s.parts
        shared_bytes = s.shared_bytes(self.rows, self.head, self.columns) + row_bytes(rows)
        return CudaLaunch(
            self.name, text, blocks, s.threads, tuple(used), s.early, shared_bytes,
            beside={"CUDA_CLUSTERS": CLUSTER_LIBRARY},
        )  # fmt: skip

    # ------------------------------------------------------------ queries
    def _queries(self, loads: Sequence[str]) -> tuple[list[str], list[str]]:
        """(lines before the wait for the previous kernel, lines that write the queries to shared memory).

        The second ones contain the lines `loads`, after the loads from which queries are computed. Only as many warps
        compute queries as there are rows.
        """
        found, dim = self.found, self.found.head.name
        lanes = min(32, 1 << max(0, (-(-self.head // 8) - 1).bit_length()))
        summed = {x.axis for x in walk([found.query]) if x.op == "reduce"}
        inner = [found.head, *(a for a in self.shape.inner if a in summed and a != found.head)]
        dims = {a.name: DimensionThreads(lanes, 8, -(-a.size // (8 * lanes))) for a in inner}
        rows = self._row_threads(lanes)
        warps = self.query_warps = -(-lanes * rows.threads // 32)
        shared = {a.name: dim for a in inner[1:]}
        layout = ThreadLayout({**dims, "m": rows}, self.s.early, least=32 * warps, shared=shared)
        own = OutputStore(self.kernel.stores[0].buffer, Index(), found.query) if found.rows else None
        emitter = self.frame(layout, self.constant, own)
        frame, query = emitter.frame, found.query
        head = CudaScope(1, set())
        with frame.inside(head):
            for d in (*dims, "m"):
                if text := frame.thread(d):
                    frame.line(f"const int {d}_0 = {text};")
        for e in first_loads(query):
            emitter.loads.need(e)
        compute_early(emitter, query)
        first = len(frame.top.lines)
        emitter.loads.need(query)
        names = ("m", dim) if self.rows > 1 else (dim,)
        nest, dtype = ThreadNest(frame, names, dim, inner=dim), found.keys.value[3]
        text = nest.scalar(query, nest.deepest, dtype=dtype)
        masks = [*nest.masks((dim,)), *([f"thread < {frame.layout.used}"] if frame.layout.used < 32 * warps else [])]
        name, row = frame.fresh("y"), nest.coordinate("m") if self.rows > 1 else "0"
        nest.before(f"Pack<{CTYPES[dtype]}, 8> {name};")
        nest.line(f"{name}.at[{dim}_v] = {text};")
        condition = f"if ({all_of(masks)}) " if masks else ""
        nest.after(f"{condition}write(attention.query({row}, {nest.coordinate(dim, start=True)}), {name});")
        nest.close()
        self.counter = frame.counter
        if frame.shared:
            raise Unfusable("queries that need sums over several warps")
        ahead = trimmed([*head.lines, *frame.ahead.lines]) if frame.ahead.lines else []
        lines = trimmed(frame.top.lines)
        lines = [*([] if ahead else trimmed(head.lines)), *lines[:first], *loads, *lines[first:]]
        if 32 * warps == self.s.threads:
            return ahead, ["{", *indented(lines), "}"]
        others = ["} else {", *indented(loads)] if loads else []
        return ahead, [f"if (thread < {32 * warps}) {{", *indented(lines), *others, "}"]

    # ------------------------------------------------------------ rows written into keys and values
    def _new_rows(self, constant: frozenset[str]) -> tuple[list[str], list[str]]:
        """(lines that define the places of the rows that the kernel writes, lines that compute each row in a warp, from
        the last one on). `constant`: operands that these warps read before they wait for the previous kernel, which
        they do themselves; empty if they have waited."""
        s, places, lines = self.s, list[str](), list[str]()
        for place, name in self.places.items():
            emitter = self.frame(ThreadLayout({}, s.early))
            places += place_lines(place, name, emitter)
            self.counter = emitter.frame.counter
        for n, new in enumerate(self.found.rows):
            emitter = self.frame(row_layout(new, self.shape, s.early), constant, new.own)
            first = max(0, s.threads - 32 * (n + 1))
            lines += row_lines(new, emitter, first, s.parts, self.places[new.update.place], waits=bool(constant))
            self.counter = emitter.frame.counter
        return places, lines

    def _replaced(self, what: str) -> list[str]:
        """CUDA statement that replaces the row loaded from keys or values at the new row's position by the new row."""
        places = (self.places[r.update.place] for r in self.found.rows if r.what == what)
        return [f"attention.replace_{what}({place}, chunk, new_{what});" for place in places]

    # ------------------------------------------------------------ scores
    def _chunks(self, masks_first: bool) -> tuple[list[str], list[str]]:
        """(lines with the loads that scores need besides keys, lines of the loop over the block's chunks of positions).

        `masks_first`: whether masks of a single chunk are computed with these loads.
        """
        s, found, scores = self.s, self.found, self._scores()
        chunks = -(-self.slice // s.chunk)
        more = chunks > 1
        following = f"chunk + {s.chunk}"
        step = [
            *(scores.masks if more else []),
            *self._replaced("keys"),
            "attention.write_scores();",
            *([self._load("keys", found.keys, found.head, following)] if more else []),
            "__syncthreads();",
            *scores.weights,
            "__syncthreads();",
            *(["attention.rescale();"] if more else []),
            *self._replaced("values"),
            "attention.add_values();",
            *([self._load("values", found.values, found.column, following)] if more else []),
        ]
        # with `seen`, all blocks of a cluster have equal shares
        end = "share" if s.seen else f"{chunks * s.chunk}"
        loop = f"for (int chunk = first; chunk < first + {end}; chunk += {s.chunk}) {{"
        meet = ["attention.await_blocks();", "__syncthreads();"]
        masks = [] if more else ["const int chunk = first;", *scores.masks]
        body = [*meet, loop, *indented(step), "}"] if more else [*([] if masks_first else masks), *meet, *step]
        after = ["attention.write_results();", "attention.send_results();"]
        return _with_own_row([*scores.before, *(masks if masks_first else [])]), _with_own_row([*body, *after])

    # ------------------------------------------------------------ results
    def _results(self) -> list[str]:
        """Lines that combine the parts of the block's columns and store the results."""
        s, found = self.s, self.found
        lanes = max(n for n in (1, 2, 4) if n <= s.parts and n * self.own <= s.threads) if self.own <= s.threads else 1
        width = next(n for n in (1, 2, 4) if lanes * (self.own // n) * self.rows <= s.threads or n == 4)
        across = self.own // width
        if lanes * across > s.threads:
            raise Unfusable("more columns than threads")
        rows = self._row_threads(lanes * across)
        dims = {"part": DimensionThreads(lanes), "n": DimensionThreads(across, width), "m": rows}
        emitter = self.frame(ThreadLayout(dims, s.early, least=s.threads))
        frame = emitter.frame
        if s.parts > 1:
            frame.place = {"m": "", "n": "attention.block"}
        names = ("m", "n") if self.rows > 1 else ("n",)
        count = frame.count(names)
        head = CudaScope(1, set())
        own = frame.thread("n")
        with frame.inside(head):
            base = f"attention.block * {self.own}" if s.parts > 1 else ""
            frame.line(f"const int n_0 = {' + '.join(x for x in (base, own) if x) or '0'};")
            if text := frame.thread("m"):
                frame.line(f"const int m_0 = {text};")
            top, total, result = (frame.fresh(n) for n in ("top", "total", "acc"))
            frame.line(f"float {top}[{rows.repeat}], {total}[{rows.repeat}], {result}[{count}];")
        with frame.inside(frame.top):
            power = POWERS[exponential_of(self.kernel, found.maximum)]
            for i in range(rows.repeat):
                row = " + ".join(
                    x for x in ("m_0" if rows.threads > 1 else "", str(i * rows.threads) if i else "") if x
                )
                frame.line(
                    f"attention.combine<{power}, {lanes}, {width}>({row or '0'}, {own or '0'}, {top}[{i}], {total}[{i}], "
                    f"{result} + {i * width});"
                )
        high = ("m",) if self.rows > 1 else ()
        frame.top.known |= {
            found.maximum: Local(top, high, "float32"), found.total: Local(total, high, "float32"),
            found.result: Local(result, names, "float32"),
        }  # fmt: skip
        for store in (x for x in self.kernel.stores if not x.parts):
            if any(x.op == "reduce" and frame.top.find(x) is None for e in store.exprs for x in nest_of(e)):
                raise Unfusable("another reduction beside attention")
            emitter.stores.write(store)
        self.counter = frame.counter
        return ["{", *indented(trimmed([*head.lines, *frame.top.lines])), "}"]


def _with_own_row(lines: Sequence[str]) -> list[str]:
    """Lines whose variable `m_0` is renamed to `m_1`, since queries have one of that name."""
    return [re.sub(r"\bm_0\b", "m_1", line) for line in lines]


__all__ = ["CLUSTER_INTRINSICS", "CLUSTER_LIBRARY", "emit_clusters"]
