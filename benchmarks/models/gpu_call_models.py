"""Modules of benchmarks/gpu/modules.py: kinds of models that the other GPU benchmarks lack, at sizes for a GPU, in half
precision unless their names say otherwise. No kernel was written or tuned for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import gpu_further_modules  # noqa: F401  (adds its builders to the table)
from .cpu_peer_models import NormedBlock, SwinBlock, WaveNet
from .cpu_unseen_models import Block, Conformer, Decoder, Dlrm, PointNet
from .gpu_module_table import MODULES, Made, module
from .peer_models import trained
from .torch_architectures import Net, conv, excite, graph_attention, head, residual, shuffle, unet

__all__ = ["MODULES", "build"]


def build(name: str, seed: int = 0) -> Made:
    """(module in inference mode, its inputs) by name, on the host; floats have 16 bits unless the name ends in `fp32`.
    Reproducible by `seed`."""
    torch.manual_seed(seed)
    made, inputs = MODULES[name]()
    with torch.no_grad():
        trained(made)
    dtype = torch.float32 if name.endswith("fp32") else torch.float16
    given = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    return made.eval().requires_grad_(False).to(dtype), given


@module
def swin() -> Made:
    """Two blocks of attention in windows with relative biases, the second shifted."""
    return nn.Sequential(SwinBlock(96, 3, 112, 7, 0), SwinBlock(96, 3, 112, 7, 3)), (torch.randn(1, 112 * 112, 96),)


@module
def relative_positions() -> Made:
    """Three transformer blocks whose attention has a learned bias for each distance."""
    return nn.Sequential(*(Block(384, 6, 197) for _ in range(3))), (torch.randn(8, 197, 384),)


class SqueezedBlock(nn.Module):
    """EfficientNet's inverted residual: 1x1 convolution, depthwise convolution, squeeze and excitation, 1x1."""

    def __init__(self, before: int, after: int, window: int, stride: int, ratio: int = 6) -> None:
        super().__init__()
        wide = ratio * before
        layers = nn.Sequential(
            conv(before, wide, 1, act=nn.SiLU),
            nn.Conv2d(wide, wide, window, stride, window // 2, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
            excite(wide), nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.block = residual(layers) if stride == 1 and before == after else layers

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


@module
def efficientnet() -> Made:
    """The first stages of an EfficientNet with a head, four images."""
    stages = [(16, 24, 3, 2), (24, 24, 3, 1), (24, 40, 5, 2), (40, 40, 5, 1), (40, 80, 3, 2), (80, 80, 3, 1)]
    blocks = [SqueezedBlock(*s) for s in stages]
    return nn.Sequential(conv(3, 16, 3, 2, act=nn.SiLU), *blocks, *head(80)), (torch.randn(4, 3, 192, 192),)


@module
def recommender_fp32() -> Made:
    """DLRM: sums of rows of eight tables, products of pairs, perceptrons, 2048 examples."""
    return Dlrm(8, 64), (torch.randn(2048, 13), torch.randint(5000, (2048, 8, 4)))


@module
def super_resolution() -> Made:
    """Three convolutions and a pixel shuffle of an image."""
    layers = nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.Conv2d(64, 32, 3, padding=1), nn.ReLU()
    return nn.Sequential(*layers, nn.Conv2d(32, 12, 3, padding=1), nn.PixelShuffle(2)), (torch.randn(1, 3, 256, 256),)


@module
def vae_decoder() -> Made:
    """Residual blocks with group norms between upsamplings."""
    return Decoder(128), (torch.randn(1, 4, 64, 64),)


@module
def conformer() -> Made:
    """Two conformer layers over 400 frames."""
    return nn.Sequential(Conformer(256), Conformer(256)), (torch.randn(4, 400, 256),)


class LstmTagger(nn.Module):
    """Two recurrent layers and a classifier of each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5000, width), nn.Linear(width, 200)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


@module
def lstm_tagger() -> Made:
    """LSTM over 64 tokens, 16 sentences."""
    return LstmTagger(512), (torch.randint(5000, (16, 64)),)


class GraphNet(nn.Module):
    """Two layers of mean aggregation over edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = (nn.ModuleList(nn.Linear(width, width) for _ in range(2)) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        count = x.new_zeros(x.shape[0]).index_add(0, target, x.new_ones(target.shape[0])).clamp(min=1)[:, None]
        for own, others in zip(self.own, self.others, strict=True):
            found = torch.zeros_like(x).index_add(0, target, x[source]) / count
            x = F.relu(own(x) + others(found))
        return x


@module
def graph_net_fp32() -> Made:
    """Graph network over 20,000 nodes and 200,000 edges."""
    return GraphNet(64), (torch.randn(20000, 64), torch.randint(20000, (2, 200000)))


@module
def shufflenet() -> Made:
    """Units of ShuffleNet, which exchange channels."""
    unit = lambda: Net(
        shuffle,
        body=nn.Sequential(
            conv(58, 58, 1), nn.Conv2d(58, 58, 3, padding=1, groups=58, bias=False), nn.BatchNorm2d(58), conv(58, 58, 1)
        ),
    )
    return nn.Sequential(*(unit() for _ in range(4)), *head(116)), (torch.randn(16, 116, 28, 28),)


@module
def wavenet() -> Made:
    """Gated causal convolutions of a second of sound."""
    return WaveNet(64, 8), (torch.randn(1, 1, 16000),)


@module
def normed_resnet() -> Made:
    """Residual blocks with group norms."""
    blocks = NormedBlock(64, 64, 1), NormedBlock(64, 128, 2), NormedBlock(128, 128, 1)
    return nn.Sequential(*blocks, *head(128)), (torch.randn(8, 64, 56, 56),)


@module
def point_net() -> Made:
    """Perceptrons of points beside their maximum."""
    return PointNet(), (torch.randn(8, 3, 4096),)


class Pointwise(nn.Module):
    """A chain of elementwise operations and a softmax."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(torch.tanh(x * y + 0.5 * x) * torch.sigmoid(y - x), -1) * x


@module
def pointwise() -> Made:
    """Elementwise chain and softmax of 4096 rows: one kernel."""
    return Pointwise(), (torch.randn(4096, 1024), torch.randn(4096, 1024))


class Experts(nn.Module):
    """Two of eight gated experts for each token, of which all are computed and weighted."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.route = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * inner) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) * inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        share, which = self.route(x).softmax(-1).topk(2, -1)
        gates = torch.zeros(x.shape[0], self.up.shape[0], dtype=x.dtype, device=x.device).scatter(1, which, share)
        gate, up = torch.einsum("td,edh->eth", x, self.up).chunk(2, -1)
        each = torch.einsum("eth,ehd->etd", F.silu(gate) * up, self.down)
        return (each * gates.T[..., None]).sum(0)


@module
def experts() -> Made:
    """Mixture of experts for 32 tokens."""
    return Experts(1024, 1024, 8), (torch.randn(32, 1024),)


@module
def segmentation() -> Made:
    """U-Net of two levels, whose skip connections are concatenated, over an image."""
    double = lambda a, b: nn.Sequential(conv(a, b), conv(b, b))
    return Net(
        unet, down1=double(3, 32), down2=double(32, 64), middle=double(64, 128), up2=nn.ConvTranspose2d(128, 64, 2, 2),
        join2=double(128, 64), join1=double(96, 32), out=nn.Conv2d(32, 4, 1),
    ), (torch.randn(1, 3, 256, 256),)  # fmt: skip


class Detector(nn.Module):
    """DETR's decoder: learned queries attend to each other and to an image's features; class and box of each."""

    def __init__(self, width: int, queries: int, layers: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, queries, width))
        layer = nn.TransformerDecoderLayer(width, 8, 4 * width, batch_first=True)
        self.layers = nn.TransformerDecoder(layer, layers, nn.LayerNorm(width))
        self.kind = nn.Linear(width, 92)
        self.box = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layers(self.queries.expand(features.shape[0], -1, -1), features)
        return self.kind(y), self.box(y).sigmoid()


@module
def detector() -> Made:
    """Decoder of three layers, 100 queries over 25 x 34 features of two images."""
    return Detector(256, 100, 3), (torch.randn(2, 850, 256),)


class StateSpace(nn.Module):
    """Mamba-2's mixing (state space duality): within chunks by a matrix of decays, made of cumulative sums; between
    chunks by their states. The width is split into heads of 64."""

    def __init__(self, width: int, state: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.state, self.chunk = width // 64, state, chunk
        self.enter = nn.Linear(width, 2 * width + 2 * state + self.heads)
        self.conv = nn.Conv1d(width + 2 * state, width + 2 * state, 4, padding=3, groups=width + 2 * state)
        self.rates, self.leave = nn.Parameter(torch.zeros(self.heads)), nn.Linear(width, width)

    def decays(self, steps: Tensor) -> Tensor:
        """exp of the sums of `steps` (..., n) between any two positions: (..., n, n), lower triangular."""
        n, total = steps.shape[-1], steps.cumsum(-1)
        seen = torch.ones(n, n, dtype=torch.bool, device=steps.device).tril()
        return torch.exp((total[..., :, None] - total[..., None, :]).masked_fill(~seen, -torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        gate, mixed, step = self.enter(x).split([width, width + 2 * self.state, self.heads], -1)
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., :t].transpose(1, 2))
        u, b, c = (z.view(n, -1, self.chunk, z.shape[-1]) for z in mixed.split([width, self.state, self.state], -1))
        step = F.softplus(step.float()).view(n, -1, self.chunk, self.heads).permute(0, 3, 1, 2)
        u = u.view(*u.shape[:3], self.heads, 64) * step.permute(0, 2, 3, 1)[..., None].to(u.dtype)
        steps = -step * self.rates.float().exp()[:, None, None]
        within = torch.einsum("bcln,bcsn->bcls", c, b)[:, None] * self.decays(steps).to(c.dtype)
        y = torch.einsum("bhcls,bcshp->bclhp", within, u)
        total = steps.cumsum(-1)
        left = torch.exp(total[..., -1:] - total).to(c.dtype)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, left, u)
        between = self.decays(F.pad(total[..., -1], (1, 0))).to(c.dtype)[..., :-1, 1:]
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)
        y = y + torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, torch.exp(total).to(c.dtype))
        return self.leave(y.reshape(n, t, width) * F.silu(gate))


