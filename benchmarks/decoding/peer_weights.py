"""Quantized weights of the peers of `benchmarks.decoding.peers`: PyTorch's own products, as torchao uses them.

Codes and scales are drawn: only times are compared. `FORMS`: format -> weight. Both multiply 16-bit rows; 8-bit floats
need the rows in 8 bits as well, which are rounded with a scale a row in each product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GROUP = 128  # weights of a scale
INNER = 8  # tiles of K that `_weight_int4pack_mm` takes at once
LARGEST = 448.0  # of e4m3fn


@dataclass(frozen=True)
class Int4Weight:
    """Weights of 4 bits in groups of 128 along K (`_weight_int4pack_mm`). `parts`: packed codes; scales with zero
    points."""

    parts: tuple[Any, Any]

    @staticmethod
    def drawn(torch: Any, rows: int, columns: int, device: str) -> Int4Weight:
        """A weight [rows, columns]."""
        codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, device=device)
        packed = torch.ops.aten._convert_weight_to_int4pack(codes, INNER)
        scales = torch.full((columns // GROUP, rows, 2), 0.0, dtype=torch.bfloat16, device=device)
        scales[..., 0] = columns**-0.5 / 4.6  # 4.6: deviation of a code
        return Int4Weight((packed, scales))

    def product(self, torch: Any, x: Any) -> Any:
        """`x` [..., columns] times the transposed weight."""
        found = torch.ops.aten._weight_int4pack_mm(x.reshape(-1, x.shape[-1]), self.parts[0], GROUP, self.parts[1])
        return found.reshape(*x.shape[:-1], found.shape[-1])


@dataclass(frozen=True)
class Float8Weight:
    """Weights of 8-bit floats with a scale a row (`_scaled_mm`). `parts`: numbers [rows, columns]; scales [1, rows]."""

    parts: tuple[Any, Any]

    @staticmethod
    def drawn(torch: Any, rows: int, columns: int, device: str) -> Float8Weight:
        """A weight [rows, columns]."""
        numbers = torch.empty(rows, columns, dtype=torch.bfloat16, device=device).normal_(0, 100)
        scales = torch.full((1, rows), columns**-0.5 / 100, device=device)
        return Float8Weight((numbers.to(torch.float8_e4m3fn), scales))

    def product(self, torch: Any, x: Any) -> Any:
        """`x` [..., columns] times the transposed weight."""
        flat = x.reshape(-1, x.shape[-1])
        scale = flat.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / LARGEST
        rows = (flat.float() / scale).to(torch.float8_e4m3fn)
        found = torch._scaled_mm(rows, self.parts[0].t(), scale, self.parts[1], out_dtype=torch.bfloat16)
        return found.reshape(*x.shape[:-1], found.shape[-1])


FORMS: dict[str, Callable[[Any, int, int, str], Int4Weight | Float8Weight]] = {
    "int4": Int4Weight.drawn, "fp8": Float8Weight.drawn,
}  # fmt: skip

__all__ = ["FORMS", "Float8Weight", "Int4Weight"]
