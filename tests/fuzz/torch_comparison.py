"""Compares a program with the PyTorch function it was made of: structure, dtypes, shapes, values, written arguments and
shared memory, on several draws of the arguments in other memory layouts.

Floats may differ by what rounding moves in the function itself: a few units of the dtype, its distance from its own
float64 run, and its change when arguments change by their last bits. Whole numbers and truth values are equal unless
such a change, or float64, changes them in the function as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from .opinfo import POSITIONS

Array = np.ndarray[Any, Any]


class Arguments:
    """Tensors in their memory layouts; `fresh` gives copies that share memory as the originals do."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = list(tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def fresh(self, change: Callable[[Any], Any] | None = None) -> list[Any]:
        """Copies; `change` maps the content of each memory block first."""
        made, copies = list[Any](), dict[int, Any]()
        for x in self.tensors:
            whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
            key = x.untyped_storage().data_ptr() or id(x)
            if key not in copies:
                copies[key] = change(whole) if change else whole.clone()
            made.append(copies[key].as_strided(x.shape, x.stride(), x.storage_offset()))
        return made


def described(x: Any) -> str:
    """A value in a few words."""
    if not isinstance(x, torch.Tensor):
        return repr(x)
    layout = "" if x.is_contiguous() else f" strides {list(x.stride())}"
    some = x.detach().flatten()[:8].tolist()
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{layout} {some}"


# ---------------------------------------------------------------- arguments
def laid_out(r: random.Random, x: Any) -> Any:
    """The tensor in another memory layout."""
    kind = r.choice(("same", "same", "turned", "steps", "offset", "expanded"))
    if kind == "turned" and x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == "steps" and x.ndim:
        wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), dtype=x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if kind == "offset":
        wide = torch.zeros(x.numel() + 3, dtype=x.dtype)
        wide[3:] = x.flatten()
        return wide[3:].view(x.shape)
    if kind == "expanded" and x.ndim and x.shape[0]:
        return x[:1].clone().expand(x.shape)
    return x.clone()


SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.nan,
    math.inf,
    -math.inf,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-40,
    -1e-40,
    3e38,
    65504.0,
    1e-7,
    7.0,
    2.0,
    -3.0,
)


def altered_values(r: random.Random, x: Any) -> Any:
    """Other values of the same dtype and shape."""
    g = torch.Generator().manual_seed(r.randrange(1 << 30))
    n = x.numel()
    kind = r.choice(("ties", "special", "limits", "equal", "shuffled", "positive"))
    whole = torch.randint(-3, 4, (n,), generator=g)
    if x.dtype == torch.bool:
        return (whole > r.choice((-3, 0, 2))).view(x.shape)
    if kind == "ties":
        return whole.abs().to(x.dtype).view(x.shape) if x.dtype == torch.uint8 else whole.to(x.dtype).view(x.shape)
    if kind == "equal":
        return torch.full(x.shape, r.choice((0, 1, 2)), dtype=x.dtype)
    if kind == "shuffled" and n:
        return x.flatten()[torch.randperm(n, generator=g)].view(x.shape).clone()
    if kind == "positive":
        return x.abs().clone()
    if x.dtype.is_floating_point or x.dtype.is_complex:
        chosen = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randint(len(SPECIAL), (n,), generator=g)]
        mixed = torch.where(torch.rand(n, generator=g) < 0.5, chosen, whole.double())
        return mixed.to(x.dtype).view(x.shape)
    i = torch.iinfo(x.dtype)
    ends = torch.tensor([i.min, i.max, i.max - 1, i.min + 1, 0, 1, 2, 3], dtype=torch.int64).to(x.dtype)
    return ends[torch.randint(8, (n,), generator=g)].view(x.shape)


# ---------------------------------------------------------------- comparison
def compared(
    group: Any, fast: Callable[..., Any], r: random.Random, *, fixed: bool, sharing: bool, sizes: bool = False
) -> dict[int, str]:
    """What differs on some draw of the arguments, by the seed of the program. `fixed`: only the first argument of each
    may change. `sharing`: results share memory exactly as the function's do (else: not more). `sizes`: the number of
    rows of the first argument changes.
    """
    wrong = dict[int, str]()
    for number in range(4):
        draws = [drawn(r, p, number, fixed, sizes) for p in group.programs]
        ours = [a.fresh() for a in draws]
        got = fast(*(x for given in ours for x in given))
        for program, arguments, given, own in zip(group.programs, draws, ours, got, strict=True):
            if why := agrees(program, arguments, given, own, sharing):
                shown = [described(x) for x in arguments.fresh()]
                wrong.setdefault(program.seed, f"draw {number}: {why}; arguments {shown}")
    return wrong


def drawn(r: random.Random, program: Any, number: int, fixed: bool, sizes: bool) -> Arguments:
    """Arguments of a draw, those of the program where eager refuses others."""
    first = program.arguments
    if not number:
        return first
    changed = [
        laid_out(r, altered_values(r, x) if x.dtype == program.own_dtype and number > 1 else x) for x in first.fresh()
    ]
    if sizes and changed[0].ndim and changed[0].shape[0] > 1:
        rows = torch.arange(r.choice((1, 2, 3, 5, 7, 11, 13)) if number > 1 else 0) % changed[0].shape[0]
        changed[0] = changed[0][rows]
    made = Arguments([changed[0], *first.tensors[1:]] if fixed else changed)
    try:
        program(*made.fresh())
    except Exception:
        return first
    return made


