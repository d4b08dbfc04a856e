"""Reads the safetensors format strictly and lazily, and writes it atomically.

Only headers are read here; data is memory-mapped on use.

Layout (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length, a JSON object name -> {dtype,
shape, data_offsets}, then the data. Besides what the reference reader refuses, repeated keys are refused: the reference
keeps the last one, so two readers could see two different models in one file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...egraph.ir.file_array import FileArray
from ...egraph.ir.weight_data import Data, load_data
from ...egraph.types import dtypes
from ...errors import BadModelError, BadWeightsError, TooLargeError, UnsupportedError, UsageError
from ...plain import file_identity, is_file, read_bytes, strict_json
from ...writing.files import replacing
from .inside import inside
from .limits import MAX_RANK

#: The reference reader's limit on the JSON header, in bytes.
MAX_HEADER = 100_000_000
MAX_INDEX = 100_000_000
_U63 = 1 << 63
_BYTES = ("utf-8", "surrogatepass")
#: safetensors dtype code -> dtype name of this package.
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip
_CODES = {ours: theirs for theirs, ours in _DTYPES.items()}
_DTYPES["F8_E4M3"] = "uint8"  # the bits: formats of quantized weights say what they mean
#: Dtype codes that are valid in the format but not supported here: refused as unsupported, not as malformed.
_FOREIGN = {"F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4", "C64"}


@dataclass(frozen=True)
class SafeFile:
    """Header of a safetensors file: free-form metadata, the tensors as lazy arrays, the file's identity when read."""

    path: Path
    metadata: Mapping[str, str]
    tensors: Mapping[str, FileArray]
    identity: tuple[int, ...]


def read_json_file(path: Path, error: type[BadModelError] = BadModelError) -> dict[str, Any]:
    """Return the JSON object in a small file. Raises `error` with the file name and the cause."""
    if not is_file(path):
        raise error(f"there is no file {path.name}", where=str(path))
    try:
        found = strict_json(read_bytes(path, MAX_INDEX))
    except (ValueError, OSError) as problem:
        raise error(f"{path.name} is not valid JSON: {problem}", where=str(path)) from None
    if not isinstance(found, dict):
        raise error(f"{path.name} holds a JSON {type(found).__name__}, not an object", where=str(path))
    return found


# ---------------------------------------------------------------- reading
def read_header(path: Path | str) -> SafeFile:
    """Return the header of a file: names, dtypes, shapes and offsets of its tensors. No tensor data is read.

    Raises BadWeightsError for a malformed file, TooLargeError for a shape that overflows, UnsupportedError for valid
    dtypes that are not supported.
    """
    path = Path(path)
    if not is_file(path):
        raise BadWeightsError(f"there is no file {path.name}", where=str(path))
    try:
        with path.open("rb") as file:
            identity = file_identity(file.fileno())
            size = os.fstat(file.fileno()).st_size
            header = _header_object(file, size, path)
            start = file.tell()
    except OSError as problem:
        raise BadWeightsError(f"{path.name} cannot be read: {problem}", where=str(path)) from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BadWeightsError("__metadata__ is not an object of strings", where=str(path))
    regions = {name: _region(name, entry, path) for name, entry in header.items()}
    foreign: dict[str, int] = {}
    for dtype, *_ in regions.values():
        if dtype in _FOREIGN:
            foreign[dtype] = foreign.get(dtype, 0) + 1
    if foreign:
        raise UnsupportedError("dtypes that are not supported", missing=foreign, where=str(path))
    _check_cover({name: (begin, end) for name, (_, _, begin, end) in regions.items()}, size - start, path)
    tensors = {
        name: FileArray(path, start + begin, shape, _DTYPES[dtype], identity)
        for name, (dtype, shape, begin, _) in regions.items()
    }
    return SafeFile(path, metadata, tensors, identity)


