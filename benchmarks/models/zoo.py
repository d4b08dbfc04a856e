"""Builds graphs of well-known architectures at any size with random weights, for benchmarks and tests.

Weights are lazy and scaled so that activations stay near 1. Folders of language models are written
by models/random_checkpoints.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ir.weight_data import Data
from tensor_graphs.egraph.types.dims import Dim
from tensor_graphs.models.common.random_weights import RandomArray


class Net:
    """Builds the layers of a test model and creates their parameters by name: random, of `dtype`, drawn from `seed`."""

    def __init__(self, dtype: str = "float32", seed: int = 0) -> None:
        self.dtype, self.seed, self.params = dtype, seed, dict[str, Data]()

    def param(self, name: str, shape: Sequence[int], scale: float, mean: float = 0.0) -> Tensor:
        """Return a parameter of normal random numbers of a mean and standard deviation (`scale`).

        Equal names give the same parameter.
        """
        self.params[name] = RandomArray(tuple(shape), self.dtype, scale, mean, self.seed, name)
        return t.param(name, shape, self.dtype)

    def dense(self, name: str, x: Tensor, outputs: int, *, bias: bool = True, gain: float = 1.0) -> Tensor:
        """Linear layer x[..., inputs] @ w[inputs, outputs] (+ b); `name` is the prefix of its parameters.

        `gain`: factor on the scale of its weights, which is 1 / sqrt(inputs).
        """
        inputs = _int(x.shape[-1])
        w = self.param(f"{name}.weight", (inputs, outputs), gain / sqrt(inputs))
        return c.linear(x, w, self.param(f"{name}.bias", (outputs,), 0.02)) if bias else t.matmul(x, w)

    def conv(
        self, name: str, x: Tensor, outputs: int, size: int, *, stride: int = 1, bias: bool = False, gain: float = 1.0
    ) -> Tensor:
        """2-D convolution of x[N, C, H, W] with "same" padding (for odd window sizes) to [N, outputs, ...]; `name` is
        the prefix of its parameters.

        `size`: window size in both directions. `gain`: factor on the scale of its weights.
        """
        inputs = _int(x.shape[1])
        w = self.param(f"{name}.weight", (outputs, inputs, size, size), gain / sqrt(inputs * size * size))
        b = self.param(f"{name}.bias", (outputs,), 0.02) if bias else None
        return t.conv(x, w, b, strides=(stride,) * 2, pads=((size - 1) // 2,) * 4)

    def affine(self, name: str, features: int, gain: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the (gain, shift) parameters [features] of a norm; `gain`: mean of the gains."""
        return self.param(f"{name}.weight", (features,), 0.05 * gain, gain), self.param(
            f"{name}.bias", (features,), 0.02
        )

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        """Layer normalization over the last axis."""
        return c.layer_norm(x, *self.affine(name, _int(x.shape[-1])), eps=1e-5)

    def group_norm(self, name: str, x: Tensor, groups: int = 8) -> Tensor:
        """Group normalization over groups of channels."""
        return c.group_norm(x, *self.affine(name, _int(x.shape[1])), groups=groups, eps=1e-5)

    def batch_norm(self, name: str, x: Tensor, gain: float = 1.0) -> Tensor:
        """Batch normalization of x[N, C, H, W] with running statistics; `gain`: mean of the gains."""
        features = _int(x.shape[1])
        mean = self.param(f"{name}.running_mean", (features,), 0.05)
        var = self.param(f"{name}.running_var", (features,), 0.05, 1.0)
        return c.batch_norm(x, *self.affine(name, features, gain), mean, var, eps=1e-5)

    def attention(self, name: str, x: Tensor, heads: int, *, causal: bool = False, gain: float = 1.0) -> Tensor:
        """Self-attention over x[B, T, D] with separate query, key and value projections.

        `gain`: factor on the scale of the output projection's weights, which is 1 / sqrt(D).
        """
        batch, length, width = x.shape
        each = _int(width) // heads
        q, k, v = (
            t.permute(t.reshape(self.dense(f"{name}.{n}", x, _int(width)), (batch, length, heads, each)), (0, 2, 1, 3))
            for n in ("query", "key", "value")
        )
        out = t.permute(c.attention(q, k, v, scale=1 / sqrt(each), causal=causal), (0, 2, 1, 3))
        return self.dense(f"{name}.out", t.reshape(out, x.shape), _int(width), gain=gain)

    def graph(self, outputs: Tensor, name: str) -> Graph:
        """Return the graph of the outputs with all parameters."""
        return Graph.of(outputs, params=self.params, name=name)


