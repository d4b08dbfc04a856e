"""The tokenizer that a GGUF file carries, as one of the package `tokenizers`.

Its metadata `tokenizer.ggml.*` name the algorithm (`model`), for byte-level BPE the rule that splits text into words
(`pre`), the tokens with their types, and merges (BPE) or scores (SentencePiece). A file is untrusted: lists must agree
in length, and an unknown algorithm or rule raises UnsupportedError.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadModelError, TensorGraphsError, UnsupportedError
from ..models.files.gguf import read_gguf
from ..models.huggingface.checkpoint import Config

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER, BYTE = 2, 3, 4, 6  # types of tokens; others are plain text
SPACE = "\u2581"  # SentencePiece's mark of a space

_LETTERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class WordRule:
    """Rule by which a byte-level BPE splits text into words.

    `pattern`: regular expression of a word, empty for that of GPT-2. `begins`: whether the beginning-of-text token is
    put before texts by default. `whole`: whether a word that is a token is not split by merges. `composed`: whether
    text is normalized to Unicode's form NFC.
    """

    pattern: str = ""
    begins: bool = False
    whole: bool = False
    composed: bool = False


_LLAMA_3 = WordRule(_LETTERS % r"\p{N}{1,3}", begins=True, whole=True)
#: Value of `tokenizer.ggml.pre` -> rule.
WORDS = {
    "llama-bpe": _LLAMA_3, "llama-v3": _LLAMA_3, "llama3": _LLAMA_3,
    "qwen2": WordRule(_LETTERS % r"\p{N}", composed=True), "gpt-2": WordRule(),
}  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file: texts, types and scores by token id, merges as pairs of texts."""

    where: str
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[tuple[str, str]]

    @property
    def numbers(self) -> dict[str, int]:
        """Id of each token by its text."""
        return {text: n for n, text in enumerate(self.tokens)}


@contextmanager
def tokenizer_errors_named(what: str, path: Path) -> Iterator[None]:
    """Context manager that turns an exception of the package `tokenizers` into a BadModelError.

    `what` failed in the file `path`. The package raises plain Exception; a panic in it is a BaseException, which
    has no name to import.
    """
    try:
        yield
    except (TensorGraphsError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadModelError(f"{what}: {str(error)[:200]}", where=str(path)) from None


def gguf_tokenizer(path: Path) -> Any:
    """The `tokenizers.Tokenizer` of a GGUF file.

    Raises UnsupportedError if the file has none, for an algorithm other than byte-level BPE and SentencePiece's BPE,
    for an unknown rule that splits words, and without the package; raises BadModelError for lists that do not fit
    together.
    """
    try:
        import tokenizers
    except ImportError:
        raise UnsupportedError("text needs the package tokenizers", where=str(path),
                               hint="pip install 'tensor-graphs[text]', or give token ids in place of text") from None  # fmt: skip
    lists = [PREFIX + name for name in ("tokens", "merges", "token_type", "scores")]
    meta = Config(read_gguf(path, kept=lists).metadata, str(path))
    kind = meta.text(f"{PREFIX}model", "")
    if not kind or not isinstance(meta.fields.get(f"{PREFIX}tokens"), list):
        raise UnsupportedError("the file has no tokenizer", where=str(path), hint="give token ids in place of text")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(f"the tokenizer {kind[:80]!r} of a GGUF file is not supported", where=str(path),
                               hint="gpt2 (byte-level BPE) and llama (SentencePiece) are; give token ids in place of text")  # fmt: skip
    known = _vocabulary(meta, str(path))
    with tokenizer_errors_named("the tokenizer cannot be built", path):
        if kind == "gpt2":
            rule = _word_rule(meta, str(path))
            made, begins = _byte_level(known, rule), rule.begins
        else:
            made, begins = _sentence_piece(known, meta.flag(f"{PREFIX}add_space_prefix", True)), True
        added = {True: [], False: []}  # type: dict[bool, list[Any]]
        for text, type_ in zip(known.tokens, known.types, strict=True):
            if type_ in (CONTROL, USER) and text:
                special = type_ == CONTROL
                added[special].append(tokenizers.AddedToken(text, special=special, normalized=False))
        made.add_special_tokens(added[True])
        made.add_tokens(added[False])
        _frame(made, meta, known, begins)
    return made


def _vocabulary(meta: Config, where: str) -> Vocabulary:
    """The token lists of a file. Raises BadModelError if their lengths or types are wrong, or a token occurs twice."""
    tokens = meta.texts(f"{PREFIX}tokens") or []

    def numbers(name: str, default: float) -> list[Any]:
        found = meta.fields.get(PREFIX + name)
        if found is None:
            return [default] * len(tokens)
        if not isinstance(found, list) or len(found) != len(tokens) or not all(math.isfinite(v) for v in found):
            raise BadModelError(f"{PREFIX}{name} is no list of {len(tokens)} numbers, one a token", where=where)
        return found

    if len(set(tokens)) != len(tokens):
        (twice, _), *_ = Counter(tokens).most_common(1)
        raise BadModelError(f"the token {twice[:80]!r} occurs twice", where=where)
    merges = []
    for line in meta.texts(f"{PREFIX}merges") or []:
        at = line.find(" ", 1)
        if at < 0 or at == len(line) - 1:
            raise BadModelError(f"the merge {line[:80]!r} is no pair", where=where)
        merges.append((line[:at], line[at + 1 :]))
    return Vocabulary(where, tokens, numbers("token_type", 1), numbers("scores", 0.0), merges)


def _word_rule(meta: Config, where: str) -> WordRule:
    name = meta.text(f"{PREFIX}pre", "")
    if name not in WORDS:
        raise UnsupportedError(f"the word-splitting rule {name[:80]!r} is not supported", where=where,
                               hint=f"known: {', '.join(WORDS)}; give token ids in place of text")  # fmt: skip
    return WORDS[name]


def _byte_level(known: Vocabulary, rule: WordRule) -> Any:
    """Byte-pair encoding over bytes spelled as printable characters."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if not known.merges:
        raise BadModelError(f"{PREFIX}merges is missing or empty", where=known.where)
    made = Tokenizer(models.BPE(vocab=known.numbers, merges=list(known.merges), ignore_merges=rule.whole))
    if rule.composed:
        made.normalizer = normalizers.NFC()
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not rule.pattern)
    split = [pre_tokenizers.Split(Regex(rule.pattern), "isolated")] if rule.pattern else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*split, bytes_])
    made.decoder = decoders.ByteLevel()
    return made


def _sentence_piece(known: Vocabulary, spaced: bool) -> Any:
    """SentencePiece's BPE: merges ordered by the score of the merged token, the highest first; characters without a
    token become bytes. spaced: whether a space is put before a text.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    unknown = next((t for t, type_ in zip(known.tokens, known.types) if type_ == UNKNOWN), None)
    made = Tokenizer(models.BPE(
        vocab=known.numbers, merges=_merges(known), unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in known.types,
    ))  # fmt: skip
    first = [normalizers.Prepend(SPACE)] if spaced else []
    made.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])
    last = [decoders.Strip(" ", 1, 0)] if spaced else []
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    return made


