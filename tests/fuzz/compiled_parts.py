"""Parts of random modules for `compiled_modules`: each changes a float matrix of `WIDTH` columns, and many have effects
that a compiled module must repeat: state, written arguments, shared memory, random numbers, graph breaks, gradients.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor
WIDTH = 6


@dataclass
class Chosen:
    """Arguments of a call that are no tensors; `other`: further tensors by name."""

    count: int
    scale: float
    flag: bool
    name: str
    maybe: float | None
    other: dict[str, Tensor]


class Part(nn.Module):
    """A function of itself, the matrix, the results so far and the call's other arguments; with the modules, parameters
    and buffers in `own`."""

    def __init__(self, function: Callable[..., Tensor], title: str = "", **own: Any) -> None:
        super().__init__()
        self.function, self.title = function, title
        for name, value in own.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor, results: list[Any], c: Chosen) -> Tensor:
        """The changed matrix."""
        return self.function(self, x, results, c)


class Doubled(torch.autograd.Function):
    """A function with a gradient of its own, which is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * ctx.scale * 3 + torch.tanh(x), None


class Rounded(torch.autograd.Function):
    """Rounding whose gradient passes through; marks its second result as not differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        y, places = torch.round(x * 4) / 4, (x > 0).long()
        ctx.mark_non_differentiable(places)
        return y, places

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:
        return g


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * 0.5)


def hooked() -> nn.Module:
    """A layer with hooks that change operands and results."""
    layer = nn.Linear(WIDTH, WIDTH)
    layer.register_forward_pre_hook(lambda m, args: (args[0] * 1.5,))
    layer.register_forward_hook(lambda m, args, y: y + args[0])
    return layer


def leaky(x: Tensor) -> Tensor:
    return F.leaky_relu(x, 0.1)


# ---------------------------------------------------------------- state
def counted(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    m.calls += 1
    return x + m.calls


def counted_in_python(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    m.steps = (m.steps + 1) % 3
    return x * (m.steps + 1)


def averaged(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    if m.training and x.shape[0]:
        with torch.no_grad():
            m.mean.lerp_(x.mean(0).to(m.mean.dtype), 0.25)
    return x - m.mean


def averaged_anew(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    m.mean = 0.5 * m.mean + 0.5 * x.detach().sum(0)
    return x - 0.1 * m.mean


def cached(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    row = x.detach().mean(0) if x.shape[0] else m.cache[0]
    m.cache[m.at] = row.to(m.cache.dtype)
    m.at.add_(1).remainder_(4)
    out.append(m.cache[: c.count % 4 + 1])
    return x + m.cache.mean(0)


def cached_at(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    with torch.no_grad():
        m.cache.index_copy_(0, c.other["places"][:1] % 4, x[:1].sum(0, keepdim=True).to(m.cache.dtype))
        m.cache.narrow(0, 1, 2).mul_(0.5)
    return x + m.cache[c.count % 4]


def listed(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    m.history.append(x.detach().sum())
    if len(m.history) > 2:
        m.history.pop(0)
    return x + torch.stack(m.history).sum()


def kept(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    m.last = x.detach()[:2] * 2
    return torch.tanh(x)


def shown_buffer(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    out += [m.table, m.table.view(-1)[1:4], m.table.T]
    m.table += 1
    return x + m.table[0]


def shown_weight(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    out += [m.w, m.w.T, m.w.detach()]
    return x @ m.w


# ---------------------------------------------------------------- arguments, memory
def written(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    z = c.other["z"]
    z.mul_(2).add_(1)
    return x + z.sum()


def written_view(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    z = c.other["z"]
    z.T[1:].view(-1)[:2].neg_() if z.T[1:].is_contiguous() else z[..., :1].neg_()
    z[0] = 3.0
    out.append(z[1:])
    return x * z[:1].mean()


def grown(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    z = c.other["z"]
    z.unsqueeze_(0).squeeze_(0).t_().t_()
    return x + z.size(0)


def viewed(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = x * 2
    flat = y.reshape(-1)
    out += [flat, y.T, y.T[1:, :], y[:, ::2], y.unsqueeze(1).expand(-1, 2, -1), y]
    return y + 1


def written_result(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = x.clone()
    v = y[:, 1:3]
    v.mul_(3)
    y.T[0].add_(1)
    out.append(v)
    return y


def given_back(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    z = c.other["z"]
    out += [z, z, z.detach(), z[1:], z.view(-1)]
    return x


def unchanged(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    z = c.other["z"]
    out += [
        z.contiguous(),
        z.to(z.dtype),
        z.float(),
        F.dropout(z, 0.5, False),
        z.view_as(z),
        z.expand_as(z),
        z.reshape(z.shape),
        z + 0,
    ]
    return x.contiguous() if c.flag else x.to(x.dtype)


def swapped(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    if c.flag:
        old = m.a.clone()
        m.a.copy_(m.b)
        m.b.copy_(old)
    else:
        m.a.copy_(m.b.flip(0))
        m.b.add_(1)
    m.a, m.b = m.b, m.a
    return x + m.a


def outside(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    places = c.other["places"] - c.count
    out += [F.embedding(places, m.w), m.w[places], m.w.T.gather(1, places.expand(WIDTH, -1))]
    return x + out[-2].sum(0)


def expanded(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = m.row.expand(max(x.shape[0], 1), -1)
    out += [y, y.contiguous()]
    return x + y[:1]


def chosen(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = x * c.scale + c.count
    if c.flag:
        y = torch.sigmoid(y)
    if c.maybe is not None:
        y = y + c.maybe
    out += [c.count, c.name, None, {"scale": c.scale, c.name: y.sum()}]
    return F.gelu(y) if c.name == "gelu" else leaky(y)


def sized(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    n = x.shape[0]
    out += [n, (n * 2 + 1, x.numel()), torch.full((), n), torch.arange(n), x.new_zeros(n, 0)]
    return x * n / (n + 1)


def sliced(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    k = c.count % (x.shape[0] + 1)
    out += [x[:k], x[k:].sum(0)]
    return torch.cat([x[k:], x[:k]])


# ---------------------------------------------------------------- control flow, modes
def broken(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = torch.sin(x) * 2
    row = y[:1]
    torch._dynamo.graph_break()
    y.add_(1)
    out.append(row)
    return y * row


def decided(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    if x.sum() > 0:
        return x.exp().clamp(max=5)
    return x - 1


def read(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    k = int(c.other["places"][0].item()) % 3 + 1
    out.append(k)
    return x.repeat(1, k)[:, :WIDTH] + k


def raising(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    m.calls += 1
    if c.count == 3:
        raise ValueError(f"refused {c.count}")
    return x + m.calls


def caught(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    try:
        if c.flag:
            raise KeyError(c.name)
        return x * 2
    except KeyError as error:
        out.append(error.args[0])
        return x * 3


def autocast(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = F.relu(m.layer(x))
        with torch.autocast("cpu", enabled=False):
            z = m.layer(x)
    out.append(y)
    return z + y.float()


def without_gradients(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    with torch.no_grad():
        y = torch.tanh(m.layer(x))
    out.append(y)
    with torch.enable_grad():
        z = m.layer(x).cos()
    out.append(z)
    return x + y


def inference(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    with torch.inference_mode():
        y = (x * 2).sum(0)
    return x + y.clone()


def detached(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = x.detach() * 2
    out += [y, x.detach()]
    return x * y


def needs_gradients(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    out += [torch.is_grad_enabled(), x.requires_grad, m.training]
    return x * 2


# ---------------------------------------------------------------- gradients
def custom(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y, places = Rounded.apply(Doubled.apply(x, c.scale))
    out.append(places)
    return y


def checkpointed(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    return checkpoint(lambda v: torch.tanh(m.layer(F.dropout(v, 0.3, m.training))), x, use_reentrant=False)


def inner_gradient(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    g = torch.func.grad(lambda v: (v.sin() * v).sum())(x)
    return x + g


def mapped(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    return torch.vmap(lambda row: torch.outer(row, row).sum(0) - row)(x)


def jacobian(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    j = torch.func.jacrev(lambda v: torch.tanh(v * m.row))(m.row.detach() * 1.5)
    return x @ j


def called_with(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    own = {k: v * 1.5 for k, v in m.layer.named_parameters()}
    return torch.func.functional_call(m.layer, own, (x,))


def filled_gradient(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda g: g * 2)
    return x * 2


def stepped(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    with torch.no_grad():
        m.w.sub_(0.1 * m.w.sign())
    return x + m.w.detach()


# ---------------------------------------------------------------- random numbers
def noisy(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = x + 0.1 * torch.randn_like(x)
    return y * torch.rand(x.shape[0], 1) if c.flag else y + torch.randint(0, 5, (WIDTH,))


def shuffled(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = x[torch.randperm(x.shape[0])]
    out.append(torch.bernoulli(torch.sigmoid(y)))
    return F.dropout(y, 0.5, True) + torch.empty(WIDTH).uniform_(-1, 1)


# ---------------------------------------------------------------- dtypes
def integers(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    q = (x.nan_to_num(0, 9, -9).clamp(-9, 9) * 8).to(torch.int32)
    out += [q, q > 3, (q // 3) % 5, q.to(torch.uint8) >> 1, (q > 3).sum(), q.bitwise_xor(5), ~(q > 0)]
    return q.to(x.dtype) / 8


def looked_up(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    places = c.other["places"] % 5
    e = F.embedding(places, m.w, padding_idx=1)
    out += [places, e, F.one_hot(places, 5), torch.bincount(places, minlength=5)]
    return x + e.sum(0)


def sorted_(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    values, at = x.sort(dim=-1, stable=True, descending=c.flag)
    out += [at, x.argmax(-1), x.topk(2, -1).values, x.cumsum(-1), x.max(-1)]
    return values


def spectrum(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = torch.fft.rfft(x.float(), dim=-1)
    out += [y, y.abs() if c.flag else y.conj(), torch.view_as_real(y)]
    return torch.fft.irfft(y * 2, n=WIDTH, dim=-1).to(x.dtype)


def turned(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    z = torch.view_as_complex(x.float().reshape(-1, WIDTH // 2, 2).contiguous())
    y = z * torch.polar(torch.ones(3), m.angle) + m.z
    out += [y, y.real, y.imag, y.conj(), y.angle() if c.flag else y.mH]
    return torch.view_as_real(y).flatten(1).to(x.dtype)


def complex_state(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    m.state.mul_(1j)
    m.state[0] += x.detach().float().sum()
    out += [m.state.real, m.state[1:], m.state.abs()]
    return x + m.state.imag.sum()


def special(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = x.log() if c.flag else x / (x - x.round())
    out += [y, y.isnan(), torch.where(y.isfinite(), y, -1.0), y.amax() if y.numel() else None]
    return x + torch.nan_to_num(y, 1.0, 2.0, 3.0)


def doubles(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = x.double() @ m.w.double()
    out += [y, y.half(), y.to(torch.bfloat16), y[0, 0] if y.shape[0] else None]
    return y.to(x.dtype)


# ---------------------------------------------------------------- quantized
def quantized_fake(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    y = torch.fake_quantize_per_tensor_affine(x.float(), 0.05, 3, -128, 127)
    w = torch.fake_quantize_per_channel_affine(m.w.float(), m.scales, m.zeros, c.count % 2, -8, 7)
    return (y @ w).to(x.dtype)


def quantized_tensor(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    q = torch.quantize_per_tensor(x.float(), 0.1, 10, torch.quint8 if c.flag else torch.qint8)
    out.append(q.int_repr())
    return q.dequantize().to(x.dtype)


def quantized_product(m: Any, x: Tensor, out: list[Any], c: Chosen) -> Tensor:
    scale = x.float().abs().amax().clamp(min=1e-3) / 127 if x.numel() else torch.ones(())
    a = torch.clamp(torch.round(x.float() / scale), -128, 127).to(torch.int8)
    y = torch._int_mm(a, m.codes)
    out += [y, a]
    return (y * scale * 0.05).to(x.dtype)


def modules(r: random.Random) -> dict[str, Callable[[], nn.Module]]:
    """Whole modules whose only operand is the matrix."""
    ao = torch.ao.quantization
    return {
        "linear": lambda: nn.Linear(WIDTH, WIDTH), "batch norm": lambda: nn.BatchNorm1d(WIDTH, momentum=r.choice((0.1, None))),
        "layer norm": lambda: nn.LayerNorm(WIDTH, elementwise_affine=r.random() < 0.7), "dropout": lambda: nn.Dropout(r.choice((0.2, 0.5, 1.0))),
        "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), "hooks": hooked,
        "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
        "rms norm": lambda: nn.RMSNorm(WIDTH), "prelu": lambda: nn.PReLU(), "rrelu": lambda: nn.RReLU(),
        "fake quantize": lambda: ao.FakeQuantize(observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255),
        "qat linear": lambda: torch.ao.nn.qat.Linear(WIDTH, WIDTH, qconfig=ao.get_default_qat_qconfig("x86")),
        "dynamic": lambda: ao.quantize_dynamic(nn.Sequential(nn.Linear(WIDTH, WIDTH)), {nn.Linear}),
        "observer": lambda: ao.MinMaxObserver(), "instance": lambda: nn.InstanceNorm1d(WIDTH, track_running_stats=False),
        "mlp": lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.SiLU(), nn.Linear(8, WIDTH), nn.Dropout(0.1)),
    }  # fmt: skip


def parts(r: random.Random) -> dict[str, Callable[[], nn.Module]]:
    """All parts by name."""
    n, linear, long = WIDTH, lambda: nn.Linear(WIDTH, WIDTH), torch.long
    grid = lambda: torch.randint(-2, 3, (n, n)).float()
    made: dict[str, Callable[[], nn.Module]] = {
        "counted": lambda: Part(counted, calls=torch.zeros((), dtype=r.choice((long, torch.float32)))),
        "counted in Python": lambda: Part(counted_in_python, steps=0), "averaged": lambda: Part(averaged, mean=torch.zeros(n)),
        "averaged anew": lambda: Part(averaged_anew, mean=torch.zeros(n)), "cached": lambda: Part(cached, cache=torch.zeros(4, n), at=torch.zeros((), dtype=long)),
        "cached at": lambda: Part(cached_at, cache=torch.zeros(4, n)), "listed": lambda: Part(listed, history=[]), "kept": lambda: Part(kept, last=None),
        "shown buffer": lambda: Part(shown_buffer, table=torch.zeros(2, n)), "shown weight": lambda: Part(shown_weight, w=weight(n, n)),
        "expanded": lambda: Part(expanded, row=r.choice((weight(n), torch.randn(n)))), "raising": lambda: Part(raising, calls=torch.zeros(())),
        "autocast": lambda: Part(autocast, layer=linear()), "no_grad": lambda: Part(without_gradients, layer=linear()),
        "checkpointed": lambda: Part(checkpointed, layer=linear()), "jacobian": lambda: Part(jacobian, row=weight(n)),
        "functional_call": lambda: Part(called_with, layer=linear()), "stepped": lambda: Part(stepped, w=weight(n)),
        "looked up": lambda: Part(looked_up, w=weight(5, n)), "turned": lambda: Part(turned, angle=weight(3), z=nn.Parameter(torch.randn(3, dtype=torch.complex64))),
        "swapped": lambda: Part(swapped, a=torch.arange(1.0 * n), b=-torch.ones(n)), "outside": lambda: Part(outside, w=weight(7, n)),
        "complex state": lambda: Part(complex_state, state=torch.zeros(3, dtype=torch.complex64)), "doubles": lambda: Part(doubles, w=weight(n, n)),
        "fake": lambda: Part(quantized_fake, w=weight(n, n), scales=torch.full((n,), 0.1), zeros=torch.zeros(n, dtype=torch.int32)),
        "int_mm": lambda: Part(quantized_product, codes=torch.randint(-128, 128, (n, n), dtype=torch.int8)), "grid": lambda: Part(shown_weight, w=nn.Parameter(grid())),
    }  # fmt: skip
    for plain in (written, written_view, grown, viewed, written_result, given_back, chosen, sized, sliced, broken, decided, read,
                  caught, inference, detached, needs_gradients, unchanged, custom, inner_gradient, mapped, filled_gradient, noisy, shuffled,
                  integers, sorted_, spectrum, special, quantized_tensor):  # fmt: skip
        made[plain.__name__] = lambda f=plain: Part(f)
    for name, module in modules(r).items():
        made[name] = lambda f=module: Part(lambda m, x, out, c: m.inner(x), inner=f())
    return made