@module
def state_space() -> Made:
    """Mamba-2's mixing of 2048 tokens in chunks of 128."""
    return StateSpace(512, 64, 128), (torch.randn(1, 2048, 512),)


class Radiance(nn.Module):
    """Volume rendering: a perceptron of encoded points, densities summed along rays, colours weighted by visibility."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(levels))
        self.trunk = nn.Sequential(nn.Linear(6 * levels, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, 4)

    def forward(self, points: Tensor, steps: Tensor) -> Tensor:
        turned = (points[..., None] * self.bands).flatten(-2)
        found = self.out(self.trunk(torch.cat([turned.sin(), turned.cos()], -1))).float()
        depth = F.relu(found[..., 0]) * steps.float()
        weight = torch.exp(depth - depth.cumsum(-1)) * (1 - torch.exp(-depth))
        return (weight[..., None] * found[..., 1:].sigmoid()).sum(-2)


@module
def radiance() -> Made:
    """Rendering of 1024 rays with 128 points each."""
    return Radiance(128, 6), (torch.randn(1024, 128, 3), torch.rand(1024, 128))


@module
def graph_attention_fp32() -> Made:
    """Attention of graph nodes to their neighbours: softmax over edges."""
    net = Net(graph_attention, value=nn.Linear(64, 64), left=nn.Linear(64, 1), right=nn.Linear(64, 1))
    return net, (torch.randn(10000, 64), torch.randint(10000, (2, 100000)))
