"""How close a schedule search comes to the best schedule: `python -m benchmarks.search.schedule_replay [measure CASE
...]`.

With `measure`, on a GPU: schedules of each case (the ranked candidates and their neighbours) are timed as in a search,
and results/raw/schedules.json stores (schedule, µs). Without, on any machine: the search is replayed on this table,
which gives the times of the proposed schedules; schedules that it lacks count as illegal. Printed is how much slower
than the table's best schedule the best one is after 1, 3 (a first look), 5, 8, 16 (a search) and more schedules, and
how many schedules a search without a time limit tries.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.triton import backend as triton
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.schedule_search import Key, Moves, Schedule, ScheduleSearch, key_of_schedule
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, Template, contiguous

TABLE = Path(__file__).parents[1] / "results/raw/schedules.json"
COUNT = 150  # schedules of a case
AFTER = (1, 3, 5, 8, 16, 32, 64)
Times = dict[Key, float]


def x(name: str, *shape: int) -> Tensor:
    """A bfloat16 operand of a term."""
    return t.input(name, shape, "bfloat16")


def decode(batch: int, heads: int, own: int, keys: int, width: int) -> Tensor:
    """Attention of one decode step: `heads` query heads over `own` key-value heads, `keys` positions, head size
    `width`.
    """
    q = t.reshape(x("q", batch, heads, 1, width), (batch, own, heads // own, 1, width))
    k, v = (t.reshape(x(n, batch, own, keys, width), (batch, own, 1, keys, width)) for n in "kv")
    return t.reshape(c.attention(q, k, v, scale=width**-0.5), (batch, heads, 1, width))


def cell(rows: int, width: int) -> Tensor:
    """Eight products of one operand with different weights, combined as in a NasRNN cell."""
    a = t.concat([x("a", rows, width), x("h", rows, width)], 1)
    s, th, r = c.sigmoid, t.tanh, c.relu
    g = [t.matmul(a, x(f"w{i}", 2 * width, width)) for i in range(8)]
    second, third = s(s(g[1]) + th(g[2])), th(s(g[4]) * th(g[5]))
    return th(th(second + third) * th(th(r(g[0]) + s(g[3])) * th(s(g[6]) * r(g[7]))))


def linear(rows: int, length: int, columns: int) -> Tensor:
    """Product of [rows, length] with a weight."""
    return t.matmul(x("a", rows, length), x("w", length, columns))


def gated(rows: int, width: int) -> Tensor:
    """Gated feed-forward: two products and a gate."""
    a = x("a", rows, width)
    return c.silu(t.matmul(a, x("w", width, width))) * t.matmul(a, x("u", width, width))


def normed(rows: int, width: int) -> Tensor:
    """Product of rows that are scaled to norm one."""
    a = x("a", rows, width)
    return t.matmul(a, x("w", width, width)) * t.rsqrt(t.mean(a * a, axis=1, keepdims=True) + 1e-6)


CASES: dict[str, tuple[Any, tuple[str, ...], Callable[[], Tensor]]] = {
    "decode_4096": (triton, (), lambda: decode(1, 32, 8, 4096, 128)),
    "decode_b4_2048": (triton, (), lambda: decode(4, 32, 8, 2048, 128)),
    "decode_mqa_16k": (triton, (), lambda: decode(1, 8, 1, 16384, 64)),
    "decode_512": (triton, (), lambda: decode(1, 32, 8, 512, 128)),
    "nas_16": (cuda_cpp, tuple(f"w{i}" for i in range(8)), lambda: cell(16, 1024)),
    "linear_16": (cuda_cpp, ("w",), lambda: linear(16, 4096, 4096)),
    "small_16": (cuda_cpp, ("w",), lambda: linear(16, 640, 2048)),
    "gated_16": (cuda_cpp, ("w", "u"), lambda: gated(16, 4096)),
    "norm_1": (cuda_cpp, ("w",), lambda: normed(1, 4096)),
    "linear_16t": (triton, ("w",), lambda: linear(16, 4096, 4096)),
    "softmax_128": (triton, (), lambda: c.softmax(x("x", 131072, 128), axis=1)),
    "gelu_4096": (triton, (), lambda: c.gelu(c.linear(x("h", 4096, 768), x("w", 768, 3072), x("b", 3072)))),
}  # fmt: skip
"""Name: emitter, weights that are laid out anew, term. (`_16t`: the product of `_16`, in Triton.)"""


def kernel(case: str) -> tuple[Template, Call]:
    """(template, call) of a case."""
    emitter, laid, term = CASES[case]
    return kernel_of(emitter, laid, term())


def kernel_of(emitter: Any, laid: tuple[str, ...], root: Tensor) -> tuple[Template, Call]:
    """(template, call) of an emitter's kernel for a term in bfloat16.

    `laid`: names of the weights that the kernel may repack.
    """
    template: Template = emitter.generated(root, laid)
    leaves = {str(n.attr("name")): n for n in topological([root]) if n.op == "input"}
    place = lambda n: Operand(Type(n.shape, "bfloat16"), contiguous(n.shape))
    return template, Call({o: place(leaves[o]) for o in template.operands}, place(root), {})


def around(
    ranked: Sequence[Schedule], fits: Callable[[Schedule], bool], moves: Moves, count: int = COUNT
) -> list[Schedule]:
    """The ranked schedules, then their legal neighbours, and neighbours of these: at most `count`, reproducibly."""
    found: dict[Key, Schedule] = {key_of_schedule(s): s for s in ranked}
    ring, draw = list(ranked), random.Random(7)
    while ring and len(found) < count:
        steps = [s for one in ring for *_, s in moves(one)]
        draw.shuffle(steps)
        ring = []
        for s in steps:
            if len(found) < count and key_of_schedule(s) not in found and fits(s):
                found[key_of_schedule(s)] = s
                ring.append(s)
    return list(found.values())


def with_schedules(template: Any, wanted: Sequence[Mapping[str, int]]) -> Any:
    """A copy of a generated kernel whose candidate schedules are `wanted`, all of them legal."""
    changed = type("WithSchedules", (type(template),), {"space": lambda self, call: wanted, "fits": None})
    found = copy(template)
    object.__setattr__(found, "__class__", changed)
    return found


# ---------------------------------------------------------------- the table
def measure(cases: Sequence[str], path: Path = TABLE, *, device: str = "cuda", count: int = COUNT) -> None:
    """Time the schedules of some cases on this machine's GPU, and write them to the table."""
    from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer
    from tensor_graphs.backends.tuning.measurement import SinkBase
    from tensor_graphs.costdb.store.schema import TimingRow
    from tensor_graphs.extract.model.kernel import Candidate, Vertex

    places, rows = {}, list[Any]()
    for case in cases:
        template, call = kernel(case)
        wanted = around(*searched(template, call), count)
        every = with_schedules(template, wanted)
        places[case] = Candidate(every, Vertex(0, call.output.strides), (), call)
    sink: Any = type("Rows", (SinkBase,), {"add": lambda self, some: rows.extend(some)})()
    with GpuMeasurer(sink, device=device, schedules=count) as measurer:
        measurer.measure(places.values())
    tables = read(path) if path.exists() else {}
    for case, place in places.items():
        own = key_of(place.template, place.call)
        same = [r for r in rows if (r.key.kernel, r.key.shapes) == (own.kernel, own.shapes)]
        timed = [r for r in same if isinstance(r, TimingRow) and r.regime == "cold"]
        tables[case] = {tuple(sorted(r.key.schedule)): median(r.samples) for r in timed}
        print(f"{case}: {len(timed)} timed, {min(tables[case].values()):.2f} µs", flush=True)
    write({case: tables[case] for case in CASES if case in tables}, path)


