"""Tokenizers of GGUF files: byte-level BPE and SentencePiece against plain definitions of both, and what is refused."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.errors import BadModelError, TensorGraphsError, UnsupportedError
from tensor_graphs.generation.text import TextStream, Tokenizer

pytest.importorskip("tokenizers", reason="needs tokenizers")

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
SPACE = "\u2581"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_of(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    kind, form = (8, "") if isinstance(value[0], str) else (6, "f") if isinstance(value[0], float) else (5, "i")
    head = struct.pack("<IIQ", 9, kind, len(value))
    return head + (b"".join(map(text, value)) if kind == 8 else struct.pack(f"<{len(value)}{form}", *value))


def opened(folder: Path, **fields: Any) -> Tokenizer:
    """The tokenizer of a file with these fields `tokenizer.ggml.NAME`, and no tensors."""
    body = b"".join(text(f"tokenizer.ggml.{name}") + value_of(value) for name, value in fields.items())
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + body)
    return Tokenizer(path)


def spelled_bytes() -> list[str]:
    """The printable character of each byte, as GPT-2 spells it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def byte_level(pre: str, merges: list[str], **more: Any) -> dict[str, Any]:
    tokens = [*spelled_bytes(), *(m.replace(" ", "", 1) for m in merges), "<|end|>"]
    types = [NORMAL] * (len(tokens) - 1) + [CONTROL]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges, **more}


def pieces(tokenizer: Tokenizer, fields: dict[str, Any], prompt: str) -> list[str]:
    return [fields["tokens"][n] for n in tokenizer.encode(prompt)]


MERGES = ["1 2", "12 3", "3 4", "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or"]


def test_byte_level_words(tmp_path: Path) -> None:
    """Digits stand alone (qwen2), in threes (llama-bpe) or together (gpt-2)."""
    found = {}
    for pre in ("qwen2", "llama-bpe", "gpt-2"):
        fields = byte_level(pre, MERGES)
        found[pre] = pieces(opened(tmp_path, **fields), fields, "hello wor 12345")
    start = ["hello", "Ġwor", "Ġ"]
    assert found["qwen2"] == [*start, "1", "2", "3", "4", "5"]
    assert found["llama-bpe"] == [*start, "123", "4", "5"]
    assert found["gpt-2"] == [*start, "123", "4", "5"]


def test_byte_level_round_trip_and_special_tokens(tmp_path: Path) -> None:
    fields = byte_level("llama-bpe", MERGES, bos_token_id=256 + len(MERGES))
    tokenizer = opened(tmp_path, **fields)
    prompt = "héllo  wörld\n\n— 你好 🙂 don't"
    ids = tokenizer.encode(prompt)
    assert ids[0] == fields["bos_token_id"], "llama-bpe begins with the first token unless the file says otherwise"
    assert tokenizer.decode(ids) == prompt
    stream = TextStream(tokenizer)
    assert "".join(stream.add(n) for n in ids) + stream.finish() == prompt
    assert opened(tmp_path, **fields, add_bos_token=False).encode("a<|end|>") == [ord("a"), fields["bos_token_id"]]


def sentence_piece(seed: int, **more: Any) -> dict[str, Any]:
    """A vocabulary of random pieces with distinct scores."""
    rng = np.random.default_rng(seed)
    letters = [SPACE, *"abcd"]
    words = {"".join(rng.choice(letters, rng.integers(2, 5))) for _ in range(60)}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *letters, *sorted(words)]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(letters) + len(words))]
    scores = [0.0] * 259 + [float(v) for v in -rng.permutation(len(letters) + len(words))]
    return {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, "bos_token_id": 1, **more}


def merged(fields: dict[str, Any], prompt: str) -> list[str]:
    """SentencePiece's rule: join the neighbours whose text has the highest score, the leftmost first; bytes for the
    rest."""
    score = {t: s for t, s, k in zip(fields["tokens"], fields["scores"], fields["token_type"]) if k == NORMAL}
    parts = list(SPACE + prompt.replace(" ", SPACE))
    while True:
        joined = [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in score]
        if not joined:
            break
        _, at = min(joined)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [p for part in parts for p in ([part] if part in score else [f"<0x{b:02X}>" for b in part.encode()])]


def test_sentence_piece(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for seed in range(4):
        fields = sentence_piece(seed)
        tokenizer = opened(tmp_path, **fields)
        for _ in range(20):
            prompt = "".join(rng.choice([*"abcd é"], rng.integers(1, 30)))
            first, *rest = pieces(tokenizer, fields, prompt)
            assert first == "<s>"
            assert rest == merged(fields, prompt), prompt
            assert tokenizer.decode(tokenizer.encode(prompt)) == prompt


def test_sentence_piece_without_a_space_before(tmp_path: Path) -> None:
    fields = sentence_piece(0, add_space_prefix=False, add_bos_token=False)
    tokenizer = opened(tmp_path, **fields)
    assert not pieces(tokenizer, fields, "é")[0].startswith(SPACE)
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "bert"}, UnsupportedError), ({"model": "t5"}, UnsupportedError), ({"pre": "starcoder"}, UnsupportedError),
        ({"pre": "default"}, UnsupportedError), ({"model": ""}, UnsupportedError), ({"tokens": "a"}, UnsupportedError),
        ({"merges": ["ab"]}, BadModelError), ({"merges": ["a zz"]}, BadModelError), ({"merges": [1]}, TensorGraphsError),
        ({"token_type": [1, 1]}, BadModelError), ({"scores": [float("nan")] * 267}, BadModelError),
        ({"tokens": ["a"] * 267}, BadModelError), ({"bos_token_id": 100_000}, BadModelError), ({"tokens": [1]}, TensorGraphsError),
        ({"add_bos_token": 3}, BadModelError), ({"tokens": ["a" * 5000]}, BadModelError),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path: Path, change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        opened(tmp_path, **{**byte_level("llama-bpe", MERGES, bos_token_id=0), **change})


def test_file_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no tokenizer"):
        opened(tmp_path)
