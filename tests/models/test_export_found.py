"""Operators at the edges of what they take, against eager: sizes of 0, ties, tails and infinities
(tests/fuzz/{empty,opinfo}.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's internal test helpers need expecttest")

import tensor_graphs as tg  # noqa: E402
from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.models.torch_export.arrays import to_numpy  # noqa: E402
from tensor_graphs.models.torch_export.export import _decompositions, load_module  # noqa: E402

from ..fuzz import empty, opinfo  # noqa: E402

F = torch.nn.functional


def judged(samples: list[opinfo.Sample], **how: Any) -> list[str]:
    return [
        f"{s.text}: {v.status} {v.why}"
        for s, v in zip(samples, opinfo.verdicts(samples, "samples", **how))
        if v.status != "right"
    ]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_operators_of_nothing_are_eagers() -> None:
    every = [s for name in empty.CASES for s in empty.samples(name)]
    assert len(every) > 1000
    assert judged(every[::12]) == []


def test_programs_of_nothing_are_eagers() -> None:
    names = (
        "conv2d",
        "conv_transpose2d",
        "attention.mask",
        "instance_norm",
        "adaptive_avg_pool2d.0",
        "median.all",
        "index_add",
        "max_pool2d",
    )
    assert judged([s for name in names for s in list(empty.samples(name))[:2]], optimized=True) == []


I = [[3, -2], [1, 0]]
SPOILT = torch.arange(30.0).reshape(1, 1, 5, 6)
SPOILT[0, 0, 1, 1], SPOILT[0, 0, 4, 5] = float("inf"), float("nan")
CALLS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "positions without a batch axis": (lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True), [torch.randn(4, 4, 4)]),
    "positions of max_pool1d": (lambda x: F.max_pool1d(x, 2, return_indices=True), [torch.randn(4, 6)]),
    "loss of one example": (lambda x, i: F.nll_loss(x, i, reduction="none"), [torch.randn(3), torch.tensor(1)]),
    "mean loss of one example": (lambda x, i: F.nll_loss(x, i), [torch.randn(3), torch.tensor(1)]),
    "batch_norm of nothing": (lambda x: F.batch_norm(x, None, None, training=True), [torch.randn(0, 3)]),
    "atan2 of infinities": (torch.atan2, [torch.tensor([1.0, -1.0, 1.0, 0.5, 1.0]) / torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0]),
                                          torch.tensor([1.0, -1.0, -1.0, 1.0, 2.0]) / torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])]),
    "integers to negative powers": (torch.pow, [torch.tensor([-3, -1, -1, 1, 2, 3, 2]), torch.tensor([-3, -2, -3, -1, -5, 2, 0])]),
    "a number to negative powers": (lambda x: 2**x, [torch.tensor([-3, 0, 5])]),
    "arange of fractions in integers": (lambda x: x + torch.arange(0.1, -7.9, -4.0, dtype=torch.int64), [torch.zeros(2, dtype=torch.int64)]),
    "any over no axes": (lambda x: (torch.any(x, ()), torch.all(x, dim=(), keepdim=True)), [torch.tensor([[0, 2], [3, 0]])]),
    "linear interpolation beside infinities": (lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"), [SPOILT]),
    "adaptive windows beside infinities": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), [SPOILT]),
    "filters beside infinities": (lambda x: F.interpolate(x, size=(3, 8), mode="bicubic", antialias=True), [SPOILT]),
    "samples outside beside infinities": (lambda x, g: torch.stack([F.grid_sample(x, g, mode, pad) for mode in ("bilinear", "nearest") for pad in ("zeros", "border")]),
                                          [SPOILT, torch.tensor([[2.0, 2], [1.2, 0.5], [-1.5, 0.2], [0.5, 1.4], [1.18, 1.18], [0.2, 0.3]]).reshape(1, 1, 6, 2)]),
    "a fractional threshold of integers": (lambda x: F.threshold(x, -0.5, 3.7), [torch.tensor([-1, 0, 1])]),
    "fractions of integer products": (lambda b, x, y: torch.baddbmm(b, x, y, beta=0.6, alpha=1.7),
                                      [torch.tensor([I]), torch.tensor([I]), torch.tensor([I])]),
    "the same of a sum of products": (lambda b, x, y: torch.addbmm(b, x, y, beta=1.9, alpha=0.2), [torch.tensor(I), torch.tensor([I]), torch.tensor([I])]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_edges_are_eagers(name: str) -> None:
    function, tensors = CALLS[name]

    def run(*values: Any) -> list[Any]:
        found = function(*values)
        return list(found) if isinstance(found, tuple) else [found]

    assert judged([opinfo.Sample(name, tuple(tensors), run)]) == []


@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float32", 2e-5), ("float64", 1e-12), ("bfloat16", 8e-3), ("float16", 2e-3)]
)
def test_erfc_keeps_its_digits_in_the_tails(dtype: str, rtol: float) -> None:
    """1 - erf(x) is 0 from 4 (float32) or 6 (float64) on; erfc is not."""
    most = {"float32": 9.0, "float64": 26.0, "bfloat16": 9.0, "float16": 2.9}[dtype]
    x = torch.linspace(-5, most, 300, dtype=torch.float64).to(getattr(torch, dtype))
    graph = load_module(torch.special.erfc, (x,))
    want = torch.special.erfc(x.double()).numpy()
    (found,) = evaluate(graph, {str(graph.inputs[0].attr("name")): to_numpy(x)})
    np.testing.assert_allclose(found.astype(np.float64), want, rtol=rtol)
    if dtype == "float32":
        made = tg.optimize(graph, backend="auto", measure=False, budget=10.0)
        np.testing.assert_allclose(np.asarray(made(to_numpy(x)), np.float64), want, rtol=rtol)
    edge = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0], dtype=x.dtype)
    (found,) = evaluate(load_module(torch.special.erfc, (edge,)), {str(graph.inputs[0].attr("name")): to_numpy(edge)})
    np.testing.assert_array_equal(found.astype(np.float64), [0.0, 2.0, np.nan, 1.0])


EDGES = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-30, 3e38, -3e38, float("inf"), float("-inf"), float("nan")]
OF_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "atan2": torch.atan2,
    "angle": lambda x, y: torch.complex(y, x).angle(),
    "complex abs": lambda x, y: torch.complex(x, y).abs(),
    "hypot": torch.hypot,
    "fmod": torch.fmod,
    "copysign": torch.copysign,
    "xlogy": torch.special.xlogy,
    "lerp near the start": lambda x, y: torch.lerp(x, y, 0.25),
    "lerp near the end": lambda x, y: torch.lerp(x, y, 0.75),
}


@pytest.mark.parametrize("name", OF_PAIRS)
def test_signed_zeros_infinities_and_nan_are_eagers(name: str) -> None:
    """A wrong sign of a zero turns an angle by pi; scaled squares neither overflow nor vanish."""
    x, y = torch.cartesian_prod(torch.tensor(EDGES), torch.tensor(EDGES)).T.contiguous()
    graph = load_module(OF_PAIRS[name], (x, y))
    with np.errstate(all="ignore"):
        (found,) = evaluate(graph, {str(n.attr("name")): to_numpy(v) for n, v in zip(graph.inputs, (x, y))})
        want = (
            np.fmod(x, y).numpy() if name == "fmod" else OF_PAIRS[name](x, y).numpy()
        )  # eager's fmod(3e38, 1e-30) is NaN
    np.testing.assert_allclose(found, want, rtol=1e-6)
    if name in ("atan2", "angle", "fmod", "copysign"):
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(want[known]))


LATER = torch.library.Library("found_later", "DEF")  # its operators live as long as the process


def test_composite_operators_that_are_registered_later_are_decomposed() -> None:
    """The table of decompositions of earlier loads would keep the operator whole, without a builder."""
    x = torch.randn(3, 4)
    load_module(lambda a: torch.lerp(a, a * 2, 0.25).erfc(), (x,))
    assert _decompositions(torch.export.export(torch.nn.Tanh(), (x,))) is not _decompositions(
        torch.export.export(torch.nn.Tanh(), (x,))
    ), "callers may change it"
    LATER.define("twice(Tensor x) -> Tensor")
    LATER.impl("twice", lambda a: torch.erfc(a) * 2, "CompositeImplicitAutograd")
    graph = load_module(lambda a: torch.ops.found_later.twice(a), (x,))
    np.testing.assert_allclose(evaluate(graph, {graph.inputs[0].attr("name"): x.numpy()})[0], torch.erfc(x) * 2, 1e-5)
