"""GGUF files: encodings against their definition, a model against its checkpoint, and what is malformed or refused."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import BadModelError, BadWeightsError, TensorGraphsError, TooLargeError, UnsupportedError
from tensor_graphs.models.common.packed_weight import PackedWeight
from tensor_graphs.models.files.gguf import ENCODINGS, FOREIGN, SkippedArray, read_gguf
from tensor_graphs.models.files.safetensors import read_folder, write_arrays
from tensor_graphs.models.huggingface.families import layer_windows
from tensor_graphs.models.huggingface.gguf import _LAYER, GGUF_FAMILIES, opened_gguf
from tensor_graphs.models.huggingface.gguf_blocks import FORMATS
from tensor_graphs.models.load import load

from .decoder_cases import VOCAB, write
from .gguf_files import file_of, text

Array = np.ndarray[Any, Any]
F32, F16, BF16 = 0, 1, 30
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = 2, 3, 6, 7, 8, 10, 11, 12, 13, 14
IQ4_NL, IQ4_XS, MXFP4 = 20, 23, 39
#: Encoding -> bytes at which a block has float16 numbers.
FLOATS = {Q4_0: (0,), Q4_1: (0, 2), Q5_0: (0,), Q5_1: (0, 2), Q8_0: (0,), Q2_K: (80, 82), Q3_K: (108,), Q4_K: (0, 2), Q5_K: (0, 2),
          Q6_K: (208,), IQ4_NL: (0,), IQ4_XS: (0,), MXFP4: ()}  # fmt: skip
RNG = np.random.default_rng(0)


# ---------------------------------------------------------------- encodings
def half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def signed(block: bytes, at: int) -> int:
    return int(struct.unpack("b", block[at : at + 1])[0])


def bits_of(block: bytes, at: int, i: int) -> int:
    """Bit i of the bytes from `at` on, the lowest bit of a byte first."""
    return block[at + i // 8] >> i % 8 & 1


def nibble(block: bytes, at: int, i: int) -> int:
    """Number i of 32: the lower bits of 16 bytes, then the upper ones."""
    return block[at + i % 16] >> 4 * (i // 16) & 15


def two_bits(block: bytes, at: int, i: int) -> int:
    part, place = divmod(i, 128)
    return block[at + 32 * part + place % 32] >> 2 * (place // 32) & 3


def six_bits(s: bytes, j: int) -> tuple[int, int]:
    """Scale and minimum of group j of eight in 12 bytes."""
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


def q3_scale(block: bytes, j: int) -> int:
    return (block[96 + j % 8] >> 4 * (j // 8) & 15 | (block[104 + j % 4] >> 2 * (j // 4) & 3) << 4) - 32


def q6_number(block: bytes, i: int) -> int:
    part, place = divmod(i, 128)
    four = block[64 * part + 32 * (place // 32 % 2) + place % 32] >> 4 * (place // 64) & 15
    return (four | two_bits(block, 128, i) << 4) - 32


IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def iq4_number(block: bytes, i: int) -> float:
    """Number i of an IQ4_XS block: groups of 32 have a scale of 6 bits."""
    group = i // 32
    high = int.from_bytes(block[2:4], "little") >> 2 * group & 3
    scale = (block[4 + group // 2] >> 4 * (group % 2) & 15 | high << 4) - 32
    return half(block, 0) * scale * IQ4[nibble(block, 8 + 16 * group, i % 32)]


def k_number(block: bytes, kind: int, i: int) -> float:
    """Number i of a Q4_K or Q5_K block."""
    (scale, least), (j, at) = six_bits(block[4:16], i // 32), divmod(i, 32)
    number = block[(16 if kind == Q4_K else 48) + 32 * (j // 2) + at] >> 4 * (j % 2) & 15
    fifth = 0 if kind == Q4_K else block[16 + at] >> j & 1
    return half(block, 0) * scale * (number + 16 * fifth) - half(block, 2) * least


#: Encoding -> number i of a block.
NUMBER: dict[int, Callable[[bytes, int], float]] = {
    Q4_0: lambda b, i: half(b, 0) * (nibble(b, 2, i) - 8),
    Q4_1: lambda b, i: half(b, 0) * nibble(b, 4, i) + half(b, 2),
    Q5_0: lambda b, i: half(b, 0) * ((nibble(b, 6, i) | bits_of(b, 2, i) << 4) - 16),
    Q5_1: lambda b, i: half(b, 0) * (nibble(b, 8, i) | bits_of(b, 4, i) << 4) + half(b, 2),
    Q8_0: lambda b, i: half(b, 0) * signed(b, 2 + i),
    Q2_K: lambda b, i: half(b, 80) * (b[i // 16] & 15) * two_bits(b, 16, i) - half(b, 82) * (b[i // 16] >> 4),
    Q3_K: lambda b, i: (
        half(b, 108) * q3_scale(b, i // 16) * ((two_bits(b, 32, i) | (b[i % 32] >> i // 32 & 1) << 2) - 4)
    ),
    Q4_K: lambda b, i: k_number(b, Q4_K, i),
    Q5_K: lambda b, i: k_number(b, Q5_K, i),
    Q6_K: lambda b, i: half(b, 208) * signed(b, 192 + i // 16) * q6_number(b, i),
    IQ4_NL: lambda b, i: half(b, 0) * IQ4[nibble(b, 2, i)],
    IQ4_XS: iq4_number,
    MXFP4: lambda b, i: 2.0 ** (b[0] - 127) * E2M1[nibble(b, 1, i)],
}


def blocks(kind: int, rows: int, columns: int) -> tuple[bytes, Array]:
    """Random blocks of a matrix, and its numbers."""
    count, size = ENCODINGS[kind].numbers, ENCODINGS[kind].nbytes
    raw = RNG.integers(0, 256, (rows * columns // count, size)).astype(np.uint8)
    for at in FLOATS[kind]:
        raw[:, at : at + 2] = RNG.uniform(1e-5, 1e-4, (len(raw), 1)).astype(np.float16).view(np.uint8)
    if kind in (Q4_K, Q5_K):
        raw[0, 4:8] = 0  # scales of 0 with minima that are not
        raw[0, 8:16] |= 5
    if kind == MXFP4:
        raw[:, 0] = 100 + raw[:, 0] % 16
    if kind == Q2_K:
        raw[0, :16] &= 0xF0
    content = raw.tobytes()
    parts = [content[i * size : (i + 1) * size] for i in range(len(raw))]
    values = [NUMBER[kind](block, i) for block in parts for i in range(count)]
    return content, np.array(values, np.float32).reshape(rows, columns)


META: dict[str, Any] = {
    "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 64, "llama.embedding_length": 256,
    "llama.feed_forward_length": 256, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0, "tokenizer.ggml.tokens": ["a", "bc", ""],
    "tokenizer.ggml.eos_token_id": 2,
}  # fmt: skip
SHAPES = {"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256), "ffn_gate": (256, 256),
          "ffn_up": (256, 256), "ffn_down": (256, 256)}  # fmt: skip
KINDS = (Q8_0, Q4_K, Q6_K, F16, Q5_0, Q4_0, Q3_K)


@cache
def model() -> tuple[dict[str, tuple[tuple[int, ...], int, bytes]], dict[str, Array]]:
    """Tensors of a file with a matrix of each encoding, and its numbers under Hugging Face names."""
    stored: dict[str, tuple[tuple[int, ...], int, bytes]] = {}
    plain: dict[str, Array] = {}
    for name, shape in (("token_embd", (VOCAB, 256)), ("output", (VOCAB, 256)), ("output_norm", (256,)), ("blk.0.attn_norm", (256,)),
                        ("blk.0.ffn_norm", (256,))):  # fmt: skip
        values = (0.02 * RNG.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)
        stored[f"{name}.weight"] = shape, F32, values.tobytes()
        target = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}.get(
            name
        ) or f"layers.0.{_LAYER[name[6:]]}"
        plain[("" if name == "output" else "model.") + f"{target}.weight"] = values
    for (name, shape), kind in zip(SHAPES.items(), KINDS, strict=True):
        if kind == F16:
            half_ = (0.02 * RNG.standard_normal(shape)).astype(np.float16)
            content, values = half_.tobytes(), half_.astype(np.float32)
        else:
            content, values = blocks(kind, *shape)
        stored[f"blk.0.{name}.weight"] = shape, kind, content
        if name in ("attn_q", "attn_k"):  # the file has the two numbers of a pair one after the other
            heads = 4 if name == "attn_q" else 2
            values = values.reshape(heads, -1, 2, 256).swapaxes(1, 2).reshape(shape)
        plain[f"model.layers.0.{_LAYER[name]}.weight"] = values
    return stored, plain


def test_a_model_computes_what_its_checkpoint_does(tmp_path: Path) -> None:
    stored, plain = model()
    path = tmp_path / "model.gguf"
    path.write_bytes(file_of(META, stored))
    folder = write(tmp_path / "plain", "llama", num_hidden_layers=1)
    config = json.loads((folder / "config.json").read_text()) | {
        "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64, "rope_scaling": None,
        "tie_word_embeddings": False, "torch_dtype": "float32", "vocab_size": VOCAB,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    write_arrays(folder / "model.safetensors", plain)
    assert {*read_folder(folder)} == {*plain}
    ids = {"input_ids": np.arange(5).reshape(1, 5) % VOCAB}
    found, wanted = (
        evaluate(load(p).bind({"batch": 1, "sequence": 5}), ids, float64=True)[0].astype(np.float64)
        for p in (path, folder)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    config_, data = opened_gguf(path)
    packed = {n for n, d in data.items() if isinstance(d, PackedWeight)}
    assert len(packed) == 6 and config_.fields["eos_token_id"] == 2 and not config_.flag("tie_word_embeddings", True)


@pytest.mark.parametrize("kind", FLOATS)
def test_packed_weights_keep_every_number(tmp_path: Path, kind: int) -> None:
    stored, _ = model()
    content, values = blocks(kind, 16, 256)
    (tmp_path / "m.gguf").write_bytes(file_of(META, stored | {"blk.0.ffn_up.weight": ((16, 256), kind, content)}))
    found = opened_gguf(tmp_path / "m.gguf")[1]["layers.0.mlp.up_proj.weight"]
    assert isinstance(found, PackedWeight)
    exact = evaluate([found.tensor("w")], {}, params=found.params("w"), float64=True)[0]
    np.testing.assert_allclose(exact, values, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "case", "meta"),
    [
        ("gemma", "gemma", {}),
        (
            "gemma2",
            "gemma2",
            {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5, "attention.sliding_window": 9},
        ),
        (
            "gemma3",
            "gemma3",
            {"attention.sliding_window": 9, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        ),
    ],
)
def test_files_of_a_family_compute_what_checkpoints_do(
    tmp_path: Path, kind: str, case: str, meta: dict[str, Any]
) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0} if "rope.scaling.factor" in meta else None
    changes = {"layer_types": None, "query_pre_attn_scalar": 8, "rope_scaling": scaling}
    folder = write(tmp_path / "plain", case, num_hidden_layers=7, **changes)
    family = GGUF_FAMILIES[kind]
    names = {f"layers.{i}.{to}": f"blk.{i}.{name}" for i in range(7) for name, to in family.layer.items()}
    names |= {"embed_tokens": "token_embd", "norm": "output_norm"}
    stored = {}
    for name, data in read_folder(folder).items():
        stem, _, ending = name.removeprefix("model.").rpartition(".")
        values = data.load().astype(np.float32) + (1 if stem.endswith("norm") else 0)
        stored[f"{names[stem]}.{ending}"] = values.shape, F32, values.astype(np.float32).tobytes()
    sizes = {"block_count": 7, "context_length": 128, "embedding_length": 32, "feed_forward_length": 48, "attention.head_count": 4,
             "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6, "attention.key_length": 8}  # fmt: skip
    path = tmp_path / "m.gguf"
    path.write_bytes(
        file_of({"general.architecture": kind, **{f"{kind}.{n}": v for n, v in (sizes | meta).items()}}, stored)
    )
    ids = {"input_ids": np.arange(30).reshape(1, 30) % VOCAB}
    found, wanted = (evaluate(load(p).bind({"batch": 1, "sequence": 30}), ids, float64=True)[0] for p in (path, folder))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- what is refused
TINY = {"blk.0.ffn_up.weight": ((1, 32), Q8_0, bytes(34))}


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"GGUF", BadModelError, "too few"),
        (b"GGML" + bytes(40), BadModelError, "does not begin"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), UnsupportedError, "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedError, "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), BadModelError, "do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), BadModelError, "do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 50) + bytes(8), BadModelError, "more than"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 4, 1 << 61), BadModelError, "do not fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1), BadModelError, "array of the type"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 77), BadModelError, "unknown type"),
        (file_of({"general.alignment": 48}, TINY), BadModelError, "power of two"),
        (file_of({}, {"a": ((1, 33), Q8_0, bytes(34))}), BadWeightsError, "multiple of 32"),
        (file_of({}, {"a": ((2, 32), Q8_0, bytes(34))}), BadWeightsError, "outside the file"),
        (file_of({}, {"a": ((1 << 40, 1 << 40), F32, b"")}), TooLargeError, "too large"),
        (file_of({}, {"a": ((1, 1, 1, 1, 1), F32, bytes(4))}), BadModelError, "5 axes"),
        (file_of({}, {"a": ((1, 32), 19, bytes(18))}), UnsupportedError, "IQ1_S"),
        (file_of({}, {"a": ((1, 32), 99, bytes(18))}), BadModelError, "unknown type 99"),
    ],
)  # fmt: skip
def test_malformed_files_are_named(tmp_path: Path, content: bytes, kind: type[Exception], words: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(kind, match=words):
        read_gguf(path)


@pytest.mark.parametrize(
    ("meta", "words"),
    [({"general.architecture": "falcon"}, "'falcon'"), ({"llama.rope.scaling.type": "yarn"}, "yarn"),
     ({"llama.rope.scaling.factor": float("nan")}, "rope.scaling.factor"),
     ({"llama.expert_count": 8}, "experts"), ({"llama.block_count": 0}, "block_count"), ({"llama.attention.head_count": "4"}, "head_count"),
     ({"llama.rope.dimension_count": 32}, "part of each head"), ({"llama.attention.value_length": 32}, "another length"),
     ({"llama.attention.layer_norm_rms_epsilon": ["a", "b"]}, "rms_epsilon"), ({"llama.context_length": ["a"] * 64}, "context_length"),
     ({"llama.attention.causal": 0}, "causal"), ({"llama.logit_scale": 0.5}, "logit_scale"), ({"split.count": 2}, "split.count"),
     ({"llama.final_logit_softcapping": 30.0}, "softcapping"), ({"general.type": "adapter"}, "general.type")],
)  # fmt: skip
def test_models_that_are_not_supported_are_named(tmp_path: Path, meta: dict[str, Any], words: str) -> None:
    stored, _ = model()
    (tmp_path / "m.gguf").write_bytes(file_of(META | meta, stored))
    with pytest.raises((UnsupportedError, BadModelError), match=words):
        load(tmp_path / "m.gguf")
    short = {n: v for n, v in META.items() if not n.endswith("epsilon")}
    (tmp_path / "n.gguf").write_bytes(file_of(short, stored))
    with pytest.raises(BadModelError, match="epsilon' is missing"):
        load(tmp_path / "n.gguf")
    (tmp_path / "n.gguf").write_bytes(file_of(META, stored | {"blk.0.odd.weight": ((4,), F32, bytes(16))}))
    with pytest.raises(BadModelError, match=r"blk\.0\.odd"):
        load(tmp_path / "n.gguf")


@pytest.mark.parametrize("layer", ["00", "9" * 5000, "\u0660"])
def test_a_layer_has_one_name(tmp_path: Path, layer: str) -> None:
    """A second spelling of layer 0 would replace its tensors."""
    stored, _ = model()
    again = stored["blk.0.attn_q.weight"]
    (tmp_path / "m.gguf").write_bytes(file_of(META, stored | {f"blk.{layer}.attn_q.weight": again}))
    with pytest.raises(BadModelError, match="no place"):
        load(tmp_path / "m.gguf")


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    content = file_of({}, {name: ((16,), F32, bytes(64)) for name in "ab"})
    at = content.index(text("b")) + 9 + 4 + 8 + 4
    (tmp_path / "m.gguf").write_bytes(content[:at] + struct.pack("<Q", 32) + content[at + 8 :])
    with pytest.raises(BadWeightsError, match="'b' overlaps 'a'"):
        read_gguf(tmp_path / "m.gguf")


def test_layers_with_windows_are_those_that_the_file_lists(tmp_path: Path) -> None:
    """Not those of the family's own pattern."""
    about = {n.replace("llama", "gemma3"): "gemma3" if v == "llama" else v for n, v in META.items()}
    about |= {
        "gemma3.attention.sliding_window": 9,
        "gemma3.block_count": 3,
        "gemma3.attention.sliding_window_pattern": 2,
    }
    (tmp_path / "m.gguf").write_bytes(file_of(about, {"token_embd.weight": ((3, 256), F32, bytes(3072))}))
    config, _ = opened_gguf(tmp_path / "m.gguf")
    assert layer_windows(config, "gemma3_text", 3) == [9, 0, 9]


