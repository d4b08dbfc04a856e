"""Defines the C backend: generated kernels (generate/template.py) for the CPU, compiled by the system's C compiler.

It fuses pointwise chains, row and column reductions, gathers and transposing copies into one kernel, where libraries
make one pass over memory per operation. Of matrix products it generates only memory-bound ones (GEMV, skinny GEMM).
Convolutions and pooling are library kernels (convolutions.py). Kernels work on the same memory as NumPy's and Torch's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import OPS, Type
from ...egraph.types.dims import concrete
from ...egraph.types.dtypes import is_float
from ...egraph.view.view import EGraphView
from ...extract.fusion.groups import FusionGroups
from ...extract.fusion.policy import FUSION_POLICIES, FusionPolicy
from ...extract.fusion.repeated_blocks import RepeatedBlocks
from ...extract.model.backend import Backend, Generation
from ...extract.model.kernel import Call, Template
from ..generate.backend_lowering import Lowering
from ..generate.emitter import Lowered
from ..generate.generator import KernelGenerator
from ..generate.lowering_requests import LoweringRequest, request_of
from ..generate.lowerings import Lowerings
from ..generate.template import GeneratedKernel, template_of
from ..generate.weight_layouts import channels_innermost, channels_last, even
from ..ir.expr import walk
from ..ir.kernel import Kernel
from ..ir.precision import Precision
from ..runtime.compile_clock import CompileWatch, compilers_within
from .any_size import sized
from .attentions import attention_rows
from .batch_norms import batch_norm_rows
from .byte_values import byte_value_rows
from .convolutions import HELPERS as PACKING
from .convolutions import convolution_rows, pool_rows
from .emit.attention import ROWS as ATTENTION_ROWS
from .emit.few_rows import PACKED_DTYPES, PACKED_ROWS
from .emitter import EMITTER, ROWS, CEmitter
from .group_norms import group_norm_rows
from .helpers import HELPERS, c_library
from .image_copies import image_copy_rows
from .integer_convolutions import HELPERS as INTEGER_PACKING
from .integer_convolutions import integer_convolution_rows
from .integer_pools import integer_pool_rows
from .integer_products import integer_product_rows
from .linear_products import linear_rows
from .pool_indices import pool_index_rows
from .processor import has_byte_dots
from .recurrent_layers import HELPERS as RECURRENT_PACKING
from .recurrent_layers import recurrent_rows
from .row_norms import row_norm_rows
from .stand_ins import stand_ins

if TYPE_CHECKING:
    from ...egraph.saturate.lift import Numbers

AGAIN_S = 60.0  # seconds after which a compiler that did not answer is asked again


def _narrow(t: Tensor) -> bool:
    """Whether a term is no product, a product with few rows, or a batched product whose matrices have few rows, as in
    attention of few rows (decided before lowering)."""
    if t.entry.fusion_role != "product":
        return True
    if _batched(t):
        return _few_each(t.args[0].type)
    if t.entry.law not in ("matmul", "linear") or t.args[1].rank != 2:
        return False
    return prod(concrete(t.args[0].shape)[:-1]) <= _most_rows(_is_packed(t.args[1]))


def _batched(t: Tensor) -> bool:
    """Whether a term is attention or a batched matrix product."""
    return t.entry.law == "attention" or (t.entry.law == "matmul" and t.args[1].rank > 2)


def _most_rows(packed: bool) -> int:
    """Largest number of rows of a product that C computes; `packed`: with a weight of packed numbers, which takes
    dot products of bytes."""
    return PACKED_ROWS if packed and has_byte_dots() else ROWS


def _is_packed(weight: Tensor) -> bool:
    """Whether a term is computed from bytes: packed numbers."""
    return any(x.op == "input" and x.dtype in PACKED_DTYPES for x in topological([weight]))


def _few_each(x: Type) -> bool:
    """Whether each matrix of an operand has few rows."""
    return concrete(x.shape)[-2] <= ATTENTION_ROWS


def _worth(terms: Sequence[Tensor]) -> bool:
    """Whether C may compute terms efficiently: all products have few rows, and batched ones occur as attention only."""
    products = [t for t in topological(terms) if t.entry.fusion_role == "product"]
    batched = [t for t in products if _batched(t)]
    return all(map(_narrow, products)) and (not batched or len(batched) > 1 or batched[0].entry.law == "attention")


def _writes_alone(template: GeneratedKernel, kernel: Kernel) -> bool:
    """Whether a kernel has no scatter, or has a scatter as its only result and does not load the operand that it writes
    into. Required because pointers are `restrict`, and because emit/kernel.py recognizes the operand to copy by its not
    being loaded."""
    bases = set(template.bases.values())
    read = {e.value[0] for e in kernel.exprs if e.op == "load"}
    return not bases or (len(template.roots) == 1 and bases.isdisjoint(read))


def _read_across(found: Lowered, call: Call, weights: Iterable[str]) -> tuple[str, ...]:
    """Weight matrices that a product of at most ROWS rows reads with a stride along the summed axis, and that can be
    transposed.

    Transposed at load, the elements of a sum are contiguous and read at full bandwidth. Matrices whose rows would be
    padded then are left out.
    """
    if found.shape.kind != "contraction" or found.shape.m > ROWS:
        return ()
    sums = [e for e in found.kernel.reductions if e.value[0] == "sum" and e.kind == "float"]
    loads = [(x.value, e.axis) for e in sums for x in walk(e.args) if x.op == "load" and not x.args]
    reads = {name for (name, at, *_), axis in loads if abs(at.coefficient(axis)) > 1}
    kinds = {w: call.operands[w].type for w in weights}
    matrices = {w: t for w, t in kinds.items() if w in reads and t.rank == 2 and is_float(t.dtype)}
    return tuple(w for w, t in matrices.items() if even(concrete(t.shape)[0], t.dtype) == t.shape[0])


def generated(root: Tensor | Sequence[Tensor]) -> GeneratedKernel:
    """Template (a kernel's meaning and code) of the generated C kernel that computes `root`: a term over inputs, or
    several terms."""
    return template_of(EMITTER, root)


class CLowering(Lowering):
    """The kernels that one optimization generates with the C backend: its fusion groups lowered to kernel IR."""

    def _templates(self, asked: LoweringRequest, precision: Precision) -> Iterator[tuple[GeneratedKernel, Call]]:
        """(template, call) of a fusion group; none if C cannot compute the group efficiently."""
        if not _worth(asked.group.terms):
            return
        template = self._template(asked.group.terms, ())
        found = template.lower(asked.call)
        if found is not None and _writes_alone(template, found.kernel):
            yield template, asked.call
            yield from self._last(asked)
            if across := _read_across(found, asked.call, asked.weights):
                turned = self._template(asked.group.terms, across)
                if turned.lower(asked.call) is not None:
                    yield turned, asked.call

    def packed_products(self, view: EGraphView, given: frozenset[int], types: Sequence[Type]) -> Iterator[Generation]:
        """The kernels of products of few rows with packed weights (`Backend.packed_products`). They are lowered in this
        process: equal layers have equal ones."""
        repeated = RepeatedBlocks.of(view)
        for group in FusionGroups(view, given).packed_products():
            classes = (group.cls, *(c for _, c in group.leaves))
            for template, _, _ in self.answers(request_of(group, view, types, frozenset())):
                for first, *operands in (classes, *repeated.copies(classes)):
                    yield template, (first,), tuple(operands)

    def _last(self, asked: LoweringRequest) -> Iterator[tuple[GeneratedKernel, Call]]:
        """(template, call) of a fusion group whose operands and result are channels-last images; none if it has no
        image as its only result."""
        call = asked.call
        if "out" not in asked.images or call.more or channels_last(call) == call.output.strides:
            return
        template = self._template(asked.group.terms, (), last=True)
        alike = {n: channels_innermost(o) if n in asked.images else o for n, o in call.operands.items()}
        written = template.written(replace(call, operands=alike))
        if template.lower(written) is not None:
            yield template, written


class C(KernelGenerator):
    """Backend that generates C kernels for the CPU. Its library kernels (`templates`) are convolutions, pooling, group
    norms, products with constant matrices and recurrent layers in C."""

    operands = "address"

    def lowering(self, lowerings: Lowerings) -> Lowering:
        """A new `CLowering` (generated kernels of one optimization), which shares the worker processes of
        `lowerings`."""
        return CLowering(self, lowerings)

    def any_size(
        self, template: Template, call: Call, numbers: Numbers, searched: Mapping[str, int],
        probes: Iterable[Mapping[str, int]], others: Iterable[Backend] = (),
    ) -> Any:  # fmt: skip
        """One kernel that works at all sizes, with its call, derived from the generated kernel `template` and its call
        `call` at generic sizes (primes that stand for free sizes). None if it cannot be derived, and always for kernels
        that scatter.

        `numbers`: generic size -> size expression. `searched`: the sizes at which it is priced. `probes`: sizes at
        which it is checked. `others`: not used (`Target.any_size`).
        """
        assert isinstance(template, GeneratedKernel)  # the backend has no others
        if template.bases:
            return None
        return sized(template, call, numbers, searched, probes)

    def fusion_policies(self, view: EGraphView) -> tuple[FusionPolicy, ...]:
        """The policies by which fusion groups (terms that one kernel computes) of the e-graph `view` are grown: which
        ops a group may contain, and how many.

        Policies with matrix products are included only if the view has products of few rows, those with two products
        only if it has attention of few rows. Policies in which statistics of rows (means, variances) are read from
        memory (`FusionPolicy.spread_bare`) never are.
        """
        products, most = 0, _most_rows("dequantize" in view.op)
        for n, op in enumerate(view.op):
            if op in ("matmul", "linear") and len(view.types[view.children(n)[1]].shape) == 2:
                rows = prod(concrete(view.types[view.children(n)[0]].shape)[:-1])
                products = max(products, int(rows <= most))
            elif op == "matmul" or OPS[op].law == "attention":
                products = max(products, 2 * _few_each(view.types[view.children(n)[0]]))
        return tuple(r for r in FUSION_POLICIES if r.products <= products and not r.spread_bare)

    def stand_ins(self, graph: Graph) -> Sequence[tuple[Template, Call]]:
        """Library kernels, with calls, that have the C code of the graph's products and convolutions
        (`Target.stand_ins`)."""
        return stand_ins(graph)

    def unavailable(self) -> str:
        """Why the backend cannot be used (no working C compiler), as a message; "" if it can. A compiler that does not
        answer is asked again after `AGAIN_S`."""
        reason, asked = _unavailable()
        if "timed out" in reason and time.monotonic() - asked > AGAIN_S:
            _unavailable.cache_clear()
            reason, _ = _unavailable()
        return reason


@cache
def _unavailable() -> tuple[str, float]:
    """(why the compiler cannot be used or "", time at which it was asked)."""
    now, work, source, watch = time.monotonic(), "", "int probe(void) { return 42; }\n", CompileWatch()
    try:
        with compilers_within(lambda: 0.0):
            watch.seconds(len(source))
            probe = c_library(source)
            watch.ended()  # the first compilation of a process
        work = "" if probe.probe() == 42 else "the C compiler makes programs that do not work"
    except (RuntimeError, OSError) as error:
        work = str(error).splitlines()[0]
    return work, now


BACKEND = C(
    EMITTER,
    {**HELPERS, **PACKING, **INTEGER_PACKING, **RECURRENT_PACKING},
    (
        *convolution_rows(),
        *integer_convolution_rows(),
        *integer_product_rows(),
        *byte_value_rows(),
        *pool_rows(),
        *integer_pool_rows(),
        *group_norm_rows(),
        *batch_norm_rows(),
        *pool_index_rows(),
        *image_copy_rows(),
        *row_norm_rows(),
        *linear_rows(),
        *recurrent_rows(),
        *attention_rows(),
    ),
)
"""The C backend."""

__all__ = ["BACKEND", "C", "CEmitter", "generated"]
