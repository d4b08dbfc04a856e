"""Kernels that add many values to few elements in shared memory, run by threads on the CPU against the specification in
NumPy; what is left to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import generated
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..cuda_host import Guarded, compiled, source_of

N, ROWS = 203, 7
INDEX = t.input("i", (N,), "int64")


def rows(width: int) -> Tensor:
    return t.broadcast_to(t.reshape(INDEX, (N, 1)), (N, width))


CASES: dict[str, Callable[[], Tensor]] = {
    "counts": lambda: t.scatter_elements(t.full((ROWS,), 0, "int64"), INDEX, t.full((N,), 1, "int64"), 0, "add"),
    "floats": lambda: t.scatter_elements(t.full((ROWS,), 2.5, "float32"), INDEX, t.exp(t.input("u", (N,))), 0, "add"),
    "segments": lambda: t.scatter_elements(t.full((ROWS, 6), 0.0, "float32"), rows(6), t.input("u", (N, 6)) * t.input("w", (6,)), 0, "add"),
    "columns": lambda: t.scatter_elements(t.full((3, ROWS), 0.0, "float32"), t.broadcast_to(t.reshape(INDEX, (1, N)), (3, N)), t.input("u", (3, N)), 1, "add"),
}  # fmt: skip
SCHEDULES = [{"x": 1, "turns": 4, "threads": 64}, {"x": 4, "turns": 2, "threads": 64, "early": 1}, {"x": 8, "turns": 1, "threads": 128}]  # fmt: skip


def call_of(root: Tensor) -> Call:
    kind = lambda x: Operand(x.type, contiguous(tuple(x.shape)))
    return Call({str(n.attr("name")): kind(n) for n in topological([root]) if n.op == "input"}, kind(root), {})


def test_every_value_is_added_once(tmp_path: Path) -> None:
    """To elements counted from the end, too; indices out of range are skipped, and the constant is the program's."""
    found = []
    for name, case in CASES.items():
        template = generated(case())
        legal = [c for s in SCHEDULES if template.fits(c := replace(call_of(template.root), schedule=s))]
        found += [(name, template, c, launches(template, c)[0]) for c in legal]
    assert len(found) == len(CASES) * len(SCHEDULES)
    kernels = compiled(source_of([launch for *_, launch in found if isinstance(launch, CudaLaunch)]), tmp_path)
    rng = np.random.default_rng(0)
    for name, template, call, launch in found:
        given = {
            n: Guarded.of(int(np.prod([int(d) for d in o.type.shape])), o.type.dtype) for n, o in call.operands.items()
        }
        for n, g in given.items():
            g.array[:] = rng.integers(-ROWS, ROWS, g.array.size) if n == "i" else rng.normal(size=g.array.size)
        shaped = {n: g.array.reshape([int(d) for d in call.operands[n].type.shape]) for n, g in given.items()}
        (want,) = evaluate([template.root], shaped, float64=True)
        out = Guarded.of(want.size, template.root.dtype)
        out.array[:] = template.root.args[0].attr("value")
        assert isinstance(launch, CudaLaunch)
        buffers = {**given, "out": out}
        kernels[launch.name]([buffers[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
        assert all(g.intact for g in buffers.values())
        np.testing.assert_allclose(out.array.reshape(want.shape), want, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("root", [
    lambda: t.scatter_elements(t.full((N, 6), 0.0, "float32"), rows(6), t.input("u", (N, 6)), 0, "add"),
    lambda: t.scatter_elements(t.full((9000,), 0.0, "float32"), t.input("j", (99999,), "int64"), t.input("v", (99999,)), 0, "add"),
    lambda: t.scatter_elements(t.full((ROWS,), 0.0, "float32"), INDEX, t.gather(t.input("v", (9,)), INDEX, axis=0), 0, "add"),
], ids=["as many elements as values", "more elements than shared memory holds", "values at positions in memory"])  # fmt: skip
def test_other_sums_are_left_to_other_kernels(root: Callable[[], Tensor]) -> None:
    assert not generated(root()).space(call_of(root()))
