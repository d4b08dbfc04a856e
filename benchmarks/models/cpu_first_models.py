"""Networks of small_budget_peers.py: common architectures at sizes that no other benchmark has, as PyTorch modules and
as ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cpu_unseen_models import Block, Dlrm
from .peer_models import trained
from .torch_architectures import Net, conv, convnext, excite, head, residual

Made = tuple[nn.Module, tuple[Tensor, ...]]


def _bottlenecks(width: int, count: int) -> nn.Module:
    """Halves of the channels through `count` residual blocks of two 3x3 convolutions; all results concatenated, and
    mixed by a 1x1 convolution."""

    def run(m: Any, x: Tensor) -> Tensor:
        found = list(m.enter(x).chunk(2, 1))
        for block in m.blocks:
            found.append(block(found[-1]))
        return m.leave(torch.cat(found, 1))

    half = width // 2
    silu = lambda a, b, k=3: conv(a, b, k, act=nn.SiLU)
    blocks = nn.ModuleList(residual(silu(half, half), silu(half, half)) for _ in range(count))
    return Net(run, enter=silu(width, width, 1), blocks=blocks, leave=silu((2 + count) * half, width, 1))


def _detector() -> Made:
    """A detector with three scales: stages of bottlenecks, a pyramid of max pools, nearest upsampling, box heads."""
    w = (12, 24, 48, 96)
    down = lambda a, b: conv(a, b, 3, 2, act=nn.SiLU)

    def pyramid(m: Any, x: Tensor) -> Tensor:
        found = [m.enter(x)]
        for _ in range(3):
            found.append(F.max_pool2d(found[-1], 5, 1, 2))
        return m.leave(torch.cat(found, 1))

    def run(m: Any, x: Tensor) -> Tensor:
        a = m.stage2(m.stage1(m.stem(x)))
        b = m.stage3(a)
        c = m.pyramid(m.stage4(b))
        b = m.join2(torch.cat((F.interpolate(c, scale_factor=2.0, mode="nearest"), b), 1))
        a = m.join1(torch.cat((F.interpolate(b, scale_factor=2.0, mode="nearest"), a), 1))
        found = [h(y).flatten(2) for h, y in zip(m.heads, (a, b, c), strict=True)]
        y = torch.cat(found, 2)
        boxes, classes = y.split((16, 12), 1)
        return torch.cat((boxes.softmax(1), classes.sigmoid()), 1)

    silu = lambda a, b, k=1: conv(a, b, k, act=nn.SiLU)
    return Net(
        run, stem=down(3, w[0]), stage1=nn.Sequential(down(w[0], w[1]), _bottlenecks(w[1], 1)),
        stage2=nn.Sequential(down(w[1], w[2]), _bottlenecks(w[2], 2)), stage3=nn.Sequential(down(w[2], w[3]), _bottlenecks(w[3], 1)),
        stage4=nn.Sequential(down(w[3], 128), _bottlenecks(128, 1)),
        pyramid=Net(pyramid, enter=silu(128, 64), leave=silu(256, 128)),
        join2=nn.Sequential(silu(128 + w[3], w[3]), _bottlenecks(w[3], 1)),
        join1=nn.Sequential(silu(w[3] + w[2], w[2]), _bottlenecks(w[2], 1)),
        heads=nn.ModuleList(nn.Sequential(silu(c, 40, 3), nn.Conv2d(40, 28, 1)) for c in (w[2], w[3], 128)),
    ), (torch.randn(1, 3, 160, 160),)  # fmt: skip


def _inverted(a: int, inner: int, b: int, kernel: int, stride: int, act: type[nn.Module], se: bool) -> nn.Module:
    layers = [conv(a, inner, 1, act=act), conv(inner, inner, kernel, stride, inner, act)]
    layers += [excite(inner)] if se else []
    layers += [nn.Conv2d(inner, b, 1, bias=False), nn.BatchNorm2d(b)]
    return residual(*layers) if stride == 1 and a == b else nn.Sequential(*layers)


def _mobile() -> Made:
    r, h = nn.ReLU, nn.Hardswish
    rows = ((16, 16, 16, 3, 2, r, True), (16, 72, 24, 3, 2, r, False), (24, 88, 24, 3, 1, r, False), (24, 96, 40, 5, 2, h, True),
            (40, 240, 40, 5, 1, h, True), (40, 120, 48, 5, 1, h, True), (48, 288, 96, 5, 2, h, True), (96, 576, 96, 5, 1, h, True))  # fmt: skip
    body = [conv(3, 16, 3, 2, act=h), *(_inverted(*row) for row in rows), conv(96, 576, 1, act=h), *head(576)]
    return nn.Sequential(*body), (torch.randn(1, 3, 112, 112),)


def _convnext() -> Made:
    body = [nn.Conv2d(3, 48, 4, 4), convnext(48), convnext(48), nn.Conv2d(48, 112, 2, 2), convnext(112), convnext(112)]
    return nn.Sequential(*body, *head(112)), (torch.randn(2, 3, 88, 88),)


def _speech() -> Made:
    """An encoder of spectrograms: two convolutions over time, positions, transformer blocks."""
    width, frames = 224, 260

    def run(m: Any, x: Tensor) -> Tensor:
        y = F.gelu(m.conv2(F.gelu(m.conv1(x)))).transpose(1, 2) + m.place
        return m.norm(m.blocks(y))

    net = Net(
        run, conv1=nn.Conv1d(80, width, 3, padding=1), conv2=nn.Conv1d(width, width, 3, 2, 1),
        blocks=nn.Sequential(*(Block(width, 4) for _ in range(3))), norm=nn.LayerNorm(width),
    )  # fmt: skip
    net.register_buffer("place", 0.1 * torch.randn(frames // 2, width))
    return net, (torch.randn(1, 80, frames),)


class Sentence(nn.Module):
    """BERT-like: embeddings with a norm, post-norm blocks with a mask of padding, a pooled classifier."""

    def __init__(self, width: int, layers: int, heads: int, most: int = 512) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(2000, width), nn.Embedding(most, width), nn.LayerNorm(width)
        layer = lambda: nn.ModuleDict({
            "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width), "norm1": nn.LayerNorm(width),
            "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width), "norm2": nn.LayerNorm(width),
        })  # fmt: skip
        self.layers, self.heads, self.last = nn.ModuleList(layer() for _ in range(layers)), heads, nn.Linear(width, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        n, t = ids.shape
        x = self.norm(self.words(ids) + self.places.weight[:t])
        bias = ((1.0 - mask) * -1e9)[:, None, None, :]
        for m in self.layers:
            q, k, v = m["qkv"](x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + bias
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, -1)
            x = m["norm1"](x + m["out"](y))
            x = m["norm2"](x + m["down"](F.gelu(m["up"](x))))
        return self.last(torch.tanh(x[:, 0]))


def _sentence() -> Made:
    mask = torch.ones(2, 57)
    mask[1, 40:] = 0
    return Sentence(216, 3, 6), (torch.randint(0, 2000, (2, 57)), mask)


def _patches() -> Made:
    width = 168

    def run(m: Any, x: Tensor) -> Tensor:
        y = m.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat((m.first.expand(y.shape[0], -1, -1), y), 1) + m.place
        return m.last(m.norm(m.blocks(y))[:, 0])

    net = Net(run, patch=nn.Conv2d(3, width, 8, 8), blocks=nn.Sequential(*(Block(width, 3) for _ in range(4))),
              norm=nn.LayerNorm(width), last=nn.Linear(width, 10))  # fmt: skip
    net.register_parameter("first", nn.Parameter(torch.randn(1, 1, width)))
    net.register_parameter("place", nn.Parameter(0.1 * torch.randn(1, 82, width)))
    return net, (torch.randn(1, 3, 72, 72),)


def _segmenter() -> Made:
    double = lambda a, b: nn.Sequential(conv(a, b), conv(b, b))

    def run(m: Any, x: Tensor) -> Tensor:
        kept = []
        for block in m.downs:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = m.middle(x)
        for up, block in zip(m.ups, m.joins, strict=True):
            x = block(torch.cat((kept.pop(), up(x)), 1))
        return m.last(x)

    w = (14, 28, 56)
    return Net(
        run, downs=nn.ModuleList(double(a, b) for a, b in zip((1, *w), w)), middle=double(56, 112),
        ups=nn.ModuleList(nn.ConvTranspose2d(2 * b, b, 2, 2) for b in w[::-1]),
        joins=nn.ModuleList(double(2 * b, b) for b in w[::-1]), last=nn.Conv2d(w[0], 3, 1),
    ), (torch.randn(1, 1, 104, 104),)  # fmt: skip


def _tagger() -> Made:
    def run(m: Any, ids: Tensor) -> Tensor:
        return m.last(m.lstm(m.words(ids))[0])

    lstm = nn.LSTM(72, 104, 2, batch_first=True, bidirectional=True)
    return Net(run, words=nn.Embedding(3000, 72), lstm=lstm, last=nn.Linear(208, 17)), (
        torch.randint(0, 3000, (4, 45)),
    )


def _temporal() -> Made:
    def layer(a: int, b: int, dilation: int) -> nn.Module:
        one = lambda i: nn.Sequential(
            nn.ConstantPad1d((2 * dilation, 0), 0.0), nn.Conv1d(i, b, 3, dilation=dilation), nn.ReLU()
        )
        short = nn.Conv1d(a, b, 1) if a != b else nn.Identity()
        return Net(lambda m, x: F.relu(m.short(x) + m.body(x)), short=short, body=nn.Sequential(one(a), one(b)))

    body = [layer(5, 40, 1), *(layer(40, 40, 2**i) for i in range(1, 6))]
    return Net(lambda m, x: m.last(m.body(x)[:, :, -1]), body=nn.Sequential(*body), last=nn.Linear(40, 6)), (
        torch.randn(8, 5, 300),
    )


class DecodeStep(nn.Module):
    """One token through a GPT with caches: results are logits and each layer's new row of keys and values."""

    def __init__(self, width: int, layers: int, heads: int, vocab: int) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(vocab, width), heads
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.words(ids)
        n, t, c = x.shape
        rows_k, rows_v = [], []
        for i, m in enumerate(self.blocks):
            q, k, v = m.qkv(m.norm1(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # type: ignore[operator, union-attr]
            rows_k.append(k)
            rows_v.append(v)
            y = F.scaled_dot_product_attention(q, torch.cat((keys[i], k), 2), torch.cat((values[i], v), 2))
            x = x + m.out(y.transpose(1, 2).reshape(n, t, c))  # type: ignore[operator]
            x = x + m.mlp(m.norm2(x))  # type: ignore[operator]
        return self.norm(x) @ self.words.weight.T, torch.stack(rows_k), torch.stack(rows_v)


def _step() -> Made:
    cache = lambda: torch.randn(4, 1, 4, 190, 56)
    return DecodeStep(224, 4, 4, 3000), (torch.randint(0, 3000, (1, 1)), cache(), cache())


def _plain_images() -> Made:
    """A small residual network, which is quantized."""
    block = lambda a: nn.Sequential(
        residual(conv(a, a), nn.Conv2d(a, a, 3, padding=1, bias=False), nn.BatchNorm2d(a)), nn.ReLU()
    )
    body = [
        conv(3, 28, 3, 2),
        block(28),
        conv(28, 56, 3, 2),
        block(56),
        block(56),
        conv(56, 120, 3, 2),
        block(120),
        *head(120),
    ]
    return nn.Sequential(*body), (torch.randn(1, 3, 100, 100),)


class Tokens(nn.Module):
    """Pre-norm blocks on vectors, which are quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(48, 144)
        self.blocks, self.last = nn.Sequential(*(Block(144, 4) for _ in range(2))), nn.Linear(144, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.enter(x)).mean(1))


def _vision8() -> Made:
    module, _ = _mobile()
    return module, (torch.randn(8, 3, 72, 72),)


#: title -> (network, form: module, ONNX file, or quantized ONNX file; names of free sizes of the inputs)
MODELS: dict[str, tuple[Callable[[], Made], str, Sequence[dict[int, str]]]] = {
    "YOLO-like": (_detector, "onnx", ()),
    "MobileNetV3-like": (_mobile, "module", ()),
    "MobileNetV3-like, batch 8": (_vision8, "module", ()),
    "ConvNeXt-like": (_convnext, "module", ()),
    "Whisper-like encoder": (_speech, "onnx", ()),
    "BERT-like": (_sentence, "module", ()),
    "BERT-like, free sizes": (_sentence, "module", ({0: "B", 1: "T"}, {0: "B", 1: "T"})),
    "ViT-like": (_patches, "module", ()),
    "U-Net": (_segmenter, "onnx", ()),
    "LSTM tagger": (_tagger, "module", ()),
    "TCN": (_temporal, "module", ()),
    "DLRM": (lambda: (Dlrm(6, 24), (torch.randn(48, 13), torch.randint(0, 5000, (48, 6, 3)))), "module", ()),
    "GPT step": (_step, "module", ()),
    "Residual network, QDQ": (_plain_images, "quantized", ()),
    "Transformer, QDQ": (lambda: (Tokens(), (torch.randn(2, 61, 48),)), "quantized", ()),
}


def build(title: str) -> Made:
    """The network of a title with random weights, in inference mode, and its inputs."""
    torch.manual_seed(3)
    module, inputs = MODELS[title][0]()
    trained(module)
    return module.eval(), inputs


def write(title: str, folder: Path) -> Path:
    """Write the ONNX file of a network into `folder`, quantized if it is to be; returns its path."""
    from ..cpu.quantized_cnns import write_quantized

    module, inputs = build(title)
    if MODELS[title][1] == "quantized":
        shape = tuple(inputs[0].shape)
        write_quantized(
            folder, "model", module, inputs, lambda r: r.standard_normal(shape).astype("float32"), {"QDQ": "QDQ"}
        )
        return folder / "model.QDQ.onnx"
    with torch.no_grad():
        exported = torch.onnx.export(module, inputs, dynamo=True, verbose=False)
    assert exported is not None
    exported.save(folder / "model.onnx", external_data=True)
    return folder / "model.onnx"
