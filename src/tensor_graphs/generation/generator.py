"""Text generation with optimized programs: prefill, decode and sample over shared states (programs.py).

    generator = tg.Generator("gemma-3-270m")
    for piece in generator.stream("The sea is"):
        print(piece.text, end="", flush=True)

Prompts of a batch may have different lengths: shorter ones are padded behind their end, and each row counts its own
positions, so that padding is never seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from ..errors import BadModelError, TooLargeError, UnsupportedError, UsageError
from ..models.huggingface.step import Caches, Folder, eos_of, positions_of, refuse_wrong_weights
from ..options import Options, is_quantization
from .bandwidth import memory_bandwidth
from .programs import Programs, QuantizedForm
from .results import Generated, Piece, Row
from .settings import Prompt, Sampling, prompts_of, stops_of, token_ids, whole
from .text import FILE, TextStream, Tokenizer

BUCKETS = (16, 64, 256)  # tokens of prefill programs: a prompt takes the smallest that holds it, else several steps
LENGTH = 1024  # default of `max_length`
NEW = 128  # default of `max_new_tokens`, where so many fit
POLL = 8  # decode steps between looks at their tokens on a GPU, where each look waits for the device


@contextmanager
def _memory_named() -> Iterator[None]:
    """Raise TooLargeError in place of a MemoryError."""
    try:
        yield
    except MemoryError as error:
        raise TooLargeError(f"memory ran out: {error or 'an allocation failed'}",
                            hint="fewer rows (batch), or a smaller max_length") from error  # fmt: skip


def _options(given: dict[str, Any], budget: float) -> dict[str, Any]:
    """Options of `tg.optimize`, checked. UsageError for unknown names and invalid values."""
    if unknown := sorted(set(given) - {f.name for f in fields(Options)}):
        raise UsageError(f"no options of a Generator are called {unknown}", hint="they are those of tg.optimize")
    Options(budget=budget, **given)
    return given


class Generator:
    """Text generator: a decoder from a folder in the Hugging Face layout, as optimized programs.

    `folder`: config.json, safetensors, and tokenizer.json if prompts are text; or a `Folder` with both in memory.
    `max_length`: largest number of tokens of a row, prompt included; by default 1024, or fewer if the model has fewer
    positions. `batch`: number of rows. `budget`: seconds of search for the decode program; a prefill program has half
    of it, a sampler 15 %. Programs are made when they are first needed, and kept in the plan cache for other processes.
    `backend` and further keyword arguments are those of `tg.optimize`. `trust` allows links that lead out of the
    folder. `quantize`: a form of quantized weights ("int8", "int4", "fp8", "mxfp4") for the matrices of products, or
    None; `quantize_head=False` leaves the output matrix as it is.

    Errors: BadModelError, BadWeightsError and UnsupportedError of the folder, UsageError for arguments. A call that
    raises leaves the generator usable.
    """

    def __init__(
        self, folder: str | Path | Folder, *, budget: float = 60.0, max_length: int | None = None, batch: int = 1,
        backend: str | None = None, trust: bool = False, quantize: str | None = None, quantize_head: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        is_quantization("quantize", quantize)
        if not isinstance(folder, str | os.PathLike | Folder):
            raise UsageError(
                f"a {type(folder).__name__} is no folder", hint="give the path of a folder with config.json"
            )
        given = _options(options if backend is None else {**options, "backend": backend}, budget)
        self.folder = folder if isinstance(folder, Folder) else Folder(folder, trust=trust)
        config = self.folder.config
        longest = positions_of(config)
        length = (
            min(LENGTH, longest)
            if max_length is None
            else whole("max_length", max_length, 2, "a number of tokens from 2 on")
        )
        if length > longest:
            raise UsageError(f"max_length={length}, the model has {longest} positions")
        rows = whole("batch", batch, 1, "a number of rows from 1 on")
        self.vocabulary, self.stops = config.size("vocab_size"), eos_of(self.folder)
        self.caches = Caches(rows, length, min(BUCKETS[-1], length))
        refuse_wrong_weights(self.folder, self.caches)
        self._path, self._tokenizer = Path(self.folder.where), None  # type: tuple[Path, Tokenizer | None]
        form = None if quantize is None else QuantizedForm(quantize, quantize_head)
        self._programs = Programs(self.folder, self.caches, self.vocabulary, float(budget), given, form=form)
        self._lock, self._turn = RLock(), 0

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer. BadModelError or UnsupportedError if there is none."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self._path)
        return self._tokenizer

    @property
    def report(self) -> dict[str, Any]:
        """Optimization report of each program made so far, by its use."""
        return self._programs.reports()

    @property
    def quantization(self) -> str:
        """What `quantize` did to the weights of the decode step, and their error; empty without it."""
        return self._programs.quantization

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds until each program was ready, by its use."""
        return dict(self._programs.seconds)

    def bandwidth_share(self, step_us: float) -> float:
        """Share of the device's memory bandwidth that reading all weights once in a decode step of this time takes.

        The bandwidth of a GPU is that of its data sheet or measured once; that of the host is measured now. An embedding
        table of its own is not counted: few of its rows are read. nan without a time.
        """
        if not step_us > 0:
            return float("nan")
        return self._programs.read_bytes() / step_us / memory_bandwidth(self._programs.decode().tensors)

    # ------------------------------------------------------------ generating
    def generate(
        self, prompt: Prompt | Sequence[Prompt], max_new_tokens: int | None = None, *, temperature: float = 0.0, top_k: int = 0,
        top_p: float = 1.0, seed: int = 0, stop: Any = None, show: Callable[[Piece], object] | None = None,
    ) -> Generated:  # fmt: skip
        """Up to `max_new_tokens` tokens after a prompt, or after each of up to `batch` prompts; None: as many as fit,
        at most 128.

        A prompt is text or token ids. `temperature` 0 takes the most likely token; otherwise tokens are drawn from the
        `top_k` most likely ones (0: all), of these the most likely ones up to the share `top_p`; the same `seed` draws
        the same. `stop`: token ids and texts that end a row (a text is cut off, a token is kept); None: the end tokens
        that the folder names. `show` is called with each piece as it comes. UsageError for an empty or too long prompt,
        tokens outside the vocabulary and values out of range.
        """
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "stop": stop}
        rows, run = self._run(prompts_of(prompt), max_new_tokens, **options)
        begun, first, last, count = time.perf_counter(), 0.0, 0.0, 0
        for pieces in run:
            last, count = time.perf_counter(), count + len(pieces)
            first = first or last
            if show is not None:
                for piece in pieces:
                    show(piece)
        later = count - len(rows)
        steps = max(len(r.tokens) for r in rows) - 1
        texts = None if rows[0].stream is None else [r.text for r in rows]
        rate = later / (last - first) if later and last > first else float("nan")
        return Generated(
            [r.tokens for r in rows], texts, [r.end for r in rows], first - begun, rate,
            (last - first) * 1e6 / steps if steps else float("nan"),
        )  # fmt: skip

    def stream(
        self, prompt: Prompt | Sequence[Prompt], max_new_tokens: int | None = None, **options: Any
    ) -> Iterator[Piece]:
        """Generated tokens, each yielded when it is known; arguments as for `generate`.

        Beginning another generation ends this one: its next piece raises UsageError.
        """
        _, run = self._run(prompts_of(prompt), max_new_tokens, **options)
        return (piece for pieces in run for piece in pieces)

    def _run(
        self, prompts: Sequence[Prompt], max_new_tokens: int | None, *, temperature: float = 0.0, top_k: int = 0,
        top_p: float = 1.0, seed: int = 0, stop: Any = None,
    ) -> tuple[list[Row], Iterator[list[Piece]]]:  # fmt: skip
        """Check all arguments and make the programs now; return the rows and an iterator that runs the programs."""
        sampling = Sampling(temperature, top_k, top_p, seed)
        if not prompts:
            raise UsageError("there is no prompt")
        if len(prompts) > self.caches.batch:
            raise UsageError(f"{len(prompts)} prompts, the generator has {self.caches.batch} rows", hint=f"Generator(batch={len(prompts)})")  # fmt: skip
        ids = [self._ids(p) for p in prompts]
        longest = max(map(len, ids))
        limit = max(1, min(NEW, self.caches.capacity - longest)) if max_new_tokens is None else max_new_tokens
        limit = whole("max_new_tokens", limit, 1, "a number of tokens from 1 on")
        if longest + limit > self.caches.capacity:
            raise UsageError(
                f"{longest} tokens of the prompt and {limit} new ones are more than max_length={self.caches.capacity}",
                hint="a shorter prompt, fewer new tokens, or a Generator with a larger max_length",
            )
        ends, texts = stops_of(stop, self.stops, self.vocabulary)
        if texts:
            assert self.tokenizer
        has_text = texts or any(isinstance(p, str) for p in prompts) or self.decodes()
        rows = [Row(TextStream(self.tokenizer) if has_text else None) for _ in ids]
        with self._lock:
            self._turn += 1
            with _memory_named():
                self._ready(longest, limit, sampling)
            return rows, self._pieces(self._turn, ids, rows, limit, sampling, ends, texts)

    def _ids(self, prompt: Prompt) -> list[int]:
        return token_ids(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, self.vocabulary)

    def decodes(self) -> bool:
        """Whether there is a tokenizer: then results have text, also for prompts given as token ids."""
        try:
            return (self._path.is_file() or (self._path / FILE).is_file()) and bool(self.tokenizer)
        except UnsupportedError:
            return False

    def _pieces(
        self, turn: int, ids: list[list[int]], rows: list[Row], limit: int, sampling: Sampling, ends: frozenset[int],
        texts: tuple[str, ...],
    ) -> Iterator[list[Piece]]:  # fmt: skip
        with self._lock:
            self._check_turn(turn)
            sample = self._programs.sample(sampling.kind)
            with _memory_named():
                self._prefill(ids)
            if np.isnan(self._programs.get("logits")[: len(ids)]).any():
                raise BadModelError("the logits after the prompt are NaN", where=self.folder.where,
                                    hint="weights or config.json hold values that the model cannot compute with")  # fmt: skip
            for name, (value, dtype) in sampling.states(self.vocabulary).items():
                self._programs.set(name, value, dtype)
        poll = POLL if sample.tensors.startswith("cuda") else 1
        made = 0
        while made < limit and not all(r.end for r in rows):
            with self._lock, _memory_named():
                self._check_turn(turn)
                ahead = []
                for _ in range(min(poll if made else 1, limit - made)):
                    if made:
                        self._programs.decode().flat_near()
                    (tokens,) = sample.flat_near()
                    ahead.append(tokens)
                    made += 1
                found = [np.asarray(x.cpu() if hasattr(x, "cpu") else x) for x in ahead]
            for step, tokens in enumerate(found, made - len(found) + 1):
                pieces = [
                    row.add(i, int(tokens[i]), step == limit, ends, texts)
                    for i, row in enumerate(rows) if not row.end
                ]  # fmt: skip
                if pieces:
                    yield pieces

    def _check_turn(self, turn: int) -> None:
        if turn != self._turn:
            raise UsageError("another generation has begun", hint="a generator continues one stream at a time")

    # ------------------------------------------------------------ prefill
    def _ready(self, longest: int, limit: int, sampling: Sampling) -> None:
        """Make the programs that a generation needs."""
        size = self._bucket(longest)
        self._programs.prefill(size, fresh=True)
        if longest > size:
            self._programs.prefill(size, fresh=False)
        self._programs.sample(sampling.kind)
        if limit > 1:
            self._programs.decode()

    def _bucket(self, longest: int) -> int:
        """Tokens of the prefill program for prompts of up to `longest` tokens."""
        return next((b for b in self.buckets if b >= longest), self.buckets[-1])

    def _prefill(self, ids: list[list[int]]) -> None:
        """Fill the caches with the prompts; afterwards `logits` and `length` are those of each row's last token.

        Rows without a prompt repeat the first one. A prompt longer than the largest bucket takes several steps; a row
        that ends before the others repeats its last tokens, which changes nothing.
        """
        padded = ids + [ids[0]] * (self.caches.batch - len(ids))
        lengths = np.array([len(p) for p in padded])
        size = self._bucket(int(lengths.max()))
        for turn in range(-(-int(lengths.max()) // size)):
            start = np.clip(turn * size, 0, np.maximum(lengths - size, 0))
            chunk = np.zeros((len(padded), size), np.int64)
            for row, (prompt, at) in enumerate(zip(padded, start)):
                part = prompt[at : at + size]
                chunk[row, : len(part)] = part
            program = self._programs.prefill(size, fresh=not turn)
            values = {"input_ids": chunk, "start": start, "last": np.minimum(lengths - start, size) - 1}
            program.flat_near(*(np.asarray(values[n], np.int64) for n in program.input_names))

    @property
    def buckets(self) -> tuple[int, ...]:
        """Numbers of prompt tokens for which prefill programs are made."""
        return (*(b for b in BUCKETS if b < self.caches.capacity), *([self.caches.capacity] if self.caches.capacity < BUCKETS[-1] else ()))  # fmt: skip


__all__ = ["BUCKETS", "Generated", "Generator", "Piece"]
