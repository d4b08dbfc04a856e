"""Kernels of running sums: every order of positions and schedule, run by threads on the CPU against the specification
in NumPy; what is legal; which groups of a graph have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND, generated
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.ir.tiling import shape_of
from tensor_graphs.backends.triton.backend import BACKEND as TRITON
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.fusion.groups import FusionGroups
from tensor_graphs.extract.model.kernel import Call

from .. import kernel_interpreter
from ..cuda_host import compiled, source_of
from .test_cuda_cpp import call_of, check, x

CASES: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: t.cumsum(x("a", 3, 40) * 2.0, 1) + x("b", 40),
    "long": lambda: t.cumsum(x("a", 2, 1, 301), 2),
    "returns": lambda: t.flip(t.cumsum(t.flip(x("a", 3, 37) * x("s", 1, 37), 1), 1), 1) / (x("s", 1, 37) + 9.0) - x("b", 3, 37),
    "columns": lambda: t.exp(t.cumsum(x("a", 21, 40), 0)),
    "middle": lambda: t.cumsum(x("a", 2, 19, 3), 1) - x("a", 2, 19, 3),
    "chunks": lambda: t.reshape(t.cumsum(t.reshape(x("a", 2, 48), (2, 4, 12)), 2), (2, 48)) * x("g", 48),
    "whole": lambda: t.reshape(t.cumsum(t.reshape(x("a", 6, 8), (48,)), 0), (6, 8)),
    "twice": lambda: t.cumsum(t.cumsum(x("a", 2, 33), 1) * x("b", 33), 1) + t.cumsum(x("c", 2, 33), 1),
    "states": lambda: t.sum(t.reshape(x("c", 24, 4), (24, 1, 4)) * t.cumsum(t.reshape(x("a", 24, 5), (24, 5, 1)) * t.reshape(x("b", 24, 4), (24, 1, 4)), 0), axis=2),
    "rendered": lambda: t.sum(t.exp(x("a", 5, 27) - t.cumsum(x("a", 5, 27), 1)) * t.cos(x("b", 5, 27)), axis=1) + x("c", 5),
    "weighted": lambda: t.sum(t.reshape(t.cumsum(x("a", 4, 65), 1), (4, 65, 1)) * x("b", 4, 65, 3), axis=1),
}  # fmt: skip
HALF = ("middle", "returns")
SCHEDULES = [
    {"x": 4, "along": 32, "lanes": 1, "sums": 1},
    {"x": 1, "along": 64, "lanes": 1, "sums": 1, "early": 1},
    {"x": 3, "along": 8, "lanes": 1, "sums": 4},
    {"x": 2, "along": 4, "lanes": 32, "sums": 1},
    {"x": 8, "along": 1, "lanes": 32, "sums": 1, "early": 1},
    {"x": 16, "along": 1, "lanes": 1, "sums": 32},
]


def counted() -> Tensor:
    """How many of the rows before choose the same column, as integers."""
    chosen = t.eq(t.input("i", (25, 1), "int64"), t.iota((1, 6), 1, "int64"))
    return t.cumsum(t.cast(chosen, "int64"), 0)


def scheduled(template: GeneratedKernel, call: Call) -> list[Call]:
    """The call with each of the schedules that are legal."""
    found = [replace(call, schedule=s | {"scan": 1}) for s in SCHEDULES]
    return [one for one in found if template.fits(one)]


def calls() -> list[tuple[GeneratedKernel, Call, str]]:
    """Each case in two of its schedules, some with 16-bit operands."""
    made = [(case(), dtype) for name, case in CASES.items() for dtype in (["float16"] if name in HALF else ["float32"])]
    found = []
    for n, (root, dtype) in enumerate([*made, (counted(), "int64")]):
        template = generated(root)
        legal = scheduled(template, call_of(template, dtype))
        found += [
            (template, one, dtype)
            for one in {legal[k % len(legal)].schedule["x"]: legal[k % len(legal)] for k in (n - 1, n + 1)}.values()
        ]
    return found


def test_running_sums_are_what_is_specified(tmp_path: Path) -> None:
    found = [(*one, launches(one[0], one[1])[0]) for one in calls()]
    used = {(s["x"], s["lanes"]) for _, call, *_ in found for s in [call.schedule]}
    assert used == {(s["x"], s["lanes"]) for s in SCHEDULES}
    kernels = compiled(source_of([launch for *_, launch in found if isinstance(launch, CudaLaunch)]), tmp_path)
    for template, call, dtype, launch in found:
        assert isinstance(launch, CudaLaunch)
        check(template, call, launch, kernels[launch.name], "float32" if dtype == "int64" else dtype)


@pytest.mark.parametrize("name", CASES)
def test_scans_of_the_kernel_ir_mean_the_graph(name: str) -> None:
    template = generated(CASES[name]())
    call, rng = call_of(template, "float64"), np.random.default_rng(0)
    found = template.lower(replace(call, operands={n: replace(o) for n, o in call.operands.items()}))
    assert found is not None
    given = {n: rng.normal(size=[int(d) for d in o.type.shape]) for n, o in call.operands.items()}
    (want,) = evaluate([template.root], {n: v.astype(np.float32) for n, v in given.items()}, float64=True)
    held = {n: v.astype(np.float32).astype(np.float64).reshape(-1) for n, v in given.items()} | {
        "out": np.zeros(want.size)
    }
    kernel_interpreter.run(found.kernel, held)
    np.testing.assert_allclose(held["out"].reshape(want.shape), want, rtol=1e-6, atol=1e-6)


def test_what_is_not_one_loop_over_positions_is_left_to_others() -> None:
    a = x("a", 6, 20)
    for root in (
        t.cumsum(a, 1) + t.flip(t.cumsum(t.flip(a, 1), 1), 1),  # in both directions
        t.cumsum(a, 1)[:, 3:],  # not from the first position on
        t.pad(t.cumsum(a, 1), [(0, 0), (1, 0)], 0.0),
        t.cumsum(t.cumsum(a, 1), 0),
        t.cumsum(t.matmul(x("c", 6, 90), x("w", 90, 30)), 1),
    ):
        template = generated(root)
        assert not template.space(call_of(template, "float32"))


def test_only_kernels_of_running_sums_are_written_so() -> None:
    """Other strategies would compute the sum of one element; this one needs a sum."""
    root, plain = t.cumsum(x("a", 4, 64), 1), x("a", 4, 64) * 2.0
    (sums, call), (other, beside) = ((generated(r), call_of(generated(r), "float32")) for r in (root, plain))
    assert not TRITON.template([root]).space(call)
    lowered, bare = sums.lower(call), other.lower(beside)
    assert lowered is not None and bare is not None
    (own, *_), (theirs, *_) = sums.space(call), other.space(beside)
    assert not BACKEND.emitter.fits(lowered.kernel, shape_of(lowered.kernel), theirs, False)
    assert not BACKEND.emitter.fits(bare.kernel, shape_of(bare.kernel), own, False)
    moves = [s for *_, s in sums.moves(own) if sums.fits(replace(call, schedule=s))]
    assert moves and all(launches(sums, replace(call, schedule=s)) for s in moves)


def test_groups_hold_what_is_computed_before_and_after_a_running_sum() -> None:
    root = t.exp(t.cumsum(x("a", 8, 64) * x("b", 64), 1)) - x("c", 8, 64)
    view = view_of(Graph.of(root))
    given = frozenset(c for c, op in zip(view.cls.tolist(), view.op) if op == "input")
    sums = [r for g in FusionGroups(view, given) for r in g.terms if any(n.op == "cumsum" for n in topological([r]))]
    assert any({"mul", "cumsum", "exp", "sub"} <= {n.op for n in topological([r])} for r in sums)
