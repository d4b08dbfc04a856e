"""Known optimizations derived from general loop-transformation rules, each with its chain of rule applications; prints
docs/derivations.md: `python -m benchmarks.rules.derivations > docs/derivations.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.rules.loop_notation import notation
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.explain.explain import Explanation, derive, spelled
from tensor_graphs.egraph.explain.replay import check
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import Limits
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.errors import RuleError
from tensor_graphs.rules import ALL
from tensor_graphs.rules.tables import loops

LIMITS = Limits(nodes=6000, iterations=10, seconds=60)
BLOCK = 3

#: Base rules used in addition: folding of views, factors that leave sums, elementwise ops that commute with views.
BASE = (
    "reshape-reshape", "reshape-identity", "permute-permute", "permute-identity", "permute-mul", "reshape-exp",
    "sum-of-permute", "sum-of-one", "sum-factor", "mul-commutes", "mul-associates", "defer-row-quotient",
)  # fmt: skip
Sides = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Derivation:
    """One derivation: a name, its description, the two equal terms, and the loop rules to use.

    `splits` selects the rules that split loops instead of those that merge them.
    """

    name: str
    doc: str
    sides: Callable[[], Sides]
    splits: bool = False

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All loop rules except those that merge (or split) loops, plus `BASE`; not tuned per derivation."""
        turned = loops.splits(BLOCK) if self.splits else ()
        kept = [r for r in loops.RULES if not (self.splits and r.name.startswith("merge-"))]
        return (*kept, *turned, *(r for r in ALL if r.name in BASE))

    def derive(self) -> Explanation:
        """The chain of rule applications that connects the two sides.

        Raises RuleError if none is found within the limits.
        """
        found = derive(*self.sides(), self.rules, LIMITS, session=InProcess())
        if found is None:
            raise RuleError("the rules do not derive it within the limits", where=self.name)
        return found


# ---------------------------------------------------------------- the two sides of each
def _split_k() -> Sides:
    a, b = t.input("a", (4, 6)), t.input("b", (6, 5))
    parts = t.permute(t.reshape(a, (4, 2, 3)), (1, 0, 2)) @ t.reshape(b, (2, 3, 5))
    return a @ b, t.reshape(t.sum(parts, 0, True), (4, 5))


def _im2col() -> Sides:
    x, w = t.input("x", (2, 3, 7, 5)), t.param("w", (4, 3, 3, 2))
    windows = t.windows(t.windows(t.pad(x, [(0, 0), (0, 0), (1, 1), (0, 1)]), 2, 3, 2, 1), 3, 2, 1, 1)
    columns = t.reshape(t.permute(windows, (0, 1, 4, 5, 2, 3)), (2, 18, 20))
    conv = t.conv(x, w, strides=(2, 1), pads=(1, 0, 1, 1), dilations=(1, 1), groups=1)
    return conv, t.reshape(t.reshape(w, (1, 4, 18)) @ columns, (2, 4, 4, 5))


def _pointwise() -> Sides:
    x, w = t.input("x", (2, 3, 6, 5)), t.param("w", (4, 3, 1, 1))
    conv = t.conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1)
    return conv, t.reshape(t.reshape(w, (1, 4, 3)) @ t.reshape(x, (2, 3, 30)), (2, 4, 6, 5))


def _interchanged() -> Sides:
    a, b = t.input("a", (4, 6)), t.input("b", (6, 5))
    return t.sum(a @ b, 0, True), t.sum(a, 0, True) @ b


def _blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """Per block: exp relative to the block's own maximum, and the factor that rescales the block to the overall
    maximum."""
    blocks = t.reshape(x, (4, 2, BLOCK))
    top = t.max(blocks, 2, True)
    return t.exp(blocks - top), t.exp(top - t.max(top, 1, True))


def _online_softmax() -> Sides:
    x = t.input("x", (4, 6))
    body, scale = _blocks(x)
    total = t.reshape(t.sum(t.sum(body, 2, True) * scale, 1, True), (4, 1))
    return t.sum(t.exp(x - t.max(x, 1, True)), 1, True), total