def test_no_cut_or_flipped_header_does_more_than_raise(tmp_path: Path) -> None:
    stored, _ = model()
    whole, path = file_of(META, stored), tmp_path / "m.gguf"
    rng = np.random.default_rng(1)
    for trial in range(150):
        content = bytearray(whole[: int(rng.integers(0, 2000))] if trial % 3 == 0 else whole)
        for at in rng.integers(0, min(1600, max(len(content), 1)), 3) if content and trial % 3 else ():
            content[at] = int(rng.integers(0, 256))
        path.write_bytes(bytes(content))
        with contextlib.suppress(TensorGraphsError):
            opened_gguf(path)


# ---------------------------------------------------------------- files that ask for much
@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (struct.pack("<IQQ", 3, 0, 1 << 17), "metadata values"),
        (struct.pack("<IQQ", 3, 0, 1) + text("t") + struct.pack("<IIQ", 9, 8, (1 << 22) + 1), "texts"),
        (struct.pack("<IQQ", 3, 0, 1) + text("t") + struct.pack("<IQ", 8, 1 << 25), "more than"),
    ],
    ids=["values", "texts", "text"],
)
def test_files_of_many_values_are_refused_before_they_are_read(tmp_path: Path, head: bytes, reason: str) -> None:
    path = tmp_path / "m.gguf"
    with open(path, "wb") as file:
        file.write(b"GGUF" + head)
        file.truncate(1 << 27)  # takes no room
    with pytest.raises((TooLargeError, BadModelError), match=reason):
        read_gguf(path)


def test_metadata_of_many_large_texts_are_not_kept(tmp_path: Path) -> None:
    """Each is allowed; a file of 20 GB that takes no room on the disk had 1,000 of them in memory."""
    path = tmp_path / "m.gguf"
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 8))
        for i in range(8):
            file.write(text(f"t{i}") + struct.pack("<IQ", 8, 1 << 24))
            file.seek(1 << 24, 1)
        file.truncate(file.tell() + 1)
    with pytest.raises(TooLargeError, match="more than 67108864 bytes"):
        read_gguf(path)


def test_every_quantized_encoding_has_a_decoder() -> None:
    quantized = {one.name for one in ENCODINGS.values() if one.numbers > 1}
    assert quantized == set(FORMATS) and not {*ENCODINGS} & {*FOREIGN}


def test_of_long_arrays_only_the_length_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("t") + struct.pack("<IIQ", 9, 0, 1 << 26))
        file.truncate((1 << 26) + 1000)
    assert read_gguf(path).metadata == {"t": SkippedArray(1 << 26)}


def test_quantized_tensors_without_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file_of(META, {"output.weight": ((0, 256), Q4_K, b"")}))
    with pytest.raises(BadWeightsError, match="no blocks"):
        read_gguf(path)
