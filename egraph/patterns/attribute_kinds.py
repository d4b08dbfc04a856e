"""Checks that the functions of attribute expressions get operands of their kind: numbers, vectors, texts or tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...errors import RuleError
from .pattern_attrs import Apply, Attr, AttrConstant, Name, show_attr

NUMBER, VECTOR, TEXT, TENSOR, TRUTH, VARIABLE, ANY = (
    "a number",
    "a vector",
    "a text",
    "a tensor",
    "a truth value",
    "an attribute",  # a variable, whose kind is that of the matched op's attribute
    "a value",
)

#: Function -> (kinds of its operands, kind of its value); the last kind is that of all further operands.
SIGNATURES: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(("add", "sub", "mul", "floordiv", "mod", "min", "max"), ((NUMBER, NUMBER), NUMBER)),
    "neg": ((NUMBER,), NUMBER),
    **dict.fromkeys(("eq", "ne"), ((ANY, ANY), TRUTH)),
    **dict.fromkeys(("lt", "le"), ((NUMBER, NUMBER), TRUTH)),
    "vec": ((ANY,), VECTOR),
    "len": ((VECTOR,), NUMBER),
    "at": ((VECTOR, NUMBER), ANY),
    "replace": ((VECTOR, NUMBER, ANY), VECTOR),
    "drop": ((VECTOR, NUMBER), VECTOR),
    "insert": ((VECTOR, NUMBER, ANY), VECTOR),
    **dict.fromkeys(("compose", "permuted"), ((VECTOR, VECTOR), VECTOR)),
    "inverse": ((VECTOR,), VECTOR),
    "index": ((VECTOR, ANY), NUMBER),
    **dict.fromkeys(("ones", "identity", "swap_last"), ((NUMBER,), VECTOR)),
    "contains": ((VECTOR, ANY), TRUTH),
    **dict.fromkeys(("rank", "volume"), ((TENSOR,), NUMBER)),
    "size": ((TENSOR, NUMBER), ANY),
    "shape": ((TENSOR,), VECTOR),
    "fits": ((TENSOR, TENSOR), TRUTH),
    "dtype": ((TENSOR,), TEXT),
    **dict.fromkeys(("weight", "active", "scalar", "floating", "chained", "original"), ((TENSOR,), TRUTH)),
    "ordered": ((TENSOR,), TRUTH),
}


def refuse_other_kinds(attr: Attr, tensors: Collection[str]) -> None:
    """Raise RuleError if a function in an attribute expression gets an operand of another kind than it takes.

    `tensors`: names of the tensor variables; other names are attribute variables, whose kind is not known.
    """
    for call in _calls(attr):
        kinds, _ = SIGNATURES[call.function]
        for n, operand in enumerate(call.args):
            wanted, found = kinds[min(n, len(kinds) - 1)], _kind(operand, tensors)
            unknown = TENSOR not in (wanted, found) and (ANY in (wanted, found) or found == VARIABLE)
            if wanted != found and not unknown:
                message = f"{call.function} takes {wanted} in place of {found}: {show_attr(operand)[:60]}"
                raise RuleError(message, where=show_attr(attr)[:80])


def _calls(attr: Attr) -> Iterator[Apply]:
    if isinstance(attr, Apply):
        yield attr
        for one in attr.args:
            yield from _calls(one)


def _kind(attr: Attr, tensors: Collection[str]) -> str:
    if isinstance(attr, Apply):
        return SIGNATURES[attr.function][1]
    if isinstance(attr, Name):
        return TENSOR if attr.name in tensors else VARIABLE
    return _constant_kind(attr)


def _constant_kind(constant: AttrConstant) -> str:
    value = constant.value
    if isinstance(value, bool):
        return TRUTH
    if isinstance(value, int | float):
        return NUMBER
    return TEXT if isinstance(value, str) else VECTOR if isinstance(value, tuple) else ANY


__all__ = ["SIGNATURES", "refuse_other_kinds"]
