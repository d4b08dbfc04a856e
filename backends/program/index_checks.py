"""Checks the indices among the inputs of a call of a CPU program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..runtime.computed_indices import computed_check
from ..runtime.index_limits import index_check
from .emit.emit_any_size import sources
from .manifest import Manifest


def checked_indices(manifest: Manifest) -> Callable[[Sequence[Any]], None] | None:
    """Function of a call's inputs that raises IndexRangeError for an index among them, or computed from them, that is
    outside of the axis that it indexes; None if no input is an index. Raises BadModelError if the manifest's
    computations are malformed."""
    names = [name for name, _, _ in manifest.inputs]
    checks = [index_check(manifest.index_limits, names)] if manifest.index_limits else []
    if manifest.computed_indices.targets:
        sizes_of = _sizes(manifest) if manifest.sizes else None
        checks.append(computed_check(manifest.computed_indices, names, sizes_of))

    def check(inputs: Sequence[Any]) -> None:
        for one in checks:
            one(inputs)

    return check if checks else None


def _sizes(manifest: Manifest) -> Callable[[Sequence[Any]], Mapping[str, int] | None]:
    """Function that returns the free sizes that the inputs of a call have; None if they have no shapes."""
    found = sources([shape for _, shape, _ in manifest.inputs], list(manifest.sizes))

    def sizes_of(given: Sequence[Any]) -> Mapping[str, int] | None:
        try:
            shapes = [x.shape for x in given]
            return {s.name: s.of(shapes) for s in found}
        except (AttributeError, IndexError):
            return None

    return sizes_of


__all__ = ["checked_indices"]
