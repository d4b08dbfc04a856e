"""The Pallas backend in interpret mode: every kernel class, every op and dtype with declared gaps, programs that run by
themselves, callers' arrays, states, saved programs; nothing is chosen where JAX is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed (pip install 'tensor-graphs[pallas]')")

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.pallas.backend import BACKEND, generated
from tensor_graphs.backends.pallas.library import GAPS as LIBRARY_GAPS
from tensor_graphs.backends.registry import backend, select
from tensor_graphs.backends.tuning.single_kernel import random_values, run_template
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.composites import composite_ops as composite
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make, topological
from tensor_graphs.egraph.ops.ops import OPS
from tensor_graphs.egraph.patterns.pattern import PatternCall, Var
from tensor_graphs.egraph.patterns.pattern_attrs import Name
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.meaning import output_terms

from .reference import expected
from .sampled_calls import sample
from .test_kernel_ir import KERNELS

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "float16", "bfloat16")
#: op -> why it has no generated kernel.
GAPS = {
    **dict.fromkeys(("argmax", "argmin", "argsort", "cumsum"), "notimpl: the kernel IR has no index expression for it"),
    **dict.fromkeys(("cross_entropy", "scatter_elements"), "notimpl: the kernel IR has no index expression for it"),
    "recurrent": "notimpl: the kernel IR has no sequential loop",
}
TOLERANCE = {1: 0.0, 2: 2e-2, 4: 2e-5, 8: 1e-11}


def dense(template: Any, seed: int, dtype: str) -> Call | None:
    """A sampled call of a template with all operands in order in memory."""
    call = sample(template, seed, dtype)
    if call is None or any(0 in o.type.shape for o in call.buffers.values()):
        return None
    laid = lambda o: Operand(o.type, contiguous(o.type.shape))
    return replace(call, operands={n: laid(o) for n, o in call.operands.items()}, output=laid(call.output))


def single(op: str) -> Any:
    """NumPy's kernel of one op, which says what the op's operands and attributes are; None if it has none."""
    for x in backend("numpy").templates:
        if isinstance(x.term, PatternCall) and x.term.op == op and not x.prep and len(x.operands) == OPS[op].arity:
            names = [v for _, v in x.term.attrs]
            if all(isinstance(a, Var) for a in x.term.args) and all(isinstance(v, Name) for v in names):
                return x
    return None


def term(template: Any, call: Call) -> Tensor:
    """The template's term over inputs."""
    done: dict[Tensor, Tensor] = {}
    for n in topological([output_terms(template, call)[0]]):
        if n.op == "param":
            done[n] = t.input(n.attr("name"), n.shape, n.dtype)
        else:
            done[n] = make(n.op, [done[a] for a in n.args], dict(n.attrs), data=n.data)
    return list(done.values())[-1]


def agrees(template: Any, call: Call, dtype: str, name: str) -> None:
    rng = np.random.default_rng(0)
    values = {n: random_values(o.type, rng) for n, o in call.operands.items()}
    got = run_template(template, call, values).astype(np.float64)
    limit = max(TOLERANCE[dtypes.itemsize(dtype)], 1e-1 if dtype == "bfloat16" else 0.0)
    want = expected(template, call, values).astype(np.float64)
    size = max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0.0))
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit * size, err_msg=name)


