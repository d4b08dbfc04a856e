"""Architectures of unusual structure for `benchmarks.torch_compile.architectures`.

State spaces, mixtures of experts, diffusion transformers, speech encoders, networks on sets, points and graphs,
detection heads, rendering, spectral operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .torch_architectures import Make, Net, conv, ids, inputs

F = nn.functional
Tensor = torch.Tensor


def selective_scan(m: Any, x: Tensor) -> Tensor:
    """Mamba's block: causal depthwise convolution, input-dependent steps, a scan over time in a loop."""
    u, gate = m.enter(x).chunk(2, -1)
    u = F.silu(m.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
    step, b, c = m.select(u).split([1, 4, 4], -1)
    step = F.softplus(step + m.bias)
    state, found = torch.zeros(x.shape[0], u.shape[-1], 4), []
    for i in range(x.shape[1]):
        state = (
            torch.exp(-step[:, i, :, None] * torch.exp(m.rates)) * state
            + (step[:, i] * u[:, i])[..., None] * b[:, i, None]
        )
        found.append((state * c[:, i, None]).sum(-1))
    return m.leave(torch.stack(found, 1) * F.silu(gate))  # type: ignore[no-any-return]


class Scan(Net):
    """Module of `selective_scan` with its free parameters."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__(selective_scan, **parts)
        self.bias, self.rates = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.zeros(16, 4))


def experts(m: Any, x: Tensor) -> Tensor:
    """Mixture of experts: the two best of four for each token, added by index."""
    flat = x.flatten(0, 1)
    weight, chosen = torch.softmax(m.router(flat), -1).topk(2, -1)
    weight = weight / weight.sum(-1, keepdim=True)
    found = torch.zeros_like(flat)
    for number, expert in enumerate(m.experts):
        share = (weight * (chosen == number)).sum(-1, keepdim=True)
        found = found + share * expert(flat)
    return found.view_as(x)


def dispatched(m: Any, x: Tensor) -> Tensor:
    """Mixture of experts with a capacity: tokens are sorted by expert and multiplied in a batch."""
    flat = x.flatten(0, 1)
    gate, chosen = torch.softmax(m.router(flat), -1).max(-1)
    order = torch.argsort(chosen, stable=True)
    grouped = flat[order].view(4, -1, flat.shape[-1])
    made = torch.bmm(torch.relu(torch.bmm(grouped, m.up)), m.down).flatten(0, 1)
    return (torch.zeros_like(flat).index_copy(0, order, made) * gate[:, None]).view_as(x)


class Dispatched(Net):
    """Module of `dispatched` with the weights of all experts."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__(dispatched, **parts)
        self.up, self.down = nn.Parameter(0.2 * torch.randn(4, 16, 32)), nn.Parameter(0.2 * torch.randn(4, 32, 16))


def diffusion_transformer(m: Any, x: Tensor, t: Tensor) -> Tensor:
    """DiT block: norms without parameters, shifted, scaled and gated by the time embedding."""
    waves = t[:, None] * torch.exp(-torch.arange(8) / 2.0)
    given = m.time(torch.cat([waves.sin(), waves.cos()], -1))
    shift1, scale1, gate1, shift2, scale2, gate2 = m.modulate(F.silu(given)).chunk(6, -1)
    y = F.layer_norm(x, x.shape[-1:]) * (1 + scale1[:, None]) + shift1[:, None]
    x = x + gate1[:, None] * m.attention(y, y, y, need_weights=False)[0]
    y = F.layer_norm(x, x.shape[-1:]) * (1 + scale2[:, None]) + shift2[:, None]
    return x + gate2[:, None] * m.feed(y)


def conformer(m: Any, x: Tensor) -> Tensor:
    """Conformer block: half feed-forward steps, attention with relative positions, gated depthwise convolution."""
    x = x + 0.5 * m.feed1(x)
    b, n, width = x.shape
    q, k, v = (y.view(b, n, 4, -1).transpose(1, 2) for y in m.qkv(m.norm1(x)).chunk(3, -1))
    apart = torch.arange(n)[:, None] - torch.arange(n)[None] + n - 1
    scores = q @ k.transpose(-1, -2) / k.shape[-1] ** 0.5 + m.positions(apart).permute(2, 0, 1)
    x = x + m.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, width))
    y = F.glu(m.point1(m.norm2(x).transpose(1, 2)), 1)
    x = x + m.point2(F.silu(m.norm3(m.depth(y)))).transpose(1, 2)
    return m.norm4(x + 0.5 * m.feed2(x))  # type: ignore[no-any-return]


