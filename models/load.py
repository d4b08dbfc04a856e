"""Model importer entry point: picks the importer by file suffix or folder contents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..egraph.ir.graph import Graph
from ..errors import BadModelError, UnsupportedError, UntrustedModelError

_KNOWN = (
    ".onnx, .pt2 (trusted), .safetensors with a graph in its header, .gguf, or a folder with config.json and weights"
)
#: Suffixes of pickle files. Unpickling can run arbitrary code, so these files are never opened.
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")


def load(path: Path | str, *, dims: Mapping[str, int] | None = None, trust: bool = False) -> Graph:
    """Return the graph of a model file or folder. Weights are lazy: they stay in their files until used.

    `dims` binds free dimensions by name; the others stay free. `trust` allows formats whose loading can run code
    (`.pt2`) and links that lead out of a model's folder. Raises BadModelError for a missing, empty or malformed file,
    UnsupportedError for other formats and for operators or options that are not implemented, UntrustedModelError for a
    format that needs `trust`.
    """
    path = Path(path)
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


def _load_file(path: Path, dims: Mapping[str, int] | None, trust: bool) -> Graph:
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        from .onnx.load import load_onnx

        return load_onnx(path, dims=dims)
    if suffix == ".pt2":
        if not trust:
            raise UntrustedModelError(
                "a .pt2 file can run code when it is opened",
                where=str(path),
                hint="export to ONNX or safetensors, or say that you trust it (trust=True, --trust-model)",
            )
        from .torch_export.pt2 import load_pt2

        return _bound(load_pt2(path, trust=trust), dims)
    if suffix == ".safetensors":
        from .files.native import load_graph

        return _bound(load_graph(path), dims)
    if suffix == ".gguf":
        from .huggingface.load import load_folder

        return _bound(load_folder(path), dims)
    if suffix in _PICKLES:
        raise UntrustedModelError(
            f"a {suffix} file is a pickle, which can run code when it is opened; it is never opened",
            where=str(path),
            hint="export with torch.export or to ONNX, or convert the weights to safetensors beside a config.json",
        )
    hint = f"known: {_KNOWN}"
    if path.name.endswith(".json"):
        hint = f"give the folder: {path.parent}"
    raise UnsupportedError(f"{path.name!r} is not a known model format", where=str(path), hint=hint)


def _bound(graph: Graph, dims: Mapping[str, int] | None) -> Graph:
    return graph.bind(dims) if dims else graph
