"""Quantizes a graph's weights: matrices of products become dequantized weights over packed params."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod, sqrt
from typing import Any
from weakref import ref

import numpy as np

from ...backends.runtime.cpu_tensors import array_of, tensor_of
from ...egraph.builders.builders import cast, transpose
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, make, rebuild
from ...egraph.ir.weight_data import Data, DerivedData, load_data
from ...egraph.types import dtypes
from ...errors import UnsupportedError, UsageError
from ...processes.forks import Lock
from ...wording import counted, spelled_bytes
from .packed_weight import LazyPart, PackedWeight
from .quantization import check_form, dequantized, encoded, encoded_on, group_of
from .weight_encodings import WEIGHT_ENCODINGS

Array = np.ndarray[Any, Any]
SAMPLE = 1 << 17  # numbers of a weight by which its error is judged
SMALLEST = 1 << 12  # numbers from which a weight is quantized
NAMED = 3  # weights that a reason names
DESTROYED = 0.5  # relative error from which a weight stays as it is: its scales underflow in its dtype


@dataclass(frozen=True)
class Quantization:
    """Summary of the quantization of a graph's weights to `form`.

    weights: number of matrices · before, after: their bytes · error: relative error (Frobenius norm) of the quantized
    weights, over at most `SAMPLE` numbers of each · kept: weights of products that stay as they are, with their shapes
    -> why.
    """

    form: str
    weights: int
    before: int
    after: int
    error: float
    kept: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        kept = f", {len(self.kept)} kept ({_by_reason(self.kept)})" if self.kept else ""
        return f"{self.form}: {counted(self.weights, 'weight')}{kept}, {spelled_bytes(self.before)} to {spelled_bytes(self.after)}, error of the weights {self.error:.1e}"


#: Name, type and direction of a param -> its quantized weight, squared error and squares (`_error`).
Known = dict[str, tuple[PackedWeight, float, float]]


def quantized(
    graph: Graph, form: str, *, but: Sequence[Tensor] = (), known: Known | None = None
) -> tuple[Graph, Quantization]:  # fmt: skip
    """Return (graph whose matrix products read weights quantized to the encoding `form`, one of `FORMS`; summary).

    A weight is quantized if it is a float param of rank 2 and at least `SMALLEST` numbers that only products read, as
    it is, transposed or cast. An embedding table that is the output matrix too keeps its dtype where rows are looked
    up. Two kinds of weights stay as they are: those of products from which elementwise ops and views alone lead to a
    value in `but` (logits, say), and those that would lose half of their norm (`DESTROYED`). Packed params are `NAME.q`
    and `NAME.scale`, computed when they are loaded. `known`: cache of results for the same params, which is extended.

    Raises UsageError for another encoding or a param without data, UnsupportedError if no weight can be quantized, with
    the reason for each weight of a product.
    """
    check_form(form)
    found = _matrices(graph, but)
    looked_up = {n.args[0] for n in graph.nodes() if n.op == "gather"}
    made, params, kept, totals = dict[Tensor, Tensor](), dict(graph.params), dict[str, str](), np.zeros(4)
    for leaf, by_rows in found.items():
        name = str(leaf.attr("name"))
        if name not in graph.params:
            raise UsageError(f"param {name!r} has no data to quantize", hint="bind it: params={name: array}")
        try:
            weight, wrong, size = _weight(name, graph.params[name], form, leaf.dtype, by_rows, known)
        except UnsupportedError as misfit:
            kept[_title(leaf)] = misfit.message
            continue
        if not wrong <= DESTROYED**2 * size:
            kept[_title(leaf)] = f"quantized it would differ by more than {DESTROYED:.0%} of its norm"
            continue
        if leaf not in looked_up:
            del params[name]
        params |= weight.params(name)
        made[leaf] = weight.tensor(name)
        after = sum(prod(d.shape) * dtypes.itemsize(dtypes.name_of(d.dtype)) for d in weight.parts.values())
        totals += np.array((leaf.type.nbytes, after, wrong, size))
    if not made:
        kept |= {
            _title(leaf): f"fewer than {SMALLEST} numbers" for leaf in graph.leaves("param") if _is_small_matrix(leaf)
        }
        why = f": {_by_reason(kept)}" if kept else ""
        raise UnsupportedError(f"no weight can be quantized to {form}{why}", where=graph.name,
                               hint="" if kept else f"weights are float matrices of products, of at least {SMALLEST} numbers")  # fmt: skip
    roots = rebuild(graph.roots, lambda node, args: _replaced(node, args, made))
    error = sqrt(totals[2] / totals[3]) if totals[3] else 0.0
    done = Quantization(form, len(made), int(totals[0]), int(totals[1]), error, kept)
    return replace(graph.with_roots(roots), params=params), done


def _title(leaf: Tensor) -> str:
    return f"{leaf.attr('name')} {list(leaf.shape)}"


def _by_reason(kept: Mapping[str, str]) -> str:
    """The weights of `kept` (title -> reason) as text: each reason after its weights, of which it names `NAMED`."""
    groups: dict[str, list[str]] = {}
    for title, reason in kept.items():
        groups.setdefault(reason, []).append(title)
    parts = []
    for reason, titles in groups.items():
        more = f" and {len(titles) - NAMED} more" if len(titles) > NAMED else ""
        parts.append(f"{', '.join(titles[:NAMED])}{more}: {reason}")
    return "; ".join(parts)


def _is_small_matrix(leaf: Tensor) -> bool:
    """Whether a param is a float matrix of fewer than `SMALLEST` numbers."""
    return leaf.rank == 2 and dtypes.is_float(leaf.dtype) and leaf.type.nbytes < SMALLEST * dtypes.itemsize(leaf.dtype)


def _weight(
    name: str, data: Data, form: str, dtype: str, by_rows: bool, known: Known | None
) -> tuple[PackedWeight, float, float]:  # fmt: skip
    """(quantized weight of a param, squared error, sum of squares). Raises UnsupportedError if the encoding does not
    fit the weight's shape.
    """
    key = f"{name}: {dtype}{list(data.shape)} {by_rows}"
    found = None if known is None else known.get(key)
    if found is None:
        weight = packed_weight(data, form, dtype, by_rows)
        found = (weight, *_error(load_data(data), form, dtype, by_rows))
        if known is not None:
            known[key] = found
    return found


def _replaced(node: Tensor, args: tuple[Tensor, ...], made: Mapping[Tensor, Tensor]) -> Tensor | None:
    """A quantized weight in place of its leaf; rows that are looked up come from the leaf."""
    if node.op == "gather" and node.args[0] in made:
        return make(node.op, (node.args[0], *args[1:]), dict(node.attrs))
    return made.get(node)


def _matrices(graph: Graph, but: Sequence[Tensor]) -> dict[Tensor, bool]:
    """Leaf -> whether its rows are the products' columns ([outputs, inputs], as in `x @ w.T`), for weights to
    quantize."""
    readers: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes():
        for a in node.args:
            readers.setdefault(a, []).append(node)
    last = {n for root in but for n in _elementwise_below(root)}
    found: dict[Tensor, bool] = {}
    for leaf in graph.leaves("param"):
        if leaf.rank != 2 or not dtypes.is_float(leaf.dtype) or _is_small_matrix(leaf):
            continue
        uses = [u for u in _uses(leaf, turned=False, readers=readers) if u[0].op != "gather" or u[1] is not leaf]
        products = all(n.op in ("matmul", "linear") and len(n.args) > 1 and n.args[1] is a for n, a, _ in uses)
        sides = {turned for *_, turned in uses}
        if uses and products and len(sides) == 1 and leaf not in graph.roots and not any(n in last for n, *_ in uses):
            found[leaf] = sides.pop()
    return found


def _uses(x: Tensor, turned: bool, readers: dict[Tensor, list[Tensor]]) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """(reader, operand, whether the operand is the transposed leaf) of all uses through casts and transpositions."""
    for reader in readers.get(x, ()):
        if reader.op == "cast" and dtypes.is_float(reader.dtype):
            yield from _uses(reader, turned, readers)
        elif reader.op == "permute" and reader.attr("perm") == (1, 0):
            yield from _uses(reader, not turned, readers)
        else:
            yield reader, x, turned


def _elementwise_below(root: Tensor) -> Iterator[Tensor]:
    """The nodes from an output down to and including the first one that is neither elementwise nor a view."""
    while root.entry.pointwise or root.entry.kind == "view":
        yield root
        root = root.args[0]
    yield root


def packed_weight(data: Data, form: str, dtype: str, by_rows: bool) -> PackedWeight:
    """Quantize float data to the encoding `form`: a weight [outputs, inputs] if `by_rows`, else [inputs, outputs],
    whose numbers are encoded when they are loaded.

    Raises UnsupportedError if the encoding does not fit the number of inputs.
    """
    shape = tuple(int(n) for n in data.shape)
    outputs, inputs = shape if by_rows else shape[::-1]
    scales = (outputs, inputs // group_of(form, inputs))
    row = WEIGHT_ENCODINGS[form]
    if row.bits == 4 and inputs % 2:
        raise UnsupportedError(f"an odd number of inputs ({inputs}): two numbers of 4 bits share a byte")
    codes = (outputs, inputs * row.bits // 8)
    encoding = _Encoding(form, dtype, by_rows)
    parts: dict[str, Data] = {
        name: _EncodedPart(own, kind, (data,), partial(encoding.part, name), encoding, name)
        for name, own, kind in (("q", codes, row.dtype), ("scale", scales, dtype))
    }

    def build(leaf: Any) -> Tensor:
        whole = cast(dequantized(form, leaf["q"], leaf["scale"]), dtype)
        return whole if by_rows else transpose(whole)

    return PackedWeight(shape, dtype, form, parts, build)


@dataclass
class _Encoding:
    """Computes the codes and scales of a quantized weight, on the host or on a Torch device.

    It keeps the scales, and weak references to codes on the host and to codes and scales on devices.
    """

    form: str
    dtype: str
    by_rows: bool
    keeps_codes: bool = False  # whether the encoding keeps the codes, too
    _scale: Array | None = field(default=None, compare=False)
    _codes: ref[Array] | None = field(default=None, compare=False)
    _near: dict[tuple[str, str], ref[Any]] = field(default_factory=dict, compare=False)  # of (part, device)
    _kept: list[Any] = field(default_factory=list, compare=False)  # codes kept if `keeps_codes`
    _lock: Lock = field(default_factory=Lock, compare=False)  # one encoding at a time

    def part(self, name: str, weight: Array) -> Array:
        """Codes ("q") or scales ("scale") of the weight, which is the same in every call, in any shape."""
        with self._lock:
            codes = self._codes() if name == "q" and self._codes is not None else None
            if codes is not None:
                return codes
            if name == "scale" and self._scale is not None:
                return self._scale.copy()
            if (near := self._on_some_device(name)) is not None:
                return array_of(near)
            wanted = ("q", "scale") if name == "q" or self.keeps_codes else ("scale",)
            found = encoded(weight if self.by_rows else weight.T, self.form, self.dtype, wanted)
            self._scale = found["scale"].copy()
            if "q" in found:
                owner = found["q"] if found["q"].base is None else found["q"].base  # lives as long as some view of it
                assert owner.dtype == found["q"].dtype  # the array itself, not one that its bits were computed as
                self._codes = ref(owner)
                self._kept += [owner] if self.keeps_codes else []
            return found[name]

    def part_on(self, name: str, load: Callable[[], Array], device: str) -> Any:
        """Codes or scales of the weight as a tensor on a Torch device; `load` gives the weight.

        Raises torch.OutOfMemoryError if the device has too little memory for the encoder.
        """
        with self._lock:
            found = self._on_device(name, device)
            if found is not None:
                return found
            codes = self._codes() if self._codes is not None else None
            if codes is not None and self._scale is not None:  # encoded on the host already
                rows = len(self._scale)
                made = {n: tensor_of(x.reshape(rows, -1)).to(device) for n, x in (("q", codes), ("scale", self._scale))}
            else:
                made = encoded_on(load(), self.form, self.dtype, self.by_rows, device)
            for part, tensor in made.items():
                self._near[part, device] = ref(tensor)
            self._kept += [*made.values()] if self.keeps_codes else []
            return made[name]

    def _on_device(self, name: str, device: str) -> Any | None:
        known = self._near.get((name, device))
        return None if known is None else known()

    def _on_some_device(self, name: str) -> Any | None:
        """Codes or scales on any device that has them."""
        return next((x for (part, _), known in self._near.items() if part == name and (x := known()) is not None), None)

    def keep_codes(self, keeps: bool) -> None:
        """Keep codes in memory from the next encoding on, or let go of them."""
        with self._lock:
            self.keeps_codes = keeps
            self._kept.clear()

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling: the fields from which codes and scales are computed, without those that are cached."""
        return {"form": self.form, "dtype": self.dtype, "by_rows": self.by_rows, "keeps_codes": self.keeps_codes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore an encoding without cached codes and scales."""
        self.__init__(**state)  # type: ignore[misc]


@dataclass(frozen=True)
class _EncodedPart(LazyPart, DerivedData):
    """The codes ("q") or the scales ("scale") of a weight."""

    encoding: _Encoding
    name: str

    @property
    def sources(self) -> Sequence[Data]:
        """The weight whose encoding this part is computed from, as the only element."""
        return self.stored

    @property
    def recipe(self) -> tuple[object, ...]:
        """The encoding, the name of the part and its type."""
        encoding = self.encoding
        return "encoded", encoding.form, encoding.dtype, encoding.by_rows, self.name, self.shape, self.dtype

    def load_on(self, device: str) -> Any | None:
        """The part on a Torch device, encoded there; None if the device has too little memory."""
        import torch

        try:
            found = self.encoding.part_on(self.name, lambda: load_data(self.stored[0]), device)
        except torch.OutOfMemoryError:
            return None
        return found if found.shape == self.shape else found.reshape(self.shape)


@contextmanager
def codes_kept(params: Mapping[str, Data]) -> Iterator[None]:
    """Context in which the codes of quantized weights stay in memory, so that each weight is encoded once.

    `params`: the params of a graph that `quantized` returned; those that are not quantized weights are ignored.
    """
    found = {id(d.encoding): d.encoding for d in params.values() if isinstance(d, _EncodedPart)}
    encodings = [e for e in found.values() if not e.keeps_codes]  # contexts around this one keep the others
    for encoding in encodings:
        encoding.keep_codes(keeps=True)
    try:
        yield
    finally:
        for encoding in encodings:
            encoding.keep_codes(keeps=False)


def _error(weight: Array, form: str, dtype: str, by_rows: bool) -> tuple[float, float]:
    """(squared error, squares) over evenly spaced rows of a weight, at most `SAMPLE` numbers."""
    rows = weight if by_rows else weight.T
    step = max(1, -(-rows.size // SAMPLE))
    some = np.asarray(rows[::step], np.float32)
    again = packed_weight(some, form, dtype, True).load().astype(np.float64)
    wide = some.astype(np.float64)
    return float(((again - wide) ** 2).sum()), float((wide**2).sum())


__all__ = ["Quantization", "codes_kept", "packed_weight", "quantized"]