def detector(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Feature pyramid and one-stage head: boxes from distances, the best ten of all places."""
    low = m.stem(x)
    high = m.down(low)
    levels = [m.side1(low) + F.interpolate(m.side2(high), scale_factor=2.0), m.side2(high)]
    scores, boxes = [], []
    for level, stride in zip(levels, (4, 8)):
        score, box = m.scores(level).flatten(2), F.softplus(m.boxes(level)).flatten(2)
        y, x_ = torch.meshgrid(torch.arange(level.shape[2]), torch.arange(level.shape[3]), indexing="ij")
        centre = (torch.stack([x_, y]).flatten(1) + 0.5) * stride
        scores.append(score.amax(1))
        boxes.append(torch.cat([centre - box[:, :2] * stride, centre + box[:, 2:] * stride], 1))
    best, at = torch.cat(scores, -1).sigmoid().topk(10, -1)
    found = torch.cat(boxes, -1).gather(2, at[:, None].expand(-1, 4, -1))
    area = (found[:, 2:] - found[:, :2]).prod(1)
    low_corner = torch.maximum(found[:, :2, :, None], found[:, :2, None])
    high_corner = torch.minimum(found[:, 2:, :, None], found[:, 2:, None])
    inside = (high_corner - low_corner).clamp(min=0).prod(1)
    overlap = inside / (area[:, :, None] + area[:, None] - inside)
    kept = ~((overlap > 0.5) & torch.ones(10, 10, dtype=torch.bool).tril(-1)).any(-1)
    return found, best * kept, kept


def points(m: Any, x: Tensor) -> Tensor:
    """Dynamic graph on points: features of edges to the four nearest neighbours, maximum over them."""
    near = torch.cdist(x, x).topk(4, -1, largest=False).indices
    beside = torch.gather(x[:, None].expand(-1, x.shape[1], -1, -1), 2, near[..., None].expand(-1, -1, -1, x.shape[-1]))
    edges = torch.cat([beside - x[:, :, None], x[:, :, None].expand_as(beside)], -1)
    return m.out(m.edge(edges).amax(2).amax(1))  # type: ignore[no-any-return]


def message_passing(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """Graph isomorphism network: sums and maxima of messages by index, then a sum over the graph."""
    for layer in m.layers:
        sent = x[edges[0]]
        total = torch.zeros_like(x).index_add(0, edges[1], sent)
        most = torch.full_like(x, -1e9).scatter_reduce(0, edges[1, :, None].expand_as(sent), sent, "amax")
        x = layer(torch.cat([x + total, most.clamp(min=0.0)], -1))
    return m.out(x.sum(0))  # type: ignore[no-any-return]


def radiance(m: Any, rays: Tensor) -> Tensor:
    """Radiance field: positions in waves, densities, colours composed along each ray by a cumulative product."""
    depth = torch.linspace(0.1, 2.0, 8)
    where = rays[:, None, :3] + depth[:, None] * rays[:, None, 3:]
    waves = where[..., None] * (2.0 ** torch.arange(4))
    made = m.field(torch.cat([waves.sin(), waves.cos()], -1).flatten(2))
    alpha = 1 - torch.exp(-F.relu(made[..., 0]) * 0.25)
    light = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-6], 1), 1)
    return ((alpha * light)[..., None] * made[..., 1:].sigmoid()).sum(1)


def fourier(m: Any, x: Tensor) -> Tensor:
    """Fourier neural operator: the lowest frequencies are mixed by complex weights."""
    seen = torch.fft.rfft(x, dim=-1)
    mixed = torch.einsum("bif,iof->bof", seen[..., :4], torch.view_as_complex(m.weight))
    whole = F.pad(torch.view_as_real(mixed), (0, 0, 0, seen.shape[-1] - 4))
    return F.gelu(torch.fft.irfft(torch.view_as_complex(whole.contiguous()), x.shape[-1], dim=-1) + m.skip(x))


class Fourier(Net):
    """Module of `fourier` with its complex weights."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__(fourier, **parts)
        self.weight = nn.Parameter(0.2 * torch.randn(8, 8, 4, 2))


def quantizer(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Vector-quantized autoencoder: the nearest code, with a straight-through gradient."""
    y = m.encode(x)
    flat = y.permute(0, 2, 3, 1).reshape(-1, 8)
    codes = torch.cdist(flat, m.codes.weight).argmin(-1)
    z = m.codes(codes).view(y.shape[0], *y.shape[2:], 8).permute(0, 3, 1, 2)
    return m.decode(y + (z - y).detach()), codes


def linear_attention(m: Any, x: Tensor) -> Tensor:
    """Causal linear attention: sums of outer products over time, and RWKV-like decay."""
    q, k, v = m.qkv(x).chunk(3, -1)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.cumsum(k[..., :, None] * v[..., None, :], 1)
    norm = torch.cumsum(k, 1)
    return m.out((q[..., None, :] @ state).squeeze(-2) / (q * norm).sum(-1, keepdim=True))  # type: ignore[no-any-return]


def tags(m: Any, x: Tensor) -> Tensor:
    """Conditional random field: the logarithm of the sum over all paths, in a loop over time."""
    scores = m.emit(m.embed(x))
    alpha = scores[:, 0]
    for i in range(1, x.shape[1]):
        alpha = torch.logsumexp(alpha[:, :, None] + m.move.weight + scores[:, i, None], 1)
    return torch.logsumexp(alpha, 1)


def flow(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Normalizing flow of coupling layers, with the logarithm of the determinant."""
    total = x.new_zeros(x.shape[0])
    for layer in m.layers:
        a, b = x.chunk(2, -1)
        scale, shift = layer(a).chunk(2, -1)
        scale = torch.tanh(scale)
        x = torch.cat([b * scale.exp() + shift, a], -1)
        total = total + scale.sum(-1)
    return x, total


def slots(m: Any, x: Tensor) -> Tensor:
    """Slot attention: slots compete for the inputs, and are updated by a recurrent cell three times."""
    found = m.start.weight.expand(x.shape[0], -1, -1)
    k, v = m.keys(x), m.values(x)
    for _ in range(3):
        share = torch.softmax(k @ m.queries(found).transpose(-1, -2) / 4.0, -1) + 1e-8
        given = (share / share.sum(1, keepdim=True)).transpose(-1, -2) @ v
        found = m.cell(given.flatten(0, 1), found.flatten(0, 1)).view_as(found)
    return found  # type: ignore[no-any-return]


def unusual() -> dict[str, Make]:
    """Name -> (builder of the module, builder of its operands)."""

    def feed(a: int, b: int, c: int) -> nn.Module:
        return nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, c))

    def attention() -> nn.Module:
        return nn.MultiheadAttention(16, 2, batch_first=True)

    line = nn.Linear
    return {
        "selective state space": (lambda: Scan(enter=line(16, 32), conv=nn.Conv1d(16, 16, 4, padding=3, groups=16), select=line(16, 9), leave=line(16, 16)), inputs(2, 6, 16)),
        "mixture of experts": (lambda: Net(experts, router=line(16, 4), experts=nn.ModuleList([feed(16, 32, 16) for _ in range(4)])), inputs(2, 6, 16)),
        "mixture of experts, sorted": (lambda: Dispatched(router=line(16, 4)), inputs(2, 8, 16)),
        "diffusion transformer": (lambda: Net(diffusion_transformer, time=feed(16, 16, 16), modulate=line(16, 96), attention=attention(), feed=feed(16, 64, 16)), lambda: (torch.randn(2, 9, 16), torch.rand(2))),
        "conformer": (lambda: Net(conformer, feed1=feed(16, 32, 16), feed2=feed(16, 32, 16), norm1=nn.LayerNorm(16), norm2=nn.LayerNorm(16), norm3=nn.BatchNorm1d(16), norm4=nn.LayerNorm(16), qkv=line(16, 48), out=line(16, 16), positions=nn.Embedding(17, 4), point1=nn.Conv1d(16, 32, 1), depth=nn.Conv1d(16, 16, 5, padding=2, groups=16), point2=nn.Conv1d(16, 16, 1)), inputs(2, 9, 16)),
        "detector": (lambda: Net(detector, stem=nn.Sequential(conv(3, 8, 3, 2), conv(8, 8, 3, 2)), down=conv(8, 16, 3, 2), side1=nn.Conv2d(8, 8, 1), side2=nn.Conv2d(16, 8, 1), scores=nn.Conv2d(8, 5, 3, padding=1), boxes=nn.Conv2d(8, 4, 3, padding=1)), inputs(2, 3, 32, 32)),
        "point cloud": (lambda: Net(points, edge=feed(6, 16, 16), out=line(16, 4)), inputs(2, 12, 3)),
        "message passing": (lambda: Net(message_passing, layers=nn.ModuleList([feed(16, 16, 8) for _ in range(2)]), out=line(8, 4)), lambda: (torch.randn(12, 8), torch.randint(0, 12, (2, 40)))),
        "radiance field": (lambda: Net(radiance, field=feed(24, 32, 4)), inputs(5, 6)),
        "fourier operator": (lambda: Fourier(skip=nn.Conv1d(8, 8, 1)), inputs(2, 8, 16)),
        "quantized autoencoder": (lambda: Net(quantizer, encode=nn.Conv2d(3, 8, 4, 4), decode=nn.ConvTranspose2d(8, 3, 4, 4), codes=nn.Embedding(16, 8)), inputs(2, 3, 16, 16)),
        "linear attention": (lambda: Net(linear_attention, qkv=line(16, 24), out=line(8, 16)), inputs(2, 7, 16)),
        "conditional random field": (lambda: Net(tags, embed=nn.Embedding(50, 16), emit=line(16, 5), move=line(5, 5)), ids(2, 6)),
        "normalizing flow": (lambda: Net(flow, layers=nn.ModuleList([feed(4, 16, 8) for _ in range(3)])), inputs(5, 8)),
        "slot attention": (lambda: Net(slots, start=nn.Embedding(3, 16), keys=line(16, 16), values=line(16, 16), queries=line(16, 16), cell=nn.GRUCell(16, 16)), inputs(2, 9, 16)),
    }  # fmt: skip


__all__ = ["unusual"]