def _attention() -> Sides:
    x, v = t.input("x", (4, 6)), t.input("v", (6, 5))
    body, scale = _blocks(x)
    total = t.reshape(t.sum(t.sum(body, 2, True) * scale, 1, True), (4, 1))
    inner = t.sum(t.reshape(body, (4, 2, 3, 1)) * t.reshape(v, (1, 2, 3, 5)), 2, True)
    e = t.exp(x - t.max(x, 1, True))
    rescaled = t.reshape(t.sum(inner * t.reshape(scale, (4, 2, 1, 1)), 1, True), (4, 5))
    return (e / t.sum(e, 1, True)) @ v, rescaled / total


DERIVATIONS = (
    Derivation("split-K", "A long contraction split into blocks: a batch of smaller matrix products, which can run in parallel, then their sum.",
               _split_k, splits=True),
    Derivation("online softmax", "The denominator of a softmax in one pass over blocks: each block is shifted by its own maximum and"
               " rescaled afterwards.", _online_softmax, splits=True),
    Derivation("attention in one pass", "The same including the values: softmax(x) @ v block by block, without materializing all scores (as in flash attention).",
               _attention, splits=True),
    Derivation("im2col", "A convolution (stride 2, padding) as one matrix product: its three reduction loops are merged into one.", _im2col),
    Derivation("a 1×1 convolution is a product", "The loops over a kernel of one position are removed.", _pointwise),
    Derivation("interchange", "The sum of a product's rows is the product with the summed rows: the two loops are interchanged.", _interchanged),
)  # fmt: skip


# ---------------------------------------------------------------- the document
def lines(derivation: Derivation) -> Iterator[str]:
    """Yields one derivation as Markdown lines: the index expressions in order, with the rules applied between them."""
    found = derivation.derive()
    checked = check(found, derivation.rules)
    state = f"replayed, largest relative error {max(checked.errors):.1e}" if checked.ok else "WRONG"
    yield from (f"## {derivation.name}", "", derivation.doc, "", "```", notation(found.original))
    shown, names = notation(found.original), list[str]()
    for step in found.steps:
        names.append(step.rule if step.forward else f"{step.rule} (right to left)")
        now = notation(step.new)
        if now != shown:
            yield f"    by {', '.join(_counted(names))}"
            yield now
            shown, names = now, []
    if names:
        yield f"    by {', '.join(_counted(names))}: other views, the same loops"
    yield from ("```", "")
    yield f"`{spelled(found.original)}` becomes `{spelled(found.chosen, 12)}` in {len(found.steps)} steps, {state}."
    yield ""


def _counted(names: list[str]) -> list[str]:
    """The names in order, with consecutive repeats collapsed to a count."""
    found: list[tuple[str, int]] = []
    for name in names:
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1] + 1)
        else:
            found.append((name, 1))
    return [f"{n} ×{c}" if c > 1 else n for n, c in found]


HEAD = """# Derivations

Optimizations that other systems hard-code, derived here from general loop-transformation rules (`rules/tables/loops.py`):
contractions are written as sums over an iteration space, loops are split, merged and interchanged, index maps are composed,
and contractions are recognized again. Both terms are put into one e-graph, which is saturated with all loop rules (either
those that split loops or those that merge them) and a dozen base rules. If both terms end up in one e-class, they are
equal. The chain of rule applications is then reconstructed from the e-graph (`egraph/explain/explain.py`) and replayed step by step
in float64 on random inputs.

`tg.equivalent` and `rules derive` use these rules for claims that the other rules do not prove; they prove all six.

Each line is one element of the term, written as loops over elements of the operands. The rules named between two lines lead
from one to the other. Steps that only change the views around a term leave its line unchanged.

    python -m benchmarks.rules.derivations > docs/derivations.md
"""


def markdown() -> str:
    """The text of docs/derivations.md."""
    return "\n".join([HEAD, *(line for d in DERIVATIONS for line in lines(d))])


if __name__ == "__main__":
    print(markdown(), end="")
