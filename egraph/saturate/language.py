"""The op table in egglog: sorts, one constructor per op, and the shape, dtype and weight laws as rules.

Tensors have sort `T`, attribute vectors `Dims` (Vec i64), integer attributes i64. Floats, bools, strings and dtypes are
ids from an `Interner`, because egglog's f64 does not distinguish 0.0 from -0.0. Leaves are `(Leaf n)`; their facts come
from Python. Three functions hold the e-class analysis: `shape`, `dt` (merging two different values is an error, which
exposes unsound rules) and `wk`, which is 0 for a value that depends on weights alone and 1 if it depends on an input.

Egglog names: `o_<op>` constructors; `st_<op>` status of an e-node (0 new, 1 seen: was in a view, 2 protected from
pruning); `d_<op>` dominated e-nodes; `i_<op>` input tables through which a graph is loaded. Rulesets: `r_load`,
`r_shape`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ShapeError
from ..ir import dtypes
from ..ir.graph import LEAVES
from ..ir.ops import OPS, Op

DTYPE_ID = {name: i for i, name in enumerate(dtypes.DTYPES)}
FIRST_FLOAT = DTYPE_ID["float16"]  # dtype ids from here on are floats
STATUS_NEW, STATUS_SEEN, STATUS_PROTECTED = 0, 1, 2
SNAP = 2.0**-21  # relative distance within which a graph's constant is identified with a rule's constant


# ---------------------------------------------------------------- attribute values as ids
def number_key(value: float) -> Any:
    """Key under which two numeric attribute values are the same constant: the bits as a double, or the int if not
    exact.
    """
    wide = float(value)
    return struct.pack("<d", wide) if wide == value or wide != wide else int(value)


@dataclass
class Interner:
    """Ids of attribute values that egglog does not represent itself.

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
        """Id of an attribute value of a kind other than dims. ShapeError for a symbolic size."""
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
        """Map a number to an existing id: a constant rounded to its dtype stands for the rule's exact constant."""
        self._float_ids.setdefault(number_key(value), target)

    def knows(self, value: float) -> bool:
        """Whether the number has an id."""
        return number_key(value) in self._float_ids

    def decode(self, kind: str, number: int) -> Any:
        """The value of an id."""
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
    """Egglog text of the op applied to its variables."""
    return " ".join([f"(o_{op}", *arguments(OPS[op])]) + ")"


# ---------------------------------------------------------------- shape and dtype laws
@dataclass(frozen=True)
class LawCase:
    """One case of a type law.

    `atoms`: additional query atoms. `broadcasts`: pairs of shapes that must be broadcast first.
    """

    shape: str
    dtype: str
    atoms: tuple[str, ...] = ()
    broadcasts: tuple[tuple[str, str], ...] = ()


Cases = Iterator[LawCase]
S0, S1, S2, D0 = "(shape x0)", "(shape x1)", "(shape x2)", "(dt x0)"


def _at(vector: str, i: int | str) -> str:
    return f"(vec-get {vector} {i})"


def _with(vector: str, i: str, value: str) -> str:
    return f"(vec-set {vector} {i} {value})"


def _rank(vector: str, rank: int) -> str:
    return f"(= {rank} (vec-length {vector}))"


def _vec(items: Iterable[str]) -> str:
    return f"(vec-of {' '.join(items)})"


