"""Mean and standard deviation of the tensors of a call.

Verification of a graph with gradients draws inputs from these distributions. Weights and saved activations from a
standard normal distribution would give sums and exponentials of any size, and rounding errors would then decide whether
a program is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAMPLED = 1 << 16  # most elements of a tensor that are looked at
EQUAL, CONSTANT = 1e-6, 0.1  # of the mean: deviation of elements that are equal, and deviation that they get then


def typical_of(tensors: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """(mean, standard deviation) of each dense float tensor, by name; tensors that are all zero or not finite are left
    out."""
    import torch

    found = {}
    for name, x in tensors.items():
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or not x.is_floating_point() or x.is_meta:
            continue
        if x.layout == torch.strided and x.numel() and (known := _moments(x.detach())) is not None:
            found[name] = known
    return found


def _moments(x: Any) -> tuple[float, float] | None:
    flat = x.reshape(-1)
    flat = flat[:: 1 + flat.numel() // SAMPLED].double()
    flat = flat[flat.isfinite()]
    if not flat.numel():
        return None
    mean, deviation = float(flat.mean()), float(flat.std(correction=0))
    if deviation <= EQUAL * abs(mean):
        deviation = CONSTANT * abs(mean)
    return (mean, deviation) if deviation else None


__all__ = ["typical_of"]
