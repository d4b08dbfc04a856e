"""Files of a model's folder, reached without leaving it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import BadModelError


def inside(folder: Path, name: str | os.PathLike[str], *, trust: bool = False) -> Path:
    """The path of a file of a model's folder, without links.

    BadModelError if links lead out of the folder, unless `trust`. Links from a snapshot of a Hugging Face cache to the blobs of the
    same repository stay within it: `models--x--y/snapshots/REVISION/model.safetensors` -> `models--x--y/blobs/…`.
    """
    path, root = Path(folder, name), Path(os.path.realpath(folder))
    try:
        found = Path(os.path.realpath(path))
    except (OSError, ValueError) as error:  # a loop of links, a NUL in a name
        raise BadModelError(f"{str(name)[:200]!r} cannot be reached: {error}", where=str(folder)) from None
    roots = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    if trust or any(found.is_relative_to(r) for r in roots):
        return path if found == root / name else found
    raise BadModelError(
        f"{str(name)[:200]!r} is a link to {found}, outside the model's folder", where=str(path),
        hint="copy the file there, or say that you trust the folder (trust=True, --trust-model)",
    )  # fmt: skip


__all__ = ["inside"]
