"""Resolves paths such that a model's files stay inside the model's folder."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import BadModelError


def inside(folder: Path, name: str | os.PathLike[str], *, trust: bool = False) -> Path:
    """Return the path of the file `name` in a model folder, with symbolic links resolved.

    Raises BadModelError if a link leads out of the folder, unless `trust` is set. A link from a snapshot in a Hugging
    Face cache to the blobs of the same repository is allowed: `models--x--y/snapshots/REVISION/model.safetensors` ->
    `models--x--y/blobs/…`.
    """
    path, root = Path(folder, name), Path(os.path.realpath(folder))
    try:
        found = Path(os.path.realpath(path))
    except (OSError, ValueError) as error:  # a symlink loop, or a NUL byte in the name
        raise BadModelError(f"{str(name)[:200]!r} cannot be reached: {error}", where=str(folder)) from None
    roots = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    if trust or any(found.is_relative_to(r) for r in roots):
        return path if found == root / name else found
    raise BadModelError(
        f"{str(name)[:200]!r} is a link to {found}, outside the model's folder", where=str(path),
        hint="copy the file there, or say that you trust the folder (trust=True, --trust-model)",
    )  # fmt: skip


__all__ = ["inside"]
