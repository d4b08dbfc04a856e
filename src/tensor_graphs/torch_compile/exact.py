"""Checks for tolerance "exact" whether a compiled graph has the bits of the eager one, on a call's arguments and on
special floats.

Programs are verified bit by bit against their graph as NumPy computes it; eager operators may compute other bits than
their graph (PyTorch's exp, the sign of a zero result, decompositions).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ..backends.verification.compare import equal_bits
from .judge import TrialStep

#: Floats that are mixed into arguments, one group for each further call of both forms.
SPECIAL = ((), (0.0, -0.0), (1e-40, -1e-40), (3e38, 1.0), (float("inf"),), (float("-inf"), 1e-3), (float("nan"),))
#: Share of an argument's elements that are special; seconds after which no further call is made, except for the first
#: two.
SHARE, MOST_S = 0.125, 2.0


def bitwise_difference(
    compiled: Callable[..., Any], eager: Callable[..., Any], args: Sequence[Any], written: Sequence[int],
    gradients: bool, kept: Collection[int], held: Sequence[Any] = (),
) -> str:  # fmt: skip
    """The first difference in bits between the compiled and the eager graph, as text; "" for none.

    Compares results, written arguments and gradients, on `args`, and with random and special numbers in place of their
    floats, but not in place of the tensors whose ids are in `kept`. `written`: positions of the arguments that the
    graph writes; `held`: tensors of the graph module that it writes. `gradients`: whether the backward pass runs. Draws
    from the default random generators, which the caller restores.
    """
    import torch

    until = time.perf_counter() + MOST_S
    for number, given in enumerate(_cases(args, kept)):
        if number > 1 and time.perf_counter() > until:
            break
        found = []
        for form in (compiled, eager):
            step = TrialStep(given, written, gradients, held)
            torch.manual_seed(number)
            try:
                found.append([*step.values(form), *(step.args[i] for i in written), *(x.clone() for x in held)])
            finally:
                step.reset_held()
        for k, (x, y) in enumerate(zip(*found, strict=True)):
            if isinstance(y, torch.Tensor) and (text := unequal_bits(x, y)):
                return f"result {k} {text}"
    return ""


def _cases(args: Sequence[Any], kept: Collection[int]) -> Iterator[list[Any]]:
    """A call's arguments, then with random normal numbers and special ones in place of its floats."""
    import torch

    yield list(args)
    drawing = torch.Generator().manual_seed(0)
    for group in SPECIAL:
        yield [_drawn(x, group, drawing) if _replaceable(x, kept) else x for x in args]


def _replaceable(x: Any, kept: Collection[int]) -> bool:
    import torch

    plain = type(x) is torch.Tensor and x.layout == torch.strided and x._base is None
    return plain and x.is_floating_point() and x.element_size() > 1 and id(x) not in kept


def _drawn(x: Any, group: Sequence[float], drawing: Any) -> Any:
    """Normal numbers in the memory layout of a tensor, some of them special."""
    import torch

    numbers = torch.randn(x.shape, generator=drawing, dtype=torch.float64)
    if group:
        choice = torch.tensor(group, dtype=torch.float64)[torch.randint(len(group), tuple(x.shape), generator=drawing)]
        numbers = torch.where(torch.rand(x.shape, generator=drawing) < SHARE, choice, numbers)
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return made.copy_(numbers).requires_grad_(x.requires_grad)


def unequal_bits(x: Any, y: Any) -> str:
    """Text for the first element in which tensors differ, all NaN being equal; "" for none."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"is {x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
    if y.is_complex():
        import torch

        return unequal_bits(torch.view_as_real(x.resolve_conj()), torch.view_as_real(y.resolve_conj()))
    same = equal_bits(x, y, y.is_floating_point())
    if bool(same.all()):
        return ""
    place = (~same).nonzero()[0].tolist()
    return f"is {x[tuple(place)].item()!r} at {place}, eager's {y[tuple(place)].item()!r}"


__all__ = ["bitwise_difference", "unequal_bits"]
