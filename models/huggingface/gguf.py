"""Imports GGUF models of the llama family: metadata as a config, tensors under Hugging Face names, quantized ones
packed.

Q8_0 (scale a block of 32), Q6_K (a block of 16) and Q4_K (scale and minimum a block of 32) become codes with scales;
F32, F16 and BF16 stay as they are. Scales of blocks of 256 are multiplied into those of the smaller blocks, in float32.
The tokenizer is read by `generation/gguf_tokenizer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...egraph.composites.quantized_ops import dequantize
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data, load_data
from ...errors import BadModelError, BadWeightsError, UnsupportedError
from ..common.packed_weight import LazyPart, PackedWeight
from ..common.quantization import dequantized, numbers, packed
from ..files.gguf import GgufFile, StoredTensor, read_gguf
from .checkpoint import Config

Array = np.ndarray[Any, Any]
DTYPE = "bfloat16"  # of activations: metadata name none

#: Architecture -> class name in a Hugging Face config.
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
#: Name in the file, without "blk.N." and ending -> name in a checkpoint.
_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip
_TOP = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
FREQUENCIES = "rope_freqs.weight"


def opened_gguf(path: Path | str) -> tuple[Config, dict[str, Data]]:
    """Return the config and the tensors of a file by Hugging Face name.

    Raises the errors of `read_gguf`, UnsupportedError for other architectures, and BadModelError for metadata that is
    missing or of another kind.
    """
    file = read_gguf(path)
    config = _config(file)
    heads, kv = config.size("num_attention_heads"), config.size("num_key_value_heads")
    interleaved = config.text("model_type", "") == "llama"  # rows of a head as pairs, not as halves
    found: dict[str, Data] = {}
    for name, tensor in file.tensors.items():
        if name == FREQUENCIES:
            continue
        target = _renamed(name, str(file.path))
        count = {"self_attn.q_proj": heads, "self_attn.k_proj": kv}.get(target.split(".", 2)[-1].rsplit(".", 1)[0], 0)
        found[target] = _weight(tensor, _halves(count, tensor.shape, target) if interleaved and count else None)
    return config, found


def _config(file: GgufFile) -> Config:
    """The metadata as the fields of a config.json."""
    where, meta = str(file.path), Config(file.metadata, str(file.path))
    kind = meta.text("general.architecture", "")
    if kind not in CLASSES:
        raise UnsupportedError(f"the architecture {kind[:80]!r} of a GGUF file has no builder here", where=where,
                               hint=f"known: {', '.join(CLASSES)}")  # fmt: skip
    if meta.fields.get(f"{kind}.expert_count"):
        raise UnsupportedError("routed experts of GGUF files are not supported", where=where)
    scaling = meta.text(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedError(f"the rotary scaling {scaling[:80]!r} of GGUF files is not supported", where=where)
    untyped = (
        ("rope.scaling.factor",) if f"{kind}.rope.scaling.type" not in meta.fields else ()
    )  # they mean linear scaling
    for name in (*untyped, "rope.scale_linear"):
        if (factor := meta.number(f"{kind}.{name}", 1.0)) not in (0.0, 1.0):
            raise UnsupportedError(f"{name}={factor:g} (rotary scaling) of GGUF files is not supported", where=where)
    epsilon = f"{kind}.attention.layer_norm_rms_epsilon"
    if meta.fields.get(epsilon) is None:
        raise BadModelError(f"config field {epsilon!r} is missing", where=where)
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise BadWeightsError("there is no matrix token_embd.weight", where=where)

    def size(name: str, default: int | None = None) -> int:
        return meta.size(f"{kind}.{name}", default)

    hidden, heads = size("embedding_length"), size("attention.head_count")
    head = size("attention.key_length", max(hidden // heads, 1))
    if size("rope.dimension_count", head) != head:
        raise UnsupportedError("a rotation of a part of each head is not supported in GGUF files", where=where)
    positions = size("context_length")
    fields: dict[str, Any] = {
        "model_type": kind, "architectures": [CLASSES[kind]], "torch_dtype": DTYPE, "vocab_size": table.shape[0],
        "hidden_size": hidden, "num_hidden_layers": size("block_count"), "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads), "head_dim": head,
        "intermediate_size": size("feed_forward_length"), "max_position_embeddings": positions,
        "rms_norm_eps": meta.number(epsilon, 1e-6),
        "rope_theta": meta.number(f"{kind}.rope.freq_base", 10000.0), "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu", "sliding_window": None,
    }  # fmt: skip
    if "tokenizer.ggml.eos_token_id" in meta.fields:
        fields["eos_token_id"] = meta.size("tokenizer.ggml.eos_token_id", least=0)
    if FREQUENCIES in file.tensors:
        fields["rope_scaling"] = _frequencies(file.tensors[FREQUENCIES], head // 2, positions, where)
    return Config(fields, where)


def _frequencies(stored: StoredTensor, pairs: int, positions: int, where: str) -> dict[str, Any]:
    """The divisors of the rotary frequencies as a scaling rule."""
    if stored.shape != (pairs,) or stored.encoding.name != "F32":
        raise BadWeightsError(
            f"{FREQUENCIES} is {stored.encoding.name}{list(stored.shape)}, not F32[{pairs}]", where=where
        )
    factors = [float(v) for v in load_data(stored.data)]
    if not all(np.isfinite(f) and f > 0 for f in factors):
        raise BadWeightsError(f"{FREQUENCIES} has numbers that are not positive", where=where)
    return {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
            "original_max_position_embeddings": positions, "factor": 1.0}  # fmt: skip


def _renamed(name: str, where: str) -> str:
    """The name of a tensor in a checkpoint. Raises BadModelError for an unknown one."""
    stem, _, ending = name.rpartition(".")
    first, _, rest = stem.partition(".")
    if ending in ("weight", "bias"):
        if stem in _TOP:
            return f"{_TOP[stem]}.{ending}"
        layer, _, part = rest.partition(".")
        if first == "blk" and part in _LAYER and layer.isdigit() and layer.isascii():
            return f"layers.{int(layer)}.{_LAYER[part]}.{ending}"
    raise BadModelError(f"tensor {name[:200]!r} has no place in this architecture", where=where)


def _halves(heads: int, shape: tuple[int, ...], name: str) -> Array:
    """Order of rows that puts the first numbers of a head's pairs before the second ones."""
    if not shape or shape[0] % (2 * heads):
        raise BadWeightsError(f"{name!r} has {shape[:1]} rows, which {heads} heads do not divide")
    return np.asarray(np.arange(shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1))


