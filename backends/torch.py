"""Torch kernels (placeholder rows follow)."""
from __future__ import annotations
from collections.abc import Mapping, Sequence
from ..extract.kernel import Template
class TorchBackend:
    """Torch."""
    name = "torch"
    device = "cpu"
    helpers: Mapping[str, str] = {}
    templates: Sequence[Template] = ()
    def unavailable(self) -> str:
        """Why not."""
        return "not yet"
BACKEND = TorchBackend()
