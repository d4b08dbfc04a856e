"""Checks a node against the signature of its operator: dtypes of operands, and attributes that are numbers of a known
range. ONNX's checker compares attribute names and kinds only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...egraph.ir.tensor import Tensor
from ...errors import BadModelError
from .node import OPSETS, Node
from .values import ELEMENT_TYPES, SymbolicInts, element_name

#: ONNX's spelling of a tensor type -> dtype.
_SPELLED = {f"tensor({'double' if k == 11 else element_name(k)})": name for k, name in ELEMENT_TYPES.items()}


@dataclass(frozen=True)
class _Operand:
    """Formal parameter of an operator: its name, the dtypes that any version of the operator takes there, and its type
    parameter, of which all operands have one dtype (empty: none)."""

    name: str
    dtypes: frozenset[str]
    parameter: str
    variadic: bool


@cache
def _versions() -> dict[str, list[Any]]:
    """Return the schemas of the supported versions of each operator of the default domain."""
    import onnx.defs

    found: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append(schema)
    for op, versions in found.items():
        first = max((v.since_version for v in versions if v.since_version <= OPSETS[0]), default=0)
        found[op] = [v for v in versions if v.since_version >= first]
    return found


@cache
def _operands(op: str, opset: int) -> tuple[_Operand, ...]:
    """Return the formal parameters of an operator at an opset; none of an operator that ONNX does not define there."""
    import onnx.defs

    if not onnx.defs.has(op, max_inclusive_version=opset):
        return ()
    schema = onnx.defs.get_schema(op, opset, "")
    found = []
    for i, x in enumerate(schema.inputs):
        types = set().union(*(v.inputs[i].types for v in _versions()[op] if i < len(v.inputs)))
        several = x.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        shared = x.type_str if x.is_homogeneous and not x.type_str.startswith("tensor(") else ""
        found.append(_Operand(x.name, frozenset(_SPELLED[s] for s in types if s in _SPELLED), shared, several))
    return tuple(found)


def check_operands(n: Node) -> None:
    """Raise BadModelError for an operand of a dtype that the operator does not take, or of another dtype than an
    operand of the same type parameter."""
    operands = _operands(n.op, n.opset)
    bound: dict[str, tuple[str, str]] = {}
    for i, value in enumerate(n.inputs):
        if not isinstance(value, Tensor | SymbolicInts) or not operands:
            continue
        formal = operands[min(i, len(operands) - 1)]
        if i >= len(operands) and not formal.variadic:
            continue
        name = f"{formal.name}[{i - len(operands) + 1}]" if formal.variadic else formal.name
        if formal.dtypes and value.dtype not in formal.dtypes:
            raise BadModelError(f"{n.label}: {name} is {value.dtype}, which {n.op} does not take")
        first, dtype = bound.setdefault(formal.parameter or f"operand {i}", (name, value.dtype))
        if dtype != value.dtype:
            raise BadModelError(f"{n.label}: {name} is {value.dtype}, but {first} is {dtype}; {n.op} takes one dtype")


Check = Callable[[float], bool]


def _flag(value: float) -> bool:
    return value in (0, 1)


def _positive(value: float) -> bool:
    return value >= 1


def _natural(value: float) -> bool:
    return value >= 0


#: Attribute -> (test of its value, the values that pass it as text); "operator.attribute" goes before "attribute".
_VALUES: dict[str, tuple[Check, str]] = {
    **dict.fromkeys(
        ("align_corners", "allowzero", "antialias", "ceil_mode", "batch_axis", "channels_last", "count_include_pad", "detect_negative",
         "detect_positive", "do_rotary", "exclude_outside", "exclusive", "fmod", "input_forget", "interleaved", "is_causal", "keepdims", "largest", "layout",
         "linear_before_reset", "new_axis", "noop_with_empty_axes", "periodic", "reverse", "saturate", "select_last_index",
         "rotary_interleaved", "sorted", "storage_order", "time_axis", "training_mode", "transA", "transB", "transBatchA", "transBatchB",
         "unidirectional", "upper"), (_flag, "0 or 1")),
    **dict.fromkeys(("blocksize", "group", "hidden_size", "kv_num_heads", "num_groups", "num_outputs", "num_scan_inputs", "p",
                     "q_num_heads", "size"), (_positive, "1 or more")),
    **dict.fromkeys(("batch_dims", "block_size", "num_heads", "rotary_embedding_dim", "softcap"), (_natural, "0 or more")),
    **dict.fromkeys(("left_window_size", "right_window_size"), (lambda v: v >= -1, "-1 or more")),
    "LpNormalization.p": (lambda v: v in (1, 2), "1 or 2"),
    "smooth_softmax": (lambda v: v in (-1, 0, 1), "-1, 0 or 1"),
    "qk_matmul_output_mode": (lambda v: 0 <= v <= 3, "0 to 3"),
    **dict.fromkeys(("precision", "softmax_precision", "stash_type"),
                    (lambda v: v in (0, 1, 10, 11, 16), "the number of a float dtype")),
}  # fmt: skip


def check_attributes(n: Node) -> None:
    """Raise BadModelError for a number outside of its attribute's range."""
    for name, value in n.attrs.items():
        found = _VALUES.get(f"{n.op}.{name}") or _VALUES.get(name)
        if found is not None and not found[0](value):
            raise BadModelError(f"{n.label}: {name} is {value}, not {found[1]}")


__all__ = ["check_attributes", "check_operands"]
