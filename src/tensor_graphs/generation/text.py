"""Text of prompts and tokens: the tokenizer of a model's folder or GGUF file (package `tokenizers`), and incremental decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadModelError, UnsupportedError, UsageError
from .gguf_tokenizer import gguf_tokenizer

FILE = "tokenizer.json"
_PARTIAL = "\ufffd"  # what a tokenizer gives for an incomplete UTF-8 sequence


class Tokenizer:
    """The tokenizer of a folder with tokenizer.json, or of a GGUF file.

    BadModelError if the folder has none or it cannot be read; UnsupportedError without the package `tokenizers`, and for a GGUF file
    with no tokenizer or one of another kind (`gguf_tokenizer`).
    """

    def __init__(self, folder: Path) -> None:
        if folder.is_file():
            self._tokenizer: Any = gguf_tokenizer(folder)
            return
        file = folder / FILE
        if not file.is_file():
            raise BadModelError(f"the folder has no {FILE}", where=str(folder), hint="give token ids in place of text")
        try:
            import tokenizers
        except ImportError:
            raise UnsupportedError("text needs the package tokenizers", where=str(file),
                                   hint="pip install 'tensor-graphs[text]', or give token ids in place of text") from None  # fmt: skip
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises plain Exception
            raise BadModelError(f"{FILE} cannot be read: {str(error)[:200]}", where=str(file)) from None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the tokens that the tokenizer puts before it. UsageError for lone surrogates."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode: {error}") from None
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        return str(self._tokenizer.decode(list(tokens)))


class TextStream:
    """Incremental decoder of a growing list of tokens: characters are given out once they are complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._tokens, self.text = tokenizer, list[int](), ""

    def add(self, token: int) -> str:
        """Further text after a further token; empty while a character is incomplete."""
        self._tokens.append(token)
        whole = self._tokenizer.decode(self._tokens)
        if whole.endswith(_PARTIAL):
            return ""
        piece, self.text = whole[len(self.text) :], whole
        return piece

    def finish(self) -> str:
        """Text that was held back as incomplete."""
        whole = self._tokenizer.decode(self._tokens)
        piece, self.text = whole[len(self.text) :], whole
        return piece
