"""Refuses requests of Python, NumPy and PyTorch that a traced array cannot answer: for its values, and protocols
without a meaning for expressions. Each raises TraceError, with a hint what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ...egraph.ir.refused_values import refuse_value
from ...errors import TraceError

#: What Python or NumPy may ask a traced array for -> what to write instead.
INSTEAD = {
    "a truth value": "np.where(condition, a, b) chooses elementwise; np.any, np.all, np.sort, np.max and np.min replace"
    " any, all, sorted, max and min; compute what Python decides by outside the function",
    "a number": "an array of one element stays one: x.astype(np.float64) or x.astype(np.int64) in place of float(x) or"
    " int(x), and functions of np in place of those of math; compute numbers that Python needs outside the function",
    "an array": "np.stack and np.concatenate join traced arrays and elements: np.stack([np.stack([a, b]), np.stack([c,"
    " d])]) in place of np.array([[a, b], [c, d]]); an array that is read at traced places, or written with traced"
    " values, is made a traced one: np.array(table, like=x)[x]; a traced array needs no np.asarray",
    "a text": "make texts outside of the function",
}


def no_value(asked: str) -> NoReturn:
    """Raise TraceError: `asked`, a key of `INSTEAD`, is needed of an array that has no values yet."""
    refuse_value(TraceError(f"a traced array has no values yet, and {asked} of them is needed", hint=INSTEAD[asked]))


def _without_value(asked: str) -> Callable[..., NoReturn]:
    def refuse(x: Any, *_: Any, **__: Any) -> NoReturn:
        no_value(asked)

    return refuse


def _no_meaning(name: str) -> Callable[..., NoReturn]:
    def refuse(x: Any, *_: Any, **__: Any) -> NoReturn:
        raise TraceError(f"{name} of a traced array is not supported", hint="write it with functions of NumPy")

    return refuse


def _torch(cls: Any, function: Any, types: Any, args: Any = (), named: Any = None) -> NoReturn:
    raise TraceError(
        f"torch's {getattr(function, '__name__', function)} cannot take a traced array of NumPy",
        hint="give Torch tensors as examples, or put Torch code into an nn.Module",
    )


#: What is asked for -> names of the special methods that ask for it, without their underscores.
_ASKING = {
    "a truth value": ("bool", "contains"),
    "a number": ("int", "float", "index", "complex", "floor", "ceil", "trunc", "round"),
    "an array": ("array", "dlpack", "dlpack_device"),
    "a text": ("bytes",),
}
_MEANINGLESS = ("reduce", "reduce_ex", "setstate", "getstate", "array_wrap", "array_finalize", "enter", "exit", "call",
                "array_namespace")  # fmt: skip
#: Special method -> function that raises TraceError in its place.
REFUSED: dict[str, Any] = {
    **{f"__{name}__": _without_value(asked) for asked, names in _ASKING.items() for name in names},
    **{f"__{name}__": _no_meaning(f"__{name}__") for name in _MEANINGLESS},
    "__torch_function__": classmethod(_torch),
}


__all__ = ["REFUSED", "no_value"]
