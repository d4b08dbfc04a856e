"""Defines the Torch module that runs a saved program in place of a subgraph of a traced graph; its first call is
compared with the eager subgraph, which also runs wherever the program cannot."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence
from typing import Any

from ..backends.program.program import Program
from ..backends.runtime.marshalling import tensor_of
from ..errors import DeviceFaultError, TensorGraphsError
from .exact import unequal_bits
from .memory_layout import TracedLayouts, arranged, axis_order
from .partition import Part, tensors_of
from .plain_tensors import PlainTensors

#: Relative error of a program's output against the eager subgraph above which the program is not used: what float64
#: verification allows differs by model; this only detects a wrong program. By dtype; other dtypes: share of elements.
ERRORS = {"float64": 1e-6, "float32": 1e-2, "float16": 5e-2, "bfloat16": 1e-1}
UNEQUAL = 0.01
#: Share of the results' typical size below which a difference is rounding: the gradient of a bias before a norm is zero
#: but for rounding. The second one where the part has 16-bit values.
SMALL, SMALL_OF_HALVES = 1e-3, 5e-2


def make_runner(
    part: Part, program: Program, positions: Sequence[int], refuse: Callable[[str], None], exact: bool = False,
    saved: Container[int] = (),
) -> Any:  # fmt: skip
    """Make a Torch module that runs a program in place of a part's subgraph.

    `positions`: the part's placeholders that are inputs of the program, in its order. The first call also runs the
    subgraph and compares, bit by bit if `exact`; `refuse` is called with a reason when the program is not used any
    more. `saved`: indices of results that only the backward graph reads; the module returns them contiguous, the others
    in the layout of the trace.
    """
    import torch

    results = part.module.graph.output_node().args[0]
    layouts = [None if i in saved else axis_order(r.meta.get("val")) for i, r in enumerate(results)]
    row_major, tensor, traced = not any(layouts), torch.Tensor, TracedLayouts(part.module)
    half = _half_of(part.module)
    plain = PlainTensors(len(positions))

    class Runner(torch.nn.Module):  # type: ignore[misc]
        """The module that runs a part: its program, or the eager subgraph while the program is not in use."""

        verified = False
        active = True
        results_count = len(layouts)
        program: Program

        def forward(self, *args: Any) -> Any:
            """Results of a part: its program's, or those of the eager subgraph if the program is not in use."""
            if not self.active:
                return part.module(*traced.of(args))
            try:
                found = self.results(plain.of([args[i] for i in positions]))
            except DeviceFaultError:
                raise
            except Exception as error:  # sizes outside of the program's range; a program that does not run here
                if self.verified and not isinstance(error, TensorGraphsError):
                    raise
                return self.eager(args, f"{type(error).__name__}: {getattr(error, 'message', error)}")
            if not self.verified:
                expected = part.module(*traced.of(args))
                if wrong := differs(found, expected, exact, half):
                    return self.eager(args, wrong)
                self.verified = True
            return found

        def results(self, given: Sequence[Any]) -> list[Any]:
            """The program's outputs as tensors, in the memory layout of the subgraph's unless they are only saved."""
            found = [x if isinstance(x, tensor) else tensor_of(x) for x in program.flat(*given)]
            if row_major:
                return [x if x.is_contiguous() else x.contiguous() for x in found]
            return [arranged(x, order) for x, order in zip(found, layouts)]

        def eager(self, args: Any, reason: str) -> Any:
            """Run the eager subgraph. If the program was not verified yet, it is never used again, for `reason`."""
            if not self.verified:
                self.active = False
                refuse(reason)
            return part.module(*traced.of(args))

    made = Runner()
    made.program = program
    return made


def direct_call(module: Any, runner: Any) -> Callable[..., Any] | None:
    """Function with the arguments and results of the split graph `module` that calls `runner` itself, which saves
    interpreting the graph. None if the graph does more than one call of a submodule.

    `runner`: the module that runs the program of the only supported subgraph (`make_runner`).
    """
    placeholders = {n: i for i, n in enumerate(module.graph.find_nodes(op="placeholder"))}
    rest = [n for n in module.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    (*calls,) = (n for n in rest if n.op == "call_module")
    if len(calls) != 1 or any(
        n.target is not operator.getitem or n.args[0] is not calls[0] for n in rest if n not in calls
    ):
        return None
    if any(a not in placeholders for a in calls[0].args):
        return None
    given = [placeholders[a] for a in calls[0].args]

    def source(r: Any) -> tuple[int, Any]:
        """(0, index of a result), (1, index of an argument) or (2, a constant)."""
        if not hasattr(r, "op"):
            return 2, r
        if r.op == "get_attr":
            return 2, getattr(module, r.target)
        return (1, placeholders[r]) if r in placeholders else (0, r.args[1])

    results = [source(r) for r in module.graph.output_node().args[0]]
    forward = runner.forward
    if given == list(range(len(placeholders))) and results == [(0, i) for i in range(runner.results_count)]:
        return forward  # type: ignore[no-any-return]

    def run(*args: Any) -> list[Any]:
        found = forward(*[args[i] for i in given])
        return [found[i] if kind == 0 else args[i] if kind == 1 else i for kind, i in results]

    return run


def differs(found: Sequence[Any], expected: Sequence[Any], exact: bool = False, half: str = "") -> str:
    """Description of how the results `found` differ from those expected, beyond rounding (`exact`: in bits); "" if they
    do not. `half`: the 16-bit dtype of values that they are computed from; "" if there are none."""
    typical = max([_typical(y) for y in expected if _name(y) in ERRORS and y.numel()], default=0.0)
    for i, (x, y) in enumerate(zip(found, expected)):
        if x.shape != y.shape or x.dtype != y.dtype or x.device != y.device:
            return f"result {i} is {_type(x)}, not {_type(y)}"
        limit = ERRORS.get(_name(y))
        limit = limit and max(limit, ERRORS.get(half, 0.0))
        if not y.numel():
            continue
        if exact and (text := unequal_bits(x, y)):
            return f"result {i} {text}"
        if limit is None:
            wrong = float((x != y).double().mean())
            if wrong > UNEQUAL:
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


def _typical(x: Any) -> float:
    """Root mean square of the finite elements of a float tensor."""
    x = x.double().nan_to_num(0.0, 0.0, 0.0)
    scale = max(float(x.abs().max()), 1.0)
    return float(scale * (x / scale).norm() / x.numel() ** 0.5)


def _half_of(module: Any) -> str:
    """The 16-bit float dtype of a traced module's values, the one with fewer digits if there are both; "" if none."""
    found = {_name(v) for node in module.graph.nodes for v in tensors_of(node.meta.get("val"))}
    return next((name for name in ("bfloat16", "float16") if name in found), "")


def _name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _type(x: Any) -> str:
    return f"{_name(x)}{list(x.shape)} on {x.device}"


__all__ = ["differs", "direct_call", "make_runner"]
