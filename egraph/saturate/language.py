"""Writes the op table in egglog: sorts, one constructor per op, and, as rules, how shape, dtype and dependence on
weights of a result follow from the operands.

Tensors have sort `T`, attribute vectors `Dims` (Vec i64), integer attributes i64. Floats, bools, strings and dtypes are
ids from an `Interner`, because egglog's f64 does not distinguish 0.0 from -0.0. Leaves are `(Leaf n)`; their types come
from Python. Three functions hold the e-class analysis: `shape`, `dt` (merging two different values is an error, which
exposes unsound rules) and `wk`, which is 0 for a value that depends on weights alone and 1 if it depends on an input.

Egglog names: `o_<op>` constructors; `st_<op>` status of an e-node (0 new, 1 seen: was in a view, 2 protected from
pruning); `d_<op>` dominated e-nodes; `i_<op>` input tables through which a graph is loaded. Rulesets: `r_load`,
`r_shape`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ShapeError
from ..ir.tensor import LEAVES
from ..ops.law_text import DTYPE_ID, has_rank, vec_get, vec_of
from ..ops.ops import OPS, Op
from ..ops.type_laws import LAWS
from ..types import dtypes

FIRST_FLOAT = DTYPE_ID["float16"]  # dtype ids from here on are floats
STATUS_NEW, STATUS_SEEN, STATUS_PROTECTED = 0, 1, 2
SNAP = 2.0**-21  # relative distance within which a graph's constant is identified with a rule's constant


# ---------------------------------------------------------------- attribute values as ids
def number_key(value: float) -> Any:
    """Key of a numeric attribute value: equal for values that are the same constant.

    The bits as a double, or the int if no double equals it.
    """
    wide = float(value)
    return struct.pack("<d", wide) if wide == value or wide != wide else int(value)


@dataclass
class Interner:
    """Table of integer ids for attribute values that egglog does not represent itself (`floats`, `strings`; a value's
    id follows from its position).

    Rule constants are interned first, so their ids are the same for every graph; `copy` before adding a graph's own
    values.
    """

    floats: list[Any] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    _float_ids: dict[Any, int] = field(default_factory=dict)
    _string_ids: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Interner:
        """An independent interner with the same ids."""
        return Interner(list(self.floats), list(self.strings), dict(self._float_ids), dict(self._string_ids))

    def encode(self, kind: str, value: Any) -> int:
        """Integer that stands for an attribute value of a kind (`Op.attrs`) other than dims; new floats and texts get a
        new id. Raises ShapeError for a symbolic size."""
        if kind == "int":
            if not isinstance(value, int):
                raise ShapeError(f"the size {value} is not known yet", hint="bind the dimensions before saturating")
            return value
        if kind == "bool":
            return int(value)
        if kind == "dtype":
            return DTYPE_ID[value]
        if kind == "str":
            if value not in self._string_ids:
                self._string_ids[value] = len(self.strings)
                self.strings.append(value)
            return self._string_ids[value]
        key = number_key(value)
        if key not in self._float_ids:
            self._float_ids[key] = len(self.floats)
            self.floats.append(value)
        return self._float_ids[key]

    def alias(self, value: float, target: int) -> None:
        """Give the number `value` the existing id `target`.

        A model's constant, rounded to its dtype, then equals the constant of the rule, which is not rounded.
        """
        self._float_ids.setdefault(number_key(value), target)

    def has_number(self, value: float) -> bool:
        """Whether the number `value` has an id."""
        return number_key(value) in self._float_ids

    def decode(self, kind: str, number: int) -> Any:
        """The attribute value that the integer `number` stands for, for an attribute of a kind (`Op.attrs`)."""
        if kind == "int":
            return number
        if kind == "bool":
            return bool(number)
        if kind == "dtype":
            return dtypes.DTYPES[number]
        return self.strings[number] if kind == "str" else self.floats[number]


# ---------------------------------------------------------------- signatures
def signature(op: str) -> str:
    """One letter per argument of an op's constructor: T tensor, D dims, I integer."""
    entry = OPS[op]
    return "T" * entry.arity + "".join("D" if kind == "dims" else "I" for kind in entry.attrs.values())


SORTS = {"T": "T", "D": "Dims", "I": "i64"}


def operands(entry: Op) -> list[str]:
    """Egglog variables of an op's operands."""
    return [f"x{i}" for i in range(entry.arity)]


