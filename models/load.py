"""Loads a model from a file or folder: picks the importer by file suffix or folder contents.

A new format is an entry of `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ..egraph.ir.graph import Graph
from ..errors import BadModelError, UnsupportedError, UntrustedModelError, UsageError
from ..writing.files import named_path

Dims = Mapping[str, int] | None


class ModelFormat(NamedTuple):
    """Format of model files: a loader (path, sizes of free dimensions) -> graph, and a description for messages.

    `runs_code`: loading can run code, so the caller has to trust the file. Loaders import their modules when called.
    """

    load: Callable[[Path, Dims], Graph]
    description: str
    runs_code: bool = False


def _onnx(path: Path, dims: Dims) -> Graph:
    from .onnx.load import load_onnx

    return load_onnx(path, dims=dims)


def _pt2(path: Path, dims: Dims) -> Graph:
    from .torch_export.pt2 import load_pt2

    return _bound(load_pt2(path, trust=True), dims)


def _gguf(path: Path, dims: Dims) -> Graph:
    from .huggingface.load import load_folder

    return _bound(load_folder(path), dims)


def _native(path: Path, dims: Dims) -> Graph:
    from .files.native import load_graph

    return _bound(load_graph(path), dims)


#: Suffix -> format of model files.
FORMATS: dict[str, ModelFormat] = {
    ".onnx": ModelFormat(_onnx, ".onnx"),
    ".pt2": ModelFormat(_pt2, ".pt2 (trusted)", runs_code=True),
    ".gguf": ModelFormat(_gguf, ".gguf"),
    ".safetensors": ModelFormat(_native, ".safetensors with a graph in its header"),
}
#: Suffixes of pickle files. Unpickling can run arbitrary code, so these files are never opened.
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")


def known_formats() -> str:
    """Text that lists the model formats that `load` accepts."""
    return ", ".join([*(f.description for f in FORMATS.values()), "or a folder with config.json and weights"])


def load(path: Path | str, *, dims: Dims = None, trust: bool = False) -> Graph:
    """Graph of a model file or folder. Weights are lazy: they stay in their files until used.

    `dims` binds free dimensions by name; the others stay free. `trust` allows formats whose loading can run code
    (`.pt2`) and links that lead out of a model's folder. Raises BadModelError for a missing, empty or malformed file,
    UnsupportedError for other formats and for operators or options that are not implemented, UntrustedModelError for a
    format that needs `trust`. Raises UsageError if `dims` is not a mapping.
    """
    path = named_path(path)
    if not isinstance(dims, Mapping | None):
        raise UsageError(f"invalid argument dims={dims!r}", hint="give a dict of sizes by name")
    try:
        there = path.exists()
    except OSError as problem:  # name too long, or no permission to enter a folder
        raise BadModelError(f"the model cannot be reached: {problem}", where=str(path)) from None
    if not there:
        raise BadModelError(f"there is no file or folder {path.name!r}", where=str(path))
    if path.is_dir():
        from .huggingface.load import load_folder

        return _bound(load_folder(path, trust=trust), dims)
    if not path.is_file():
        raise BadModelError(f"{path.name!r} is neither a file nor a folder", where=str(path))
    if path.stat().st_size == 0:
        raise BadModelError(f"{path.name!r} is empty", where=str(path))
    return _load_file(path, dims, trust)


def _load_file(path: Path, dims: Dims, trust: bool) -> Graph:
    suffix = path.suffix.lower()
    found = FORMATS.get(suffix)
    if found is not None and (trust or not found.runs_code):
        return found.load(path, dims)
    if found is not None:
        raise UntrustedModelError(
            f"a {suffix} file can run code when it is opened",
            where=str(path),
            hint="export to ONNX or safetensors, or say that you trust it (trust=True, --trust-model)",
        )
    if suffix in _PICKLES:
        raise UntrustedModelError(
            f"a {suffix} file is a pickle, which can run code when it is opened; it is never opened",
            where=str(path),
            hint="export with torch.export or to ONNX, or convert the weights to safetensors beside a config.json",
        )
    hint = f"known: {known_formats()}"
    if path.name.endswith(".json"):
        hint = f"give the folder: {path.parent}"
    raise UnsupportedError(f"{path.name!r} is not a known model format", where=str(path), hint=hint)


def _bound(graph: Graph, dims: Dims) -> Graph:
    return graph.bind(dims) if dims else graph


__all__ = ["FORMATS", "ModelFormat", "known_formats", "load"]
