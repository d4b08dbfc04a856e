"""Reads the tensors of an ONNX file: size checks, data in the file, and data in external files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...egraph.types import dtypes
from ...errors import BadModelError
from ...plain import file_identity, is_file
from ..files.inside import inside
from .names import short
from .values import ELEMENT_TYPES, FOUR_BITS


def all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Iterate over `nodes` (NodeProto), each followed by the nodes of the graphs in its attributes, such as branches of
    If and the body of Loop."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g.node)


def tensors(graph: Any) -> Iterator[Any]:
    """Yields the tensors stored in a graph: its initializers, tensors of attributes, and initializers of subgraphs."""
    yield from graph.initializer
    for node in all_nodes(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from attribute.g.initializer


def check_tensor(tensor: Any, file: Path) -> None:
    """Raise BadModelError if a tensor's sizes are negative, overflow, or do not match the stored bytes."""
    where = f"{file}: tensor {short(tensor.name)}"
    if any(d < 0 for d in tensor.dims):
        raise BadModelError(f"negative dimension in {list(tensor.dims)}", where=where)
    kind = FOUR_BITS.get(tensor.data_type) or ELEMENT_TYPES.get(tensor.data_type)
    if kind is None:
        return
    size = prod(tensor.dims) * dtypes.itemsize(kind) if kind in dtypes.DTYPES else (prod(tensor.dims) + 1) // 2
    if tensor.data_location == tensor.EXTERNAL:
        external_data(tensor, size, file, where)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size:
            raise BadModelError(
                f"{list(tensor.dims)} of {kind} needs {size} bytes, there are {len(tensor.raw_data)}", where=where
            )
    elif size > 8 * tensor.ByteSize():  # protobuf packs a small integer into one byte at least
        raise BadModelError(f"{list(tensor.dims)} of {kind} needs {size} bytes, the tensor holds fewer", where=where)


def stored_data(tensor: Any, shape: tuple[int, ...], where: str) -> np.ndarray[Any, Any]:
    """Return the data of a tensor stored in the model file. `where`: place for messages.

    Raises BadModelError if the data do not match the type or `shape`.
    """
    from onnx import numpy_helper

    try:
        found: np.ndarray[Any, Any] = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadModelError(f"the data of a tensor do not fit its type: {error}", where=where) from None
    if found.shape != shape:
        raise BadModelError(f"a tensor of shape {list(shape)} holds {list(found.shape)}", where=where)
    return found


def stored_bytes(tensor: Any, size: int, where: str) -> np.ndarray[Any, Any]:
    """Return the bytes of a tensor of 4-bit integers stored in the model file, uint8 [size]. `where`: place for
    messages.

    Raises BadModelError if there are more or fewer.
    """
    if tensor.HasField("raw_data"):
        found = np.frombuffer(tensor.raw_data, np.uint8)
    else:  # each holds a byte
        found = np.array(tensor.int32_data, np.int64).astype(np.uint8)
    if found.shape != (size,):
        raise BadModelError(f"{list(tensor.dims)} of 4 bits needs {size} bytes, there are {len(found)}", where=where)
    return found


def external_data(tensor: Any, size: int, file: Path, where: str) -> tuple[Path, int, tuple[int, ...]]:
    """Return (path, offset, identity of the file now) of the external data of a tensor of `size` bytes.

    `file`: the model's. `where`: place for messages. The data must be in a regular file below the model's folder,
    reached without a link that leaves the folder. Raises BadModelError otherwise.
    """
    entries = {e.key: e.value for e in tensor.external_data}
    location = PurePosixPath(entries.get("location", "").replace("\\", "/"))
    if not location.parts or location.is_absolute() or ".." in location.parts or ":" in location.parts[0]:
        raise BadModelError(f"external data at {short(location)} is outside the model's folder", where=where)
    try:
        target = inside(file.parent, location)
    except BadModelError as problem:
        raise BadModelError(f"external data at {short(location)} is reached through a symbolic link out of the folder", where=where,
                            hint="copy the data beside the model") from problem  # fmt: skip
    if not is_file(target):
        raise BadModelError(f"external data {short(location)} is missing", where=where)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError:
        raise BadModelError("offset or length of external data is not a number", where=where) from None
    identity = file_identity(target)
    if offset < 0 or length != size or offset + size > target.stat().st_size:
        raise BadModelError(
            f"external data {short(location)} does not hold {size} bytes at {offset} (length {length})", where=where
        )
    return target, offset, identity


__all__ = ["all_nodes", "check_tensor", "external_data", "stored_bytes", "stored_data", "tensors"]
