"""More modules of benchmarks/gpu/modules.py: networks of images, text, sound, points and graphs at sizes for a GPU, in
half precision unless their names say otherwise. No kernel was written or tuned for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cpu_peer_models import ConvNextBlock
from .cpu_unseen_models import Block, Dlrm, Mixer, MobileVit, PointNet
from .gpu_module_table import Made, module
from .whole_models import UNet


@module
def convnext() -> Made:
    """Two stages of three ConvNeXt blocks, 96 and 192 channels, of eight images."""
    first, second = ([ConvNextBlock(width) for _ in range(3)] for width in (96, 192))
    return nn.Sequential(*first, nn.Conv2d(96, 192, 2, 2), *second), (torch.randn(8, 96, 28, 28),)


@module
def mobilevit() -> Made:
    """MobileViT block: convolutions and a transformer over pixels of patches, of eight images."""
    return MobileVit(64, 96), (torch.randn(8, 64, 32, 32),)


@module
def unet_attention() -> Made:
    """Diffusion U-Net of two levels with attention between them, of four latent images."""
    return UNet(64, levels=2), (torch.randn(4, 4, 32, 32), torch.randn(4, 64))


class PatchMixer(nn.Module):
    """MLP-Mixer: patches of an image (batch, 3, height, width), mixer blocks, scores of 1000 classes."""

    def __init__(self, patches: int, width: int, layers: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(Mixer(patches, width) for _ in range(layers)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.enter(x).flatten(2).transpose(1, 2)
        return self.last(self.norm(self.blocks(patches)).mean(1))


@module
def mixer() -> Made:
    """MLP-Mixer of four blocks over 196 patches of eight images."""
    return PatchMixer(196, 256, 4), (torch.randn(8, 3, 224, 224),)


class Retention(nn.Module):
    """Chunk of RetNet's retention (Sun et al. 2023): products of queries and keys, decayed by distance, and a state
    (batch, heads, width / heads, width / heads) of the tokens before; returns the output and the state after them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.enter, self.leave = nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.norm = nn.GroupNorm(heads, width)
        self.register_buffer("decay", 1 - 2.0 ** (-5 - torch.arange(heads).float()))

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        n, t, width = x.shape
        split = lambda y: y.view(n, t, self.heads, -1).transpose(1, 2)
        q, k, v, gate = self.enter(x).chunk(4, -1)
        q, k, v = split(q), split(k), split(v)
        decay, at = self.decay.float()[:, None], torch.arange(t, device=x.device).float()
        apart = at[:, None] - at
        near = torch.where(apart >= 0, decay[..., None] ** apart.clamp(min=0), 0.0).to(x.dtype)
        within = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 * near) @ v
        before = q @ state * (decay ** (at + 1))[..., None].to(x.dtype)
        kept = k * (decay ** (t - 1 - at))[..., None].to(x.dtype)
        after = state * (decay**t)[..., None].to(x.dtype) + kept.transpose(-1, -2) @ v
        y = self.norm((within + before).transpose(1, 2).reshape(n * t, width)).view(n, t, width)
        return self.leave(F.silu(gate) * y), after


@module
def retention() -> Made:
    """Retention of a chunk of 128 tokens, four sequences."""
    return Retention(256, 4), (torch.randn(4, 128, 256), 0.1 * torch.randn(4, 4, 64, 64))


class BaggedDlrm(Dlrm):
    """DLRM whose sums of embeddings are calls of `nn.EmbeddingBag`."""

    def summed(self, table: nn.EmbeddingBag, ids: Tensor) -> Tensor:
        return table(ids)


@module
def embedding_bags_fp32() -> Made:
    """DLRM with eight bags of ten rows each of tables of 20,000 rows, 1024 examples."""
    return BaggedDlrm(8, 64, rows=20000), (torch.randn(1024, 13), torch.randint(20000, (1024, 8, 10)))


class MessagePassing(nn.Module):
    """Graph network of two layers: a perceptron of both nodes of each edge, sums over edges into a node, an update of
    the node; log probabilities of 16 classes of each node. Inputs: nodes (n, width), edges (2, m)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        perceptron = lambda: nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.messages = nn.ModuleList(perceptron() for _ in range(2))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.last = nn.Linear(width, 16)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            sent = message(torch.cat([x[source], x[target]], -1))
            received = torch.zeros_like(x).index_add(0, target, sent)
            x = norm(x + F.silu(update(torch.cat([x, received], -1))))
        return self.last(x).log_softmax(-1)


@module
def message_passing_fp32() -> Made:
    """Messages along 8192 edges between 2048 nodes."""
    return MessagePassing(128), (torch.randn(2048, 128), torch.randint(2048, (2, 8192)))


class Perceiver(nn.Module):
    """Perceiver: learned latents attend to the inputs (batch, length, features), then to each other; 10 classes."""

    def __init__(self, features: int, width: int, latents: int, layers: int) -> None:
        super().__init__()
        self.latents, self.enter = nn.Parameter(0.02 * torch.randn(latents, width)), nn.Linear(features, width)
        self.cross = nn.MultiheadAttention(width, 4, batch_first=True)
        self.query_norm, self.key_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        layer = lambda: nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers, self.last = nn.Sequential(*(layer() for _ in range(layers))), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        keys, latents = self.key_norm(self.enter(x)), self.latents.expand(x.shape[0], -1, -1)
        latents = latents + self.cross(self.query_norm(latents), keys, keys, need_weights=False)[0]
        return self.last(self.layers(latents).mean(1))


@module
def perceiver() -> Made:
    """64 latents attend to 1024 inputs, then three layers among them; eight examples."""
    return Perceiver(67, 256, 64, 3), (torch.randn(8, 1024, 67),)


class QuickGelu(nn.Module):
    """CLIP's approximation of GELU by a sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class ClipText(nn.Module):
    """CLIP's text encoder: causal transformer over tokens (batch, length); the unit vector of each text is projected
    from the position of its largest token, which ends it."""

    def __init__(self, width: int, layers: int, length: int, vocabulary: int = 49408) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(0.01 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, 8, act=QuickGelu, causal=True) for _ in range(layers)))
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embed(tokens) + self.positions))
        ends = x[torch.arange(tokens.shape[0], device=tokens.device), tokens.argmax(-1)]
        return F.normalize(self.project(ends), dim=-1)


@module
def clip_text() -> Made:
    """Vectors of 16 texts of 77 tokens, four layers."""
    return ClipText(512, 4, 77), (torch.randint(49408, (16, 77)),)


class GatedLayer(nn.Module):
    """A causal convolution of two steps `dilation` apart with a gate; its residual and skip parts are convolutions of
    their own, where `WaveNet` of cpu_peer_models.py has one for both."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation, self.gate = dilation, nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.residual, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gate = self.gate(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        y = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.residual(y), self.skip(y)


class GatedWaveNet(nn.Module):
    """Gated layers with doubling dilations, whose skips are summed: (batch, 1, steps) to (batch, 256, steps)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 256, 1)
        self.layers = nn.ModuleList(GatedLayer(width, 2**i) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x, skips = self.first(x), []
        for layer in self.layers:
            x, skip = layer(x)
            skips.append(skip)
        return self.last(F.relu(sum(skips)))


@module
def gated_wavenet() -> Made:
    """Eight layers over 4096 steps of four sounds, of two steps each."""
    return GatedWaveNet(64, 8), (torch.randn(4, 1, 4096),)


@module
def point_segmentation_fp32() -> Made:
    """Log probabilities of the class of each of 1024 points, eight clouds."""
    return nn.Sequential(PointNet(), nn.LogSoftmax(1)), (torch.randn(8, 3, 1024),)
