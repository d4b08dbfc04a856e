"""Converts between Python lists, NumPy arrays and Arrow arrays by their buffers.

`pyarrow.array`, `pyarrow.scalar` and `to_numpy` import pandas where it is installed, in some versions also
`to_pandas_dtype`: 0.1 s of CPU time in a first call, 3 s where Python keeps no bytecode.
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


def _bits(buffer: pa.Buffer | bytes, part: slice) -> np.ndarray[Any, Any]:
    """A part of the bits of a buffer, as booleans."""
    import numpy as np

    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")[part].astype(bool)


def values_of(column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, Any]:
    """The values of a column of numbers or booleans as a NumPy array; nulls are NaN, 0 or False."""
    import numpy as np
    import pyarrow as pa

    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    (known, data), part = array.buffers(), slice(array.offset, array.offset + len(array))
    kind = str(array.type)
    found = _bits(data or b"", part) if kind == "bool" else np.frombuffer(data or b"", NUMBERS.get(kind, kind))[part]
    if not array.null_count:
        return found
    return np.where(_bits(known, part), found, np.array(np.nan if pa.types.is_floating(array.type) else 0, found.dtype))


__all__ = ["array_of", "values_of"]
