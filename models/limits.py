"""Bounds that a model file must keep, checked by arithmetic before anything is allocated."""

from __future__ import annotations

from .. import settings
from ..egraph import dtypes
from ..egraph.dims import Shape
from ..errors import TooLargeError

#: Bytes of one value. No machine that this runs on holds more; a file that asks for it is broken or hostile.
MAX_BYTES = 1 << 40
#: Axes of one value (NumPy allows 64).
MAX_RANK = 32


def check_size(shape: Shape, dtype: str, *, what: str, where: str = "") -> None:
    """TooLargeError if a value of this type has too many axes or bytes. Free dimensions count as 1."""
    if len(shape) > MAX_RANK:
        raise TooLargeError(f"{what} has {len(shape)} axes, more than {MAX_RANK}", where=where)
    size = dtypes.itemsize(dtype)
    for d in shape:
        if isinstance(d, int) and d == 0:
            return
    for d in shape:
        size *= d if isinstance(d, int) else 1
        if size > MAX_BYTES:
            raise TooLargeError(
                f"{what} of type {dtype}{list(shape)} needs more than {MAX_BYTES} bytes",
                where=where,
                hint="this is larger than any value that can be computed here",
            )


def check_count(count: int, *, where: str = "") -> None:
    """TooLargeError for a model of more operations than the setting `max_nodes` allows. Every stage takes time and memory in
    proportion to them: about 1 ms and 20 KiB each."""
    if count > (most := settings.current().max_nodes):
        raise TooLargeError(
            f"the model has {count} operations, more than {most}", where=where,
            hint="optimize parts of it, or set TENSOR_GRAPHS_MAX_NODES (settings.override(max_nodes=...))",
        )  # fmt: skip
