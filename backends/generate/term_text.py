"""Terms as pattern text (the notation of kernel patterns), from which a tuning job generates the kernel again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor, topological
from ...extract.model.library_kernel import OUTPUT_SEPARATOR

WRITTEN_OUT = 256  # maximum nodes of a term that is written as one expression
NESTED = 24  # maximum nesting depth of an expression in larger terms


def pattern_text(terms: Sequence[Tensor]) -> str:
    """The terms written as pattern text, with inputs as variables.

    In large terms, shared and deeply nested nodes become named definitions.
    """
    return _text(tuple(terms))


@memo(4096)  # several emitters and forms of a kernel have the same terms
def _text(terms: tuple[Tensor, ...]) -> str:
    order = topological(terms)
    sizes: dict[Tensor, int] = {}
    for t in order:
        sizes[t] = 1 + sum(sizes[a] for a in t.args)
    texts: dict[Tensor, str] = {}
    if max(sizes[t] for t in terms) <= WRITTEN_OUT:
        for t in order:
            texts[t] = _spelled(t, texts)
        return OUTPUT_SEPARATOR.join([texts[t] for t in terms])
    uses = Counter(a for t in order for a in t.args)
    depth: dict[Tensor, int] = {}
    defined: list[str] = []
    for t in order:
        texts[t], depth[t] = _spelled(t, texts), 1 + max((depth[a] for a in t.args), default=0)
        if t.args and (uses[t] > 1 or depth[t] > NESTED):
            name = f"v{len(defined)}"
            defined.append(f"{name} := {texts[t]}")
            texts[t], depth[t] = name, 0
    return OUTPUT_SEPARATOR.join([*defined, *(texts[t] for t in terms)])


def _spelled(term: Tensor, texts: Mapping[Tensor, str]) -> str:
    if term.op == "input":
        return str(term.attr("name"))
    if term.op == "full" and term.type.rank == 0:
        return repr(term.attr("value"))
    attrs = [f"{k}={v!r}" for k, v in term.attrs]
    name = f"{term.op}_" if term.op in ("and", "or", "not") else term.op
    return f"{name}({', '.join([*(texts[a] for a in term.args), *attrs])})"
