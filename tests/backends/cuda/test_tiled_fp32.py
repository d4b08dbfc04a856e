"""Tiled float32 GEMM: values on a simulated GPU (cuda_tiles_host.h), refusals, candidate schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.cuda.tiled_fp32.kernel import TILE_INTRINSICS, TILE_LIBRARY, TiledSchedule
from tensor_graphs.backends.cuda.tiled_fp32.schedules import tile_schedules
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.backends.ir.precision import IEEE, THREE, Precision
from tensor_graphs.backends.machine import target
from tensor_graphs.backends.program.helpers.cuda_helpers import CUDA_LIBRARY
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from .. import cuda_host
from ..cuda_host import HERE, Guarded, compiled

BASE = {"tiles": 1, "m": 32, "n": 32, "deep": 8, "high": 4, "wide": 4, "stages": 2, "group": 2}
UNIT = {"high": 16, "wide": 16, "m": 32, "n": 32}  # on the matrix unit
LIMITS = {IEEE: 1e-6, THREE: 4e-7}
Case = tuple[Callable[[], Tensor], Mapping[str, int]]


def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def _gated() -> Tensor:
    rows = x("x", 40, 24)
    return c.silu(t.matmul(rows, x("w", 24, 36))) * t.matmul(rows, x("v", 24, 36))


def _turned() -> Tensor:
    return t.matmul(t.permute(x("x", 24, 40), (1, 0)), t.permute(x("w", 36, 24), (1, 0)))


def _attention_like() -> Tensor:
    """Heads inside rows, batches, a mask that depends on both."""
    q, k = (t.permute(x(n, 2, 20, 3, 16), (0, 2, 1, 3)) for n in "qk")
    return t.matmul(q, t.permute(k, (0, 1, 3, 2))) * 0.25 + x("m", 20, 20)


#: name -> (term, what its schedule has beside BASE)
CASES: dict[str, Case] = {
    "plain": (lambda: t.matmul(x("x", 64, 32), x("w", 32, 64)), {}),
    "bias": (lambda: c.gelu(t.matmul(x("x", 50, 40), x("w", 40, 36)) + x("b", 36)), {"stages": 3}),
    "residual": (lambda: t.matmul(x("x", 33, 24), x("w", 24, 35)) + x("r", 33, 35), {"group": 1, "deep": 16}),
    "gated": (_gated, {}),
    "turned": (_turned, {"stages": 4}),
    "odd": (lambda: t.matmul(x("x", 37, 23), x("w", 23, 41)), {}),
    "even": (lambda: t.matmul(x("x", 37, 22), x("w", 22, 42)), {"early": 1}),
    "batch": (lambda: t.matmul(x("x", 3, 40, 16), x("w", 3, 16, 32)), {}),
    "heads": (_attention_like, {}),
    "split": (lambda: c.gelu(t.matmul(x("x", 33, 48), x("w", 48, 36)) + x("b", 36)), {"split": 2, "join": 1}),
    "parts": (lambda: t.matmul(x("x", 2, 20, 64), x("w", 64, 32)) + x("r", 2, 20, 32), {"split": 4, "join": 1}),
    "three": (lambda: t.matmul(x("x", 2, 20, 24), x("w", 24, 32)) * x("g", 2, 1, 32), {}),
}  # fmt: skip


def called(name: str, precision: Precision, **more: int) -> tuple[GeneratedKernel, Call]:
    root = CASES[name][0]()
    template = template_of(BACKEND.emitter, root, precision=precision)
    leaves = {str(n.attr("name")): n for n in topological([root]) if n.op == "input"}
    kinds = {o: Operand(leaves[o].type, contiguous(leaves[o].shape)) for o in template.operands}  # type: ignore[arg-type]
    schedule = BASE | ({**UNIT, "precision": precision.number} if precision.number else {}) | CASES[name][1] | more
    return template, Call(kinds, Operand(Type(root.shape, "float32"), contiguous(root.shape)), {}, {}, schedule)  # type: ignore[arg-type]


def launched(template: GeneratedKernel, call: Call) -> CudaLaunch:
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    return launch


def built(texts: list[str], folder: Path, macros: tuple[str, ...] = (), change: Mapping[str, str] = {}) -> Any:
    library = TILE_LIBRARY.replace(TILE_INTRINSICS, (HERE / "cuda_tiles_host.h").read_text(encoding="utf-8"))
    for right, wrong in change.items():
        assert right in library
        library = library.replace(right, wrong)
    return compiled("\n".join([CUDA_LIBRARY, library, *texts]), folder, macros)


def run(kernels: Any, template: GeneratedKernel, call: Call, given: Mapping[str, np.ndarray]) -> np.ndarray:
    launch = launched(template, call)
    places = {n: Guarded.of(v.size, np.float32) for n, v in given.items()}
    for n, v in given.items():
        places[n].array[:] = v.reshape(-1)
    if launch.args[-1] == "counters":
        places["counters"] = Guarded.of(64, np.int32)
        places["counters"].array[:] = 0
        lowered = template.lower(call)
        assert lowered is not None
        for n, b in lowered.halves(call.schedule["split"])[0].buffers.items():
            if n.startswith("part"):
                places[n] = Guarded.of(int(np.prod(b.shape)), np.float32)
    places["out"] = Guarded.of(int(np.prod(call.output.type.shape)), np.float32)  # type: ignore[arg-type]
    kernels[launch.name]([places[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
    assert all(p.intact for p in places.values())
    return places["out"].array.reshape(call.output.type.shape)  # type: ignore[arg-type]


def drawn(call: Call) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(o.type.shape).astype(np.float32) for n, o in call.operands.items()}


@pytest.mark.parametrize("aligned", [16, 4])
def test_tiles_compute_what_the_term_means(tmp_path: Path, aligned: int) -> None:
    """Wherever operands lie, with multiply-add and on the matrix unit."""
    found = [(p, *called(name, p)) for name in CASES for p in LIMITS]
    kernels = built([launched(*one).text for _, *one in found], tmp_path, (f"BYTES={aligned}",))  # type: ignore[arg-type]
    for precision, template, call in found:
        lowered = template.lower(call)
        assert lowered is not None and BACKEND.emitter.fits(
            lowered.kernel, lowered.shape, call.schedule, lowered.cuts
        ), call.schedule
        given = drawn(call)
        (want,) = evaluate(template.roots, given, float64=True)
        error = np.linalg.norm(run(kernels, template, call, given) - want) / np.linalg.norm(want)
        assert error < LIMITS[precision], (template.pattern, call.schedule)


@pytest.mark.parametrize(("high", "wide"), [(4, 8), (8, 4), (8, 8)])
def test_threads_hold_several_squares(tmp_path: Path, high: int, wide: int) -> None:
    """Beside each other and below, in the order in which what follows walks them."""
    template, call = called("odd", IEEE, m=64, n=64, high=high, wide=wide)
    given = drawn(call)
    (want,) = evaluate(template.roots, given, float64=True)
    got = run(built([launched(template, call).text], tmp_path), template, call, given)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < LIMITS[IEEE]


def test_infinities_and_nan_stay_in_their_places(tmp_path: Path) -> None:
    """Halves of an infinity would be NaN; what is no number must not become one."""
    found = [called("plain", p) for p in LIMITS]
    kernels = built([launched(*one).text for one in found], tmp_path)
    for template, call in found:
        given = drawn(call)
        given["w"] = np.abs(given["w"]).round(1) + 1.0  # many of its numbers leave no small half
        given["w"][:, 0] = 1.0
        given["x"][3, 5], given["x"][7, 2], given["x"][9, 9] = np.inf, -np.inf, np.nan
        got = run(kernels, template, call, given)
        assert np.isposinf(got[3]).all() and np.isneginf(got[7]).all() and np.isnan(got[9]).all()
        assert np.isfinite(np.delete(got, [3, 7, 9], 0)).all()


def test_a_tile_that_is_overwritten_too_early_is_found(tmp_path: Path) -> None:
    template, call = called("plain", IEEE, deep=8, stages=2)
    given, wrong = drawn(call), {"            __syncthreads();\n": ""}
    (want,) = evaluate(template.roots, given, float64=True)
    got = run(built([launched(template, call).text], tmp_path, change=wrong), template, call, given)
    assert not np.allclose(got, want, atol=1e-3)


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("m, n, k", [(1000, 3584, 896), (20, 64, 48), (64, 4096, 4096), (500, 64, 500), (37, 41, 23)])
def test_what_is_proposed_is_legal_and_stays_so_by_moves(precision: Precision, m: int, n: int, k: int) -> None:
    root = t.matmul(x("x", m, k), x("w", k, n))
    template = template_of(BACKEND.emitter, root, precision=precision)
    kinds = {"x": Operand(Type((m, k), "float32"), (k, 1)), "w": Operand(Type((k, n), "float32"), (n, 1))}
    lowered = template.lower(Call(kinds, Operand(Type((m, n), "float32"), (n, 1)), {}))
    assert lowered is not None
    for schedule in lowered.space:
        assert BACKEND.emitter.fits(lowered.kernel, lowered.shape, schedule, lowered.cuts)
        tiles = TiledSchedule.parse(schedule)
        assert (
            tiles is not None and tiles.threads <= 512 and tiles.shared_bytes(True, False, 1) <= target().dynamic_shared
        )
    for wrong in ({"tiles": 2}, {"high": 3}, {"stages": 1}, {"deep": 4}, {"m": 512}, {"walk": 1}):
        assert not BACKEND.emitter.fits(lowered.kernel, lowered.shape, {**lowered.space[0], **wrong}, lowered.cuts)


@pytest.mark.parametrize(
    "root",
    [
        lambda: t.matmul(t.exp(x("x", 64, 64)), x("w", 64, 64)),  # a side that is computed
        lambda: t.sum(t.matmul(x("x", 64, 64), x("w", 64, 64)), axis=1),
        lambda: t.matmul(t.input("x", (64, 64), "float64"), t.input("w", (64, 64), "float64")),
        lambda: t.matmul(x("x", 4, 64), x("w", 64, 64)),  # read once: nothing to share
    ],
)
def test_tiles_are_not_for(root: Callable[[], Tensor]) -> None:
    term = root()
    template = template_of(BACKEND.emitter, term)
    leaves = {str(n.attr("name")): n for n in topological([term]) if n.op == "input"}
    kinds = {o: Operand(n.type, contiguous(n.shape)) for o, n in leaves.items()}  # type: ignore[arg-type]
    lowered = template.lower(Call(kinds, Operand(term.type, contiguous(term.shape)), {}))  # type: ignore[arg-type]
    assert lowered is None or not any("tiles" in s for s in lowered.space)
    if lowered is not None:
        assert tile_schedules(lowered.kernel, lowered.shape, 4, IEEE) == []


assert cuda_host.INTRINSICS in CUDA_LIBRARY
