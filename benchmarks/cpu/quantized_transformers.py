"""Quantized transformers on a CPU beside ONNX Runtime: `python -m benchmarks.cpu.quantized_transformers [--make]
[--models NAME ...] [--threads N ...] [--budget S] [--folder F]`.

Encoders like BERT with random weights, quantized by ONNX Runtime: statically (bytes without sign for values, with sign
for weights, a scale for each output channel), as float operators between QuantizeLinear and DequantizeLinear (QDQ) and
as QLinearMatMul, QGemm and QLinearAdd (QOperator), and dynamically (DynamicQuantizeLinear and MatMulInteger). `--make`
writes the models to the folder; it needs onnx and torch. Measured as benchmarks.cpu.quantized_cnns does. Results go to
results/raw/quantized_transformers.json and results/quantized_transformers.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.cpu.quantized_cnns import run, write_quantized

#: name -> (layers, width, heads, tokens)
MODELS = {"encoder of 256": (2, 256, 4, 128), "encoder of 768": (2, 768, 12, 64)}
STATIC = {"QDQ": "QDQ", "QOperator": "QOperator"}
FORMATS = {**STATIC, "dynamic": "dynamic"}
VOCABULARY = 1000


def encoder(layers: int, width: int, heads: int, tokens: int) -> Any:
    """A PyTorch module: embedding, layers of attention and of two linear layers with GELU, and a linear layer."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            split = lambda y: y.view(x.shape[0], tokens, heads, width // heads).transpose(1, 2)
            q, k, v = (split(part(x)) for part in (self.q, self.k, self.v))
            p = torch.softmax(q @ k.transpose(-1, -2) / (width // heads) ** 0.5, -1)
            x = self.first(x + self.o((p @ v).transpose(1, 2).reshape(x.shape)))
            return self.second(x + self.down(nn.functional.gelu(self.up(x))))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm = nn.Embedding(VOCABULARY, width), nn.LayerNorm(width)
            self.places = nn.Parameter(0.3 * torch.randn(1, tokens, width))
            self.layers, self.last = nn.Sequential(*(Layer() for _ in range(layers))), nn.Linear(width, 16)

        def forward(self, numbers: Any) -> Any:
            return self.last(self.layers(self.norm(self.embedding(numbers) + self.places)))

    return Encoder().eval()


def make(folder: Path, name: str) -> None:
    """Write a model and its quantized forms to the folder."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic

    torch.manual_seed(0)
    shape = (1, MODELS[name][-1])
    plain = write_quantized(
        folder, name, encoder(*MODELS[name]), (torch.zeros(shape, dtype=torch.int64),),
        lambda rng: rng.integers(0, VOCABULARY, shape), STATIC,
    )  # fmt: skip
    quantize_dynamic(plain, folder / f"{name}.dynamic.onnx", weight_type=QuantType.QInt8)


if __name__ == "__main__":
    run(MODELS, FORMATS, make, "quantized_transformers", "Quantized transformers on a CPU", str(__doc__))