def agrees(program: Any, arguments: Arguments, ours: list[Any], got: Any, sharing: bool) -> str:
    """'' where one call agrees; `ours`: the arguments after the call."""
    given = arguments.fresh()
    want = program(*given)
    wanted, spec = _pytree.tree_flatten(want)
    found, other = _pytree.tree_flatten(got)
    if spec != other:
        return f"structure {other} instead of {spec}"
    near = Neighbours(program, arguments)
    free = any(s.name.split("_")[0].split(".")[0].split(" ")[0].split(",")[0] in POSITIONS for s in program.steps)
    for n, (x, y) in enumerate(zip(found, wanted, strict=True)):
        if why := differs(x, y, [v[n] for v in near.results], [v[n] for v in near.exact], free):
            return f"result {n}: {why}"
    for n, (x, y) in enumerate(zip(ours, given, strict=True)):
        if why := differs(x, y, [v[n] for v in near.arguments], [v[n] for v in near.exact_arguments], free):
            return f"argument {n} after the call: {why}"
    mine, eager = shared(found, ours), shared(wanted, given)
    if mine - eager or (sharing and mine != eager):
        return f"shared memory: {mine} instead of {eager}"
    return ""


def shared(results: Sequence[Any], arguments: Sequence[Any]) -> set[tuple[int, int]]:
    """Pairs of results, and of results and arguments (from 1000 on), with common memory."""
    ends = [(n, x) for n, x in enumerate(results)] + [(1000 + n, x) for n, x in enumerate(arguments)]
    ends = [(n, x) for n, x in ends if isinstance(x, torch.Tensor) and x.numel()]
    return {
        (n, m) for n, x in ends for m, y in ends
        if n < m and n < 1000 and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    }  # fmt: skip


class Neighbours:
    """The function's results on arguments whose last bits differ (`results`), and in float64 (`exact`)."""

    def __init__(self, program: Any, arguments: Arguments) -> None:
        self.results, self.arguments = list[list[Any]](), list[list[Any]]()
        self.exact, self.exact_arguments = list[list[Any]](), list[list[Any]]()
        if not any(x.dtype.is_floating_point or x.dtype.is_complex for x in arguments.tensors):
            return
        torch.manual_seed(1)
        for factor in (2.0, 2.0, 6.0):
            self._add(program, arguments.fresh(lambda x, k=factor: moved(x, k)), self.results, self.arguments)
        self._add(program, [wide(x) for x in arguments.fresh()], self.exact, self.exact_arguments)

    @staticmethod
    def _add(program: Any, given: list[Any], results: list[list[Any]], arguments: list[list[Any]]) -> None:
        try:
            found = _pytree.tree_leaves(program(*given))
        except Exception:
            return
        results.append(found)
        arguments.append(given)


def moved(x: Any, units: float) -> Any:
    """Floats changed by some units of their last place."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return x.clone()
    return x * (1 + units * torch.finfo(x.dtype).eps * torch.sign(torch.randn(x.shape))).to(x.dtype)


def wide(x: Any) -> Any:
    return x.to(torch.float64) if x.dtype.is_floating_point else x.to(torch.complex128) if x.dtype.is_complex else x


def differs(got: Any, want: Any, near: Sequence[Any], exact: Sequence[Any], free: bool) -> str:
    """How two leaves differ beyond rounding."""
    if not isinstance(want, torch.Tensor):
        same = type(got) is type(want) and (got == want or (got != got and want != want))
        return "" if same or isinstance(want, float) else f"{got!r} instead of {want!r}"
    if not isinstance(got, torch.Tensor):
        return f"{type(got)} instead of a tensor"
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if got.numel() == 0:
        return ""
    others = [v for v in (*near, *exact) if isinstance(v, torch.Tensor) and v.shape == want.shape]
    if want.dtype.is_complex:
        parts = [
            differs(
                f(got), f(want), [f(v) for v in near if v.is_complex()], [f(v) for v in exact if v.is_complex()], free
            )
            for f in (lambda v: torch.view_as_real(v.resolve_conj()),)
        ]
        return next((p for p in parts if p), "")
    g, w = got.detach().resolve_neg(), want.detach().resolve_neg()
    if not want.dtype.is_floating_point:
        bad = g != w
        for v in others:
            bad &= v == w
        if free and near and want.dtype == torch.int64:
            return ""
    else:
        bad = apart(g.double(), w.double(), [v.double() for v in others], torch.finfo(want.dtype))
    if not bad.any():
        return ""
    at = tuple(int(i) for i in bad.nonzero()[0])
    return f"at {at} {g[at].item()!r} instead of {w[at].item()!r} ({int(bad.sum())} of {bad.numel()}; near {[v[at].item() for v in others]})"


def apart(g: Any, w: Any, others: Sequence[Any], info: Any) -> Any:
    """Elements that rounding does not explain."""
    finite = torch.isfinite(w)
    scale = float(w[finite].abs().max()) if bool(finite.any()) else 0.0
    moves = torch.zeros_like(w)
    unsure = torch.zeros_like(w, dtype=torch.bool)
    for v in others:
        unsure |= torch.isfinite(v) != finite
        unsure |= ~finite & ~((v == w) | (v.isnan() & w.isnan()))
        moves = torch.maximum(moves, torch.where(torch.isfinite(v) & finite, (v - w).abs(), 0.0))
    allowed = 64 * info.eps * w.abs() + 4 * info.eps * scale + 10 * moves + 2 * info.tiny
    same = (g == w) | (g.isnan() & w.isnan())
    return ~(same | unsure | (finite & torch.isfinite(g) & ((g - w).abs() <= allowed)))
