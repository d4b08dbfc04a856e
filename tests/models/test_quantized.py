"""Quantized checkpoints: each format against its definition, and what does not fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.weight_data import load_data
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.errors import BadModelError, BadWeightsError, UnsupportedError
from tensor_graphs.models.common.packed_weight import LazyPart, PackedWeight
from tensor_graphs.models.files.safetensors import read_folder, write_arrays
from tensor_graphs.models.huggingface.checkpoint import Config
from tensor_graphs.models.huggingface.load import load_folder, opened
from tensor_graphs.models.huggingface.quantized import dequantized
from tensor_graphs.models.huggingface.quantized_tensors import UnroundedActivationsWarning, unpacked

from .decoder_cases import VOCAB, write

Array = np.ndarray[Any, Any]
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
IDS = {"input_ids": np.arange(6).reshape(1, 6) % VOCAB}


def packed(numbers: Array, bits: int, axis: int) -> Array:
    """Unsigned numbers as int32 words along an axis, lowest bits first: one number after another."""
    lines = np.moveaxis(numbers, axis, -1)
    count = 32 // bits
    words = np.zeros((*lines.shape[:-1], lines.shape[-1] // count), np.uint32)
    for i in range(lines.shape[-1]):
        words[..., i // count] |= lines[..., i].astype(np.uint32) << np.uint32(bits * (i % count))
    return np.moveaxis(words.view(np.int32), -1, axis).copy()


def gptq(
    rng: np.random.Generator, shape: tuple[int, int], first: bool = True, mixed: bool = False
) -> tuple[dict[str, Array], Array]:
    """Tensors of a GPTQ weight with groups of 8, in mixed order or not, and the weight."""
    outputs, inputs = shape
    groups = inputs // 8
    numbers, zeros = rng.integers(0, 16, (inputs, outputs)), rng.integers(1, 16, (groups, outputs))
    scales = (rng.random((groups, outputs)) / 16).astype(np.float16)
    index = np.repeat(np.arange(groups), 8).astype(np.int32)
    index = rng.permutation(index) if mixed else index
    weight = np.zeros(shape, np.float32)
    for o in range(outputs):
        for i in range(inputs):
            weight[o, i] = np.float32(scales[index[i], o]) * (numbers[i, o] - zeros[index[i], o])
    parts = {"qweight": packed(numbers, 4, 0), "qzeros": packed(zeros - first, 4, 1), "scales": scales, "g_idx": index}
    return parts, weight


def awq(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    outputs, inputs = shape
    groups = inputs // 8
    numbers, zeros = rng.integers(0, 16, (inputs, outputs)), rng.integers(0, 16, (groups, outputs))
    scales = (rng.random((groups, outputs)) / 16).astype(np.float16)
    weight = np.repeat(scales.astype(np.float32), 8, 0) * (numbers - np.repeat(zeros, 8, 0))
    mixed = [8 * (c // 8) + (0, 2, 4, 6, 1, 3, 5, 7)[c % 8] for c in range(outputs)]
    parts = {"qweight": packed(numbers[:, mixed], 4, 1), "qzeros": packed(zeros[:, mixed], 4, 1), "scales": scales}
    return parts, weight.T


def pack_quantized(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    numbers = rng.integers(-8, 8, shape)
    scales = (rng.random((shape[0], shape[1] // 8)) / 16).astype(np.float16)
    parts = {"weight_packed": packed(numbers + 8, 4, 1), "weight_scale": scales, "weight_shape": np.array(shape)}
    return parts, numbers * np.repeat(scales.astype(np.float32), 8, 1)


def int_quantized(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    numbers = rng.integers(-128, 128, shape).astype(np.int8)
    scales = (rng.random((shape[0], 1)) / 256).astype(np.float16)
    return {"weight": numbers, "weight_scale": scales}, numbers * scales.astype(np.float32)


def float_quantized(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    numbers = rng.integers(0, 127, shape).astype(np.uint8).view(numpy_float8())
    scales = (rng.random((shape[0], 1)) / 4096).astype(np.float16)
    return {"weight": numbers, "weight_scale": scales}, numbers.astype(np.float32) * scales.astype(np.float32)


def in_blocks(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    parts, weight = fp8(rng, shape)
    return {"weight": parts["weight"], "weight_scale": parts["weight_scale_inv"]}, weight


def of_one_scale(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    numbers, zero = rng.integers(-128, 128, shape).astype(np.int8), np.array([3], np.int8)
    scale = np.array([1 / 256], np.float16)
    return {"weight": numbers, "weight_scale": scale, "weight_zero_point": zero}, (numbers - 3.0) / 256


def fp4(rng: np.random.Generator, shape: tuple[int, int], size: int) -> tuple[dict[str, Array], Array]:
    """Tensors of a weight of floats e2m1 in groups of 32 (exponents as scales) or 16 (e4m3 over a global scale)."""
    codes, of_groups = rng.integers(0, 16, shape), (shape[0], shape[1] // size)
    parts = {"weight_packed": (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)}
    if size == 32:
        parts["weight_scale"] = rng.integers(120, 126, of_groups).astype(np.uint8)
        scales = 2.0 ** (parts["weight_scale"] - 127.0)
    else:
        parts["weight_scale"] = rng.integers(40, 60, of_groups).astype(np.uint8).view(numpy_float8())
        parts["weight_global_scale"] = np.array([24.0], np.float32)
        scales = parts["weight_scale"].astype(np.float64) / 24
    return parts, FP4[codes] * np.repeat(scales, size, 1)


def fp8(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    """Blocks of 24 x 16; the last block of rows is smaller."""
    numbers = rng.integers(0, 127, shape).astype(np.uint8).view(numpy_float8())
    factors = (rng.random((-(-shape[0] // 24), shape[1] // 16)) / 4096).astype(np.float32)
    whole = np.repeat(np.repeat(factors, 24, 0), 16, 1)[: shape[0]]
    return {"weight": numbers, "weight_scale_inv": factors}, numbers.astype(np.float32) * whole


def torchao_int8(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    numbers, zeros = (rng.integers(-128, 128, s).astype(np.int8) for s in (shape, (shape[0], shape[1] // 8)))
    scales = (rng.random(zeros.shape) / 256).astype(np.float16)
    weight = (numbers - np.repeat(zeros.astype(np.float32), 8, 1)) * np.repeat(scales.astype(np.float32), 8, 1)
    return {"weight:qdata": numbers, "weight:scale": scales, "weight:zero_point": zeros}, weight


def torchao_float8(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    parts, weight = float_quantized(rng, shape)
    return {"_weight_qdata": parts["weight"], "_weight_scale": parts["weight_scale"]}, weight


def asymmetric(
    rng: np.random.Generator, shape: tuple[int, int], bits: int, stored: str = "words"
) -> tuple[dict[str, Array], Array]:
    """Tensors of a compressed-tensors weight with zero points as `stored`: "words", "bytes", or with int8 codes."""
    half, groups = 1 << bits - 1, shape[1] // 8
    numbers, zeros = rng.integers(-half, half, shape), rng.integers(-half, half, (shape[0], groups))
    scales = (rng.random(zeros.shape) / (half * 2)).astype(np.float16)
    parts = (
        {"weight": numbers.astype(np.int8)} if stored == "codes" else {"weight_packed": packed(numbers + half, bits, 1)}
    )
    zero = packed(zeros + half, bits, 0) if stored == "words" else zeros.astype(np.int8)
    weight = (numbers - np.repeat(zeros, 8, 1)) * np.repeat(scales.astype(np.float32), 8, 1)
    return {**parts, "weight_scale": scales, "weight_zero_point": zero}, weight


def bnb_int8(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[dict[str, Array], Array]:
    numbers, largest = rng.integers(-127, 128, shape).astype(np.int8), rng.random(shape[0]).astype(np.float32)
    parts = {"weight": numbers, "SCB": largest, "weight_format": np.zeros((), np.uint8)}
    return parts, numbers * (largest[:, None] / np.float32(127))


def bnb_nf4(rng: np.random.Generator, shape: tuple[int, int], nested: bool) -> tuple[dict[str, Array], Array]:
    """Tensors of a 4-bit bitsandbytes weight in blocks of 64, whose factors are `nested` (quantized in blocks of 8)."""
    count = shape[0] * shape[1]
    codes, table = rng.integers(0, 16, count), np.linspace(-0.25, 0.25, 16, dtype=np.float32)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(shape)}
    parts = {"weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None], "weight.quant_map": table}
    blocks = count // 64
    if nested:
        numbers, sizes = rng.integers(0, 256, blocks).astype(np.uint8), rng.random(-(-blocks // 8)).astype(np.float32)
        map_ = np.linspace(-1, 1, 256, dtype=np.float32)
        state |= {"nested_blocksize": 8, "nested_offset": 0.25}
        parts |= {"weight.absmax": numbers, "weight.nested_absmax": sizes, "weight.nested_quant_map": map_}
        factors = np.array([map_[n] * sizes[i // 8] + np.float32(0.25) for i, n in enumerate(numbers)], np.float32)
    else:
        factors = parts["weight.absmax"] = rng.random(blocks).astype(np.float32)
    parts["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return parts, (table[codes] * factors[np.arange(count) // 64]).reshape(shape)


def numpy_float8() -> Any:
    import ml_dtypes

    return ml_dtypes.float8_e4m3fn


def _groups(form: str, bits: int, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "symmetric": True, "type": "int", "strategy": "group", "actorder": None}
    return {"quant_method": "compressed-tensors", "format": form,
            "config_groups": {"group_0": {"weights": {**weights, **more}, "input_activations": None}}}  # fmt: skip


FORMATS: dict[str, tuple[dict[str, Any], Any]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 8}, gptq),
    "gptq in mixed order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True},
        lambda r, s: gptq(r, s, mixed=True),
    ),
    "gptq_v2": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, lambda r, s: gptq(r, s, False)),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}, awq),
    "pack-quantized": (_groups("pack-quantized", 4, actorder="static"), pack_quantized),
    "int-quantized": (_groups("int-quantized", 8), int_quantized),
    "pack-quantized, zero points": (_groups("pack-quantized", 4, symmetric=False), lambda r, s: asymmetric(r, s, 4)),
    "pack-quantized in bytes, zero points": (
        _groups("pack-quantized", 8, symmetric=False),
        lambda r, s: asymmetric(r, s, 8, "bytes"),
    ),
    "int-quantized, zero points": (
        _groups("int-quantized", 8, symmetric=False),
        lambda r, s: asymmetric(r, s, 8, "codes"),
    ),
    "bitsandbytes int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_int8),
    "bitsandbytes nf4": ({"quant_method": "bitsandbytes", "_load_in_4bit": True}, lambda r, s: bnb_nf4(r, s, False)),
    "bitsandbytes nf4, nested": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        lambda r, s: bnb_nf4(r, s, True),
    ),
    "float-quantized": (_groups("float-quantized", 8, type="float"), float_quantized),
    "naive-quantized": (_groups("naive-quantized", 8, type="float"), float_quantized),
    "int-quantized, one scale": (_groups("int-quantized", 8, strategy="tensor", symmetric=False), of_one_scale),
    "float-quantized in blocks": (
        _groups("float-quantized", 8, type="float", strategy="block", block_structure=[24, 16]),
        in_blocks,
    ),
    "mxfp4-pack-quantized": (_groups("mxfp4-pack-quantized", 4, type="float"), lambda r, s: fp4(r, s, 32)),
    "nvfp4-pack-quantized": (_groups("nvfp4-pack-quantized", 4, type="float"), lambda r, s: fp4(r, s, 16)),
    "torchao int8": ({"quant_method": "torchao"}, torchao_int8),
    "torchao float8": ({"quant_method": "torchao"}, torchao_float8),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [24, 16]}, fp8),
}


def quantize(folder: Path, form: str) -> dict[str, Array]:
    """Replace the projections of a checkpoint by quantized ones; returns all tensors as floats."""
    options, make = FORMATS[form]
    rng = np.random.default_rng(0)
    stored, plain = dict[str, Array](), dict[str, Array]()
    for name, data in read_folder(folder).items():
        plain[name] = stored[name] = data.load().copy()
        if name.endswith("proj.weight"):
            del stored[name]
            parts, plain[name] = make(rng, data.shape)
            stored |= {name.removesuffix("weight") + n: p for n, p in parts.items()}
    if form == "torchao int8":
        stored = {n if ":" in n else f"{n}:_data": a for n, a in stored.items()}
    from safetensors.numpy import save_file

    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": options}))
    return plain


#: Dtypes of weights that are not float16.
DTYPES = {"mxfp4-pack-quantized": "bfloat16", **dict.fromkeys(("fp8", "float-quantized in blocks", "nvfp4-pack-quantized", "bitsandbytes int8"), "float32")}  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_a_quantized_checkpoint_computes_with_its_own_values(tmp_path: Path, form: str) -> None:
    folder = write(tmp_path / "a", "llama", intermediate_size=64)
    plain = quantize(folder, form)
    graph = load_folder(folder).bind({"batch": 1, "sequence": 6})
    found = evaluate(graph, IDS, float64=True)[0]
    other = write(tmp_path / "b", "llama", intermediate_size=64)
    write_arrays(other / "model.safetensors", {n: a.astype(np.float32) for n, a in plain.items()})
    wanted = evaluate(load_folder(other).bind({"batch": 1, "sequence": 6}), IDS, float64=True)[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)  # products are rounded to float16
    packed = [d for d in opened(folder)[1].values() if isinstance(d, PackedWeight)]
    mixed = [
        d for d in graph.params.values() if isinstance(d, LazyPart) and d.shape == (32, 32) and d.dtype == "float16"
    ]
    assert (len(packed) == 3 * 7) != bool(mixed)  # groups in mixed order are expanded
    assert all(d.load().dtype == numpy_dtype(DTYPES.get(form, "float16")) for d in packed)
    codes = [n.type.nbytes for n in graph.leaves("param") if str(n.attr("name")).endswith(".q")]
    assert len(codes) == len(packed) and max(codes, default=0) <= 64 * 32


@pytest.mark.parametrize("form", ["bitsandbytes int8", "bitsandbytes nf4"])
def test_quantized_weights_of_gpt2_have_their_outputs_first(tmp_path: Path, form: str) -> None:
    """As floats they have their inputs first; a square one was taken for its transpose."""
    options, make = FORMATS[form]
    found = []
    for number, packed in enumerate((False, True)):
        folder, rng = write(tmp_path / str(number), "gpt2"), np.random.default_rng(0)
        arrays = {n: d.load().copy() for n, d in read_folder(folder).items()}
        for name in [n for n in arrays if re.search(r"c_(attn|fc|proj)\.weight$", n)]:
            parts, weight = make(rng, arrays[name].shape[::-1])
            arrays[name] = weight.T.astype(np.float16).astype(np.float32)
            if packed:
                del arrays[name]
                arrays |= {name.removesuffix("weight") + n: p for n, p in parts.items()}
        write_arrays(folder / "model.safetensors", arrays)
        config = json.loads((folder / "config.json").read_text())
        more = {"quantization_config": options} if packed else {}
        (folder / "config.json").write_text(json.dumps({**config, **more}))
        found.append(evaluate(load_folder(folder).bind({"batch": 1, "sequence": 6}), IDS, float64=True)[0])
    np.testing.assert_allclose(*found, rtol=2e-3, atol=2e-3)


def test_activations_that_are_not_rounded_are_mentioned(tmp_path: Path) -> None:
    """Formats for kernels that round activations are read too; what the kernels add to the weights is left out."""
    parts, weight = int_quantized(np.random.default_rng(0), (4, 16))
    stored = {f"a.{name}": value for name, value in parts.items()} | {"a.input_scale": np.ones(1, np.float32)}
    options = _groups("int-quantized", 8)
    options["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "dynamic": False}
    with pytest.warns(UnroundedActivationsWarning):
        _, found = dequantized(Config({"quantization_config": options}), stored)
    assert list(found) == ["a.weight"]
    np.testing.assert_allclose(load_data(found["a.weight"]), weight, rtol=1e-3)


def mxfp4(folder: Path) -> dict[str, Array]:
    """Replace the experts of a gpt_oss checkpoint by MXFP4 blocks; returns all tensors as they should be."""
    rng = np.random.default_rng(0)
    stored, plain = dict[str, Array](), dict[str, Array]()
    for name, data in read_folder(folder).items():
        plain[name] = stored[name] = data.load().copy()
        if name.endswith("_proj") and len(data.shape) == 3:
            del stored[name]
            experts, inputs, outputs = data.shape
            numbers = rng.integers(0, 16, (experts, outputs, inputs // 32, 32))
            exponents = rng.integers(120, 126, (experts, outputs, inputs // 32))
            values = FP4[numbers] * 2.0 ** (exponents[..., None] - 127.0)
            plain[name] = values.reshape(experts, outputs, inputs).transpose(0, 2, 1).astype(np.float32)
            stored[f"{name}_blocks"] = (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8)
            stored[f"{name}_scales"] = exponents.astype(np.uint8)
    write_arrays(folder / "model.safetensors", stored)
    config = json.loads((folder / "config.json").read_text())
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return plain


def test_mxfp4(tmp_path: Path) -> None:
    folder = write(tmp_path, "gpt_oss", intermediate_size=64)
    plain = mxfp4(folder)
    graph = load_folder(folder).bind({"batch": 1, "sequence": 6})
    assert np.isfinite(evaluate(graph, IDS, float64=True)[0]).all()
    lazy = {n: d.load() for n, d in opened(folder)[1].items() if isinstance(d, PackedWeight)}
    assert len(lazy) == 6
    for name, found in lazy.items():
        assert found.dtype == numpy_dtype("bfloat16")
        np.testing.assert_array_equal(found.astype(np.float32), plain[name])


def test_mxfp4_is_what_transformers_reads(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="compares with the package transformers, if installed")
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = write(tmp_path, "gpt_oss", intermediate_size=64)
    mxfp4(folder)
    params, stored = opened(folder)[1], read_folder(folder)
    for name in (n for n in params if n.endswith("_proj") and len(params[n].shape) == 3):
        parts = (torch.from_numpy(stored[f"{name}_{p}"].load().copy()) for p in ("blocks", "scales"))
        wanted = convert_moe_packed_tensors(*parts).float().numpy()
        np.testing.assert_array_equal(params[name].load().astype(np.float32), wanted)  # type: ignore[union-attr]


def test_compressed_tensors_are_what_their_package_packs() -> None:
    pytest.importorskip("compressed_tensors", reason="compares with the package compressed_tensors, if installed")
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    numbers = np.random.default_rng(0).integers(-8, 8, (4, 16)).astype(np.int8)
    words = pack_to_int32(torch.from_numpy(numbers), 4).numpy()
    np.testing.assert_array_equal(unpacked(words, 4, 1).astype(np.int8) - 8, numbers)


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quant_method": "exotic"}, "'exotic'"),
        ({"quant_method": None}, "format ''"),
        ({"quant_method": "gptq", "bits": 3}, "bits=3"),
        ({"quant_method": "awq", "bits": 8}, "bits=8"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "AWQ"),
        (_groups("marlin-24", 4), "marlin-24"),
        (_groups("naive-quantized", 4), "num_bits=4"),
        (_groups("float-quantized", 8, type="float", symmetric=False), "symmetric"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
        (_groups("pack-quantized", 4, actorder="group"), "actorder"),
        (
            _groups("pack-quantized", 4) | {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}},
            "hadamard",
        ),
        (_groups("pack-quantized", 4) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24"),
        (_groups("int-quantized", 8, dynamic=True), "dynamic"),
    ],
)
def test_other_formats_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = write(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": changes}))
    with pytest.raises(UnsupportedError, match=words):
        load_folder(folder)


NO_INDEX = "g_idx"


@pytest.mark.parametrize(
    ("form", "options", "dropped", "words"),
    [
        ("gptq", {"group_size": 16}, NO_INDEX, "group_size=16"),
        ("gptq", {"group_size": -1}, NO_INDEX, "group_size=-1"),
        ("gptq", {"desc_act": True}, NO_INDEX, "which desc_act needs"),
        ("gptq", {"checkpoint_format": "marlin"}, "", "marlin"),
        ("gptq", {"checkpoint_format": "gptq", "format": "gptq_v2"}, "", "differ"),
        ("awq", {"group_size": 16}, "", "group_size=16"),
        ("awq", {"backend": "llm-awq"}, "", "llm-awq"),
        ("pack-quantized", _groups("pack-quantized", 4, group_size=16), "", "group_size=16"),
    ],
)
def test_options_that_disagree_with_the_tensors_are_refused(
    tmp_path: Path, form: str, options: dict[str, Any], dropped: str, words: str
) -> None:
    folder = write(tmp_path, "llama", intermediate_size=64)
    quantize(folder, form)
    if dropped:
        arrays = {n: a.load().copy() for n, a in read_folder(folder).items() if not n.endswith(dropped)}
        write_arrays(folder / "model.safetensors", arrays)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= options
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises((BadWeightsError, BadModelError, UnsupportedError), match=words):
        load_folder(folder)


def test_the_second_version_of_gptq_has_two_names(tmp_path: Path) -> None:
    found = []
    for number, name in enumerate(("checkpoint_format", "format")):
        folder = write(tmp_path / str(number), "llama", intermediate_size=64)
        quantize(folder, "gptq_v2")
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4, name: "gptq_v2"}
        (folder / "config.json").write_text(json.dumps(config))
        found.append(opened(folder)[1]["model.layers.0.self_attn.q_proj.weight"].load())  # type: ignore[union-attr]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("ending", "value", "words"),
    [
        ("scales", None, "scales' is missing"),
        ("qzeros", np.zeros((1, 4), np.int32), "qzeros' has shape"),
        ("qweight", np.zeros((4, 32), np.float32), "holds float32"),
        ("qweight", np.zeros(4, np.int32), "not 2 axes"),
        ("g_idx", np.full(32, 99, np.int32), "g_idx names a group"),
        ("weight", np.zeros((32, 32), np.float32), "twice"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, ending: str, value: Any, words: str) -> None:
    folder = write(tmp_path, "llama", intermediate_size=64)
    quantize(folder, "gptq")
    name = f"model.layers.1.self_attn.q_proj.{ending}"
    arrays = {n: a.load().copy() for n, a in read_folder(folder).items() if n != name}
    write_arrays(folder / "model.safetensors", arrays if value is None else {**arrays, name: value})
    with pytest.raises((BadWeightsError, BadModelError), match=words):
        for data in load_folder(folder).params.values():
            data if isinstance(data, np.ndarray) else data.load()


def test_tensors_that_contradict_the_options_are_refused() -> None:
    """Zero points of a symmetric format, and a packed weight of another width, would change every number."""
    parts, _ = pack_quantized(np.random.default_rng(0), (4, 16))
    stored = {f"a.{name}": np.asarray(value) for name, value in parts.items()}
    config = Config({"quantization_config": _groups("pack-quantized", 4)})
    assert dequantized(config, stored | {"a.weight_zero_point": np.zeros((4, 2), np.int8)})
    for name, value in {"zero_point": np.full((4, 2), 7, np.int8), "shape": np.array([4, 15])}.items():
        with pytest.raises(BadWeightsError, match=f"weight_{name}' holds other numbers"):
            dequantized(config, stored | {f"a.weight_{name}": value})


def test_blocks_larger_than_a_weight_take_no_memory() -> None:
    """A factor was repeated as often as the block size says."""
    stored = {"a.weight": np.zeros((48, 64), np.uint8), "a.weight_scale_inv": np.ones((1, 1), np.float32)}
    sizes = {"quant_method": "fp8", "weight_block_size": [1 << 40, 10**400]}
    _, found = dequantized(Config({"quantization_config": sizes}), stored)
    weight = found["a.weight"]
    assert isinstance(weight, PackedWeight) and load_data(weight.parts["scale"]).shape == (48, 64)
