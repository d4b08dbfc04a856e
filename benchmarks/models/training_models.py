"""Models with their losses, for benchmarks of training: GPT-2, ResNet-18 and ViT at several scales."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

F = nn.functional


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = (y.view(b, n, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, n, width))


class Layer(nn.Module):
    """Transformer layer with norms first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class GPT2(nn.Module):
    """Language model with tied embeddings; returns the mean loss of predicting each next token."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, context: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads, True) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        logits = self.norm(self.layers(x)) @ self.tokens.weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.skip = nn.Sequential()
        if stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.skip(x) + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet18(nn.Module):
    """ResNet of `stages` stages of two basic blocks (4: ResNet-18) with a cross-entropy loss."""

    def __init__(self, width: int, classes: int, stages: int = 4) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        blocks, inputs = [], width
        for stage in range(stages):
            for first in (True, False):
                blocks.append(Residual(inputs, width << stage, 2 if first and stage else 1))
                inputs = width << stage
        self.body = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(images), labels)


class ViT(nn.Module):
    """Vision transformer with a cross-entropy loss."""

    def __init__(self, size: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads, False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return F.cross_entropy(self.head(self.norm(self.layers(x))[:, 0]), labels)


class Autocast(nn.Module):
    """A model whose forward pass runs under bfloat16 autocast; float64 is not cast."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        with torch.autocast(given[0].device.type, torch.bfloat16):
            found: torch.Tensor = self.model(*given)
        return found


Case = tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]


def cases(scale: str) -> dict[str, Case]:
    """Name -> (module, its operands), at a scale: "full", "medium" (GPT-2 only, narrower), "small" (the same layers,
    narrow) or "tiny" (fewer layers).
    """

    def tokens(batch: int, count: int, vocabulary: int) -> tuple[torch.Tensor, ...]:
        return (torch.randint(0, vocabulary, (batch, count)),)

    def images(batch: int, size: int, classes: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))

    if scale == "full":
        return {
            "gpt2": (lambda: GPT2(50257, 768, 12, 4, 1024), lambda: tokens(2, 256, 50257)),
            "resnet18": (lambda: ResNet18(64, 1000), lambda: images(16, 224, 1000)),
            "vit_s": (lambda: ViT(224, 16, 384, 6, 12, 1000), lambda: images(16, 224, 1000)),
        }
    if scale == "medium":
        return {"gpt2": (lambda: GPT2(8192, 256, 4, 4, 256), lambda: tokens(4, 128, 8192))}
    layers, stages = (4, 4) if scale == "small" else (1, 2)
    return {
        "gpt2": (lambda: GPT2(64, 32, 4, layers, 32), lambda: tokens(2, 16, 64)),
        "resnet18": (lambda: ResNet18(8, 10, stages), lambda: images(4, 16 * stages, 10)),
        "vit_s": (lambda: ViT(32, 8, 32, 4, layers, 10), lambda: images(2, 32, 10)),
    }