def _int(value: Dim) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a feature size is free: {value}")
    return value


def transformer(
    layers: int = 24, *, hidden: int = 1024, heads: int = 16, batch: Dim = 1, tokens: Dim = 128, causal: bool = True,
    dtype: str = "float32", seed: int = 0,
) -> Graph:  # fmt: skip
    """Return a stack of pre-norm transformer layers over x[batch, tokens, hidden], with a final norm."""
    net, small = Net(dtype, seed), 1 / sqrt(2 * layers)
    x = t.input("x", (batch, tokens, hidden), dtype)
    for i in range(layers):
        x = x + net.attention(f"{i}.attn", net.layer_norm(f"{i}.ln_1", x), heads, causal=causal, gain=small)
        inside = c.gelu(net.dense(f"{i}.up", net.layer_norm(f"{i}.ln_2", x), 4 * hidden))
        x = x + net.dense(f"{i}.down", inside, hidden, gain=small)
    return net.graph(net.layer_norm("ln_f", x), f"transformer{layers}")


def resnet50(
    *, batch: Dim = 1, image: int = 224, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3), classes: int = 1000,
    dtype: str = "float32", seed: int = 0,
) -> Graph:  # fmt: skip
    """Return ResNet-50 (He et al. 2016, stride in the 3×3 convolution) with inference batch norms."""
    net = Net(dtype, seed)
    x = t.input("image", (batch, 3, image, image), dtype)
    x = c.relu(net.batch_norm("bn", net.conv("stem", x, width, 7, stride=2)))
    x = c.max_pool(x, kernel=(3, 3), strides=(2, 2), pads=(1,) * 4, dilations=(1, 1))
    for stage, count in enumerate(blocks):
        for i in range(count):
            at, features = f"{stage}.{i}", width << stage
            x = _bottleneck(net, at, x, features, stride=2 if stage and not i else 1, project=not i)
    return net.graph(net.dense("head", t.mean(x, (2, 3)), classes), "resnet50")


def _bottleneck(net: Net, at: str, x: Tensor, features: int, *, stride: int, project: bool) -> Tensor:
    y = c.relu(net.batch_norm(f"{at}.bn1", net.conv(f"{at}.conv1", x, features, 1)))
    y = c.relu(net.batch_norm(f"{at}.bn2", net.conv(f"{at}.conv2", y, features, 3, stride=stride, gain=sqrt(2))))
    y = net.batch_norm(f"{at}.bn3", net.conv(f"{at}.conv3", y, 4 * features, 1, gain=sqrt(2)), gain=0.4)
    if project:
        x = net.batch_norm(f"{at}.bn", net.conv(f"{at}.project", x, 4 * features, 1, stride=stride))
    return c.relu(x + y)


def unet(
    *, batch: Dim = 1, image: int = 32, channels: int = 32, levels: int = 2, colours: int = 3, dtype: str = "float32",
    seed: int = 0,
) -> Graph:  # fmt: skip
    """Return a small U-Net of `levels` levels for images [batch, colours, image, image].

    Residual blocks, strided convolutions down, attention at the bottom, nearest-neighbour upsampling.
    """
    net = Net(dtype, seed)
    x = net.conv("first", t.input("image", (batch, colours, image, image), dtype), channels, 3, bias=True)
    kept: list[Tensor] = []
    for level in range(levels):
        x = _residual(net, f"down{level}", x, channels << level)
        kept.append(x)
        x = net.conv(f"down{level}.smaller", x, channels << level, 3, stride=2, bias=True)
    x = _residual(net, "middle", x, channels << levels)
    flat = t.swapaxes(t.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3])), 1, 2)
    flat = flat + net.attention("middle.attn", net.layer_norm("middle.ln", flat), 4, gain=0.5)
    x = t.reshape(t.swapaxes(flat, 1, 2), x.shape)
    for level in reversed(range(levels)):
        x = _residual(net, f"up{level}", t.concat([upsampled(x), kept[level]], 1), channels << level)
    out = net.conv("last", c.silu(net.group_norm("last.gn", x)), colours, 3, bias=True)
    return net.graph(out, "unet")


