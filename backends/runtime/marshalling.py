"""Converts the arguments of programs: to NumPy arrays for CPU programs, to Torch tensors for GPU programs.

Callers may pass arrays or tensors to either. Outputs are GPU tensors if any input is on a GPU, CPU tensors if any input
is a tensor, else arrays; converting GPU results to arrays synchronizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from ...egraph.types import dtypes
from ...errors import ShapeError, UsageError
from ...imported import imported
from ...wording import with_article
from .cpu_tensors import (
    Spec,
    Taken,
    TensorCalls,
    array_of,
    as_arrays,
    as_tensors,
    handed_out,
    is_plain,
    is_torch,
    is_transformed,
    tensor_guard,
    tensor_of,
    without_data,
)
from .upload import uploaded_tensor

Array = np.ndarray[Any, Any]
Takes = Callable[[], TensorCalls | None]
Quick = Callable[[Sequence[Any]], Taken | None]  # a call's inputs -> the program's arguments; None: use the slow path


class Marshalling(Protocol):
    """Protocol of the conversions between a caller's values (arrays, tensors, numbers) and the arrays or tensors of one
    device that an emitted program takes and returns."""

    def quick(self, specs: Sequence[Spec], tensors: Takes = lambda: None) -> Quick | None:
        """A fast function from a call's inputs to the program's arguments, for inputs of the types `specs`; None if the
        device has none for them.

        The function returns None for inputs that need `accept`. `tensors()`: how the program is called with CPU
        tensors; None before the program is bound.
        """
        ...

    def accept(self, x: Any, spec: Spec) -> Any:
        """The input `x`, whose declared type is `spec`, as the kind of value that the program takes (array or tensor).

        Raises ShapeError for another shape or dtype, and UsageError for data that cannot be converted.
        """
        ...

    def hand_out(self, results: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        """A program's results as arrays or tensors, after the kinds of the call's inputs `given`."""
        ...

    def near(self, x: Any) -> Any:
        """`x`, an array or tensor, as the kind of value that the program takes, on the program's device."""
        ...

    def zeros(self, spec: Spec) -> Any:
        """New memory for a state (a value kept between calls) of the type `spec`, filled with zeros."""
        ...

    def write(self, state: Any, value: Any) -> None:
        """Overwrite the memory of a state (a value kept between calls) with `value`, an array or tensor."""
        ...

    def read(self, state: Any) -> Array:
        """A NumPy array with a copy of the values of a state (a value kept between calls)."""
        ...


