"""Holds the weights of a saved program: reads them from its safetensors file by key, and writes that file."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...egraph.ir.file_array import FileArray
from ...egraph.ir.page_digest import page_digest
from ...errors import BadWeightsError
from ...plain import Malformed, file_identity, opened, strict_json
from ...settings import current
from ..runtime.upload import uploaded_file
from .manifest import Spec
from .weights import Array, KeyedWeights, bytes_of

METADATA, DIGEST = "__metadata__", "digest of "  # entry of a header; begin of a key in it
LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
_SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip


class StoredWeights(KeyedWeights):
    """Weights in a safetensors file, read on demand into memory of their own; `specs`: (key, shape, dtype) of each.

    Raises BadWeightsError if the file is missing or cannot be read; so do reads if it was replaced or written since,
    holds another shape or dtype than the manifest says, or other bytes than were saved.
    """

    def __init__(self, path: Path, specs: Sequence[Spec]) -> None:
        self.path, self.specs = path, {n: (shape, dtype) for n, shape, dtype in specs}
        if specs and not path.is_file():
            raise BadWeightsError("the weights are missing", where=str(path))
        try:
            self._identity = file_identity(path) if specs else ()
        except OSError as error:
            raise BadWeightsError(f"the weights cannot be read: {error.strerror}", where=str(path)) from None

    def __contains__(self, key: object) -> bool:
        return key in self.specs

    def __getitem__(self, key: str) -> Array:
        return self.stored(key).copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def stored(self, key: str) -> FileArray:
        """The weight `key` as a region of the file, which is not read yet. Raises BadWeightsError if the file's header
        does not list it with the shape and dtype that the manifest says."""
        if key not in self.specs:
            raise BadWeightsError(
                f"the program reads the weight {key!r}, which its manifest does not list", where=str(self.path)
            )
        start, header = self._header
        shape, dtype = self.specs[key]
        try:
            kind, sizes, (begin, end) = (header[key][part] for part in ("dtype", "shape", "data_offsets"))
            same = (
                kind == _SAFETENSORS[dtype] and tuple(sizes) == shape and end - begin == bytes_of((key, shape, dtype))
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadWeightsError(f"weight {key!r} cannot be read: {error!r}", where=str(self.path)) from None
        if not same or begin < 0:
            found = {name: known for known, name in _SAFETENSORS.items()}.get(kind, kind)
            raise BadWeightsError(
                f"weight {key!r} is {found}{list(sizes)}, not {dtype}{list(shape)}", where=str(self.path)
            )
        return FileArray(self.path, start + begin, shape, dtype, self._identity, self._digest_of(key, header))

    def _digest_of(self, key: str, header: Mapping[str, Any]) -> int | None:
        """Digest of a weight's bytes that the file's header records; None in files of older versions, and with the
        setting `check_weights` 0."""
        known = header.get(METADATA)
        text = known.get(DIGEST + key) if isinstance(known, dict) else None
        if text is None or not current().check_weights:
            return None
        try:
            return int(text, 16)
        except (TypeError, ValueError):
            raise BadWeightsError(f"the digest of weight {key!r} is {text!r}", where=str(self.path)) from None

    @cached_property
    def _header(self) -> tuple[int, Mapping[str, Any]]:
        """(byte at which the data begins, facts of each tensor by key)."""
        try:
            with opened(self.path, 1 << 62) as file:
                size = int.from_bytes(file.read(8), "little")
                if size > LARGEST_HEADER:
                    raise Malformed(f"its header has {size} bytes")
                header = strict_json(file.read(size))
            if not isinstance(header, dict):
                raise Malformed("its header is no JSON object")
        except (OSError, ValueError) as error:
            raise BadWeightsError(f"the weights cannot be read: {error}", where=str(self.path)) from None
        return 8 + size, header

    def on_device(self, device: str) -> Mapping[str, Any]:
        """The weights as tensors on a Torch device, each copied there from the file when it is read. Reading a weight
        raises BadWeightsError as reading an array does."""
        return _WeightsOnDevice(self, device)

    def pool_key(self, key: str) -> Hashable:
        """Key under which programs share the weight `key` in a pool: its place in the file."""
        return self.path, key

    def nbytes(self, key: str) -> int:
        """Bytes of the weight `key`."""
        return bytes_of((key, *self.specs[key]))


@dataclass(frozen=True)
class _WeightsOnDevice(Mapping[str, Any]):
    weights: StoredWeights
    device: str

    def __getitem__(self, key: str) -> Any:
        return uploaded_file(self.weights.stored(key), self.device)

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


class BorrowedWeights(KeyedWeights):
    """Weights of a saved plan for one bucket (range) of sizes: its own, and those that it shares with the program's
    main plan.

    `names`: key in this plan -> key in `around`, the main plan's weights. `specs`: (key, shape, dtype) of each weight
    here. Raises BadWeightsError if a borrowed weight has another shape or dtype.
    """

    def __init__(
        self, own: StoredWeights, names: Mapping[str, str], around: StoredWeights, specs: Sequence[Spec]
    ) -> None:
        self.own, self.names, self.around = own, names, around
        for name, shape, dtype in specs:
            if name in names and around.specs.get(names[name]) != (shape, dtype):
                raise BadWeightsError(f"weight {name!r} is not among those of the whole program", where=str(own.path))

    def __getitem__(self, key: str) -> Array:
        return self.around[self.names[key]] if key in self.names else self.own[key]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.names, *self.own])

    def __len__(self) -> int:
        return len(self.names) + len(self.own)

    def pool_key(self, key: str) -> Hashable:
        """Key under which programs share the weight `key` in a pool: that of the plan whose weight it is."""
        return self.around.pool_key(self.names[key]) if key in self.names else self.own.pool_key(key)

    def nbytes(self, key: str) -> int:
        """Bytes of the weight `key`."""
        return self.around.nbytes(self.names[key]) if key in self.names else self.own.nbytes(key)


def write_weights(path: Path, specs: Sequence[Spec], weights: Mapping[str, Array]) -> None:
    """Write `weights` into the safetensors file `path`, in the order of `specs` (key, shape, dtype), with one weight in
    memory at a time; the library's writer needs all at once. The header's metadata has the digest of each weight, which
    is compared when it is read."""
    digests = {DIGEST + name: f"{0:08x}" for name, _, _ in specs}
    header: dict[str, Any] = {METADATA: digests} if digests else {}
    end = 0
    for name, shape, dtype in specs:
        start, end = end, end + bytes_of((name, shape, dtype))
        header[name] = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [start, end]}
    with path.open("wb") as file:
        file.write(_encoded(header))
        for name, _, _ in specs:
            raw = np.ascontiguousarray(weights[name]).reshape(-1).view(np.uint8)
            digests[DIGEST + name] = f"{page_digest(raw):08x}"
            file.write(raw.data)
        file.seek(0)
        file.write(_encoded(header))


def _encoded(header: Mapping[str, Any]) -> bytes:
    """The begin of a safetensors file: the header with its length. Digests have one length, whatever their values."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