def write(tables: Mapping[str, Times], path: Path) -> None:
    """Write the tables: per case the parameter names, then rows of their values (0: parameter not set) and µs."""
    lines = []
    for case, times in tables.items():
        names = sorted({name for key in times for name, _ in key})
        rows = [[*(dict(key).get(n, 0) for n in names), round(us, 3)] for key, us in sorted(times.items())]
        text = ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows)
        lines.append(f'{json.dumps(case)}: {{"names": {json.dumps(names)}, "rows": [\n{text}]}}')
    path.write_text("{" + ",\n".join(lines) + "}\n")


def read(path: Path = TABLE) -> dict[str, Times]:
    """The stored times in µs by schedule key, for each case."""
    found = json.loads(path.read_text())
    return {
        case: {tuple((n, v) for n, v in zip(one["names"], row) if v): row[-1] for row in one["rows"]}
        for case, one in found.items()
    }


# ---------------------------------------------------------------- replaying
def searched(template: Template, call: Call) -> tuple[list[Schedule], Callable[[Schedule], bool], Moves]:
    """(candidate schedules of a kernel, its legality test, the neighbour function of its search)."""
    assert template.space is not None and template.fits is not None and template.moves is not None
    fits = template.fits
    return [dict(s) for s in template.space(call)], lambda s: fits(replace(call, schedule=s)), template.moves


def replayed(
    times: Times, ranked: Sequence[Schedule], moves: Moves, make: Callable[..., ScheduleSearch] = ScheduleSearch
) -> list[float]:
    """µs of the schedules that a search proposes, in order; only schedules of the table are legal."""
    exists = lambda s: key_of_schedule(s) in times
    search, asked = make([s for s in ranked if exists(s)], exists, moves=moves), []
    while wanted := search.more():
        for schedule in wanted:
            asked.append(times[key_of_schedule(schedule)])
            search.record(schedule, asked[-1])
    return asked


def main(arguments: Sequence[str]) -> None:
    """Measure the cases named on the command line, or replay all."""
    parser = argparse.ArgumentParser(description="Replay searches over recorded times, or measure such times on a GPU.")
    parser.add_argument("action", nargs="?", choices=("replay", "measure"), default="replay")
    parser.add_argument("cases", nargs="*", help="of those to measure; all by default")
    given = parser.parse_args(arguments)
    if given.action == "measure":
        measure(given.cases or CASES)
        return
    tables, logs = read(), [0.0] * len(AFTER)
    print(
        f"| case | schedules | best µs | asked for | {' | '.join(f'after {n}' for n in AFTER)} |\n{'|---' * (4 + len(AFTER))}|"
    )
    for case, times in tables.items():
        whole = partial(ScheduleSearch, count=len(times))
        ranked, _, moves = searched(*kernel(case))
        asked, best = replayed(times, ranked, moves, whole), min(times.values())
        ratios = [min(asked[:n]) / best for n in AFTER]
        logs = [a + math.log(r) / len(tables) for a, r in zip(logs, ratios)]
        print(f"| {case} | {len(times)} | {best:.2f} | {len(asked)} | {' | '.join(f'{r:.3f}' for r in ratios)} |")
    print(f"| all (geometric mean) | | | | {' | '.join(f'{math.exp(v):.3f}' for v in logs)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