def arguments(entry: Op) -> list[str]:
    """Egglog variables of an op's operands and attributes, in constructor order."""
    return [*operands(entry), *(f"a_{name}" for name in entry.attrs)]


def pattern(op: str) -> str:
    """Egglog text of an op's constructor applied to variables for its operands and attributes."""
    return " ".join([f"(o_{op}", *arguments(OPS[op])]) + ")"


#: Contractions whose right operands may be merged into one by concatenation. A chain is a run of consecutive weights
#: among those multiplied with one left operand: any run of up to `RUN` weights, and longer runs only from the first
#: weight on. This gives RUN·k chains of k weights; all runs would give k²/2 (and k³/6 slices), all subsets 2ᵏ.
MERGING = ("matmul", "linear", "conv")
RUN = 4


# ---------------------------------------------------------------- declarations
def base_declarations(*, guarded: bool) -> list[str]:
    """Egglog declarations that every program needs: sorts, rulesets, e-class functions, leaves, and the rules that load
    leaves and the types and costs of nodes from input tables.

    `guarded`: e-nodes are pruned, which needs the least cost of each e-class as well.
    """
    return [
        "(sort Dims (Vec i64))",
        "(sort T)",
        "(ruleset r_load)",
        "(ruleset r_shape)",
        "(constructor H (i64) T :unextractable)",  # e-class of a handle, a number assigned by Python
        "(function Attr (i64) Dims :no-merge)",
        "(function shape (T) Dims :no-merge)",
        "(function dt (T) i64 :no-merge)",
        "(function wk (T) i64 :merge (min old new))",
        "(function wid (T) i64 :merge (min old new))",  # id of an original weight
        "(function last (T) i64 :merge (max old new))",  # id of the last weight in a chain of concats
        "(function links (T) i64 :merge (min old new))",  # number of weights in a chain
        "(function start (T) i64 :merge (min old new))",  # id of the chain's first weight
        "(function least (T) i64 :merge (min old new))",  # smallest weight id that is multiplied with a left operand
        # smallest later weight id multiplied with the same left operand
        "(function after (T i64) i64 :merge (min old new))",
        "(relation Ones (Dims))",
        "(function OnesOf (i64) Dims :no-merge)",
        "(function SwapLast (i64) Dims :no-merge)",
        "(function IdentityOf (i64) Dims :no-merge)",
        "(function nel (T) i64 :merge old)",  # number of elements
        "(relation want (Dims Dims))",
        "(function bc (Dims Dims) Dims :no-merge)",
        "(constructor Leaf (i64) T)",
        "(relation i_leaf (i64))",
        "(rule ((i_leaf o)) ((union (H o) (Leaf o))) :ruleset r_load)",
        # types of the graph's own nodes, computed in Python; otherwise the laws would need a round per level of depth
        "(relation i_fact (i64 i64 i64 i64 i64))",
        "(function best (T) i64 :merge (min old new))",
        "(rule ((i_fact o d t w b) (= s (Attr d))) ((let e (H o)) (set (shape e) s) (set (dt e) t) (set (wk e) w)"
        f"{' (set (best e) b)' if guarded else ''}) :ruleset r_load)",
        "(relation i_equal (i64 i64))",
        "(rule ((i_equal a b)) ((union (H a) (H b))) :ruleset r_load)",
        "(relation i_weight (i64))",
        "(rule ((i_weight o)) ((set (wid (H o)) o)) :ruleset r_load)",
        "(rule ((= i (wid e))) ((set (last e) i) (set (start e) i) (set (links e) 1)) :ruleset r_shape)",
    ]


def rank_facts(ranks: Iterable[int]) -> Iterator[str]:
    """Egglog commands that define for each rank: the vector of ones, the identity permutation, the permutation that
    swaps the last two axes (from rank 2 on), and the rules for a term's number of elements and for the shape to which
    two shapes broadcast."""
    for r in ranks:
        ones = vec_of(["1"] * r)
        yield f"(Ones {ones})"
        yield f"(set (OnesOf {r}) {ones})"
        yield f"(set (IdentityOf {r}) {vec_of(map(str, range(r)))})"
        volume = "1"
        for i in range(r):
            volume = f"(* {volume} {vec_get('s', i)})"
        yield f"(rule ((= s (shape e)) {has_rank('s', r)}) ((set (nel e) {volume})) :ruleset r_shape)"
        if r >= 2:
            yield f"(set (SwapLast {r}) {vec_of(map(str, [*range(r - 2), r - 1, r - 2]))})"
        wide = vec_of(f"(max {vec_get('s', i)} {vec_get('t', i)})" for i in range(r))
        yield f"(rule ((want s t) {has_rank('s', r)} {has_rank('t', r)}) ((set (bc s t) {wide})) :ruleset r_shape)"