def _merges(known: Vocabulary) -> list[tuple[str, str]]:
    """Pairs of tokens whose joined text is a plain token, ordered by the score of that token, then by the ids of the
    pair.
    """
    numbers = known.numbers
    found: list[tuple[float, int, int, int]] = []
    for whole, (text, type_) in enumerate(zip(known.tokens, known.types)):
        if type_ in (UNKNOWN, CONTROL, USER, BYTE):
            continue
        for at in range(1, len(text)):
            left, right = numbers.get(text[:at]), numbers.get(text[at:])
            if left is not None and right is not None:
                found.append((-known.scores[whole], whole, left, right))
    found.sort()
    return [(known.tokens[left], known.tokens[right]) for _, _, left, right in found]


def _frame(made: Any, meta: Config, known: Vocabulary, begins: bool) -> None:
    """Make the tokenizer `made` add the begin and end tokens to texts, where the file says so."""
    from tokenizers import processors

    sides: dict[str, str] = {}
    for side, default in (("bos", begins), ("eos", False)):
        number = meta.fields.get(f"{PREFIX}{side}_token_id")
        if number is None or not meta.flag(f"{PREFIX}add_{side}_token", default):
            continue
        if type(number) is not int or not 0 <= number < len(known.tokens):
            raise BadModelError(f"{PREFIX}{side}_token_id is {str(number)[:80]}, no token", where=known.where)
        sides[side] = known.tokens[number]
    bos, eos = ([sides[s]] if s in sides else [] for s in ("bos", "eos"))
    if bos or eos:
        frame = processors.TemplateProcessing(
            single=[*bos, "$A", *eos], pair=[*bos, "$A", *eos, *bos, "$B", *eos],
            special_tokens=[(text, known.numbers[text]) for text in dict.fromkeys([*bos, *eos])],
        )  # fmt: skip
        made.post_processor = processors.Sequence([made.post_processor, frame]) if made.post_processor else frame


__all__ = ["gguf_tokenizer", "tokenizer_errors_named"]
