"""C backend: generated kernels (generate/template.py) for the CPU, compiled by the system's C compiler.

It fuses pointwise chains, row and column reductions, gathers and transposing copies into one kernel, where libraries
make one pass over memory per operation. Of matrix products it generates only memory-bound ones (GEMV, skinny GEMM).
Kernels work on the same memory as NumPy's and Torch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any

from ...egraph.ir.dims import concrete
from ...egraph.ir.graph import Tensor, topological
from ...egraph.ir.ops import Type
from ...egraph.view.view import EGraphView
from ...extract.fusion.policy import PRODUCTS, REACHES, Reach
from ...extract.model.kernel import Call, Template
from ..generate.generator import Asked, Generator, Lowering, Lowerings
from ..generate.template import EmitterBase, GeneratedKernel, Launch, LaunchBase, Lowered, Schedule, template_of
from ..ir.kernel import PROBE, Expr, Kernel, walk
from ..ir.precision import IEEE, Precision
from ..ir.tiling import Shape
from .emit.kernel import emit
from .helpers import HELPERS, c_library

if TYPE_CHECKING:
    from ...egraph.saturate.lift import Numbers

ROWS = 1  # maximum rows of a product: few enough that reading the matrix dominates


@dataclass(frozen=True)
class Function(LaunchBase):
    """A C function; `buffers` in parameter order."""

    name: str
    source: str
    buffers: tuple[str, ...]

    def call(self, names: Mapping[str, str]) -> str:
        """The statement that calls the function with the buffers' addresses."""
        return f"{self.name}({', '.join(names[b] for b in self.buffers)})"


@dataclass
class CEmitter(EmitterBase):
    """Emits one C function per kernel."""

    name: str = "c"
    version: str = "6"
    setup: tuple[str, ...] = ("address", "c_function", "c_library")
    needs: tuple[str, ...] = ()

    def space(self, kernel: Kernel, shape: Shape, splits: bool) -> Sequence[Schedule]:
        """One empty schedule if a plain loop nest is efficient, else none.

        Excluded are products that read operands many times, and reductions inside other reductions.
        """
        inside = any(not e.axes <= set(kernel.axes) for e in kernel.reductions)
        return [{}] if not inside and all(map(_streams, kernel.reductions)) else []

    def launches(self, found: Lowered, schedule: Mapping[str, int], name: str) -> Sequence[Launch]:
        """The single function of a kernel; see emit/kernel.py."""
        doc = "" if name == PROBE else str(found.kernel)
        made = [Function(name, emit(found.kernel, name, doc), tuple(found.kernel.buffers))]
        if name == PROBE:
            found.made[PROBE] = made  # c/any_size.py asks for the text under any name
        return made


def _narrow(t: Tensor) -> bool:
    """Whether a term is no product, or a product with few rows (judged before lowering)."""
    if t.op not in PRODUCTS:
        return True
    return t.op in ("matmul", "linear") and t.args[1].rank == 2 and _few(t.args[0].type)


def _few(x: Type) -> bool:
    return prod(concrete(x.shape)[:-1]) <= ROWS


def _streams(e: Expr) -> bool:
    """Whether a reduction reads each operand element only a few times."""
    space = prod(a.size for a in e.axes | {e.axis})
    loads = [prod(a.size for a in x.axes) for x in walk(e.args) if x.op == "load" and e.axis in x.axes]
    return max(loads, default=0) * ROWS >= space


def generated(root: Tensor | Sequence[Tensor]) -> GeneratedKernel:
    """The C template of a term over inputs, or of several terms."""
    return template_of(BACKEND.emitter, root)


class CLowering(Lowering):
    """Lowering for the C backend."""

    def _templates(self, asked: Asked, precision: Precision) -> Iterator[tuple[GeneratedKernel, Call]]:
        """The template of a fusion group with its call, if C can compute it."""
        if not all(_narrow(t) for t in topological(asked.region.terms)):
            return
        template = self._template(asked.region.terms, ())
        if not template.bases and template.lower(asked.call) is not None:  # a copy of the base operand is left to NumPy
            yield template, asked.call


class C(Generator):
    """Backend of generated C kernels."""

    operands = "address"

    def lowering(self, lowerings: Lowerings) -> Lowering:
        """A new `CLowering`."""
        return CLowering(self, lowerings)

    def template(
        self, roots: Sequence[Tensor], transposed: Sequence[str] = (), last: bool = False, precision: str = IEEE.name
    ) -> GeneratedKernel:
        """See `Target`. Imports Torch, whose threads share the loops."""
        if find_spec("torch"):
            import torch  # noqa: F401  (its threads)
        return super().template(roots, transposed, last, precision)

    def any_size(
        self, template: Template, call: Call, numbers: Numbers, searched: Mapping[str, int],
        probes: Iterable[Mapping[str, int]],
    ) -> Any:  # fmt: skip
        """See `Target`."""
        from .any_size import sized

        assert isinstance(template, GeneratedKernel)  # the backend has no others
        return sized(template, call, numbers, searched, probes)

    def reaches(self, view: EGraphView) -> tuple[Reach, ...]:
        """The fusion policies for a view: with products only if it has skinny ones; none that spread statistics through
        memory."""
        products = any(op in ("matmul", "linear") and _few(view.types[view.kids(n)[0]]) for n, op in enumerate(view.op))
        return tuple(r for r in REACHES if r.products <= products and not r.spread_bare)

    def unavailable(self) -> str:
        """Why the backend is unusable (no working C compiler); empty if it is usable."""
        return _unavailable()


@cache
def _unavailable() -> str:
    try:
        probe = c_library("int probe(void) { return 42; }\n")
    except (RuntimeError, OSError) as error:
        return str(error).splitlines()[0]
    return "" if probe.probe() == 42 else "the C compiler makes programs that do not work"


BACKEND = C(CEmitter(), HELPERS)
"""The C backend."""

__all__ = ["BACKEND", "C", "CEmitter", "generated"]
