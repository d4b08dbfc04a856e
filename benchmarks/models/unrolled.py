"""Programs of very many small operations, as in simulations, losses, optimizers and samplers, which one or a few
kernels can compute.

Functions of tensors, with the shapes of their inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Shape, ...], tuple[Shape, ...]]] = {}
"""Name -> function, shapes of its inputs, the same small."""


def program(full: tuple[Shape, ...], small: tuple[Shape, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that adds a function to the table; `full` and `small` are shapes of its inputs."""

    def put(call: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[call.__name__] = call, full, small
        return call

    return put


@program(((8, 32, 1024), (8, 32, 1024), (8, 1024)), ((2, 5, 16), (2, 5, 16), (2, 16)))
def gated_recurrence(f: Tensor, z: Tensor, h: Tensor) -> Tensor:
    """Minimal gated recurrent network; its states are stacked."""
    states = []
    for t in range(f.shape[1]):
        gate = torch.sigmoid(f[:, t])
        h = gate * h + (1 - gate) * torch.tanh(z[:, t])
        states.append(h)
    return torch.stack(states, 1)


@program(((100000, 3),), ((70, 3),))
def runge_kutta(state: Tensor) -> Tensor:
    """Twelve steps of the Lorenz system."""

    def slope(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return 10 * (y - x), x * (28 - z) - y, x * y - (8 / 3) * z

    now, h = state.unbind(-1), 0.005
    for _ in range(12):
        k1 = slope(*now)
        k2 = slope(*(u + h / 2 * k for u, k in zip(now, k1)))
        k3 = slope(*(u + h / 2 * k for u, k in zip(now, k2)))
        k4 = slope(*(u + h * k for u, k in zip(now, k3)))
        now = tuple(u + h / 6 * (a + 2 * b + 2 * c + d) for u, a, b, c, d in zip(now, k1, k2, k3, k4))
    return torch.stack(now, -1)


@program(((200000,),) * 4, ((50,),) * 4)
def option_prices(s: Tensor, k: Tensor, t: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Black-Scholes prices of options, and their derivatives."""
    s, k, t, v, r = s.abs() + 1, k.abs() + 1, t.abs() + 0.1, v.abs() + 0.1, 0.03
    below = lambda x: 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    density = lambda x: torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    spread, discount = v * torch.sqrt(t), torch.exp(-r * t)
    d1 = (torch.log(s / k) + (r + 0.5 * v * v) * t) / spread
    d2 = d1 - spread
    call, put = s * below(d1) - k * discount * below(d2), k * discount * below(-d2) - s * below(-d1)
    theta = -s * density(d1) * v / (2 * torch.sqrt(t)) - r * k * discount * below(d2)
    return call, put, below(d1), density(d1) / (s * spread), s * density(d1) * torch.sqrt(t), theta


@program(((1000, 1000),), ((7, 9),))
def chebyshev_series(x: Tensor) -> Tensor:
    """Forty terms of a Chebyshev series by its recurrence."""
    a, b = torch.ones_like(x), x
    y = 0.5 * a + 0.3 * b
    for i in range(2, 40):
        a, b = b, 2 * x * b - a
        y = y + b / i**2
    return y


@program(
    ((8, 3, 224, 224), (8, 1, 1, 1), (8, 1, 1, 1), *((3, 1, 1),) * 3),
    ((2, 3, 6, 5), (2, 1, 1, 1), (2, 1, 1, 1), *((3, 1, 1),) * 3),
)
def color_jitter(
    image: Tensor, brightness: Tensor, saturation: Tensor, greyness: Tensor, mean: Tensor, deviation: Tensor
) -> Tensor:
    """Changes of brightness, saturation and hue of images, then normalisation."""
    x = torch.clamp(torch.sigmoid(image) * (1 + 0.2 * brightness), 0, 1)
    grey = (x * torch.sigmoid(greyness)).sum(1, keepdim=True) / 2
    r, g, b = (x := torch.clamp(grey + (1 + 0.2 * saturation) * (x - grey), 0, 1)).unbind(1)
    most = torch.maximum(torch.maximum(r, g), b)
    range_ = most - torch.minimum(torch.minimum(r, g), b)
    over = torch.where(range_ == 0, torch.ones_like(most), range_)
    hue = torch.where(most == r, (g - b) / over, torch.where(most == g, 2 + (b - r) / over, 4 + (r - g) / over)) / 6
    hue = (hue + 0.05) - torch.floor(hue + 0.05)
    chroma = torch.where(
        most == 0, torch.zeros_like(most), range_ / torch.where(most == 0, torch.ones_like(most), most)
    )
    turned = []
    for n in (5.0, 3.0, 1.0):
        k = n + hue * 6
        k = k - 6 * torch.floor(k / 6)
        turned.append(most - most * chroma * torch.clamp(torch.minimum(k, 4 - k), 0, 1))
    return (torch.stack(turned, 1) - mean) / (deviation.abs() + 0.5)


@program(((50000, 4), (50000, 4)), ((40, 4), (40, 4)))
def box_loss(boxes: Tensor, targets: Tensor) -> Tensor:
    """Loss from the generalised intersection over union of boxes."""

    def corners(box: Tensor) -> tuple[Tensor, ...]:
        x, y, w, h = box.unbind(-1)
        w, h = (torch.nn.functional.softplus(u) for u in (w, h))
        return x - w / 2, y - h / 2, x + w / 2, y + h / 2

    a, b = corners(boxes), corners(targets)
    width, height = ((torch.minimum(a[i + 2], b[i + 2]) - torch.maximum(a[i], b[i])).clamp(min=0) for i in (0, 1))
    shared = width * height
    union = sum((c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)) - shared + 1e-7
    hull_w, hull_h = (torch.maximum(a[i + 2], b[i + 2]) - torch.minimum(a[i], b[i]) for i in (0, 1))
    hull = hull_w * hull_h + 1e-7
    return (1 - (shared / union - (hull - union) / hull)).mean()


@program(((1024, 1024),) * 4 + ((4096, 256),) * 4 + ((1024,),) * 4, ((8, 8),) * 4 + ((4, 16),) * 4 + ((8,),) * 4)
def adamw_step(*arguments: Tensor) -> tuple[Tensor, ...]:
    """AdamW update of three parameters."""
    results: list[Tensor] = []
    for i in range(0, len(arguments), 4):
        p, g, m, v = arguments[i : i + 4]
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v.abs() + 0.001 * g * g
        step = (m / (1 - 0.9**10)) / (torch.sqrt(v / (1 - 0.999**10)) + 1e-8)
        results += [p * (1 - 1e-5) - 1e-3 * step, m, v]
    return tuple(results)


@program(((16, 32000), (16, 32000)), ((2, 50), (2, 50)))
def nucleus_scores(logits: Tensor, noise: Tensor) -> Tensor:
    """Scores for nucleus sampling: temperature, threshold by bisection instead of sorting, Gumbel noise."""
    p = torch.softmax(logits / 0.8, -1)
    low, high = torch.zeros_like(p[:, :1]), p.amax(-1, keepdim=True)
    for _ in range(12):
        middle = (low + high) / 2
        enough = torch.where(p >= middle, p, torch.zeros_like(p)).sum(-1, keepdim=True) >= 0.9
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    q = torch.where(p >= low, p, torch.zeros_like(p))
    return torch.log(q / q.sum(-1, keepdim=True) + 1e-9) - torch.log(-torch.log(torch.sigmoid(noise)))


@program(((512, 512), (512, 512)), ((8, 9), (8, 9)))
def escape_times(re: Tensor, im: Tensor) -> Tensor:
    """Fifty steps of the Mandelbrot iteration; the result counts the steps before escape."""
    x, y, count = torch.zeros_like(re), torch.zeros_like(re), torch.zeros_like(re)
    for _ in range(50):
        x, y = (x * x - y * y + re).clamp(-10, 10), (2 * x * y + im).clamp(-10, 10)
        count = count + (x * x + y * y < 4).float()
    return count


@program(((65536, 4), (65536, 3)), ((30, 4), (30, 3)))
def quaternion_turns(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(rotation matrices of quaternions, vectors rotated by them)."""
    w, x, y, z = (q / q.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = (
        1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w),
        2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
        2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y),
    )  # fmt: skip
    turn = torch.stack(rows, -1).view(-1, 3, 3)
    return turn, (turn * v[:, None]).sum(-1)


@program(((4096, 2), (4096, 4), (4096, 8)), ((20, 2), (20, 4), (20, 3)))
def kalman_filter(state: Tensor, covariance: Tensor, seen: Tensor) -> Tensor:
    """Kalman filter of position and speed from noisy positions, unrolled."""
    (x, v), (a, b, c, d), states = state.unbind(-1), covariance.unbind(-1), []
    for t in range(seen.shape[1]):
        x, a, b, c, d = x + 0.1 * v, a + 0.1 * (b + c) + 0.01 * d + 0.01, b + 0.1 * d, c + 0.1 * d, d + 0.01
        gain_x, gain_v, missed = a / (a.abs() + 0.5), c / (a.abs() + 0.5), seen[:, t] - x
        x, v = x + gain_x * missed, v + gain_v * missed
        a, b, c, d = (1 - gain_x) * a, (1 - gain_x) * b, c - gain_v * a, d - gain_v * b
        states.append(torch.stack((x, v), -1))
    return torch.stack(states, 1)
