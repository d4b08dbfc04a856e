"""Makes one C function for a whole call of a bound CPU program: the checks of arguments, new results, and either the C
kernels of the program in one call or its emitted function `run`.

A call of a small program takes longer in Python than in its kernels: a dozen functions between the caller and the
kernel. The function that `host_call` returns (host_calls.c, with CPython's and NumPy's headers) makes the same checks.
It returns None if one fails; then the program's own code makes the call. It refers weakly to the bound program, so that
it makes no call for one that another thread has released or bound to other weights meanwhile.

Imports: the standard library, NumPy, `backends.runtime`, `egraph.types`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from struct import pack
from sys import modules
from typing import Any
from weakref import ref

import numpy as np

from ....egraph.types import dtypes
from ...runtime.cpu_tensors import LARGE, Spec, handed_out, tensor_guard, tensor_maker, tensor_of
from .device_programs import BoundRun, Direct
from .direct_calls import c_function_without_waiting

SOURCE = Path(__file__).with_name("host_calls.c")


def host_call(bound: BoundRun) -> Direct | None:
    """Make the C function for calls of a bound CPU program; None if it cannot be made here, or not yet, or if an input
    or a result has no elements. Tensors of the CPU are accepted if the program takes them as they are and Torch is
    imported."""
    made = c_function_without_waiting("host_call", SOURCE, np.get_include())
    if made is None or any(0 in shape for _, shape, _ in (*bound.inputs, *bound.outputs)):
        return None
    torch: Any = modules.get("torch")
    guard = _guard(bound.inputs) if torch is not None and bound.tensors.direct else None
    function, table, places = getattr(bound.run, "whole", (None, b"", ()))
    arrays = bound.outputs if function is not None else ()  # `run` allocates what it does not get
    tensors = arrays or bound.tensors.results
    found: Direct = made((
        np.ndarray, tuple(dtypes.numpy_dtype(dtype) for _, _, dtype in bound.inputs),
        tuple(tuple(shape) for _, shape, _ in bound.inputs), guard, None if guard is None else torch._C.TensorBase.data_ptr,
        tuple(map(_new_array, arrays)), () if guard is None else tuple(map(_new_tensor, tensors)),
        bound.check, bound.in_mode if function is None else None, bound.lock.acquire, bound.lock.release,
        ref(bound.run), None if function is not None or bound.tensors.complete else handed_out,
        0 if function is None else ctypes.cast(function, ctypes.c_void_p).value, bytes(table),
        pack(f"={len(places)}q", *places),
    ))  # fmt: skip
    return found


def _guard(inputs: Sequence[Spec]) -> Callable[..., bool] | None:
    """The check of tensors of the types `inputs` (`tensor_guard`); None if Torch has none or refuses to make them."""
    try:
        return tensor_guard([tensor_maker(spec)() for spec in inputs])
    except (AttributeError, RuntimeError, TypeError):  # a dtype that Torch lacks, a mode of Torch, no memory
        return None


def _new_array(spec: Spec) -> Callable[[], Any]:
    """A function that allocates an array of the type `spec`."""
    _, shape, dtype = spec
    return partial(np.empty, tuple(shape), dtypes.numpy_dtype(dtype))


def _new_tensor(spec: Spec) -> Callable[[], Any]:
    """A function that allocates a tensor of the type `spec`: a large one in NumPy's memory, which has large pages."""
    if math.prod(spec[1]) * dtypes.itemsize(spec[2]) < LARGE:
        return tensor_maker(spec)
    array = _new_array(spec)
    return lambda: tensor_of(array())


__all__ = ["host_call"]
