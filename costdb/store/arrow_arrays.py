"""Converts between Python lists, NumPy arrays and Arrow arrays by their buffers.

`pyarrow.array`, `pyarrow.scalar` and `to_numpy` import pandas where it is installed, which takes 0.1 s of CPU time in a
first call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

#: Kind of a column of numbers -> NumPy's name of its type.
NUMBERS = {"double": "float64", "int64": "int64"}


def array_of(values: Sequence[Any] | np.ndarray[Any, Any], kind: str) -> pa.Array:
    """Arrow array without nulls of a column kind: "string", "double", "int64", or "doubles" (lists of floats)."""
    import numpy as np
    import pyarrow as pa

    if kind == "string":
        encoded = [text.encode() for text in values]
        ends = _ends(map(len, encoded))
        return pa.Array.from_buffers(pa.string(), len(encoded), [None, ends, pa.py_buffer(b"".join(encoded))])
    if kind == "doubles":
        inner = array_of(list(chain.from_iterable(values)), "double")
        buffers = [None, _ends(map(len, values))]
        return pa.Array.from_buffers(pa.list_(pa.float64()), len(values), buffers, children=[inner])
    numbers = np.ascontiguousarray(values, dtype=NUMBERS[kind])
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def _ends(lengths: Any) -> pa.Buffer:
    """Offsets of elements of variable lengths. OverflowError for more than 2 GiB of text."""
    import numpy as np
    import pyarrow as pa

    return pa.py_buffer(np.array([0, *accumulate(lengths)], np.int32))


def values_of(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, Any]:
    """The values of a column of numbers or booleans as a NumPy array; nulls are NaN, 0 or False."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(float("nan") if pa.types.is_floating(array.type) else 0).cast(array.type))
    data, begin, end = array.buffers()[1] or b"", array.offset, array.offset + len(array)
    if pa.types.is_boolean(array.type):
        return np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[begin:end].astype(bool)
    return np.frombuffer(data, array.type.to_pandas_dtype())[begin:end]


__all__ = ["array_of", "values_of"]