def _header_object(file: BinaryIO, size: int, path: Path) -> dict[str, Any]:
    """Return the JSON object at the start of the file. The file position is then at the tensor data."""
    if size < 8:
        raise BadWeightsError(f"{path.name} has {size} bytes, too few for a header length", where=str(path))
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER:
        raise BadWeightsError(
            f"the header has a stated length of {length} bytes, more than {MAX_HEADER}", where=str(path)
        )
    if 8 + length > size:
        raise BadWeightsError(f"the header has a stated length of {length} bytes, the file has {size}", where=str(path))
    raw = file.read(length)
    if not raw.startswith(b"{"):
        raise BadWeightsError("the header does not start with '{'", where=str(path))
    try:
        found = strict_json(raw)
    except ValueError as problem:
        raise BadWeightsError(f"the header is not valid JSON: {problem}", where=str(path)) from None
    assert isinstance(found, dict)  # the first byte is a brace
    return found


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _region(name: str, entry: Any, path: Path) -> tuple[str, tuple[int, ...], int, int]:
    """Return (dtype code, shape, begin, end) of one header entry after checking the entry by itself."""
    shown = repr(name[:200])
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadWeightsError(f"tensor {shown} needs exactly dtype, shape and data_offsets", where=str(path))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES.keys() | _FOREIGN:
        raise BadWeightsError(f"tensor {shown} has the unknown dtype {str(dtype)[:80]!r}", where=str(path))
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise BadWeightsError(f"tensor {shown} has the shape {str(shape)[:200]}, not a list of sizes", where=str(path))
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise BadWeightsError(f"tensor {shown} has the data_offsets {str(offsets)[:200]}", where=str(path))
    if len(shape) > MAX_RANK:
        raise TooLargeError(f"tensor {shown} has {len(shape)} axes, more than {MAX_RANK}", where=str(path))
    if any(d >= _U63 for d in shape):  # a product of such numbers could take minutes
        raise TooLargeError(f"tensor {shown} of shape {str(shape)[:200]} overflows", where=str(path))
    if dtype in _FOREIGN:
        return dtype, tuple(shape), offsets[0], offsets[1]
    needed = prod(shape) * dtypes.itemsize(_DTYPES[dtype])
    if needed >= _U63:
        raise TooLargeError(f"tensor {shown} of shape {str(shape)[:200]} overflows", where=str(path))
    if offsets[1] - offsets[0] != needed:
        raise BadWeightsError(
            f"tensor {shown} ({dtype} {shape}) needs {needed} bytes, its data_offsets span {offsets[1] - offsets[0]}",
            where=str(path),
        )
    return dtype, tuple(shape), offsets[0], offsets[1]


def _check_cover(spans: Mapping[str, tuple[int, int]], data: int, path: Path) -> None:
    """Check that the byte spans tile the data section exactly: no overlap, no hole, no missing or trailing bytes."""
    position, before = 0, "the header"
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        shown = repr(name[:200])
        if begin < position:
            raise BadWeightsError(f"tensor {shown} overlaps {before}", where=str(path))
        if begin > position:
            raise BadWeightsError(f"a hole of {begin - position} bytes before tensor {shown}", where=str(path))
        if end > data:
            raise BadWeightsError(f"tensor {shown} ends at {end}, the data has {data} bytes", where=str(path))
        position, before = end, shown
    if position != data:
        raise BadWeightsError(f"{data - position} trailing bytes after the last tensor", where=str(path))


