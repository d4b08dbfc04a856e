"""Makes C kernels with free sizes: the text of a function generated for one choice of sizes, with its numbers replaced
by size expressions.

At generic sizes (`egraph/saturate/lift.py`) every number in the function's text identifies its size expression. With
these expressions over parameters, the text becomes a function for every size. As a check, functions generated at
probe sizes must equal the text with these sizes substituted. A kernel whose loop structure depends on sizes fails the
check and is not available for every size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from math import prod

from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor
from ...egraph.saturate.lift import Numbers
from ...egraph.types.dims import Dim, DimExpr, bind, volume
from ...errors import TensorGraphsError
from ...extract.model.kernel import Call, Template
from ...extract.model.library_kernel import LibraryKernel, identify
from ...extract.model.sizes import bound_call, bound_terms
from ..generate.free_terms import SizedCall, free_call, free_terms
from ..generate.large_sizes import changes_at_large_sizes
from ..generate.template import GeneratedKernel, template_of
from ..generate.term_text import pattern_text
from ..ir.kernel import PROBE
from ..ir.source_text import literal
from .emit.kernel import PARALLEL as WORTH
from .emit.kernel import work
from .emitter import EMITTER

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_WORD = re.compile(r"[A-Za-z_]\w*")
_REDUCED = re.compile(r"\br\d+(?:_\d+)?\b")  # reduction axes have their sizes in their names
_ROW = re.compile(r"^\s*\w+ \w+\[[^\]]*size_\w+[^\]]*\];", re.MULTILINE)  # an array whose length is a free size
PREFIX = "size_"  # of size parameters
PARALLEL = "omp parallel"


@dataclass(frozen=True, eq=False)
class SizedTemplate(LibraryKernel):
    """Template (a kernel's meaning and code) of a C kernel whose function takes sizes as parameters.

    Its text is derived from a template and call at generic sizes (`origin`, `origin_call`; primes that stand for free
    sizes); it is measured as the template at the searched sizes (`searched`).
    """

    origin: GeneratedKernel = field(default=None)  # type: ignore[assignment]
    origin_call: Call = field(default=None)  # type: ignore[assignment]
    searched: GeneratedKernel = field(default=None)  # type: ignore[assignment]

    @property
    def lifted_from(self) -> tuple[Template, Call]:
        """The kernel, and its call, from which this kernel for every size was made; they are at generic sizes, primes
        that stand for free sizes (`Template.lifted_from`)."""
        return self.origin, self.origin_call

    def measured_as(self, call: Call) -> tuple[Template, Call]:
        """The kernel and call that are measured in place of `call` (`Template.measured_as`): (kernel at the searched
        sizes, call without sizes among its attributes), under which the cost store has the time."""
        return self.searched, replace(call, attrs={})


def sized(
    template: GeneratedKernel,
    call: Call,
    numbers: Numbers,
    searched: Mapping[str, int],
    probes: Iterable[Mapping[str, int]],
) -> SizedCall | None:
    """The kernel for every size, with its call, made from `template` and `call`: a C kernel generated at generic sizes,
    primes that stand for free sizes. None if there is none.

    `numbers`: generic size -> size expression. `searched`: the sizes at which the kernel is priced. `probes`: sizes at
    which the kernel is generated again as a check.
    """
    if template.backend != EMITTER.name or template.prep or template.layout is not None:
        return None
    try:
        roots = free_terms(template.roots, numbers)
        free = free_call(call, numbers)
        text, threads = _text(template, call), ""
        for sizes in (tried := list(probes)):
            there = _text(_template(roots, sizes), bound_call(free, sizes))
            if _put(text, numbers, sizes) != _plain(there):
                return None
            threads = max(threads, there, key=lambda t: (t.count(PARALLEL), len(t)))
        ranges = {n: (atom.min, atom.max) for n, atom in numbers.graph.free_dims.items()}
        if not tried or changes_at_large_sizes(template, call, partial(_template, roots), free, ranges, numbers.sizes):
            return None
        chosen, at = _template(roots, searched), bound_call(free, searched)
        if chosen.lower(at) is None:
            return None
        function = _function(text, threads, numbers, _worth(template, call, numbers))
    except (TensorGraphsError, KeyError, ValueError):
        return None
    names = sorted(numbers.graph.free_dims)
    if _ROW.search(function) or {*names} & {*template.operands}:
        return None
    attrs = {n: DimExpr((((atom,), 1),)) for n, atom in numbers.graph.free_dims.items()}
    made = _free(template, call, chosen, roots, function, names)
    return SizedCall(chosen, at, made, replace(free, attrs=attrs))


# ---------------------------------------------------------------- terms and calls
def _template(roots: list[Tensor], sizes: Mapping[str, int]) -> GeneratedKernel:
    return _made(tuple(bound_terms(roots, sizes)))


@memo(4096)
def _made(roots: tuple[Tensor, ...]) -> GeneratedKernel:
    return template_of(EMITTER, roots)


# ---------------------------------------------------------------- text
def _text(template: GeneratedKernel, call: Call) -> str:
    """The kernel's function without comments, with size-independent names.

    Raises KeyError if the template has no kernel.
    """
    found = template.lower(call)
    if found is None:
        raise KeyError(template.name)
    (launch,) = found.made[PROBE]
    text = re.sub(r"/\*.*?\*/\s*", "", launch.source, flags=re.DOTALL).replace(launch.name, "kernel")
    names: dict[str, str] = {}
    return _REDUCED.sub(lambda found: names.setdefault(found[0], f"r_{len(names)}"), text)


def _plain(text: str) -> str:
    """The text without pragmas: parallelization does not affect correctness."""
    return "\n".join(line for line in text.splitlines() if "#pragma" not in line)


def _put(text: str, numbers: Numbers, sizes: Mapping[str, int]) -> str:
    """The function's text with the numbers of generic sizes replaced by those of `sizes`."""
    return _NUMBER.sub(lambda found: str(bind(numbers.dim(int(found[0])), sizes)), _plain(text))


def _in_c(value: Dim) -> str:
    """A size expression in C over size parameters; `//` of a nonnegative value is C's division."""
    if not isinstance(value, DimExpr):
        return str(value)
    return f"({_WORD.sub(lambda name: PREFIX + name[0], str(value)).replace('//', '/')})"


def _worth(template: GeneratedKernel, call: Call, numbers: Numbers) -> str:
    """C condition on the size parameters under which a call has enough work for several threads."""
    found = template.lower(call)
    assert found is not None
    largest = max((o.type for o in call.buffers.values()), key=lambda t: t.nbytes)
    elements = prod(largest.shape)
    least = max(1, round(WORTH * elements / max(work(found.kernel), 1.0)))  # type: ignore[operator]
    return f"{_in_c(volume(numbers.type(largest).shape))} >= {least}"


def _function(text: str, threads: str, numbers: Numbers, worth: str) -> str:
    """The function's text with size parameters in place of numbers.

    The pragmas of `threads`, the text of the same function with parallel loops, are inserted; loops run in parallel
    under the condition `worth`.
    """
    lines = iter(_NUMBER.sub(lambda found: _in_c(numbers.dim(int(found[0]))), _plain(text)).splitlines())
    made = []
    for line in threads.splitlines():
        if "#pragma" not in line:
            made.append(next(lines))
        else:
            made.append(f"{line} if(parallel: {worth})" if PARALLEL in line else line)
    return "\n".join(made)


def _free(
    template: GeneratedKernel,
    origin: Call,
    searched: GeneratedKernel,
    roots: list[Tensor],
    function: str,
    names: list[str],
) -> SizedTemplate:
    """The template for every size: sizes are attributes of the call and additional arguments."""
    parameters = "".join(f", const long {PREFIX}{n}" for n in names)
    head, brace, rest = function.partition(")")
    source = f"{head}{parameters}{brace}{rest}"
    title = f"sized_{blake2b(source.encode(), digest_size=5).hexdigest()}"
    source = re.sub(r"\bkernel\b", title, source)
    pattern = pattern_text(roots)
    order = _parameters(head)

    def code(call: Call) -> str:
        known = {**call.names}
        sizes = ", ".join(f"ctypes.c_long({literal(call.attrs[n])})" for n in names)
        return f"{title}({', '.join(known[b] for b in order)}, {sizes})"

    identify(code, f"c_sizes.sized[{title}]")
    return SizedTemplate(
        template.name, template.backend, pattern, code, family=template.family, source=lambda call: {title: source},
        setup=template.setup, version=template.version, origin=template, origin_call=origin, searched=searched,
    )  # fmt: skip


def _parameters(head: str) -> list[str]:
    """Buffer names in parameter order."""
    return [part.split()[-1].lstrip("*") for part in head.partition("(")[2].split(",")]


__all__ = ["SizedTemplate", "sized"]
