"""Random ONNX graphs of 1 to 8 nodes: a node that onnx's reference evaluator refuses is dropped, so no operator needs a
typing rule here. Operands come from the signatures of `onnx.defs`, from the single nodes of `onnx_draws` on shapes that
the graph has already, or from the tables of quantization and control flow in `onnx_graph_parts`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tensor_graphs.models.onnx.node import OPERATORS
from tensor_graphs.models.onnx.values import ELEMENT_TYPES

from .onnx_draws import NODES, Draw, Skip

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
NARROW = (np.dtype(np.float16), BF16)
SPELLED = {
    f"tensor({onnx.TensorProto.DataType.Name(k).lower()})": helper.tensor_dtype_to_np_dtype(k) for k in ELEMENT_TYPES
}
FLOATS = (np.float32, np.float32, np.float32, np.float16, np.float16, BF16, np.float64)
INTS = (np.int64, np.int64, np.int32, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, -0.5, 1.5, 2.5, 65504.0, 1e-7)
#: Operands that a loader must know: names of formal parameters.
KNOWN = {"shape", "axes", "repeats", "K", "starts", "ends", "steps", "pads", "split", "sizes", "scales", "axis", "depth", "k", "roi",
         "start", "limit", "delta", "constant_value", "size", "output_shape", "input_shape", "image_shape", "block_shape"}  # fmt: skip
SKIPPED = {"If", "Loop", "Scan", "Constant", "Dropout", "RNN", "GRU", "LSTM", "Attention", "NonZero", "Compress", "QLinearConv",
           "QLinearMatMul", "QuantizeLinear", "GatherElements", "GatherND", "Gather", "ScatterElements", "ScatterND", "OneHot", "ReverseSequence",
           "ConvTranspose", "GroupNormalization"}  # fmt: skip
TEXTS = {"mode": ("constant", "reflect", "edge", "wrap", "nearest", "linear", "cubic", "bilinear", "bicubic", "DCR", "CRD"),
         "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), "reduction": ("none", "add", "mul", "max", "min", "mean", "sum"),
         "direction": ("LEFT", "RIGHT"), "padding_mode": ("zeros", "border", "reflection"), "approximate": ("none", "tanh"),
         "coordinate_transformation_mode": ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric", "tf_crop_and_resize"),
         "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")}  # fmt: skip


NUMBERS = {
    "num_groups",
    "group",
    "p",
    "blocksize",
    "size",
    "k",
    "block_size",
    "num_outputs",
    "batch_dims",
    "num_heads",
    "start",
    "end",
}


def types_of(schema: Any, spelled: str) -> list[Any]:
    """The dtypes that a type parameter, or a type itself, of a signature allows."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}.get(spelled, [spelled])
    return [SPELLED[s] for s in allowed if s in SPELLED]


@dataclass
class Step:
    """One node with what is needed to run it alone: the names it reads (those of its subgraphs included)."""

    proto: Any
    opset: int
    reads: list[str]
    run: Any = None

    def __call__(self, values: Mapping[str, Array]) -> list[Array]:
        """Results of onnx's reference evaluator, in float32 rounded to 16 bits where it does not take 16-bit floats."""
        given = {n: values[n] for n in self.reads}
        narrow = [x.dtype for x in given.values() if x.dtype in NARROW]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if not narrow or self.proto.op_type in (
                "Cast",
                "CastLike",
                "QuantizeLinear",
                "DequantizeLinear",
                "If",
                "Loop",
                "Scan",
            ):
                return [np.asarray(x) for x in self._evaluator(given).run(None, given)]
            wide = {n: x.astype(np.float32) if x.dtype in NARROW else x for n, x in given.items()}
            found = self._evaluator(wide).run(None, wide)
            same = self._floats()
            return [
                np.asarray(x).astype(narrow[0]) if s and np.asarray(x).dtype == np.float32 else np.asarray(x)
                for x, s in zip(found, same)
            ]

    def _floats(self) -> list[bool]:
        schema = onnx.defs.get_schema(self.proto.op_type, self.opset, "")
        kinds = {x.type_str for x in schema.inputs}
        outs = [schema.outputs[min(i, len(schema.outputs) - 1)].type_str for i in range(len(self.proto.output))]
        return [k in kinds for k in outs]

    def _evaluator(self, given: Mapping[str, Array]) -> Any:
        if self.run is None:
            infos = [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), None)
                for n, x in given.items()
            ]
            graph = helper.make_graph(
                [self.proto], "g", infos, [onnx.ValueInfoProto(name=o) for o in self.proto.output]
            )
            self.run = ReferenceEvaluator(
                helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
            )
        return self.run


