"""Converts between Torch tensors of the CPU and NumPy arrays over the same memory, and calls programs on arrays with
tensors."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...egraph.types import dtypes
from ...errors import UsageError
from ...extract.model.kernel import contiguous

Array = np.ndarray[Any, Any]
Spec = tuple[str, tuple[int, ...], str]  # name, shape, dtype
#: Positional arguments -> the program's arguments and a converter of its results (None: they are handed out as they
#: are); None where an argument must be converted, copied or refused.
Taken = tuple[Sequence[Any], Callable[[Sequence[Any]], Sequence[Any]] | None]
LARGE = 1 << 20  # bytes from which NumPy allocates results: it asks for large pages


class TensorCalls(NamedTuple):
    """How a program on arrays is called with CPU tensors: with the tensors themselves (`direct`), or with arrays over
    their memory. `results`: (name, shape, dtype) of the outputs for which a direct call passes fresh tensors after the
    inputs; `complete`: whether these are all outputs."""

    direct: bool = False
    results: Sequence[Spec] = ()
    complete: bool = False


def is_torch(x: Any) -> bool:
    """Whether `x` is a Torch tensor."""
    return not isinstance(x, np.ndarray) and (type(x).__module__.partition(".")[0] == "torch" or hasattr(x, "detach"))


def is_transformed(x: Any) -> bool:
    """Whether the tensor `x` is one of torch.func's (vmap, grad, jvp), which kernels would read without its axes or
    tangents."""
    return bool(sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(x))


def refuse_tangents(given: Iterable[Any]) -> None:
    """Raise UsageError if a tensor in `given` has a tangent of forward-mode differentiation
    (`torch.autograd.forward_ad`), which results of a program would not have. Fast outside of its levels."""
    modes = sys.modules.get("torch.autograd.forward_ad")
    if modes is None or modes._current_level < 0:
        return
    for x in given:
        if is_torch(x) and modes.unpack_dual(x).tangent is not None:
            raise without_data("it has a tangent of forward-mode differentiation")


def warn_of_gradients(given: Iterable[Any]) -> None:
    """Warn, once for each place of a call, if a tensor in `given` requires gradients, which results of a program do not
    have."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in given):
        warnings.warn(
            "results of a program have no gradients; tg.compile(module) gives a module that can be trained, and "
            "torch.no_grad() says that none are wanted", stacklevel=3,
        )  # fmt: skip


def without_data(why: str) -> UsageError:
    """The error for a tensor without data of its own; `why`: text about it."""
    return UsageError(
        f"a tensor without data has no array ({why})",
        hint="programs cannot be traced, differentiated or vectorized: use the module itself there",
    )


def array_of(x: Any) -> Array:
    """NumPy array with the values of the tensor `x`; it shares memory if the tensor is on the CPU.

    Raises UsageError for a tensor that no array holds: sparse, quantized, or without data (meta, under torch.func).
    """
    if str(x.layout) != "torch.strided" or x.is_quantized or x.device.type == "meta":
        remedy = "x.dequantize()" if x.is_quantized else "x.to_dense()"
        if x.device.type == "meta":
            raise UsageError(
                "a tensor on the device 'meta' has no data", hint="give a tensor with data on the CPU or a GPU"
            )
        raise UsageError(
            f"a tensor of {x.dtype} and layout {x.layout} has no array", hint=f"give a dense tensor: {remedy}"
        )
    x = x.detach().cpu().resolve_conj().resolve_neg()
    narrow = str(x.dtype) == "torch.bfloat16"
    try:
        found: Array = (x.contiguous().view(sys.modules["torch"].int16) if narrow else x).numpy()
    except RuntimeError as error:  # tensors of torch.func, of torch.export and of other traces
        raise without_data(str(error).partition(chr(10))[0]) from None
    return found.view(dtypes.numpy_dtype("bfloat16")) if narrow else found


def tensor_of(x: Array) -> Any:
    """CPU tensor over the memory of the array `x`; a copy if the array is read-only or has negative strides."""
    import torch

    if not x.flags.writeable:
        x = x.copy()
    try:
        return torch.from_numpy(x)
    except ValueError:  # negative strides
        return torch.from_numpy(x.copy())
    except TypeError:
        if x.dtype.name != "bfloat16":
            raise
        return torch.from_numpy((x.copy() if min(x.strides, default=0) < 0 else x).view(np.int16)).view(torch.bfloat16)


