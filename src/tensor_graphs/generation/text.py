"""Converts between text and tokens: the tokenizer of a model's folder or GGUF file (package `tokenizers`), and
incremental decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadModelError, UnsupportedError, UsageError
from ..models.files.inside import inside
from .gguf_tokenizer import gguf_tokenizer, tokenizer_errors_named
from .tokenizer_file import tokenizer_text

FILE = "tokenizer.json"
_PARTIAL = "\ufffd"  # what a tokenizer gives for an incomplete UTF-8 sequence
_CHARACTER = 3  # tokens that a character can lack, of a byte each
_LONGEST = 8  # pending tokens after which text is given out though it ends in an incomplete character


class Tokenizer:
    """The tokenizer of a folder with tokenizer.json, or of a GGUF file.

    Truncation and padding that tokenizer.json asks for do not take place: a prompt is the whole text, and nothing else.
    Raises BadModelError if the folder has none, if it cannot be read, or is a link out of the folder (unless `trust` is
    set); raises UnsupportedError without the package `tokenizers`, and for a GGUF file with no tokenizer or one of
    another kind (`gguf_tokenizer`).
    """

    def __init__(self, folder: Path, *, trust: bool = False) -> None:
        self._file = folder
        if folder.is_file():
            self._tokenizer: Any = gguf_tokenizer(folder)
            return
        self._file = file = folder / FILE
        if not file.is_file():
            raise BadModelError(f"the folder has no {FILE}", where=str(folder), hint="give token ids in place of text")
        try:
            import tokenizers
        except ImportError:
            raise UnsupportedError("text needs the package tokenizers", where=str(file),
                                   hint="pip install 'tensor-graphs[text]', or give token ids in place of text") from None  # fmt: skip
        text = tokenizer_text(inside(folder, FILE, trust=trust))
        with tokenizer_errors_named(f"{FILE} cannot be read", file):
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text; `special`: with the tokens that the tokenizer puts before or behind a whole text.
        Raises UsageError for lone surrogates, BadModelError if the tokenizer fails.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode: {error}") from None
        with tokenizer_errors_named("the tokenizer fails for the text", self._file):
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, without special tokens. Raises BadModelError if the tokenizer fails."""
        with tokenizer_errors_named("the tokenizer fails for tokens", self._file):
            return str(self._tokenizer.decode(list(tokens)))


class TextStream:
    """Incremental decoder of a growing list of tokens: characters are given out once they are complete.

    Each call decodes the pending tokens together with the tokens of the last text that was given out, because spaces
    depend on the tokens before: the work per token does not grow with the length of the text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context, self._known = list[int](), ""  # tokens of the last text given out, and their text alone
        self._pending = list[int]()  # tokens after them, whose text is not complete

    def add(self, token: int) -> str:
        """Add a token and return the text that it completes; empty while a character is incomplete."""
        self._pending.append(token)
        piece = self._further(len(self._pending))
        if not piece.endswith(_PARTIAL):
            return self._given(len(self._pending), piece)
        if len(self._pending) < _LONGEST:
            return ""
        ready = len(self._pending) - _CHARACTER  # no character is that long: the bytes before are invalid ones
        return self._given(ready, self._further(ready))

    def finish(self) -> str:
        """Text of the remaining tokens, whose last character is incomplete (it becomes U+FFFD)."""
        count = len(self._pending)
        return self._given(count, self._further(count))

    def _further(self, count: int) -> str:
        """Text of the first `count` pending tokens."""
        return self._tokenizer.decode(self._context + self._pending[:count])[len(self._known) :]

    def _given(self, count: int, piece: str) -> str:
        """Return `piece`, the text of the first `count` pending tokens, and drop these. They become the context of the
        next text unless `piece` is empty.
        """
        if piece:
            self._context = self._pending[:count]
            self._known = self._tokenizer.decode(self._context)
        del self._pending[:count]
        return piece