class Linked(Draw):
    """Draws of a single node whose shapes and operands are, where they fit, values that the graph has."""

    def __init__(self, g: Graph) -> None:
        super().__init__(g.rng.randrange(1 << 30))
        self.g, self.opset, self.linked = g, g.opset, {}

    def shape(self, low: int = 1, high: int = 4, largest: int = 5) -> list[int]:
        found = [x.shape for n, x in self.g.values.items() if low <= x.ndim <= high and x.dtype == self.g.float]
        return list(self.rng.choice(found)) if found and self.rng.random() < 0.7 else super().shape(low, high, largest)

    def floats(self, shape: Sequence[int], dtype: Any = np.float32) -> Array:
        fits = [n for n, x in self.g.values.items() if x.shape == tuple(shape) and x.dtype == self.g.float]
        if fits and self.rng.random() < 0.7:
            name = self.rng.choice(fits)
            x = self.g.values[name].copy()
            self.linked[id(x)] = (name, x)
            return x
        return self.g.draw(shape, self.g.float)


@dataclass
class Graph:
    """A graph while it grows."""

    seed: int
    rng: random.Random = field(init=False)
    values: dict[str, Array] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)
    initial: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    count: int = 0  # of inputs and initializers so far

    def __post_init__(self) -> None:
        self.rng, self.np = random.Random(self.seed), np.random.default_rng(self.seed)
        self.opset = self.rng.choice((7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24))
        self.float = np.dtype(self.rng.choice(FLOATS))
        self.sizes = self.rng.choice(((1, 2, 3, 4), (2, 3, 5), (4, 4, 6), (1, 7), (3, 8)))

    # ------------------------------------------------------------ values
    def shape(self, low: int = 0, high: int = 4) -> list[int]:
        return [self.rng.choice(self.sizes) for _ in range(self.rng.randint(low, high))]

    def draw(self, shape: Sequence[int], dtype: Any) -> Array:
        """Whole numbers and halves with ties, or random numbers; at times special values and ends of integers."""
        dtype, how = np.dtype(dtype), self.rng.random()
        if dtype.kind == "b":
            return self.np.integers(0, 2, tuple(shape)).astype(bool)
        if dtype.kind in "iu":
            ends = np.iinfo(dtype)
            low, high = (ends.min, ends.max) if how < 0.25 else (max(ends.min, -4), 6)
            return self.np.integers(low, high, tuple(shape), dtype=dtype, endpoint=True)
        x = self.np.standard_normal(tuple(shape)) * self.rng.choice((1, 1, 3, 20))
        x = np.asarray(np.round(x) if how < 0.35 else np.round(2 * x) / 2 if how < 0.6 else x)
        if how > 0.93 and x.size:
            x.reshape(-1)[self.np.integers(0, x.size, 1 + x.size // 8)] = self.rng.choice(SPECIAL)
        return np.asarray(x).astype(dtype)

    def add(self, x: Array, known: bool | None = None) -> str:
        """A new input or initializer."""
        self.count += 1
        if self.rng.random() < 0.35 if known is None else known:
            name = f"w{self.count}"
            self.initial[name] = numpy_helper.from_array(x, name)
        else:
            name = f"x{self.count}"
            self.given.append(name)
        self.values[name] = x
        return name

    def some(self, dtypes: Sequence[Any], low: int = 0, high: int = 5) -> str:
        """A value of the graph of one of the dtypes, a late one rather; else a new one."""
        fits = [n for n, x in self.values.items() if x.dtype in dtypes and low <= x.ndim <= high and x.size < 3000]
        if fits and self.rng.random() < 0.85:
            return fits[-1 - int(len(fits) * self.rng.random() ** 2.5)]
        kinds = (
            [self.float]
            if self.float in dtypes and self.rng.random() < 0.8
            else [d for d in (*INTS, *FLOATS, bool) if np.dtype(d) in dtypes]
        )
        return self.add(
            self.draw(self.shape(low, min(high, 4)), self.rng.choice(kinds or list(dtypes))),
            known=False if not fits else None,
        )

    # ------------------------------------------------------------ nodes
    def put(
        self, op: str, inputs: Sequence[str], outputs: int, attrs: Mapping[str, Any], reads: Sequence[str] = ()
    ) -> bool:
        """Append a node if the reference evaluator computes it."""
        if not onnx.defs.has(op, max_inclusive_version=self.opset):
            return False
        names = list(inputs)
        while names and not names[-1]:
            names.pop()
        made = helper.make_node(
            op, names, [f"v{len(self.steps)}_{k}" for k in range(outputs)], name=f"{op}_{len(self.steps)}", **attrs
        )
        step = Step(made, self.opset, [*dict.fromkeys(n for n in [*names, *reads] if n)])
        found = step(self.values)
        if any(x.dtype not in SPELLED.values() or x.size > 4000 for x in found):
            return False
        self.steps.append(step)
        self.values.update(zip(made.output, found))
        return True

    def by_signature(self, op: str) -> bool:
        """A node of the operator's signature: operands by dtype, shapes that broadcast or repeat, random attributes."""
        schema = onnx.defs.get_schema(op, self.opset, "")
        bound: dict[str, Any] = {}
        names: list[str] = []
        formals = list(schema.inputs)
        if formals and formals[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
            formals += [formals[-1]] * self.rng.randint(0, 2)
        for i, formal in enumerate(formals):
            if (
                i >= schema.min_input
                and formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional
                and self.rng.random() < 0.4
            ):
                names.append("")
                continue
            kinds = [bound[formal.type_str]] if formal.type_str in bound else types_of(schema, formal.type_str)
            if not kinds:
                return False
            first = self.values[names[0]] if names and names[0] else None
            names.append(self.operand(formal.name, kinds, first))
            bound[formal.type_str] = self.values[names[-1]].dtype
        rank = self.values[names[0]].ndim if names and names[0] else 1
        attrs = self.attributes(schema, rank)
        most = len(schema.outputs)
        return self.put(op, names, max(schema.min_output, self.rng.randint(1, most) if most > 1 else 1), attrs)

    def operand(self, formal: str, kinds: Sequence[Any], first: Array | None) -> str:
        if first is None:
            return self.some(kinds)
        rank = first.ndim
        if formal in KNOWN:
            dtype = np.dtype(self.rng.choice(kinds))
            choices = {"axes": self.axes(rank), "axis": self.axis(rank), "shape": self.rng.choice(([-1], [0] * rank, [*first.shape, 1], [1, *first.shape])),
                       "repeats": [self.rng.randint(0, 2) for _ in range(rank)], "K": [self.rng.choice([*first.shape, 1, 2])], "k": self.rng.randint(-3, 3),
                       "depth": self.rng.randint(1, 5)}  # fmt: skip
            number = self.rng.choice(
                ([self.rng.randint(-3, 5) for _ in range(rank)], self.rng.randint(-3, 5), [self.rng.randint(-2, 3)])
            )
            return self.add(np.asarray(choices.get(formal, number)).astype(dtype), known=True)
        near = [
            n
            for n, x in self.values.items()
            if x.dtype in kinds and x.ndim <= rank + 1 and self.fits(x.shape, first.shape)
        ]
        if near and self.rng.random() < 0.6:
            return self.rng.choice(near)
        shape = list(self.rng.choice((first.shape, first.shape[self.rng.randint(0, rank):], (), [self.rng.choice((1, s)) for s in first.shape],
                                      first.shape[1:2], first.shape[-1:], [*self.shape(1, 1), *first.shape])))  # fmt: skip
        return self.add(self.draw(shape, self.rng.choice(kinds)))

    @staticmethod
    def fits(a: Sequence[int], b: Sequence[int]) -> bool:
        return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1]))

    def axis(self, rank: int) -> int:
        return self.rng.randrange(-rank, rank) if rank else 0

    def axes(self, rank: int) -> list[int]:
        return [a - rank * self.rng.randint(0, 1) for a in self.rng.sample(range(rank), self.rng.randint(0, rank))]

    def attributes(self, schema: Any, rank: int) -> dict[str, Any]:
        kinds, found = onnx.defs.OpSchema.AttrType, {}
        for name, a in schema.attributes.items():
            if not a.required and self.rng.random() < 0.5:
                continue
            if name in ("to", "dtype", "output_dtype"):
                found[name] = self.rng.choice([k for k in ELEMENT_TYPES if k != 9 or name == "to"])
            elif name in ("axis", "batch_axis", "time_axis"):
                found[name] = self.axis(rank)
            elif name in ("axes", "perm"):
                found[name] = self.rng.sample(range(rank), rank) if name == "perm" else self.axes(rank)
            elif a.type == kinds.INT:
                found[name] = self.rng.choice((1, 2, 3) if name in NUMBERS else (0, 1))
            elif a.type == kinds.FLOAT:
                found[name] = self.rng.choice((0.0, 0.5, 1.0, 2.0, -0.5, 0.1))
            elif a.type == kinds.STRING:
                found[name] = self.rng.choice(TEXTS.get(name, ("",)))
            elif a.type == kinds.INTS:
                count = max(1, rank - 2) * (2 if name == "pads" else 1)
                found[name] = [
                    self.rng.choice((0, 1, 1, 2) if name in ("pads", "output_padding") else (1, 1, 2, 3))
                    for _ in range(count)
                ]
        return found

    def by_draw(self, op: str) -> bool:
        """A single node of `onnx_draws` on shapes and values of the graph."""
        d = Linked(self)
        d.op = op  # type: ignore[attr-defined]
        NODES[op](d)
        if d.opset != self.opset:
            raise Skip
        names = []
        for i, x in enumerate(d.operands):
            link = d.linked.get(id(x))
            names.append(
                ""
                if x is None
                else link[0]
                if link and i not in d.known
                else self.add(x, known=True if i in d.known else None)
            )
        return self.put(op, names, d.outputs, d.attrs)

    def grow(self, count: int, parts: Sequence[Any] = (), ops: Sequence[str] = ()) -> None:
        """Append `count` nodes, in at most ten times as many attempts."""
        chosen = ops or [o for o in OPERATORS if "." not in o and o not in SKIPPED and onnx.defs.has(o, max_inclusive_version=self.opset)
                         and "Sequence" not in o]  # fmt: skip
        for _ in range(10 * count):
            if len(self.steps) >= count:
                break
            before = set(self.values)
            try:
                roll = self.rng.random()
                if parts and roll < 0.25:
                    good = self.rng.choice(parts)(self)
                elif roll < 0.6:
                    good = self.by_draw(self.rng.choice([o for o in NODES if not ops or o in ops] or list(NODES)))
                else:
                    good = self.by_signature(self.rng.choice(chosen))
            except Exception:
                good = False
            if not good:
                kept = before | {n for s in self.steps for n in (*s.reads, *s.proto.output)}
                self.given = [n for n in self.given if n in kept]
                self.initial = {n: x for n, x in self.initial.items() if n in kept}
                self.values = {n: x for n, x in self.values.items() if n in kept}

    # ------------------------------------------------------------ models
    def model(self, outputs: Sequence[str] = (), names: Mapping[int, str] | None = None) -> Any:
        """The graph as a model of the outputs (default: values that no node reads); `names`: size -> free size."""
        ends = list(outputs) or self.ends()
        needed, steps = set(ends), []
        for s in reversed(self.steps):
            if needed & {*s.proto.output}:
                steps.insert(0, s)
                needed |= {*s.reads}
        sized = lambda x: [(names or {}).get(d, d) for d in x.shape]
        kind = lambda x: helper.np_dtype_to_tensor_dtype(x.dtype)
        inputs = [
            helper.make_tensor_value_info(n, kind(self.values[n]), sized(self.values[n]))
            for n in self.given
            if n in needed
        ]
        outs = [helper.make_tensor_value_info(n, kind(self.values[n]), None) for n in ends]
        graph = helper.make_graph(
            [s.proto for s in steps], "g", inputs, outs, [t for n, t in self.initial.items() if n in needed]
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def ends(self) -> list[str]:
        """Values that no node reads."""
        read = {n for s in self.steps for n in s.reads}
        return [n for s in self.steps for n in s.proto.output if n not in read]
