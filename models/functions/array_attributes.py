"""Defines the attributes and methods of a traced array that follow from its shape and dtype, or that call a function of
NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, volume
from ...errors import TraceError
from .free_size import free, free_shape

if TYPE_CHECKING:
    from .numpy_array import TracedArray

_np: Any = np  # untyped, because NumPy's annotations do not know traced arrays


def _unpacked(sizes: tuple[Any, ...]) -> Any:
    return sizes[0] if len(sizes) == 1 else sizes


class ArrayAttributes:
    """Base class of `TracedArray`: attributes and methods of numpy.ndarray that change no array."""

    __slots__ = ()

    _node: Tensor

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Sizes of the axes, as ints or `FreeSize`s."""
        return free_shape(self._node.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype."""
        return dtypes.numpy_dtype(self._node.dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._node.rank

    rank = ndim

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return free(volume(self._node.shape))

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> Dim:
        """Bytes of all elements."""
        return self.size * self.itemsize

    device = "cpu"

    @property
    def T(self) -> TracedArray:
        """The array with reversed axes."""
        return self.transpose()

    @property
    def mT(self) -> TracedArray:
        """The array with the last two axes swapped."""
        return _np.matrix_transpose(self)  # type: ignore[no-any-return]

    @property
    def real(self) -> Self:
        """The array itself, which is real: complex arrays are another class (`ComplexArray`)."""
        return self

    @property
    def imag(self) -> TracedArray:
        """Zeros, since the array is real."""
        return _np.zeros_like(self)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> TracedArray:
        """Same as numpy.ndarray.reshape."""
        return _np.reshape(self, _unpacked(shape), order=order, copy=copy)  # type: ignore[no-any-return]

    def transpose(self, *axes: Any) -> TracedArray:
        """Same as numpy.ndarray.transpose."""
        return _np.transpose(self, _unpacked(axes) if axes and axes != (None,) else None)  # type: ignore[no-any-return]

    permute = transpose

    def flatten(self, order: str = "C") -> TracedArray:
        """Same as numpy.ndarray.flatten."""
        return _np.ravel(self, order).copy()  # type: ignore[no-any-return]

    def to_device(self, device: str, /, *, stream: Any = None) -> Self:
        """Same as numpy.ndarray.to_device. Raises TraceError for a device other than the CPU."""
        if device != "cpu":
            raise TraceError(f"an array of NumPy is on the device 'cpu', not {device!r}")
        return self

    def conj(self) -> Self:
        """The array itself, which is real: complex arrays are another class (`ComplexArray`)."""
        return self

    conjugate = conj


__all__ = ["ArrayAttributes"]
