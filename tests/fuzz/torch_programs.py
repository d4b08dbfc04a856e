"""Random PyTorch functions through torch.export: views of views, values written in place, layers with random options,
against eager.

`python -m tests.fuzz.torch_programs [--seconds S] [--seed N] [--steps K]`
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError, UnsupportedError
from tensor_graphs.models.torch_export.export import load_module

Tensor = torch.Tensor
Step = Callable[[random.Random, Tensor], Callable[[Tensor], Tensor] | None]
LARGEST = 4096


def _axis(r: random.Random, x: Tensor) -> int:
    return r.randrange(-x.ndim, x.ndim)


def _written(f: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        y = x.clone()
        f(y)
        return y

    return run


def _views(r: random.Random, x: Tensor) -> Callable[[Tensor], Tensor] | None:
    a, b = (_axis(r, x), _axis(r, x)) if x.ndim else (0, 0)
    n = x.shape[a] if x.ndim else 0
    k = r.randint(1, max(n, 1))
    at = r.randrange(max(n, 1))
    options: list[Callable[[Tensor], Tensor]] = [
        lambda v: v.reshape(-1),
        lambda v: v.unsqueeze(0),
        lambda v: v.squeeze(),
        lambda v: v * 1.5,
    ]
    if x.ndim:
        step = r.choice((1, 2, 3))
        options += [
            lambda v: v.transpose(a, b), lambda v: v.flip(a), lambda v: v.roll(k, a), lambda v: v.narrow(a, 0, k), lambda v: v.select(a, at),
            lambda v: v.unbind(a)[at], lambda v: v.chunk(2, a)[0], lambda v: v.split(k, a)[-1], lambda v: v.unfold(a, k, step),
            lambda v: v[..., ::step], lambda v: v[..., -1:], lambda v: v[None, ..., at if a in (-1, v.ndim - 1) else 0], lambda v: v.movedim(a, b),
            lambda v: v.repeat(2, *([1] * (v.ndim - 1))), lambda v: v.repeat_interleave(2, a), lambda v: v.unsqueeze(a).expand(*([-1] * (v.ndim + 1))),
            lambda v: torch.stack([v, v * 2], a), lambda v: torch.cat([v, -v], a), lambda v: v.tile(2), lambda v: v.permute(*r2),
            lambda v: v.diff(dim=a), lambda v: v.index_select(a, torch.tensor([at, 0])), lambda v: v.unflatten(a, (1, -1)), lambda v: v.flatten(0, -1),
        ]  # fmt: skip
        r2 = r.sample(range(x.ndim), x.ndim)
    return r.choice(options)


def _inplace(r: random.Random, x: Tensor) -> Callable[[Tensor], Tensor] | None:
    if not x.ndim:
        return _written(lambda v: v.add_(1.0))
    a = _axis(r, x)
    n = x.shape[a]
    at, k = r.randrange(max(n, 1)), r.randint(1, max(n, 1))
    step = r.choice((1, 2))
    if n == 0:
        return None

    def into_slice(v: Tensor) -> None:
        v[..., ::step] = 2.0

    def add_slice(v: Tensor) -> None:
        v.narrow(a, 0, k).add_(3.0)

    def last(v: Tensor) -> None:
        v[..., -1] *= -1.0

    def masked(v: Tensor) -> None:
        v[v > 0.25] = 0.5

    def chosen(v: Tensor) -> None:
        v.index_fill_(a, torch.tensor([at]), 4.0)

    def copied(v: Tensor) -> None:
        v.select(a, at).copy_(v.select(a, 0) * 2)

    def transposed(v: Tensor) -> None:
        v.transpose(0, -1).mul_(0.5).clamp_(max=1.0)

    def viewed(v: Tensor) -> None:
        v.view(-1)[1:].sub_(1.0)

    def several(v: Tensor) -> None:
        w = v.narrow(a, at, 1)
        w += 1
        v *= 2
        w -= 1

    return _written(r.choice((into_slice, add_slice, last, masked, chosen, copied, transposed, viewed, several, lambda v: v.relu_(),
                              lambda v: v.masked_fill_(v < 0, -1.0), lambda v: v.zero_().add_(2.0), lambda v: v.index_add_(a, torch.tensor([at]), torch.ones_like(v.narrow(a, 0, 1))))))  # fmt: skip


def _reduced(r: random.Random, x: Tensor) -> Callable[[Tensor], Tensor] | None:
    if not x.ndim or 0 in x.shape:
        return None
    a, keep = _axis(r, x), r.random() < 0.5
    c = r.choice((0, 1)) if x.shape[a] > 1 else 0
    return r.choice((
        lambda v: v.sum(a, keepdim=keep), lambda v: v.mean(a, keepdim=keep), lambda v: v.amax(a, keepdim=keep), lambda v: v.max(a, keepdim=keep).values,
        lambda v: v.std(a, correction=c, keepdim=keep), lambda v: v.var(a, correction=c), lambda v: v.norm(dim=a), lambda v: v.logsumexp(a),
        lambda v: v.cumsum(a), lambda v: v.argmax(a).to(v.dtype), lambda v: v.sort(a, descending=keep).values, lambda v: v.topk(1, a).values,
        lambda v: v.prod(a), lambda v: torch.softmax(v, a), lambda v: torch.log_softmax(v, a), lambda v: F.normalize(v, dim=a), lambda v: v.min(a).indices.to(v.dtype),
        lambda v: v.sum(), lambda v: v.median(a).values, lambda v: torch.aminmax(v, dim=a).max, lambda v: (v > 0).any(a).to(v.dtype), lambda v: (v > 0).all(a).to(v.dtype),
        lambda v: torch.linalg.vector_norm(v, r3, dim=a), lambda v: v.logcumsumexp(a), lambda v: v.cummax(a).values, lambda v: F.glu(torch.cat([v, v], a), a),
    )) if (r3 := r.choice((1, 2, 3, float("inf")))) else None  # fmt: skip


def _pointwise(r: random.Random, x: Tensor) -> Callable[[Tensor], Tensor] | None:
    s = r.choice((0.5, 2.0, -1.0, 3.0))
    return r.choice((
        torch.tanh, F.gelu, lambda v: F.gelu(v, approximate="tanh"), F.silu, F.elu, lambda v: F.leaky_relu(v, 0.1), F.hardswish, F.hardsigmoid, F.softplus,
        lambda v: v.clamp(-0.5, 1.0), lambda v: v.abs().sqrt(), lambda v: v.abs().add(0.5).log(), lambda v: v.abs().add(0.5).pow(s), lambda v: v.pow(3), lambda v: v.pow(2).neg(),
        lambda v: torch.where(v > 0, v, s), lambda v: v.masked_fill(v > 0.5, s), lambda v: v.floor(), lambda v: v.round(), lambda v: v.trunc(), lambda v: v.remainder(s),
        lambda v: v.fmod(s), lambda v: v.sign(), lambda v: torch.lerp(v, v * 2, 0.3), lambda v: torch.addcmul(v, v, v, value=s), lambda v: torch.addcdiv(v, v, v.abs() + 1),
        lambda v: v.to(torch.float64).mul(s).to(torch.float32), lambda v: v.to(torch.int64).to(torch.float32), lambda v: v.logical_not().to(torch.float32), F.mish, F.selu, F.celu,
        lambda v: F.hardtanh(v, -0.3, 0.7), F.softsign, F.logsigmoid, F.tanhshrink, lambda v: F.threshold(v, 0.2, s), lambda v: F.softshrink(v, 0.2), lambda v: F.hardshrink(v, 0.2),
        lambda v: torch.atan2(v, v + s), lambda v: v.sub(s, alpha=2), lambda v: torch.rsub(v, s, alpha=2), lambda v: v.nan_to_num(), lambda v: v.div(s, rounding_mode="floor"),
        lambda v: v.div(s, rounding_mode="trunc"), lambda v: v // s, lambda v: torch.heaviside(v, v * 0 + 0.5), lambda v: v.erf(), lambda v: v.expm1().clamp(max=3), F.relu6,
    ))  # fmt: skip


def _layers(r: random.Random, x: Tensor) -> Callable[[Tensor], Tensor] | None:
    if x.ndim < 2 or 0 in x.shape:
        return None
    d = x.shape[-1]
    w = torch.randn(r.randint(1, 4), d)
    options: list[Callable[[Tensor], Tensor]] = [
        lambda v: F.linear(v, w), lambda v: v @ w.T, lambda v: F.layer_norm(v, (d,)), lambda v: F.layer_norm(v, tuple(v.shape[1:])), lambda v: F.rms_norm(v, (d,)),
        lambda v: torch.einsum("...a,ba->...b", v, w), lambda v: v @ v.mT, lambda v: torch.tril(v, r1), lambda v: torch.triu(v, r1), lambda v: F.pad(v, pads),
        lambda v: F.pad(v, (1, 2), value=0.5), lambda v: F.pad(v, (-1, 1)) if d > 1 else v,
    ]  # fmt: skip
    r1 = r.randint(-2, 2)
    pads = tuple(r.randint(0, 2) for _ in range(4))
    if x.ndim in (3, 4, 5):
        n, c, size = x.ndim - 2, x.shape[1], x.shape[2:]
        kernel = tuple(r.randint(1, min(3, s)) for s in size)
        stride, dilation = r.choice((1, 2)), 1
        pad = tuple(k // 2 for k in kernel)
        conv = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
        turned = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
        groups = r.choice([g for g in (1, 1, 2, 3, c) if c % g == 0])
        f = torch.randn(groups * 2, c // groups, *kernel)
        h = torch.randn(c, 2, *kernel)
        up = r.randint(1, 2)
        ceil, counted = r.random() < 0.5, r.random() < 0.5
        most = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
        mean = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1]
        to = tuple(r.randint(1, 4) for _ in size)
        adaptive = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[n - 1]
        largest = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[n - 1]
        smooth = ("linear", "bilinear", "trilinear")[n - 1]
        options += [
            lambda v: conv(v, f, stride=stride, padding=pad, dilation=dilation, groups=groups), lambda v: turned(v, h, stride=up, padding=0, output_padding=up - 1),
            lambda v: most(v, kernel, stride, pad, ceil_mode=ceil), lambda v: mean(v, kernel, stride, pad, ceil, counted), lambda v: adaptive(v, to), lambda v: largest(v, to),
            lambda v: F.interpolate(v, scale_factor=2, mode="nearest"), lambda v: F.interpolate(v, size=to, mode="nearest"), lambda v: F.interpolate(v, size=to, mode="nearest-exact"),
            lambda v: F.interpolate(v, size=to, mode=smooth, align_corners=counted), lambda v: F.group_norm(v, groups), lambda v: F.instance_norm(v) if v[0, 0].numel() > 1 else v,
            lambda v: F.batch_norm(v, torch.ones(c), torch.ones(c) * 2), lambda v: F.lp_pool1d(v, 2, 1) if n == 1 else v,
        ]  # fmt: skip
    if x.ndim == 4:
        causal = r.random() < 0.5
        options += [lambda v: F.scaled_dot_product_attention(v, v, v, is_causal=causal), lambda v: F.unfold(v, 1), lambda v: F.pixel_unshuffle(v, 1),
                    lambda v: F.channel_shuffle(v, 1), lambda v: F.scaled_dot_product_attention(v, v * 2, v + 1, attn_mask=torch.ones(v.shape[2], v.shape[2]).tril().bool())]  # fmt: skip
    return r.choice(options)


STEPS: tuple[Step, ...] = (_views, _views, _inplace, _inplace, _reduced, _pointwise, _pointwise, _layers, _layers)


class Grown(torch.nn.Module):
    """A chain of random steps, some of which read earlier values as well; several results."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__()
        r = random.Random(seed)
        torch.manual_seed(seed)
        self.given = torch.randn([r.randint(1, 5) for _ in range(r.choice((1, 2, 3, 3, 4, 4)))])
        self.chain: list[tuple[Callable[[Tensor], Tensor], int]] = []
        values = [self.given]
        for _ in range(r.randint(1, steps)):
            at = len(values) - 1 if r.random() < 0.8 else r.randrange(len(values))
            try:
                f = r.choice(STEPS)(r, values[at])
                if f is None:
                    continue
                y = f(values[at])
            except (RuntimeError, IndexError, ValueError, TypeError):
                continue
            if (
                y.numel() <= LARGEST
                and y.ndim <= 5
                and y.dtype == torch.float32
                and torch.isfinite(y).all()
                and (not y.numel() or y.abs().max() < 1e3)
            ):
                self.chain.append((f, at))
                values.append(y)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The last value and one before it."""
        values = [x]
        for f, at in self.chain:
            values.append(f(values[at]))
        return values[-1], values[len(values) // 2]


def tried(seed: int, steps: int) -> str:
    """'' where export and eager agree; "-" with a reason where nothing was compared."""
    made = Grown(seed, steps)
    if not made.chain:
        return "- empty"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = [w.numpy() for w in made(made.given.clone())]
        try:
            graph = load_module(made, (made.given,))
        except UnsupportedError as error:
            return f"- unsupported: {error.message[:80]}"
        except TensorGraphsError as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:
            return f"raised {type(error).__name__}: {str(error)[:600]}"
    x = made.given.numpy()
    with np.errstate(all="ignore"):
        found = evaluate(graph, {str(graph.inputs[0].attr("name")): x}) if graph.inputs else evaluate(graph, {})
        near = evaluate(graph, {str(graph.inputs[0].attr("name")): x * np.float32(1 + 2e-6)}) if graph.inputs else found
    for k, (f, w, m) in enumerate(zip(found, want, near)):
        if f.shape != w.shape or f.dtype != w.dtype:
            return f"output {k}: {f.dtype}{f.shape} for {w.dtype}{w.shape}"
        apart = np.abs(f - w) > 1e-4 * max(1.0, float(np.abs(w).max(initial=0.0))) + 20 * np.abs(m - f)
        if apart.any() and apart.mean() > 0.02:
            return f"output {k} differs: {f.ravel()[:6]} for {w.ravel()[:6]}"
    return ""


def code(seed: int, steps: int) -> str:
    """The lines that the chain's steps come from."""
    import inspect

    made = Grown(seed, steps)
    return "\n".join(
        f"    {getattr(f, '__name__', f)} {inspect.getsource(f).strip()[:300] if hasattr(f, '__code__') else ''} (of value {at})"
        for f, at in made.chain
    )


def main() -> None:
    """Run the command line that the module describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    end, seed, counts = time.monotonic() + given.seconds, given.seed, Counter[str]()
    while time.monotonic() < end:
        message = tried(seed, given.steps)
        counts["agree" if not message else message[:100] if message.startswith("-") else "fail"] += 1
        if message and not message.startswith("-"):
            print(f"=== seed {seed}: {message}\n{code(seed, given.steps)}", flush=True)
        seed += 1
    print(dict(counts))


if __name__ == "__main__":
    main()