def declare_op(op: str, ranks: Sequence[int], *, guarded: bool) -> Iterator[str]:
    """Egglog declarations of an op: constructor, input tables with the rules that make e-nodes from them, and the rules
    for result types (type laws) at operands of the given ranks.

    `guarded`: e-nodes are pruned, which needs the op's tables of statuses and of dominated e-nodes as well.
    """
    entry, sig = OPS[op], signature(op)
    sorts = " ".join(SORTS[k] for k in sig)
    yield f"(constructor o_{op} ({sorts}) T)"
    if guarded:
        yield f"(function st_{op} ({sorts}) i64 :merge (max old new))"
        yield f"(relation d_{op} ({sorts}))"
    yield from _loader(op, sig, guarded)
    term = pattern(op)
    for case in LAWS[entry.law].text(entry, ranks):
        for left, right in case.broadcasts:
            yield f"(rule ((= e {term}) (= s {left}) (= t {right})) ((want s t)) :ruleset r_shape)"
        atoms = " ".join((f"(= e {term})", *case.atoms, f"(= s {case.shape})", f"(= t {case.dtype})"))
        yield f"(rule ({atoms}) ((set (shape e) s) (set (dt e) t)) :ruleset r_shape)"
    weight = "0"
    for i, x in enumerate(operands(entry)):
        weight = f"(wk {x})" if i == 0 else f"(max {weight} (wk {x}))"
    yield f"(rule ((= e {term}) (= w {weight})) ((set (wk e) w)) :ruleset r_shape)"
    if op == "concat":
        yield (
            f"(rule ((= e {term}) (= i (last x0)) (= j (wid x1)) (< i j) (= s (start x0)) (= n (links x0)))"
            " ((set (last e) j) (set (start e) s) (set (links e) (+ n 1))) :ruleset r_shape)"
        )
        stacked = term.replace("a_axis", "0")  # vertically stacked weights take the first one's position
        yield f"(rule ((= e {stacked}) (= i (wid x0)) (wid x1)) ((set (wid e) i)) :ruleset r_shape)"
    if op == "pad":  # a padded kernel takes the position of the original in a chain
        yield f"(rule ((= e {term}) (= i (wid x0))) ((set (wid e) i)) :ruleset r_shape)"
    if op in MERGING:
        other = term.replace("x1", "y1").replace("x2", "y2").replace("a_", "b_")
        yield (
            f"(rule ((= e {term}) (= i (wid x1)) (= f {other}) (= j (wid y1)) (< i j)) ((set (after x0 i) j))"
            " :ruleset r_shape)"
        )
        yield f"(rule ((= e {term}) (= i (wid x1))) ((set (least x0) i)) :ruleset r_shape)"


def _loader(op: str, sig: str, guarded: bool) -> Iterator[str]:
    """Loaders of the tables `i_op` (the graph's own nodes, never pruned) and `h_op` (handles assigned later)."""
    names = [f"v{i}" for i in range(len(sig))]
    columns = " ".join(["i64"] * (len(sig) + 1))
    body = "".join(f" (= d{i} (Attr v{i}))" for i, k in enumerate(sig) if k == "D")
    args = " ".join({"T": f"(H v{i})", "D": f"d{i}"}.get(k, f"v{i}") for i, k in enumerate(sig))
    head = f"o {' '.join(names)}".strip()
    for table in ("i", "h") if guarded else ("i",):
        protect = f" (set (st_{op} {args}) {STATUS_PROTECTED})" if guarded and table == "i" else ""
        yield f"(relation {table}_{op} ({columns}))"
        yield f"(rule (({table}_{op} {head}){body}) ((union (H o) (o_{op} {args})){protect}) :ruleset r_load)"


def constructors(ops: Iterable[str]) -> list[str]:
    """The ops that have an egglog constructor of their own: all except leaves bound by name or data."""
    return sorted(op for op in ops if op not in LEAVES)


__all__ = ["DTYPE_ID", "FIRST_FLOAT", "RUN", "SNAP", "Interner", "arguments", "base_declarations", "constructors",
           "declare_op", "number_key", "operands", "pattern", "rank_facts", "signature"]  # fmt: skip