def is_plain(x: Any, spec: Spec) -> bool:
    """Whether `x` is a row-major CPU tensor with the shape and dtype of `spec` (name, shape, dtype).

    False for subclasses, for tensors that require gradients, for those of torch.func (PyTorch's kernels would drop
    tangents), and for tensors that are conjugated or negated when read.
    """
    torch, (_, shape, dtype) = sys.modules["torch"], spec
    if type(x) is not torch.Tensor or x.dtype is not getattr(torch, dtype) or x.shape != shape:
        return False
    strided = x.is_cpu and x.layout is torch.strided and x.is_contiguous()
    return strided and not (x.requires_grad or x.is_neg() or x.is_conj() or is_transformed(x))


def tensor_guard(given: Sequence[Any]) -> Callable[..., bool] | None:
    """Function that checks whether its arguments, as many tensors as in `given`, have the type, dtype, device, shape,
    strides, `requires_grad` and dispatch keys (negation, inference mode and others) of the tensors in `given`. The
    check is that of PyTorch's Dynamo, in C; None if PyTorch lacks it or a tensor occurs twice."""
    guards = _dynamo_guards("TensorGuards")
    if guards is None:
        return None
    sizes, strides = [list(x.shape) for x in given], [list(x.stride()) for x in given]
    check = guards.TensorGuards(*given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check if check(*given) else None


def any_size_guard(given: Sequence[Any]) -> Callable[..., bool] | None:
    """Function that tests whether arguments are tensors like those in `given` (`tensor_guard`), but of any sizes and
    strides with as many axes. None if Torch has no such guards, or if `given` fails the test."""
    guards = _dynamo_guards("TensorGuards")
    if guards is None:
        return None
    free = [[None] * x.dim() for x in given]
    check: Callable[..., bool] = guards.TensorGuards(*given, dynamic_dims_sizes=free, dynamic_dims_strides=free).check
    return check if check(*given) else None


def _dynamo_guards(wanted: str) -> Any:
    """PyTorch's C module with the functions of Dynamo's guards; None if it has no function named `wanted`."""
    found = getattr(getattr(sys.modules["torch"]._C, "_dynamo", None), "guards", None)
    return found if hasattr(found, wanted) else None


def as_arrays(given: Sequence[Any]) -> Taken:
    """(NumPy arrays over the memory of the tensors `given`, function that converts a program's results to tensors).

    Raises TypeError or RuntimeError for a tensor that no array can view.
    """
    return [x.numpy() for x in given], handed_out


def as_tensors(calls: TensorCalls) -> Callable[[Sequence[Any]], Taken]:
    """A function from input tensors to (the arguments with which a program is called directly, function that converts
    the program's results to tensors).

    The arguments are the tensors themselves, then fresh tensors for results that the program writes. The second item is
    None if these are all results.
    """
    results = list(map(tensor_maker, calls.results))
    converted = None if calls.complete else handed_out
    if len(results) == 1:
        (result,) = results
        return lambda given: ((*given, result()), converted)
    return lambda given: ((*given, *[result() for result in results]), converted)


def tensor_maker(spec: Spec) -> Callable[[], Any]:
    """A function that allocates a row-major CPU tensor of the type `spec` (name, shape, dtype)."""
    torch, guards = sys.modules["torch"], _dynamo_guards("_empty_strided_cpu")
    slow: Callable[..., Any] = lambda shape, strides, dtype: torch.empty_strided(
        shape, strides, dtype=dtype, device="cpu"
    )
    _, shape, dtype = spec
    make = slow if guards is None else guards._empty_strided_cpu
    return partial(make, shape, contiguous(shape), getattr(torch, dtype))


def handed_out(results: Sequence[Any]) -> Sequence[Any]:
    """The results of a CPU program (arrays or tensors) as tensors, over the results' memory where that is possible."""
    torch, found = sys.modules["torch"], []
    tensor, from_numpy = torch.Tensor, torch.from_numpy
    for x in results:
        try:
            found.append(x if type(x) is tensor else from_numpy(x) if x.flags.writeable else tensor_of(x))
        except (TypeError, ValueError):  # bfloat16, negative strides
            found.append(tensor_of(x))
    return found


__all__ = [
    "LARGE",
    "Spec",
    "Taken",
    "TensorCalls",
    "any_size_guard",
    "array_of",
    "as_arrays",
    "as_tensors",
    "handed_out",
    "is_plain",
    "is_torch",
    "is_transformed",
    "refuse_tangents",
    "tensor_guard",
    "tensor_maker",
    "tensor_of",
    "without_data",
]