def read_folder(folder: Path | str, *, trust: bool = False) -> dict[str, FileArray]:
    """Return all tensors of a folder: those of one `model.safetensors`, or of the shards in its index file.

    Raises BadWeightsError if a file or tensor is missing, BadModelError if a link leads out of the folder (unless
    `trust`).
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _read_shards(folder, inside(folder, index.name, trust=trust), trust)
    files = sorted(folder.glob("*.safetensors"))
    single = folder / "model.safetensors"
    if single in files or len(files) == 1:
        name = single.name if single in files else files[0].name
        return dict(read_header(inside(folder, name, trust=trust)).tensors)
    if files:
        raise BadWeightsError(
            f"{len(files)} weight files ({files[0].name}, …) and no index", where=str(folder), hint=f"add {index.name}"
        )
    other = [p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf")]
    raise BadWeightsError(
        f"no *.safetensors file beside {other[0]}" if other else "no *.safetensors file",
        where=str(folder),
        hint="convert the weights to safetensors",
    )


def _read_shards(folder: Path, index: Path, trust: bool) -> dict[str, FileArray]:
    """The tensors of the shards of an index. Raises BadWeightsError if a file changes before all are read."""
    seen = {index: _identity_now(index)}
    places = read_json_file(index, BadWeightsError).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise BadWeightsError("weight_map is not an object of file names", where=str(index))
    found: dict[str, FileArray] = {}
    for shard in sorted(set(places.values())):
        plain = Path(shard).name == shard and "\0" not in shard and "\\" not in shard
        if not plain or not shard.endswith(".safetensors") or len(shard.encode(*_BYTES)) > 255:
            raise BadWeightsError(f"the shard {shard[:200]!r} is not a plain .safetensors file name", where=str(index))
        if not is_file(folder / shard):
            raise BadWeightsError(f"the shard {shard!r} is missing", where=str(index))
        opened = read_header(inside(folder, shard, trust=trust))
        seen[opened.path] = opened.identity
        for name, array in opened.tensors.items():
            if places.get(name) != shard:
                location = f"in {places[name]!r}" if name in places else "nowhere"
                raise BadWeightsError(
                    f"tensor {name[:200]!r} is in {shard!r}, the index has it {location}", where=str(index)
                )
            found[name] = array
    missing = sorted(set(places) - set(found))
    if missing:
        raise BadWeightsError(
            f"tensor {missing[0][:200]!r} is not in {places[missing[0]]!r}, where the index has it", where=str(index)
        )
    if changed := [path.name for path, identity in seen.items() if _identity_now(path) != identity]:
        raise BadWeightsError(
            f"{changed[0]} was replaced or written while the checkpoint was read",
            where=str(folder),
            hint="load it again",
        )
    return found


def _identity_now(path: Path) -> tuple[int, ...]:
    """The identity of a file; () if there is none."""
    try:
        return file_identity(path)
    except OSError:
        return ()


# ---------------------------------------------------------------- writing
def write_arrays(path: Path | str, arrays: Mapping[str, Data], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays to a safetensors file, atomically. Lazy arrays are loaded one at a time.

    Raises UnwritableError if the file cannot be written, TooLargeError if the header exceeds MAX_HEADER,
    BadWeightsError if lazy data does not have its declared dtype. Raises UsageError for a tensor name that the format
    cannot hold.
    """
    if "__metadata__" in arrays:
        raise UsageError("no tensor can be called '__metadata__' in this format", where=str(path))
    names = sorted(arrays, key=lambda n: (-dtypes.itemsize(dtypes.name_of(arrays[n].dtype)), n))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name in names:
        dtype, shape = dtypes.name_of(arrays[name].dtype), tuple(int(d) for d in arrays[name].shape)
        size = prod(shape) * dtypes.itemsize(dtype)
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError as problem:
        raise UsageError(f"a tensor name is not valid Unicode: {problem}", where=str(path)) from None
    # aligns the data section to 8 bytes; wider dtypes come first, so every tensor is aligned
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise TooLargeError(f"the header would have {len(text)} bytes, more than {MAX_HEADER}", where=str(path))
    with replacing(path, 8 + len(text) + position) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            _write_one(file, name, arrays[name])


def _write_one(file: BinaryIO, name: str, source: Data) -> None:
    array = np.ascontiguousarray(load_data(source)).reshape(source.shape)
    if dtypes.name_of(array.dtype) != dtypes.name_of(source.dtype):
        raise BadWeightsError(f"tensor {name!r} is declared {source.dtype} and is {array.dtype}")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.size:
        file.write(array.reshape(-1).view(np.uint8).data)
