"""Architectures for `benchmarks.torch_compile.architectures`, written by hand: convolutional, recurrent, attention,
graph networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

F = nn.functional
Tensor = torch.Tensor


class Net(nn.Module):
    """Module of a function, which gets the module and the inputs, and of named submodules."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        """The function's result for this module and the inputs."""
        return self.function(self, *args)


def conv(
    a: int, b: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: type[nn.Module] = nn.ReLU
) -> nn.Module:
    """Convolution from `a` to `b` channels, batch norm, activation."""
    plain = nn.Conv2d(a, b, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(plain, nn.BatchNorm2d(b), act())


def residual(*layers: nn.Module) -> nn.Module:
    """Module that computes x + layers(x)."""
    return Net(lambda m, x: x + m.body(x), body=nn.Sequential(*layers))


def branches(*paths: nn.Module) -> nn.Module:
    """Module that concatenates the results of several paths by channel."""
    return Net(lambda m, x: torch.cat([p(x) for p in m.paths], 1), paths=nn.ModuleList(paths))


def head(channels: int) -> list[nn.Module]:
    """Layers of a classifier of 10 classes after a global mean."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def excite(channels: int) -> nn.Module:
    """Squeeze-and-excitation gate on channels."""
    gate = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 4, 1), nn.SiLU(), nn.Conv2d(4, channels, 1), nn.Sigmoid()
    )
    return Net(lambda m, x: x * m.gate(x), gate=gate)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of images."""

    def forward(self, x: Tensor) -> Tensor:
        """x[N, C, H, W] with the channels normed at each position."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def mobile(a: int, b: int, stride: int, act: type[nn.Module] = nn.ReLU6, se: bool = False) -> nn.Module:
    """Inverted bottleneck (MobileNet) from `a` to `b` channels; `se`: with squeeze and excitation."""
    gate = [excite(2 * a)] if se else []
    body = [
        conv(a, 2 * a, 1, act=act),
        conv(2 * a, 2 * a, 3, stride, 2 * a, act),
        *gate,
        nn.Conv2d(2 * a, b, 1, bias=False),
        nn.BatchNorm2d(b),
    ]
    return residual(*body) if stride == 1 and a == b else nn.Sequential(*body)


def convnext(width: int) -> nn.Module:
    """ConvNeXt block."""
    return residual(nn.Conv2d(width, width, 7, 1, 3, groups=width), LayerNorm2d(width), nn.Conv2d(width, 4 * width, 1), nn.GELU(),
                    nn.Conv2d(4 * width, width, 1))  # fmt: skip


def shuffle(m: Any, x: Tensor) -> Tensor:
    """ShuffleNet unit: one half is transformed, channels are interleaved."""
    kept, moved = x.chunk(2, 1)
    y = torch.cat([kept, m.body(moved)], 1)
    n, c, h, w = y.shape
    return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def dense(m: Any, x: Tensor) -> Tensor:
    """Densely connected layers: each reads the results of all before."""
    found = [x]
    for layer in m.layers:
        found.append(layer(torch.cat(found, 1)))
    return torch.cat(found, 1)


def fire(a: int, b: int) -> nn.Module:
    """SqueezeNet's fire module."""
    return nn.Sequential(
        nn.Conv2d(a, 4, 1), nn.ReLU(), branches(nn.Conv2d(4, b // 2, 1), nn.Conv2d(4, b // 2, 3, padding=1)), nn.ReLU()
    )


def unet(m: Any, x: Tensor) -> Tensor:
    """U-Net of two levels with skip connections."""
    a = m.down1(x)
    b = m.down2(F.max_pool2d(a, 2))
    c = m.middle(F.max_pool2d(b, 2))
    y = m.join2(torch.cat([m.up2(c), b], 1))
    return m.out(m.join1(torch.cat([F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False), a], 1)))


def diffusion(m: Any, x: Tensor, t: Tensor) -> Tensor:
    """A diffusion U-Net's residual block with time embedding, and self-attention over positions."""
    at = torch.exp(-torch.arange(8, device=x.device) * 0.5)[None] * t[:, None]
    time = m.time(torch.cat([at.sin(), at.cos()], 1))
    y = m.conv1(F.silu(m.norm1(x))) + time[:, :, None, None]
    y = x + m.conv2(F.silu(m.norm2(y)))
    n, c, h, w = y.shape
    q, k, v = (z.flatten(2).transpose(1, 2) for z in m.qkv(m.norm3(y)).chunk(3, 1))
    return y + m.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).view(n, c, h, w))