# ---------------------------------------------------------------- encodings
def _weight(stored: StoredTensor, order: Array | None) -> Data:
    """A tensor's data, its rows in another order if one is given."""
    rows = (lambda x: x) if order is None else (lambda x: x[order])
    if stored.encoding.dtype:
        return stored.data if order is None else LazyPart(stored.shape, stored.encoding.dtype, (stored.data,), rows)
    if len(stored.shape) != 2:
        raise UnsupportedError(
            f"a quantized tensor of {len(stored.shape)} axes is not supported", where=str(stored.data.path)
        )
    return _ENCODED[stored.encoding.name](stored, rows)


Rows = Callable[[Array], Array]


def _part(
    stored: StoredTensor, shape: tuple[int, ...], dtype: str, rows: Rows, compute: Callable[[Array], Array]
) -> LazyPart:
    """A part computed from the blocks [rows, blocks, bytes], its rows in order."""
    nbytes = stored.encoding.nbytes
    return LazyPart(shape, dtype, (stored.data,), lambda raw: rows(compute(raw.reshape(raw.shape[0], -1, nbytes))))


def _halves_at(blocks: Array, start: int) -> Array:
    """The float16 number at a byte of each block, as float32 [rows, blocks, 1]."""
    found: Array = np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16).astype(np.float32)
    return found


