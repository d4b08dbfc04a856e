"""Lists the decompositions that AOTAutograd applies to traced graphs."""

from __future__ import annotations

from typing import Any

from ..models.torch_export.aten_ops import TABLE

_tables: list[dict[Any, Any]] = []


def decompositions() -> dict[Any, Any]:
    """Decompositions for `aot_autograd`, of ATen operators that the importer does not know: core ATen's, and those of
    backward operators.

    Random operators are not decomposed, so that they draw the numbers that eager calls draw.
    """
    if not _tables:
        import torch
        from torch import _decomp

        core = getattr(_decomp, "_core_aten_decompositions_post_autograd", _decomp.core_aten_decompositions)()
        backward = {op: f for op, f in _decomp.decomposition_table.items() if "backward" in str(op)}
        random = torch.Tag.nondeterministic_seeded
        prims = {
            torch.ops.prims.convert_element_type.default: lambda x, dtype: x.to(dtype),
            torch.ops.prims.fma.default: lambda x, y, z: x * y + z,
        }
        _tables.append({
            op: f for op, f in {**backward, **core, **prims}.items()
            if str(op).removeprefix("aten.") not in TABLE and random not in getattr(op, "tags", ())
        })  # fmt: skip
    return _tables[0]


__all__ = ["decompositions"]
