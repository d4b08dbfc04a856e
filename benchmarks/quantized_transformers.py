"""Quantized transformers on a CPU beside ONNX Runtime: `python -m benchmarks.quantized_transformers [--make]
[--models NAME ...] [--threads N ...] [--budget S] [--folder F]`.

Encoders like BERT with random weights, quantized by ONNX Runtime: statically (bytes without sign for values, with sign
for weights, a scale for each output channel), as float operators between QuantizeLinear and DequantizeLinear (QDQ) and
as QLinearMatMul, QGemm and QLinearAdd (QOperator), and dynamically (DynamicQuantizeLinear and MatMulInteger). `--make`
writes the models to the folder; it needs onnx and torch. Measured as benchmarks.quantized_cnns does. Results go to
results/raw/quantized_transformers.json and results/quantized_transformers.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quantized_cnns import run

#: name -> (layers, width, heads, tokens)
MODELS = {"encoder of 256": (2, 256, 4, 128), "encoder of 768": (2, 768, 12, 64)}
FORMATS = {"QDQ": "QDQ", "QOperator": "QOperator", "dynamic": "dynamic"}
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
    import onnx
    import torch
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    torch.manual_seed(0)
    tokens = MODELS[name][-1]
    exported = torch.onnx.export(
        encoder(*MODELS[name]), (torch.zeros((1, tokens), dtype=torch.int64),), dynamo=True, verbose=False
    )
    assert exported is not None
    plain = folder / f"{name}.float32.onnx"
    exported.save(folder / "exported.onnx")
    quant_pre_process(folder / "exported.onnx", plain, skip_symbolic_shape=True)
    (folder / "exported.onnx").unlink()
    given = onnx.load(plain).graph.input[0].name

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.rest = [rng.integers(0, VOCABULARY, (1, tokens)) for _ in range(4)]

        def get_next(self) -> Any:
            return {given: self.rest.pop()} if self.rest else None

    for form in ("QDQ", "QOperator"):
        quantize_static(
            plain, folder / f"{name}.{form}.onnx", Reader(), quant_format=QuantFormat[form], per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    quantize_dynamic(plain, folder / f"{name}.dynamic.onnx", weight_type=QuantType.QInt8)


if __name__ == "__main__":
    run(MODELS, FORMATS, make, "quantized_transformers", "Quantized transformers on a CPU", str(__doc__))
