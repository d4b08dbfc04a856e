"""Six modules of different kinds whose plans of small budgets are compared with those of large ones
(benchmarks/search/small_budgets.py, `--only` with their names). No kernel, rule or stored row was made for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .gpu_module_table import Made


class Dilated(nn.Module):
    """Causal dilated convolutions of a sequence with weights for the residual, and a mean over time."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i) for i in range(depth))
        self.mixed = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.head = nn.Linear(width, 20)

    def forward(self, x: Tensor) -> Tensor:
        for layer, mixed in zip(self.layers, self.mixed):
            x = x + mixed(F.elu(layer(F.pad(x, (2 * layer.dilation[0], 0)))))
        return self.head(x.mean(-1))


class Bottleneck(nn.Module):
    """Pointwise, depthwise with a gate from the mean of each channel, pointwise; as MobileNetV3's."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.grow = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depth = nn.Sequential(nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False), nn.BatchNorm2d(wide))
        self.gate = nn.Sequential(nn.Conv2d(wide, wide // 4, 1), nn.ReLU(), nn.Conv2d(wide // 4, wide, 1))
        self.shrink = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.grow(x))
        gate = F.hardsigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return x + self.shrink(F.hardswish(y * gate))


class Crossed(nn.Module):
    """Few queries that attend to a longer sequence, and a gated feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.later = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(y).chunk(2, -1)
        found = F.scaled_dot_product_attention(split(self.q(self.norm(x))), split(k), split(v))
        x = x + self.out(found.transpose(1, 2).flatten(2))
        a, b = self.up(self.later(x)).chunk(2, -1)
        return x + self.down(F.gelu(a) * b)


class SpatialGate(nn.Module):
    """gMLP's block: half of the channels gate the others after a product along the sequence."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.grow, self.along, self.shrink = (
            nn.Linear(width, 2 * width), nn.Conv1d(length, length, 1), nn.Linear(width, width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.gelu(self.grow(self.norm(x))).chunk(2, -1)
        return x + self.shrink(a * self.along(self.inner(b)))


class Edges(nn.Module):
    """Features of edges from both ends, added up at their targets, twice."""

    def __init__(self, width: int, nodes: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.edge, self.node = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for _ in range(2):
            edges = F.relu(self.edge(torch.cat([x[source], x[target]], -1)))
            x = F.relu(self.node(torch.cat([x, torch.zeros_like(x).index_add(0, target, edges)], -1)))
        return x


class Hourglass(nn.Module):
    """Down by strides, up by repetition, with group norms and a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        block = lambda a, b, s: nn.Sequential(nn.Conv2d(a, b, 3, s, 1), nn.GroupNorm(8, b), nn.SiLU())
        self.first, self.down, self.middle = (
            block(3, width, 1),
            block(width, 2 * width, 2),
            block(2 * width, 2 * width, 1),
        )
        self.up, self.out = block(3 * width, width, 1), nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        low = F.interpolate(self.middle(self.down(x)), scale_factor=2.0)
        return self.out(self.up(torch.cat([x, low], 1)))


NAMES = ("dilated", "bottlenecks", "crossed", "spatial_gate", "edges", "hourglass")


def build(name: str, large: bool) -> Made:
    """(module, example inputs) by name, floats of 32 bits; small ones for a CPU unless `large`."""
    n = 1 if large else 4
    index = lambda count, below: torch.randint(below, (count,))
    made = {
        "dilated": lambda: (Dilated(96 // n, 5), (torch.randn(8, 96 // n, 2048 // n),)),
        "bottlenecks": lambda: (
            nn.Sequential(Bottleneck(40, 120), Bottleneck(40, 240)), (torch.randn(8, 40, 28 // min(n, 2), 28 // min(n, 2)),),
        ),
        "crossed": lambda: (Crossed(512 // n, 8), (torch.randn(4, 64, 512 // n), torch.randn(4, 600 // n, 512 // n))),
        "spatial_gate": lambda: (
            nn.Sequential(*(SpatialGate(384 // n, 196) for _ in range(2))), (torch.randn(8, 196, 384 // n),),
        ),
        "edges": lambda: (Edges(64, 4000 // n), (torch.randn(4000 // n, 64), index(30000 // n, 4000 // n), index(30000 // n, 4000 // n))),
        "hourglass": lambda: (Hourglass(64 // n), (torch.randn(2, 3, 128 // n, 128 // n),)),
    }  # fmt: skip
    module, inputs = made[name]()
    return module.eval().requires_grad_(False), inputs


__all__ = ["NAMES", "build"]