def windows(m: Any, x: Tensor) -> Tensor:
    """Swin-like layer: attention in shifted windows of 4 x 4."""
    n, h, w, c = x.shape
    y = torch.roll(m.norm1(x), (-2, -2), (1, 2)).view(n, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
    y = m.attention(y, y, y, need_weights=False)[0].view(n, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(n, h, w, c)
    x = x + torch.roll(y, (2, 2), (1, 2))
    return x + m.feed(m.norm2(x))


def maxvit(m: Any, x: Tensor) -> Tensor:
    """MaxViT-like block: inverted bottleneck, attention within blocks, attention over a grid."""
    x = m.conv(x)
    n, c, h, w = x.shape
    y = x.view(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
    y = m.block(y).view(n, h // 4, w // 4, 4, 4, c).permute(0, 3, 4, 1, 2, 5).reshape(-1, (h // 4) * (w // 4), c)
    return m.grid(y).view(n, 4, 4, h // 4, w // 4, c).permute(0, 5, 3, 1, 4, 2).reshape(n, c, h, w)


def mixer(m: Any, x: Tensor) -> Tensor:
    """MLP-Mixer block."""
    x = m.patches(x).flatten(2).transpose(1, 2)
    x = x + m.tokens(m.norm1(x).transpose(1, 2)).transpose(1, 2)
    return m.head((x + m.channels(m.norm2(x))).mean(1))


def tagger(m: Any, ids: Tensor) -> Tensor:
    """Class scores for each token of a sequence, by a recurrent layer."""
    return m.out(m.rnn(m.embed(ids))[0])


def graph_layers(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """Graph convolution with mean aggregation by scatter."""
    source, target = edges[0], edges[1]
    for layer in m.layers:
        sent = torch.zeros_like(x).index_add(0, target, x[source])
        count = torch.zeros(x.shape[0], device=x.device, dtype=x.dtype).scatter_add(
            0, target, torch.ones_like(target, dtype=x.dtype)
        )
        x = torch.relu(layer(torch.cat([x, sent / count.clamp(min=1)[:, None]], 1)))
    return m.out(x)


def graph_attention(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    """Graph attention: softmax over incoming edges by scatter_reduce."""
    source, target = edges[0], edges[1]
    y = m.value(x)
    score = F.leaky_relu(m.left(y)[source] + m.right(y)[target], 0.2).squeeze(1)
    top = torch.full((x.shape[0],), -1e9, device=x.device, dtype=x.dtype).scatter_reduce(0, target, score, "amax")
    weight = torch.exp(score - top[target])
    total = torch.zeros(x.shape[0], device=x.device, dtype=x.dtype).index_add(0, target, weight)
    return torch.zeros_like(y).index_add(0, target, y[source] * (weight / total[target])[:, None])


def variational(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Variational autoencoder with the mean as sample."""
    mean, spread = m.encode(x).chunk(2, -1)
    return m.decode(mean), mean, spread


def kolmogorov(m: Any, x: Tensor) -> Tensor:
    """Kolmogorov-Arnold layer with radial basis functions."""
    basis = torch.exp(-((x[..., None] - torch.linspace(-1, 1, 8, device=x.device, dtype=x.dtype)) ** 2) * 4)
    return m.mix(basis.flatten(1)) + m.base(F.silu(x))


def recommender(m: Any, ids: Tensor, x: Tensor) -> Tensor:
    """DLRM-like recommender: embeddings, dot products of all pairs, MLP."""
    found = torch.cat([m.table(ids), m.bottom(x)[:, None]], 1)
    pairs = found @ found.transpose(1, 2)
    rows, columns = torch.tril_indices(found.shape[1], found.shape[1], -1)
    return torch.sigmoid(m.top(torch.cat([x, pairs[:, rows, columns]], 1)))


def inputs(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    """Maker of the operands: one random tensor of this shape."""
    return lambda: (torch.randn(shape),)


def ids(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    """Maker of the operands: one tensor of random token ids."""
    return lambda: (torch.randint(0, 50, shape),)


def graph(nodes: int = 12, edges: int = 40) -> Callable[[], tuple[Tensor, ...]]:
    """Maker of the operands: features of nodes, and pairs of nodes (edges)."""
    return lambda: (torch.randn(nodes, 16), torch.randint(0, nodes, (2, edges)))


Make = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]


def rnn(kind: type[nn.Module], **options: Any) -> Make:
    """Maker of a tagger with a recurrent layer, and of its operands."""
    wide = 2 if options.get("bidirectional") else 1
    return (
        lambda: Net(
            tagger,
            embed=nn.Embedding(50, 16),
            rnn=kind(16, 16, batch_first=True, **options),
            out=nn.Linear(16 * wide, 5),
        ),
        ids(2, 7),
    )


def layer(width: int = 32, **options: Any) -> nn.Module:
    """A transformer encoder layer of torch.nn."""
    return nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, **options)


def by_hand() -> dict[str, Make]:
    """Name -> (builder of the module, builder of its operands)."""
    relu, silu, image = nn.ReLU, nn.SiLU, inputs(2, 3, 32, 32)

    def seq(make: Callable[[], Sequence[nn.Module]]) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(*make())

    def feed(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    return {
        "resnet (basic)": (seq(lambda: [conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), residual(conv(8, 8), conv(8, 8)), conv(8, 16, 3, 2), *head(16)]), image),
        "resnet (bottleneck)": (seq(lambda: [conv(3, 16), residual(conv(16, 4, 1), conv(4, 4), conv(4, 16, 1)), *head(16)]), image),
        "resnext": (seq(lambda: [conv(3, 16), residual(conv(16, 16, 1), conv(16, 16, 3, 1, 4), conv(16, 16, 1)), *head(16)]), image),
        "vgg": (seq(lambda: [conv(3, 8), nn.MaxPool2d(2), conv(8, 16), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 32), relu(), nn.Dropout(), nn.Linear(32, 10)]), image),
        "alexnet": (seq(lambda: [nn.Conv2d(3, 8, 5, 2, 2), relu(), nn.MaxPool2d(3, 2), nn.Conv2d(8, 16, 3, padding=1), relu(), nn.AdaptiveAvgPool2d((3, 3)), nn.Flatten(), nn.Linear(144, 10)]), image),
        "mobilenet": (seq(lambda: [conv(3, 8, 3, 2), mobile(8, 8, 1), mobile(8, 16, 2), *head(16)]), image),
        "mobilenet v3": (seq(lambda: [conv(3, 8, 3, 2, act=nn.Hardswish), mobile(8, 8, 1, nn.Hardswish, True), *head(8)]), image),
        "efficientnet": (seq(lambda: [conv(3, 8, 3, 2, act=silu), mobile(8, 8, 1, silu, True), mobile(8, 16, 2, silu, True), *head(16)]), image),
        "densenet": (seq(lambda: [conv(3, 8), Net(dense, layers=nn.ModuleList([conv(8 + 4 * i, 4) for i in range(3)])), nn.AvgPool2d(2), *head(20)]), image),
        "convnext": (seq(lambda: [nn.Conv2d(3, 16, 4, 4), LayerNorm2d(16), convnext(16), convnext(16), *head(16)]), image),
        "inception": (seq(lambda: [conv(3, 8), branches(conv(8, 4, 1), nn.Sequential(conv(8, 4, 1), conv(4, 4, 5)), nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(8, 4, 1)), nn.AvgPool2d(3, 1, 1)), *head(20)]), image),
        "googlenet with lrn": (seq(lambda: [conv(3, 8), nn.LocalResponseNorm(3), conv(8, 8), *head(8)]), image),
        "squeezenet": (seq(lambda: [nn.Conv2d(3, 8, 3, 2), relu(), nn.MaxPool2d(3, 2, ceil_mode=True), fire(8, 16), fire(16, 16), nn.Conv2d(16, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]), image),
        "shufflenet": (seq(lambda: [conv(3, 16, 3, 2), Net(shuffle, body=nn.Sequential(conv(8, 8, 1), conv(8, 8, 3, 1, 8), conv(8, 8, 1))), *head(16)]), image),
        "regnet": (seq(lambda: [conv(3, 8, 3, 2), residual(conv(8, 8, 1), conv(8, 8, 3, 1, 2), excite(8), conv(8, 8, 1)), *head(8)]), image),
        "maxvit": (seq(lambda: [conv(3, 16, 3, 2), Net(maxvit, conv=mobile(16, 16, 1, nn.GELU, True), block=layer(16), grid=layer(16)), *head(16)]), image),
        "swin": (lambda: Net(windows, norm1=nn.LayerNorm(16), norm2=nn.LayerNorm(16), attention=nn.MultiheadAttention(16, 2, batch_first=True), feed=feed(16)), inputs(2, 8, 8, 16)),
        "mixer": (lambda: Net(mixer, patches=nn.Conv2d(3, 32, 8, 8), norm1=nn.LayerNorm(32), norm2=nn.LayerNorm(32), tokens=feed(16), channels=feed(32), head=nn.Linear(32, 10)), image),
        "u-net": (lambda: Net(unet, down1=conv(3, 8), down2=conv(8, 16), middle=conv(16, 32), up2=nn.ConvTranspose2d(32, 16, 2, 2), join2=conv(32, 16), join1=conv(24, 8), out=nn.Conv2d(8, 2, 1)), image),
        "diffusion block": (lambda: Net(diffusion, time=nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16)), conv1=nn.Conv2d(16, 16, 3, padding=1), conv2=nn.Conv2d(16, 16, 3, padding=1), norm1=nn.GroupNorm(4, 16), norm2=nn.GroupNorm(4, 16), norm3=nn.GroupNorm(4, 16), qkv=nn.Conv2d(16, 48, 1), out=nn.Conv2d(16, 16, 1)), lambda: (torch.randn(2, 16, 8, 8), torch.rand(2))),
        "gan generator": (seq(lambda: [nn.Linear(16, 256), nn.Unflatten(1, (16, 4, 4)), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), relu(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()]), inputs(2, 16)),
        "gan discriminator": (seq(lambda: [nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2), *head(16)]), image),
        "autoencoder": (seq(lambda: [nn.Flatten(), nn.Linear(64, 32), relu(), nn.Linear(32, 8), nn.Linear(8, 32), relu(), nn.Linear(32, 64), nn.Sigmoid()]), inputs(3, 1, 8, 8)),
        "variational autoencoder": (lambda: Net(variational, encode=feed(16), decode=nn.Sequential(nn.Linear(8, 32), nn.ELU(), nn.Linear(32, 16))), inputs(3, 16)),
        "super-resolution": (seq(lambda: [nn.Conv2d(3, 8, 5, padding=2), nn.PReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2)]), image),
        "rnn tagger": rnn(nn.RNN), "gru tagger": rnn(nn.GRU), "lstm tagger": rnn(nn.LSTM), "bidirectional lstm": rnn(nn.LSTM, bidirectional=True, num_layers=2),
        "temporal convolution": (seq(lambda: [nn.Conv1d(8, 16, 3, padding=2, dilation=2), relu(), nn.utils.parametrizations.weight_norm(nn.Conv1d(16, 8, 3)), nn.GLU(1)]), inputs(2, 8, 20)),
        "transformer encoder": (lambda: nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False), inputs(2, 9, 32)),
        "transformer decoder": (lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2), lambda: (torch.randn(2, 5, 32), torch.randn(2, 9, 32))),
        "graph convolution": (lambda: Net(graph_layers, layers=nn.ModuleList([nn.Linear(32, 16), nn.Linear(32, 16)]), out=nn.Linear(16, 4)), graph()),
        "graph attention": (lambda: Net(graph_attention, value=nn.Linear(16, 8), left=nn.Linear(8, 1), right=nn.Linear(8, 1)), graph()),
        "recommender": (lambda: Net(recommender, table=nn.Embedding(50, 8), bottom=nn.Linear(6, 8), top=nn.Sequential(nn.Linear(12, 8), relu(), nn.Linear(8, 1))), lambda: (torch.randint(0, 50, (4, 3)), torch.randn(4, 6))),
        "kolmogorov-arnold": (lambda: Net(kolmogorov, mix=nn.Linear(64, 8), base=nn.Linear(8, 8)), inputs(4, 8)),
        "text cnn": (lambda: Net(lambda m, i: m.out(torch.cat([torch.relu(c(m.embed(i).transpose(1, 2))).amax(2) for c in m.convs], 1)), embed=nn.Embedding(50, 16), convs=nn.ModuleList([nn.Conv1d(16, 8, k) for k in (2, 3, 4)]), out=nn.Linear(24, 3)), ids(2, 12)),
        "siren": (seq(lambda: [nn.Linear(2, 32), Net(lambda m, x: torch.sin(30 * x)), nn.Linear(32, 32), Net(lambda m, x: torch.sin(x)), nn.Linear(32, 3)]), inputs(16, 2)),
    }  # fmt: skip


__all__ = ["Make", "Net", "by_hand", "ids", "inputs"]