def upsampled(x: Tensor) -> Tensor:
    """Image x[N, C, H, W] upsampled by 2 in both directions (nearest neighbour)."""
    n, channels, high, wide = x.shape
    repeated = t.broadcast_to(t.reshape(x, (n, channels, high, 1, wide, 1)), (n, channels, high, 2, wide, 2))
    return t.reshape(repeated, (n, channels, high * 2, wide * 2))


def _residual(net: Net, at: str, x: Tensor, features: int) -> Tensor:
    y = net.conv(f"{at}.conv1", c.silu(net.group_norm(f"{at}.gn1", x)), features, 3, bias=True)
    y = net.conv(f"{at}.conv2", c.silu(net.group_norm(f"{at}.gn2", y)), features, 3, bias=True)
    return (x if x.shape[1] == features else net.conv(f"{at}.skip", x, features, 1, bias=True)) + y


def dit_block(
    *, blocks: int = 1, batch: Dim = 1, tokens: Dim = 256, hidden: int = 1152, heads: int = 16,
    dtype: str = "float32", seed: int = 0,
) -> Graph:  # fmt: skip
    """Return blocks of DiT-XL/2 (Peebles & Xie 2023): norms are shifted, scaled and gated by a conditioning vector."""
    net = Net(dtype, seed)
    x, cond = t.input("x", (batch, tokens, hidden), dtype), t.input("condition", (batch, hidden), dtype)
    plain: Callable[[Tensor], Tensor] = lambda v: c.layer_norm(
        v, t.ones((hidden,), dtype), t.zeros((hidden,), dtype), eps=1e-6
    )
    for i in range(blocks):
        six = t.reshape(net.dense(f"{i}.ada", c.silu(cond), 6 * hidden), (batch, 1, 6 * hidden))
        shift1, scale1, gate1, shift2, scale2, gate2 = t.split(six, (hidden,) * 6, 2)
        x = x + gate1 * net.attention(f"{i}.attn", plain(x) * (scale1 + 1.0) + shift1, heads)
        inside = c.gelu_tanh(net.dense(f"{i}.up", plain(x) * (scale2 + 1.0) + shift2, 4 * hidden))
        x = x + gate2 * net.dense(f"{i}.down", inside, hidden)
    return net.graph(x, "dit_block")


def nasrnn(
    *, steps: int = 5, hidden: int = 512, batch: Dim = 1, shared: bool = False, dtype: str = "float32", seed: int = 0
) -> Graph:
    """Return the NAS recurrent cell (Zoph & Le 2017), unrolled over `steps`. Steps share weights only if `shared`."""
    net = Net(dtype, seed)
    h = t.broadcast_to(net.param("h0", (1, hidden), 1.0), (batch, hidden))
    for step in range(steps):
        x = t.input(f"x{step}", (batch, hidden), dtype)
        at = "" if shared else f"{step}."
        g = [net.dense(f"{at}x{k}", x, hidden, bias=False) + net.dense(f"{at}h{k}", h, hidden, bias=False)
             for k in range(8)]  # fmt: skip
        a = c.relu(g[0]) + c.sigmoid(g[3])
        b = c.sigmoid(g[1]) + t.tanh(g[2])
        d = c.sigmoid(g[4]) * t.tanh(g[5])
        e = c.sigmoid(g[6]) * c.relu(g[7])
        h = t.tanh(t.tanh(c.sigmoid(b) + t.tanh(d)) * t.tanh(t.tanh(a) * t.tanh(e)))
    return net.graph(h, "nasrnn")


#: Graph builders by name, at their default sizes.
GRAPHS: Mapping[str, Callable[..., Graph]] = {
    "transformer": transformer, "resnet50": resnet50, "unet": unet, "dit_block": dit_block, "nasrnn": nasrnn,
}  # fmt: skip