def _leaf(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase("a_shape", "a_dtype")


def _broadcast(op: Op, dtype: str) -> Cases:
    found, pairs = S0, []
    for i in range(1, op.arity):
        pairs.append((found, f"(shape x{i})"))
        found = f"(bc {found} (shape x{i}))"
    yield LawCase(found, dtype, (), tuple(pairs))


def _pointwise(op: Op, ranks: Sequence[int]) -> Cases:
    yield from _broadcast(op, D0)


def _compare(op: Op, ranks: Sequence[int]) -> Cases:
    yield from _broadcast(op, str(DTYPE_ID["bool"]))


def _where(op: Op, ranks: Sequence[int]) -> Cases:
    yield from _broadcast(op, "(dt x1)")


def _cast(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(S0, "a_dtype")


def _reduce(op: Op, ranks: Sequence[int]) -> Cases:
    for count in range(max(ranks, default=0) + 1):
        shape = S0
        for i in range(count):
            shape = _with(shape, _at("a_axes", i), "1")
        yield LawCase(shape, D0, (_rank("a_axes", count),))


def _arg_reduce(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(_with(S0, "a_axis", "1"), str(DTYPE_ID["int64"]))


def _same(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(S0, D0)


def _along_index(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(S0, str(DTYPE_ID["int64"]))


def _matmul(op: Op, ranks: Sequence[int]) -> Cases:
    last = f"(- (vec-length {S0}) 1)"
    yield LawCase(_with(S0, last, _at(S1, 1)), D0, (_rank(S1, 2),))
    for r in ranks:
        if r >= 3:
            batch = [f"(max {_at(S0, i)} {_at(S1, i)})" for i in range(r - 2)]
            yield LawCase(_vec([*batch, _at(S0, r - 2), _at(S1, r - 1)]), D0, (_rank(S0, r), _rank(S1, r)))


def _window(size: str, kernel: str, stride: str, lo: str, hi: str, dilation: str) -> str:
    return f"(+ (/ (- (+ {size} (+ {lo} {hi})) (+ (* {dilation} (- {kernel} 1)) 1)) {stride}) 1)"


def _windowed(spatial: int, kernel: Callable[[int], str]) -> list[str]:
    return [
        _window(
            _at(S0, 2 + i),
            kernel(i),
            _at("a_strides", i),
            _at("a_pads", i),
            _at("a_pads", spatial + i),
            _at("a_dilations", i),
        )
        for i in range(spatial)
    ]


def _conv(op: Op, ranks: Sequence[int]) -> Cases:
    for r in ranks:
        if r >= 3:
            space = _windowed(r - 2, lambda i: _at(S1, 2 + i))
            yield LawCase(_vec([_at(S0, 0), _at(S1, 0), *space]), D0, (_rank(S0, r),))


def _pool(op: Op, ranks: Sequence[int]) -> Cases:
    for r in ranks:
        if r >= 3:
            space = _windowed(r - 2, lambda i: _at("a_kernel", i))
            yield LawCase(_vec([_at(S0, 0), _at(S0, 1), *space]), D0, (_rank(S0, r),))


def _permute(op: Op, ranks: Sequence[int]) -> Cases:
    for r in ranks:
        yield LawCase(_vec(_at(S0, _at("a_perm", i)) for i in range(r)), D0, (_rank("a_perm", r),))


def _as_asked(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase("a_shape", D0)


def _slice(op: Op, ranks: Sequence[int]) -> Cases:
    size = "(/ (+ (- a_stop a_start) (- a_step 1)) a_step)"
    yield LawCase(_with(S0, "a_axis", size), D0)


def _concat(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(_with(S0, "a_axis", f"(+ {_at(S0, 'a_axis')} {_at(S1, 'a_axis')})"), D0)


def _pad(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(_with(S0, "a_axis", f"(+ {_at(S0, 'a_axis')} (+ a_lo a_hi))"), D0)


def _windows(op: Op, ranks: Sequence[int]) -> Cases:
    count = _window(_at(S0, "a_axis"), "a_size", "a_stride", "0", "0", "a_dilation")
    yield LawCase(f"(vec-push {_with(S0, 'a_axis', count)} a_size)", D0)


def _gather(op: Op, ranks: Sequence[int]) -> Cases:
    for r in ranks:
        for axis in range(r):
            head = _vec(_at(S0, i) for i in range(axis))
            tail = _vec(_at(S0, i) for i in range(axis + 1, r))
            yield LawCase(f"(vec-append {head} {S1} {tail})", D0, (_rank(S0, r), f"(= {axis} a_axis)"))


def _gather_elements(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(S1, D0)


def _linear(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(_with(S0, f"(- (vec-length {S0}) 1)", _at(S1, 1)), D0)


def _attention(op: Op, ranks: Sequence[int]) -> Cases:
    for r in ranks:
        if r >= 3:
            batch = [f"(max {_at(S0, i)} (max {_at(S1, i)} {_at(S2, i)}))" for i in range(r - 2)]
            yield LawCase(_vec([*batch, _at(S0, r - 2), _at(S2, r - 1)]), D0, (_rank(S0, r),))


def _cross_entropy(op: Op, ranks: Sequence[int]) -> Cases:
    yield LawCase(S1, D0)


def _recurrent(op: Op, ranks: Sequence[int]) -> Cases:
    rows = f"(* {_at(S0, 0)} (* {_at(S0, 1)} (* a_directions a_width)))"
    yield LawCase(_vec([f"(+ {rows} {_at(S1, 0)})"]), D0)


#: Type laws by name, with the same names as `laws.LAWS`. `ranks` are the ranks that may occur.
LAW_TEXT: dict[str, Callable[[Op, Sequence[int]], Cases]] = {
    "leaf": _leaf,
    "pointwise": _pointwise,
    "compare": _compare,
    "where": _where,
    "cast": _cast,
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "along": _same,
    "along_index": _along_index,
    "matmul": _matmul,
    "conv": _conv,
    "pool": _pool,
    "reshape": _as_asked,
    "permute": _permute,
    "broadcast_to": _as_asked,
    "slice": _slice,
    "concat": _concat,
    "pad": _pad,
    "windows": _windows,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "scatter_elements": _same,
    "norm": _same,
    "channel_norm": _same,
    "linear": _linear,
    "attention": _attention,
    "rope": _same,
    "cross_entropy": _cross_entropy,
    "recurrent": _recurrent,
    "same": _same,
}


#: Contractions whose right operands may be merged into one by concatenation. A chain is a run of consecutive weights
#: among those multiplied with one left operand: any run of up to `RUN` weights, and longer runs only from the first
#: weight on. This gives RUN·k chains of k weights; all runs would give k²/2 (and k³/6 slices), all subsets 2ᵏ.
MERGING = ("matmul", "linear", "conv")
RUN = 4


# ---------------------------------------------------------------- declarations
def base_declarations(*, guarded: bool) -> list[str]:
    """Sorts, rulesets, e-class functions, leaves and their loader. `guarded` adds the costs that pruning needs."""
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
    """Per rank: vectors of ones, transpositions, identity permutation, element counts and the broadcast rule."""
    for r in ranks:
        ones = _vec(["1"] * r)
        yield f"(Ones {ones})"
        yield f"(set (OnesOf {r}) {ones})"
        yield f"(set (IdentityOf {r}) {_vec(map(str, range(r)))})"
        volume = "1"
        for i in range(r):
            volume = f"(* {volume} {_at('s', i)})"
        yield f"(rule ((= s (shape e)) {_rank('s', r)}) ((set (nel e) {volume})) :ruleset r_shape)"
        if r >= 2:
            yield f"(set (SwapLast {r}) {_vec(map(str, [*range(r - 2), r - 1, r - 2]))})"
        wide = _vec(f"(max {_at('s', i)} {_at('t', i)})" for i in range(r))
        yield f"(rule ((want s t) {_rank('s', r)} {_rank('t', r)}) ((set (bc s t) {wide})) :ruleset r_shape)"


def declare_op(op: str, ranks: Sequence[int], *, guarded: bool) -> Iterator[str]:
    """Constructor, loader and type laws of an op; `guarded` adds the status table that pruning needs."""
    entry, sig = OPS[op], signature(op)
    sorts = " ".join(SORTS[k] for k in sig)
    yield f"(constructor o_{op} ({sorts}) T)"
    if guarded:
        yield f"(function st_{op} ({sorts}) i64 :merge (max old new))"
        yield f"(relation d_{op} ({sorts}))"
    yield from _loader(op, sig, guarded)
    term = pattern(op)
    for case in LAW_TEXT[entry.law](entry, ranks):
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
    """Loaders of the tables `i_op` (the graph's own nodes, protected from pruning) and `h_op` (handles
    assigned later).
    """
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
    """Ops that have their own constructor: all except leaves bound by name or data."""
    return sorted(op for op in ops if op not in LEAVES)


__all__ = ["DTYPE_ID", "FIRST_FLOAT", "LAW_TEXT", "RUN", "SNAP", "Interner", "arguments", "base_declarations", "constructors",
           "declare_op", "number_key", "operands", "pattern", "rank_facts", "signature"]  # fmt: skip
