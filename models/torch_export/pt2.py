"""Imports `.pt2` archives written by `torch.export.save`. Loading such an archive can run code."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from os import PathLike
from pathlib import Path

from ...egraph.ir.graph import Graph
from ...errors import BadModelError, UntrustedModelError
from .export import first_line, from_exported, tracing


def load_pt2(path: str | PathLike[str], *, trust: bool = False) -> Graph:
    """Return the graph of a program saved by `torch.export.save`.

    Loading can run code, so UntrustedModelError is raised unless `trust` is set. Even with `trust`, pickled weights,
    custom objects and sample inputs that a weights-only unpickler rejects are refused. Raises BadModelError for a
    corrupt archive.
    """
    path = Path(path)
    if not trust:
        raise UntrustedModelError(
            "a .pt2 file can run code when it is read", where=str(path),
            hint="pass trust=True (--trust-model) if you made it yourself, or convert it to ONNX or safetensors",
        )  # fmt: skip
    import torch

    _inspect_archive(path)
    with tracing():
        try:
            program = torch.export.load(path)
        except Exception as error:
            raise BadModelError(f"torch.export cannot read the file: {first_line(error)}", where=str(path)) from error
    return from_exported(program, name=path.stem)


def _pickled(archive: zipfile.ZipFile, entry: str) -> str:
    """Description of what only a full unpickler can read in an entry of the archive; "" if nothing is."""
    import torch

    tail = entry.rsplit("/", 1)[-1]
    if tail.startswith(("custom_obj", "opaque_obj")):
        return f"it holds the custom object {tail}"
    if tail.endswith(("weights_config.json", "constants_config.json")):
        config = json.loads(archive.read(entry)).get("config", {})
        for key in (k for k, meta in config.items() if meta.get("use_pickle")):
            return f"the tensor {key!r} is pickled"
    if "/sample_inputs/" in entry and (data := archive.read(entry)):
        try:
            torch.load(BytesIO(data), weights_only=True)
        except Exception:
            return "its sample inputs are objects"
    return ""


def _check_sizes(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise BadModelError for entries that would take more memory than the file has bytes: compressed ones, which
    torch.export.save does not write, and ones that share bytes."""
    entries = archive.infolist()
    packed = next((e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise BadModelError(
            f"the entry {packed!r} of the archive is compressed; torch.export.save compresses none", where=str(path)
        )
    if sum(e.file_size for e in entries) > path.stat().st_size:
        raise BadModelError("the entries of the archive are larger than the file", where=str(path))


def _inspect_archive(path: Path) -> None:
    """Raise BadModelError for a corrupt archive, UntrustedModelError for content that needs a full unpickler."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            _check_sizes(archive, path)
            if not any(n.endswith("archive_format") for n in names):
                raise BadModelError("this is not an archive written by torch.export.save", where=str(path),
                                    hint="save it again with a current PyTorch")  # fmt: skip
            for entry in names:
                if what := _pickled(archive, entry):
                    hint = "save the program again with plain tensors"
                    raise UntrustedModelError(f"{what}, which only a full unpickler reads", where=str(path), hint=hint)
    except (OSError, zipfile.BadZipFile, ValueError, AttributeError, RecursionError, NotImplementedError) as error:
        raise BadModelError(f"not a readable .pt2 archive: {first_line(error)}", where=str(path)) from error
