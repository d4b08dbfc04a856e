"""Writes the op table as Markdown, the page docs/ops.md.

python -m tensor_graphs.egraph.composites.op_markdown > docs/ops.md
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ops import atomic_ops
from ..ops.index_maps import AffineMap, AxisIndex, BroadcastMap, ConcatMap, ReshapeMap
from ..ops.ops import OPS, Op
from ..ops.type_laws import LAWS
from . import composite_ops, quantized_ops, training_ops

assert atomic_ops and composite_ops and quantized_ops and training_ops  # register the ops

_HEAD = """# Ops

{count} ops, generated from their entries in `egraph/ops/atomic_ops.py`, `egraph/composites/composite_ops.py`, `egraph/composites/quantized_ops.py` and `egraph/composites/training_ops.py` by
`python -m tensor_graphs.egraph.composites.op_markdown`; `egraph/ops/ops.py` describes the fields of an entry.

- **attributes**: with default values. **type**: the law in `egraph/ops/type_laws.py`.
- **facts**: *commutes*, *associates*; *linear* in these operands; *odd*, *even*, *monotone*, *nonnegative* functions; *folds* the
  named op; *positive* or *nonzero*: the domain of usual operands; *exact*: no rounding; *costly*: at least 8 flops an element.
- **generated for**: languages in which generated kernels have the op: C and CUDA C++ for float32 and float64 (*integers*: for
  integers, too), Triton, JAX (every dtype). **library**: functions of NumPy and Torch with `out=` that compute the op.
- **reads**: for the result index i, j, ... the operand element that a view reads (`egraph/ops/index_maps.py`).
"""
_KINDS = {
    "leaf": "Leaves", "pointwise": "Elementwise", "reduction": "Reductions", "contraction": "Contractions", "view": "Views",
    "layout": "Layout", "index": "Indexing", "composite": "Composites",
}  # fmt: skip
_NAMES = "ijkl"


def table_markdown(ops: Iterable[Op]) -> str:
    """Markdown page of the ops: one section per kind of op, one table row per op."""
    ops = list(ops)
    parts = [_HEAD.format(count=len(ops))]
    for kind, title in _KINDS.items():
        rows = [op for op in ops if op.kind == kind]
        if rows:
            extra = {"pointwise": ("generated for", "library"), "view": ("reads",), "layout": ("reads",)}.get(kind, ())
            columns = ("op", "operands", "attributes", "type", "meaning", "facts", *extra)
            lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *(_row(op, extra) for op in rows)]
            parts.append(f"\n## {title}\n\n" + "\n".join(lines) + "\n")
    return "".join(parts)


def _row(op: Op, extra: tuple[str, ...]) -> str:
    cells = [f"`{op.name}`", str(op.arity), _attributes(op), _type(op), op.doc, ", ".join(_facts(op))]
    more = {"generated for": _languages(op), "library": _libraries(op), "reads": _reads(op)}
    cells += [more[column] for column in extra]
    return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |"


def _attributes(op: Op) -> str:
    shown = (f"{name}: {kind}{f' = {op.defaults[name]:g}' if name in op.defaults and kind not in ('str', 'dtype') else ''}"
             for name, kind in op.attrs.items())  # fmt: skip
    return ", ".join(shown)


def _type(op: Op) -> str:
    first = (LAWS[op.law].infer.__doc__ or "").strip().splitlines()[0]
    return f"{op.law}: {first.rstrip('.')}"


def _facts(op: Op) -> list[str]:
    linear = f"linear in {', '.join(map(str, op.linear))}" if op.linear else ""
    facts = {
        "commutes": op.commutative, "associates": op.associative, linear: bool(linear), f"folds {op.monoid}": bool(op.monoid),
        op.symmetry: bool(op.symmetry), "monotone": op.monotone, "nonnegative": op.nonnegative,
        f"{op.domain} operand": bool(op.domain), "exact": op.rounding == "never", "costly": op.costly,
    }  # fmt: skip
    return [name for name, holds in facts.items() if holds]


def _languages(op: Op) -> str:
    text = op.text
    texts = {"C": text.of("c"), "CUDA": text.of("cuda"), "Triton": text.of("triton_whole"), "JAX": text.jax}
    found = [name for name, has in texts.items() if has]
    return ", ".join([*found, *(["integers"] if text.of("c_whole") else [])])


def _libraries(op: Op) -> str:
    functions = (("np", op.numpy_function), ("torch", op.torch_function))
    return ", ".join(f"`{name}.{f.name}`" for name, f in functions if f is not None and f.dtypes != "none")


class _Size(str):
    """A size by name, with the arithmetic that index maps use."""

    def __add__(self, other: object) -> _Size:
        return _Size(f"{self} + {other}")

    def __sub__(self, other: object) -> _Size:
        return _Size(f"{self} - {other}")


def _reads(op: Op) -> str:
    """The index map over operands with named sizes: along axis 0 of matrices, with attributes by name."""
    if op.index_map is None:
        return ""
    attrs = {name: 0 if name == "axis" else (1, 0) if name == "perm" else _Size(name) for name in op.attrs}
    found = op.index_map(attrs, [[_Size("nmk"[k]), _Size("w")] for k in range(op.arity)])
    if isinstance(found, BroadcastMap):
        return "x[i or 0, …]: 0 along axes of size 1"
    if isinstance(found, ReshapeMap):
        return "x at the same row-major position"
    if isinstance(found, AffineMap):
        return f"x[{', '.join(map(_along, found.axes))}]"
    return _parts(found)


def _along(along: AxisIndex) -> str:
    terms = " + ".join(
        f"{'' if factor == 1 else '-' if factor == -1 else f'{factor} * '}{_NAMES[axis]}"
        for axis, factor in along.terms
    )
    offset = "" if along.offset == 0 else f"{along.offset} + "
    return f"{offset}{terms}".replace("+ -", "- ")


def _parts(found: ConcatMap) -> str:
    pieces = [
        f"x{operand}[i{'' if start == 0 else f' - {start}'}] where {start} <= i < {stop}"
        for operand, start, stop in found.parts
    ]
    return "; ".join([*pieces, *([f"else {found.fill}"] if found.fill is not None else [])])


if __name__ == "__main__":
    print(table_markdown(OPS.values()), end="")
