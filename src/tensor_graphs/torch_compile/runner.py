"""Runs a saved program in place of a subgraph of a traced graph (`PartRunner`). Its first call is compared with the
eager subgraph, which also runs wherever the program cannot."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence
from typing import Any

from ..backends.program.program import Program
from ..backends.runtime.marshalling import tensor_of
from ..errors import DeviceFaultError, TensorGraphsError
from .eager_comparison import are_finite, differs, name_of, with_rounding_noise
from .index_checks import outside_of
from .memory_layout import TracedLayouts, arranged, axis_order
from .partition import Part, tensors_of
from .plain_tensors import PlainTensors

#: First calls of a program at most that are left out because their results are not finite.
MOST_ODD = 3


class NoProgram(Exception):
    """Raised, before anything is computed that can be seen, when there is no program for a call (yet).

    The caller runs the graph eagerly.
    """


class PartRunner:
    """Runs a part of a traced graph: its program, or the eager subgraph while the program is not in use."""

    def __init__(
        self, part: Part, program: Program, positions: Sequence[int], refuse: Callable[[str], None],
        exact: bool = False, saved: Container[int] = (), backward: bool = False,
    ) -> None:  # fmt: skip
        """`positions`: the part's placeholders that are inputs of the program, in its order. The first call also runs
        the subgraph and compares, bit by bit if `exact`; `refuse` is called with a reason when the program is not used
        any more. `saved`: indices of results that only the backward graph reads; they are returned contiguous, the
        others in the layout of the trace. Calls with indices outside of an axis run the subgraph, which raises an
        error, unless the part is `backward`: its indices are those of the forward pass.
        """
        import torch

        results = part.module.graph.output_node().args[0]
        self.program = program
        self.verified, self.active = False, True
        self.on_trial = not backward  # whether calls are those of a trial, which restores random numbers and tensors
        self.results_count = len(results)
        self._subgraph, self._traced, self._half = part.module, TracedLayouts(part.module), _half_of(part.module)
        self._positions, self._plain, self._tensor = positions, PlainTensors(len(positions)), torch.Tensor
        self._refuse, self._exact = refuse, exact
        self._layouts = [None if i in saved else axis_order(r.meta.get("val")) for i, r in enumerate(results)]
        self._row_major = not any(self._layouts)
        self._outside = None if backward else outside_of(part.module)
        self._odd = 0  # calls that said nothing about the program

    def as_module(self) -> Any:
        """A Torch module whose calls are those of `forward`, for the part's place in a graph module."""
        import torch

        module = torch.nn.Module()
        module.forward = self.forward
        return module

    def forward(self, *args: Any) -> Any:
        """Results of the part for the arguments of its subgraph: its program's, or those of the eager subgraph if the
        program is not in use. Raises NoProgram as `_undecided`."""
        if not self.active or (self._outside is not None and self._outside(args)):
            return self._subgraph(*self._traced.of(args))
        try:
            found = self._results(self._plain.of([args[i] for i in self._positions]))
        except DeviceFaultError:
            raise
        except Exception as error:  # sizes outside of the program's range; a program that does not run here
            if self.verified and not isinstance(error, TensorGraphsError):
                raise
            return self._eager(args, f"{type(error).__name__}: {getattr(error, 'message', error)}")
        return found if self.verified else self._compared(args, found)

    def _compared(self, args: Sequence[Any], found: list[Any]) -> Any:
        """`found`, the program's results, if they are those of the eager subgraph, else the latter's results."""
        expected = self._subgraph(*self._traced.of(args))
        again = lambda: self._subgraph(*self._traced.of(with_rounding_noise(args, self._half)))
        if wrong := differs(found, expected, self._exact, self._half, again):
            if self._odd < MOST_ODD and not are_finite(expected):
                return self._undecided(expected)
            return self._eager(args, wrong)
        self.verified = True
        return found

    def _results(self, given: Sequence[Any]) -> list[Any]:
        """The program's outputs as tensors, in the memory layout of the subgraph's unless they are only saved."""
        tensor = self._tensor
        found = [x if isinstance(x, tensor) else tensor_of(x) for x in self.program.flat(*given)]
        if self._row_major:
            return [x if x.is_contiguous() else x.contiguous() for x in found]
        return [arranged(x, order) for x, order in zip(found, self._layouts)]

    def _undecided(self, expected: Any) -> Any:
        """Leave the comparison to a later call: where results overflow, or operands are not finite, programs may
        differ. Raises NoProgram in a trial of a forward pass; another call has to go on, as parts before this one
        may have drawn random numbers, and returns `expected`."""
        self._odd += 1
        if self.on_trial:
            raise NoProgram
        return expected

    def _eager(self, args: Sequence[Any], reason: str) -> Any:
        """Run the eager subgraph. If the program was not verified yet, it is never used again, for `reason`, unless
        the subgraph raises an error, too."""
        found = self._subgraph(*self._traced.of(args))
        if not self.verified:
            self.active = False
            self._refuse(reason)
        return found


def direct_call(module: Any, runner: PartRunner) -> Callable[..., Any] | None:
    """Function with the arguments and results of the split graph `module` that calls `runner` itself, which saves
    interpreting the graph. None if the graph does more than one call of a submodule.

    `runner`: runs the program of the only supported subgraph.
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
        return forward

    def run(*args: Any) -> list[Any]:
        found = forward(*[args[i] for i in given])
        return [found[i] if kind == 0 else args[i] if kind == 1 else i for kind, i in results]

    return run


def _half_of(module: Any) -> str:
    """The 16-bit float dtype of a traced module's values, the one with fewer digits if there are both; "" if none."""
    found = {name_of(v) for node in module.graph.nodes for v in tensors_of(node.meta.get("val"))}
    return next((name for name in ("bfloat16", "float16") if name in found), "")


__all__ = ["NoProgram", "PartRunner", "direct_call"]