def _q8_0(stored: StoredTensor, rows: Rows) -> PackedWeight:
    """A Q8_0 weight; a block is a float16 scale and 32 signed bytes."""
    n, k = stored.shape
    parts: dict[str, Data] = {
        "q": _part(stored, (n, k), "int8", rows, lambda b: np.ascontiguousarray(b[..., 2:]).view(np.int8)),
        "scale": _part(stored, (n, k // 32), "float16", rows, lambda b: _halves_at(b, 0)),
    }
    return PackedWeight((n, k), "float16", "q8_0", parts, lambda leaf: dequantized("int8", leaf["q"], leaf["scale"]))


def _q6_k(stored: StoredTensor, rows: Rows) -> PackedWeight:
    """A Q6_K weight; a block has 256 numbers from -32 on.

    128 bytes of their lower 4 bits, 64 bytes of the upper 2, 16 signed scales, and a float16 scale of these.
    """
    n, k = stored.shape

    def codes(b: Array) -> Array:
        low, high = b[..., :128].reshape(*b.shape[:2], 2, 2, 32), b[..., 128:192].reshape(*b.shape[:2], 2, 1, 32)
        shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
        lower = np.concatenate([low & 15, low >> 4], -2)  # [rows, blocks, 2, 4, 32]
        return np.asarray((lower | (high >> shifts & 3) << 4).astype(np.int8) - np.int8(32))

    def scales(b: Array) -> Array:
        return np.ascontiguousarray(b[..., 192:208]).view(np.int8).astype(np.float32) * _halves_at(b, 208)

    parts: dict[str, Data] = {
        "q": _part(stored, (n, k), "int8", rows, codes),
        "scale": _part(stored, (n, k // 16), "float32", rows, scales),
    }
    return PackedWeight((n, k), "float32", "q6_k", parts, lambda leaf: dequantized("int8", leaf["q"], leaf["scale"]))


def _q4_k(stored: StoredTensor, rows: Rows) -> PackedWeight:
    """A Q4_K weight; a block has 256 numbers in 8 groups: scale * number - minimum.

    A float16 scale of scales and one of minima, 8 scales and 8 minima of 6 bits in 12 bytes, 128 bytes of numbers. A
    zero point is minimum / scale. A group of scale 0 equals its negated minimum: the code 0, the zero point 1 and the
    minimum as scale.
    """
    n, k = stored.shape

    def factors(b: Array) -> tuple[Array, Array]:
        """(scale, minimum) of each block of 32: float32 [rows, blocks, 8]."""
        s = b[..., 4:16]
        first, second, third = s[..., :4], s[..., 4:8], s[..., 8:]
        scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
        least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)
        return scale * _halves_at(b, 0), least * _halves_at(b, 2)

    def codes(b: Array) -> Array:
        pairs = b[..., 16:].reshape(*b.shape[:2], 4, 1, 32)
        found = np.concatenate([pairs & 15, pairs >> 4], -2).reshape(*b.shape[:2], 8, 32)
        found = np.where((factors(b)[0] == 0)[..., None], np.uint8(0), found)
        return packed(found.reshape(b.shape[0], -1))

    def scales(b: Array) -> Array:
        scale, least = factors(b)
        return np.where(scale == 0, least, scale)

    def zeros(b: Array) -> Array:
        scale, least = factors(b)
        return np.divide(least, scale, out=np.ones_like(scale), where=scale != 0)

    parts: dict[str, Data] = {
        "q": _part(stored, (n, k // 2), "uint8", rows, codes),
        "scale": _part(stored, (n, k // 32), "float32", rows, scales),
        "zero": _part(stored, (n, k // 32), "float32", rows, zeros),
    }
    return PackedWeight((n, k), "float32", "q4_k", parts, _with_zeros)


def _with_zeros(leaf: Mapping[str, Tensor]) -> Tensor:
    return dequantize(numbers("int4", leaf["q"]), leaf["scale"], leaf["zero"])


_ENCODED: Mapping[str, Callable[[StoredTensor, Rows], PackedWeight]] = {"Q8_0": _q8_0, "Q6_K": _q6_k, "Q4_K": _q4_k}

__all__ = ["opened_gguf"]
