"""Defines the results of a generation: pieces as they come, the whole, and the progress of each row (sequence of the
batch)."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from math import isfinite

from .text import TextStream


@dataclass(frozen=True)
class Piece:
    """One new token of a row (sequence of the batch): index of its prompt, token id, completed text, and why the row
    ends here. The text is "" without a tokenizer; an end of it that may begin a stop text comes with a later piece. The
    reason is "stop", "length" or ""."""

    row: int
    token: int
    text: str = ""
    end: str = ""


@dataclass
class Generated:
    """Result of `generate`, one entry per prompt in each list.

    New `tokens`, their `texts` (None without a tokenizer), and `ends`: "stop" or "length". `first_token_s`: seconds
    from the programs being ready until the first tokens; `tokens_per_second`: of all rows together, after the first
    tokens (nan if there are no further ones). `acceptance`: share of a draft model's proposals that were accepted, nan
    if there is no draft model. `drafting`: why decoding with the draft model was slower than without; empty if it was
    not, or if there is none.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    ends: list[str]
    first_token_s: float
    tokens_per_second: float
    step_us: float = float("nan")  # time of a further token of all rows
    acceptance: float = float("nan")
    drafting: str = ""

    def _repr_html_(self) -> str:
        texts = self.texts or [", ".join(map(str, tokens)) for tokens in self.tokens]
        rows = "".join(
            f"<tr><td>{escape(text)}</td><td>{len(tokens)}</td><td>{end}</td></tr>"
            for text, tokens, end in zip(texts, self.tokens, self.ends)
        )
        head = f"<tr><th>{'text' if self.texts else 'tokens'}</th><th>new tokens</th><th>end</th></tr>"
        speed = f"{self.tokens_per_second:.1f} tokens/s, " if isfinite(self.tokens_per_second) else ""
        return f"<table>{head}{rows}</table><p>{speed}first token after {self.first_token_s:.3f} s</p>"


@dataclass
class Row:
    """Progress of one row of a batch during generation.

    `tokens`: those generated so far; `text`: their text. `end`: why the row has ended, "stop" (an end token or text) or
    "length", "" before. `stream`: makes text of tokens (None: there is no tokenizer). `given`: number of characters of
    `text` in the pieces so far.
    """

    stream: TextStream | None
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: str = ""
    given: int = 0

    def add(self, number: int, token: int, last: bool, ends: frozenset[int], texts: tuple[str, ...]) -> Piece:
        """Add a token to the row (index `number`); returns the piece to hand out. The row (sequence of the batch) ends
        at a token of `ends`, at a text of `texts`, or if `last`.

        A text that ends the row is cut off. The piece has no characters that may begin one of `texts`: they come with a
        later piece, so that all pieces together are the row's text.
        """
        self.tokens.append(token)
        self.end = "stop" if token in ends else "length" if last else ""
        if self.stream is None:
            return Piece(number, token, "", self.end)
        piece = self.stream.add(token)
        if self.end:
            piece += self.stream.finish()
        before = len(self.text)
        self.text += piece
        cuts = [at for at in (self.text.find(s, max(0, before - len(s) + 1)) for s in texts) if at >= 0]
        if cuts:
            self.text, self.end = self.text[: min(cuts)], "stop"
        held = 0 if self.end else max((_begun(self.text, s) for s in texts), default=0)
        begin, self.given = self.given, len(self.text) - held
        return Piece(number, token, self.text[begin : self.given], self.end)


def _begun(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    return next(n for n in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:n]))