class NumpyMarshalling:
    """Conversion of arguments and results for programs on NumPy arrays."""

    def quick(self, specs: Sequence[Spec], tensors: Takes = lambda: None) -> Quick:
        """A fast function from contiguous arrays or CPU tensors of the types `specs` to the program's arguments
        (`Marshalling.quick`)."""
        wanted = [(shape, dtypes.numpy_dtype(dtype)) for _, shape, dtype in specs]
        array, count, filled = np.ndarray, len(specs), all(0 not in shape for _, shape, _ in specs)
        guard: Callable[..., bool] | None = None  # whether tensors are like those of an earlier call
        form: Callable[[Sequence[Any]], Taken] = as_arrays  # the arguments of a call with such tensors

        def of_tensors(given: Sequence[Any]) -> Taken | None:
            nonlocal guard, form
            try:
                if guard is not None and guard(*given):
                    return form(given)
                if imported("torch") is None or not all(map(is_plain, given, specs)):
                    return None
                calls = tensors()
                form = as_tensors(calls) if filled and calls is not None and calls.direct else as_arrays
                found = form(given)
                guard = None if calls is None else tensor_guard(given)  # what an unbound program takes is not known
            except (TypeError, RuntimeError):  # bfloat16, with gradients
                return None
            return found

        def arguments(given: Sequence[Any]) -> Taken | None:
            if len(given) != count:
                return None
            for x, (shape, kind) in zip(given, wanted):
                if type(x) is not array:
                    return of_tensors(given)
                if x.shape != shape or x.dtype != kind or not x.flags.c_contiguous:
                    return None
            return given, None

        return arguments

    def accept(self, x: Any, spec: Spec) -> Array:
        """The input `x` as a row-major NumPy array of the type `spec` (`Marshalling.accept`)."""
        _, shape, dtype = spec
        kind = dtypes.numpy_dtype(dtype)
        if x.__class__ is not np.ndarray:
            x = array_of(x) if is_torch(x) else _converted(x, spec)
        if x.shape != shape or x.dtype != kind:
            raise _misfit(spec, x.dtype, x.shape)
        return x if x.flags.c_contiguous else np.ascontiguousarray(x)

    def hand_out(self, results: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        """The results as CPU tensors if any of the inputs `given` is a tensor, else the results themselves
        (`Marshalling.hand_out`)."""
        return handed_out(results) if any(map(is_torch, given)) else results

    def near(self, x: Any) -> Array:
        """`x`, an array or tensor, as a NumPy array (`Marshalling.near`)."""
        return array_of(x) if is_torch(x) else x

    def zeros(self, spec: Spec) -> Array:
        """New array for a state (a value kept between calls) of the type `spec`, filled with zeros."""
        return np.zeros(spec[1], dtypes.numpy_dtype(spec[2]))

    def write(self, state: Array, value: Any) -> None:
        """Overwrite the array of a state (a value kept between calls) with `value`, an array or tensor."""
        state[...] = value

    def read(self, state: Array) -> Array:
        """A copy of the array of a state (a value kept between calls)."""
        return state.copy()


class TensorMarshalling:
    """Conversion of arguments and results for programs on Torch tensors of one device.

    Input arrays become tensors over their memory; the program copies them.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.kind = device.partition(":")[0]

    def quick(self, specs: Sequence[Spec], tensors: Takes = lambda: None) -> Quick | None:
        """A fast function from tensors of the types `specs` on the program's device to the program's arguments; None if
        the program has no inputs (`Marshalling.quick`)."""
        import torch

        wanted = [(shape, getattr(torch, dtype)) for _, shape, dtype in specs]
        count, tensor, on_device = len(specs), torch.Tensor, attrgetter(f"is_{self.kind}")
        transformed = torch._C._functorch.is_functorch_wrapped_tensor

        def arguments(given: Sequence[Any]) -> tuple[Sequence[Any], None] | None:
            if len(given) != count:
                return None
            for x, (shape, dtype) in zip(given, wanted):
                if (
                    type(x) is not tensor
                    or x.dtype is not dtype
                    or x.shape != shape
                    or not on_device(x)
                    or transformed(x)
                ):
                    return None
            return given, None

        return arguments if specs else None

    def accept(self, x: Any, spec: Spec) -> Any:
        """The input `x` as a Torch tensor of the type `spec`, without gradients, on whatever device it is
        (`Marshalling.accept`)."""
        _, shape, dtype = spec
        if not is_torch(x):
            x = tensor_of(x if x.__class__ is np.ndarray else _converted(x, spec))
        if is_transformed(x):
            raise without_data("it is one of torch.func's")
        found = str(x.dtype).partition(".")[2]
        if tuple(x.shape) != shape or found != dtype:
            raise _misfit(spec, found, tuple(x.shape))
        return x.detach()

    def hand_out(self, results: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        """The results as tensors on the program's device or on the CPU, or as arrays, after the kinds of the inputs
        `given` (`Marshalling.hand_out`)."""
        tensors = [x for x in given if is_torch(x)]
        if any(x.device.type == self.kind for x in tensors):
            return results
        return [r.cpu() for r in results] if tensors else [array_of(r) for r in results]

    def near(self, x: Any) -> Any:
        """`x`, an array or tensor, as a tensor on the program's device (`Marshalling.near`)."""
        return uploaded_tensor(x if is_torch(x) else tensor_of(x), str(self.device))

    def zeros(self, spec: Spec) -> Any:
        """New tensor for a state (a value kept between calls) of the type `spec`, filled with zeros."""
        import torch

        return torch.zeros(spec[1], dtype=getattr(torch, spec[2]), device=self.device)

    def write(self, state: Any, value: Any) -> None:
        """Overwrite the tensor of a state (a value kept between calls) with `value`, an array or tensor."""
        state.copy_(value if is_torch(value) else tensor_of(np.asarray(value)))

    def read(self, state: Any) -> Array:
        """A NumPy array with a copy of the values of a state (a value kept between calls)."""
        return array_of(state).copy()


#: Kind of an input dtype -> NumPy dtype kinds of Python numbers that may become it; floats accept every kind.
_CONVERTIBLE = {"b": "biu", "i": "biu", "u": "biu"}


def _converted(x: Any, spec: Spec) -> Array:
    """An array of an input that is no plain array or tensor: a number, nested lists, a subclass of np.ndarray.

    Data without a dtype gets that of `spec`. Raises UsageError if the data is masked, not numeric, or would change
    in that dtype (such as fractions as integers).
    """
    kind = dtypes.numpy_dtype(spec[2])
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise UsageError(
                f"input {spec[0]!r} cannot be a masked array", hint="x.filled(value) is an array without a mask"
            )
        return np.asarray(x)
    try:
        if not hasattr(x, "dtype") and (found := np.asarray(x).dtype).kind not in _CONVERTIBLE.get(kind.kind, "biuf"):
            raise TypeError(f"{found} cannot be converted to {spec[2]}")
        return np.asarray(x, kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"input {spec[0]!r} cannot be {with_article(type(x).__name__)}: {error}",
            hint="give an array or a tensor of its type",
        ) from None


def _misfit(spec: Spec, dtype: Any, shape: Sequence[int]) -> ShapeError:
    sizes = [a for a, b in zip(shape, spec[1]) if a != b] if len(shape) == len(spec[1]) else []
    hint = f"convert it to {spec[2]}, or optimize with an example of {dtype}" if tuple(shape) == tuple(spec[1]) else ""
    message = f"input {spec[0]!r} is {dtype}{list(shape)}, not {spec[2]}{list(spec[1])}"
    return ShapeError(message, sizes=sizes, hint=hint)


__all__ = ["Marshalling", "NumpyMarshalling", "Quick", "Spec", "TensorMarshalling", "array_of", "is_torch", "tensor_of"]