@pytest.mark.parametrize("name", KERNELS)
def test_every_class_of_kernels_in_every_block_size(name: str) -> None:
    root = KERNELS[name]()
    template = generated(root)
    inputs = {str(n.attr("name")): n.type for n in topological([root]) if n.op == "input"}
    call = Call({n: Operand(k, contiguous(k.shape)) for n, k in inputs.items()},
                Operand(root.type, contiguous(root.shape)), {})  # fmt: skip
    space = template.space(call)
    assert space, "every class is generated"
    for schedule in space[:2]:
        agrees(template, replace(call, schedule=schedule), "float32", f"{name} {schedule}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_has_a_generated_kernel_or_is_declared_a_gap(dtype: str) -> None:
    lacking, there = set(), set()
    for op in sorted(op for op, entry in OPS.items() if entry.arity):
        plain = single(op)
        calls = [dense(plain, seed, dtype) for seed in range(6)] if plain is not None else []
        call = next(
            (c for c in calls if c is not None and any(o.type.dtype == dtype for o in c.buffers.values())), None
        )
        if call is None:
            continue
        template = generated(term(plain, call))
        own = Call({n: call.operands[n] for n in template.operands}, call.output, {})
        if not template.applies(own):
            lacking.add(op)
            continue
        there.add(op)
        if dtype == "float32" or OPS[op].kind in ("reduction", "contraction"):
            agrees(template, own, dtype, op)
    assert lacking <= GAPS.keys(), f"undeclared gaps: {sorted(lacking - GAPS.keys())}"
    assert not there & GAPS.keys(), "declared as gaps, but there: update GAPS"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_has_a_library_kernel_or_is_declared_a_gap(dtype: str) -> None:
    own = {x.term.op: x for x in BACKEND.templates if isinstance(x.term, PatternCall)}
    assert {op for op, entry in OPS.items() if entry.arity} - own.keys() == LIBRARY_GAPS.keys()
    for op, template in own.items():
        plain = single(op)
        call = dense(plain, 1, dtype) if plain is not None else None
        if call is None or not any(o.type.dtype == dtype for o in call.buffers.values()) or template.family == "view":
            continue
        names = dict(zip((a.name for a in plain.term.args), template.operands))
        attrs = {name: call.attrs[v.name] for (name, v) in plain.term.attrs}
        moved = Call({names[n]: call.operands[n] for n in names}, call.output, attrs)
        if dtype == "float32" or OPS[op].kind in ("reduction", "contraction"):
            agrees(template, moved, dtype, op)


# ---------------------------------------------------------------- programs
def graph() -> tg.Graph:
    x, w = t.input("x", (8, 32), "float32"), t.param("w", (32, 16), "float32")
    root = composite.softmax(t.matmul(x, w), axis=1)
    rng = np.random.default_rng(1)
    return Graph.of(root, params={"w": rng.standard_normal((32, 16)).astype(np.float32)}, name="head")


def optimized(**more: Any) -> Any:
    return tg.optimize(graph(), backend="pallas", measure=False, deterministic=True, **more)


@pytest.fixture(scope="module")
def program() -> Any:
    return optimized()


def test_a_program_is_verified_and_has_generated_kernels(program: Any) -> None:
    assert program.manifest.device == "jax" and program.report.verification
    assert [s.template.backend for s in program.plan.steps] == ["pallas"] * len(program.plan.steps)
    assert any(s.template.roots for s in program.plan.steps), "generated kernels are chosen"
    assert set(program.report.priced) == {"bound"} or "measured" not in program.report.priced, "nothing was measured"


def test_results_are_of_the_callers_kind(program: Any) -> None:
    import jax
    import jax.numpy as jnp

    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    found = program(x)
    assert isinstance(found, np.ndarray) and found.flags.writeable
    assert isinstance(program(jnp.asarray(x)), jax.Array)
    np.testing.assert_array_equal(np.asarray(program(jnp.asarray(x))), found)


def test_a_saved_program_loads_and_its_source_runs_alone(program: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    want = program(x)
    folder = program.save(tmp_path / "saved")
    np.testing.assert_array_equal(tg.load_program(folder)(x), want)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, runpy, numpy as np; from safetensors.numpy import load_file\n"
        f"space = runpy.run_path({str(folder / 'program.py')!r})\n"
        f"run = space['bind'](load_file({str(folder / 'weights.safetensors')!r}))\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, np.asarray(run(np.load({str(tmp_path / 'x.npy')!r}))[0]))\n"
        "assert not any(m.startswith('tensor_graphs') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), want)


def test_states_are_kept_between_calls() -> None:
    x, total = t.input("x", (4,), "float32"), t.state("total", (4,), "float32")
    after = total + x
    made = tg.Program(direct_plan(Graph.of(after * 2.0, updates={"total": after}), select("pallas")))
    x1 = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(made(x1), 2 * x1)
    np.testing.assert_array_equal(made(x1), 4 * x1)
    np.testing.assert_array_equal(made.get_state("total"), 2 * x1)


def test_64_bit_values_keep_their_bits() -> None:
    i = t.input("i", (3,), "int64")
    made = tg.Program(direct_plan(Graph.of(i + i), select("pallas")))
    np.testing.assert_array_equal(made(np.array([1, 2**40, -(2**61)])), np.array([2, 2**41, -(2**62)]))


def test_the_backend_is_used_only_where_it_is_chosen() -> None:
    assert "pallas" not in {b.name for b in select("auto")} | {b.name for b in select("c")}
    assert [b.name for b in select("pallas")] == ["pallas"]
    assert BACKEND.measured == ("" if __import__("jax").default_backend() == "cpu" else "host")
