"""Compares the first results of a program with those of the eager subgraph: detects a wrong program, beyond what
rounding explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .exact import unequal_bits

#: Relative error of a program's output against the eager subgraph above which the program is not used: what float64
#: verification allows differs by model; this only detects a wrong program. By dtype; other dtypes: share of elements.
ERRORS = {"float64": 1e-6, "float32": 1e-2, "float16": 5e-2, "bfloat16": 1e-1}
UNEQUAL = 0.01
#: Multiple of the share of elements that rounding noise on the arguments changes, up to which a share is rounding: it
#: changes the signs of values near zero (masks of activations), and programs round in other places than eager.
NOISE = 2.0
#: Share of the results' typical size below which a difference is rounding: the gradient of a bias before a norm is zero
#: but for rounding. The second one where the part has 16-bit values.
SMALL, SMALL_OF_HALVES = 1e-3, 5e-2


def differs(
    found: Sequence[Any], expected: Sequence[Any], exact: bool = False, half: str = "",
    again: Callable[[], Sequence[Any]] | None = None,
) -> str:  # fmt: skip
    """Description of how the results `found` differ from those expected, beyond rounding (`exact`: in bits); "" if they
    do not. `half`: the 16-bit dtype of values that they are computed from; "" if there are none. `again`: computes the
    expected results with rounding noise on the arguments, which decides about integers and bools; None: no noise."""
    noisy: Sequence[Any] | None = None
    typical = max([_typical(y) for y in expected if name_of(y) in ERRORS and y.numel()], default=0.0)
    for i, (x, y) in enumerate(zip(found, expected)):
        if x.shape != y.shape or x.dtype != y.dtype or x.device != y.device:
            return f"result {i} is {_type(x)}, not {_type(y)}"
        limit = ERRORS.get(name_of(y))
        limit = limit and max(limit, ERRORS.get(half, 0.0))
        if not y.numel():
            continue
        if exact and (text := unequal_bits(x, y)):
            return f"result {i} {text}"
        if limit is None:
            wrong = _unequal(x, y)
            if wrong > UNEQUAL and noisy is None and again is not None:
                noisy = again()
            if wrong > max(UNEQUAL, NOISE * _unequal(noisy[i], y) if noisy is not None else 0.0):
                return f"{100 * wrong:.3g} % of the elements of result {i} differ from eager"
            continue
        a, b = x.double(), y.double()
        same = (a.isfinite() & b.isfinite()) | (a == b) | (a.isnan() & b.isnan())
        if not bool(same.all()):
            return f"result {i} has NaN or infinities where eager has none, or others than eager has"
        a, b = a.nan_to_num(0.0, 0.0, 0.0), b.nan_to_num(0.0, 0.0, 0.0)
        scale = max(float(b.abs().max()), 1.0)  # squares of numbers above 1e154 overflow
        error, size = float((a / scale - b / scale).norm()), float((b / scale).norm())
        least = max(1e-3, (SMALL_OF_HALVES if half else SMALL) * typical)
        if not error <= limit * size + limit * least / scale * y.numel() ** 0.5:
            return f"result {i} is off by {error / max(size, 1e-300):.3g} relative to eager"
    return ""


def are_finite(results: Sequence[Any]) -> bool:
    """Whether no float among the results is infinite or NaN."""
    return all(bool(y.isfinite().all()) for y in results if name_of(y) in ERRORS)


def with_rounding_noise(args: Sequence[Any], half: str) -> list[Any]:
    """Arguments of a call whose floats are moved up or down by a unit roundoff of their dtype, or of the 16-bit dtype
    `half` ("" for none) if that is larger."""
    import torch

    found = list(args)
    for i, x in enumerate(args):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.element_size() > 1:
            roundoff = max(torch.finfo(d).eps for d in (x.dtype, *([getattr(torch, half)] if half else []))) / 2
            drawing = torch.Generator(x.device).manual_seed(i)
            signs = torch.randint(0, 2, x.shape, generator=drawing, device=x.device, dtype=torch.float64) * 2 - 1
            found[i] = (x.detach() * (1 + signs * roundoff)).to(x.dtype)
    return found


def _unequal(x: Any, y: Any) -> float:
    """Share of the elements in which two tensors of one shape differ."""
    return float((x != y).double().mean())


def _typical(x: Any) -> float:
    """Root mean square of the finite elements of a float tensor."""
    x = x.double().nan_to_num(0.0, 0.0, 0.0)
    scale = max(float(x.abs().max()), 1.0)
    return float(scale * (x / scale).norm() / x.numel() ** 0.5)


def name_of(x: Any) -> str:
    """Name of a tensor's dtype, as `float32`."""
    return str(x.dtype).removeprefix("torch.")


def _type(x: Any) -> str:
    return f"{name_of(x)}{list(x.shape)} on {x.device}"


__all__ = ["ERRORS", "are_finite", "differs", "name_of", "with_rounding_noise"]
