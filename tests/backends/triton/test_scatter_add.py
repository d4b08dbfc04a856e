"""Generated kernels that add values to elements of an operand (scatter with mode "add"): sums over edges of a graph,
gradients of embeddings, counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensor_graphs.backends.c.backend import BACKEND as C
from tensor_graphs.backends.cuda.backend import BACKEND as CUDA
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.generate.template import template_of
from tensor_graphs.backends.ir import kernel as kir
from tensor_graphs.backends.ir.tiling import shape_of
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.backends.triton.backend import BACKEND, generated
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from .. import kernel_interpreter

N, ROWS, WIDTH = 40, 9, 6
X, BASE = t.input("x", (ROWS, WIDTH), "float32"), t.input("base", (ROWS, WIDTH), "float32")
FROM, TO = (t.input(n, (N,), "int64") for n in ("source", "target"))
UPDATES = t.input("u", (N, WIDTH), "float32")


def rows(index: Tensor) -> Tensor:
    return t.broadcast_to(t.reshape(index, (N, 1)), (N, WIDTH))


CASES = {
    "edges": lambda: t.scatter_elements(BASE, rows(TO), t.gather(X, FROM, axis=0) * 2.0, 0, "add"),
    "counts": lambda: t.scatter_elements(t.input("c", (ROWS,), "int64"), TO, t.full((N,), 1, "int64"), 0, "add"),
    "elements": lambda: t.scatter_elements(BASE, t.input("at", (N, WIDTH), "int64"), t.tanh(UPDATES), 0, "add"),
}


def leaves(root: Tensor) -> dict[str, Tensor]:
    return {str(n.attr("name")): n for n in topological([root]) if n.op == "input"}


def values(root: Tensor) -> dict[str, np.ndarray]:
    """Indices with duplicates; places count from the end, too."""
    rng = np.random.default_rng(0)
    return {
        n: rng.normal(size=leaf.shape).astype(np.float32)
        if leaf.dtype == "float32"
        else rng.integers(0 if n == "source" else -ROWS, ROWS, leaf.shape)
        for n, leaf in leaves(root).items()
    }


def lowered(roots: list[Tensor]) -> kir.Kernel:
    known = {n: leaf for root in roots for n, leaf in leaves(root).items()}
    kinds = {**known, **{f"out{n}" if n else "out": r for n, r in enumerate(roots)}}
    buffers = {n: kir.Buffer(k.dtype, tuple(k.shape), contiguous(k.shape)) for n, k in kinds.items()}  # type: ignore[arg-type]
    return kernel_of(roots, {leaf: n for n, leaf in known.items()}, buffers)


def call_of(root: Tensor) -> Call:
    kind = lambda x: Operand(x.type, contiguous(tuple(x.shape)))
    return Call({n: kind(leaf) for n, leaf in leaves(root).items()}, kind(root), {})


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_adds_every_update(name: str) -> None:
    root, torch = CASES[name](), pytest.importorskip("torch")
    pytest.importorskip("triton")
    given, base = values(root), str(root.args[0].attr("name"))
    (want,) = evaluate([root], given, float64=True)
    held = {n: v.reshape(-1).astype(np.float64 if v.dtype.kind == "f" else v.dtype) for n, v in given.items()}
    held["out"] = held[base].copy()
    kernel_interpreter.run(lowered([root]), held)
    np.testing.assert_allclose(held["out"].reshape(want.shape), want, rtol=1e-12)
    template, call = generated(root), call_of(root)
    assert template.inplace == (base,)
    for inplace, schedule in ((False, template.space(call)[0]), (True, template.space(call)[-1])):  # type: ignore[misc]
        tensors = {n: torch.from_numpy(v.copy()) for n, v in given.items()}
        out = tensors[base] if inplace else torch.empty_like(tensors[base])
        text = kernel_text(template, replace(call, schedule=schedule))
        assert "tl.atomic_add" in text.text
        module_of(text).run(*(tensors[o] for o in template.operands), out, torch.empty(0, dtype=torch.uint8))
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-5)


def test_what_would_be_added_twice_or_rounded_each_time_is_refused() -> None:
    sums = CASES["edges"]()
    for roots, why in (
        ([sums, t.gather(X, FROM, axis=0)], "beside other results"),
        ([t.scatter_elements(BASE, rows(TO), t.matmul(UPDATES, t.input("w", (WIDTH, WIDTH), "float32")), 0, "add")], "sums of products"),
        ([t.scatter_elements(BASE, rows(TO), UPDATES, 0, "max")], "not updated in place"),
        ([t.scatter_elements(t.input("h", (ROWS, WIDTH), "float16"), rows(TO), t.cast(UPDATES, "float16"), 0, "add")], "not updated in place"),
        ([t.scatter_elements(BASE, t.full((N, WIDTH), 3, "int64"), t.full((N, WIDTH), 1.0, "float32"), 0, "add")], "several times"),
    ):  # fmt: skip
        with pytest.raises(Unfusable, match=why):
            lowered(roots)


def test_only_strategies_that_add_have_schedules() -> None:
    """Others would store each value; so they are not legal for a schedule from elsewhere either."""
    root, plain = CASES["edges"](), t.scatter_elements(BASE, rows(TO), UPDATES, 0)
    for backend in (C, CUDA):
        assert not template_of(backend.emitter, root).space(call_of(root))
        schedule = template_of(backend.emitter, plain).space(call_of(plain))[0]
        kernel = lowered([root])
        assert not backend.emitter.fits(kernel, shape_of(kernel), schedule, False)
    kernel = lowered([root])
    assert BACKEND.emitter.fits(kernel, shape_of(kernel), generated(root).space(call_of(root))[0], False)
