"""Generates text with optimized programs: prefill, decode and sample over shared states (programs.py).

generator = tg.Generator("gemma-3-270m")
for piece in generator.stream("The sea is"):
    print(piece.text, end="", flush=True)
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.registry import on_gpu, select
from ..errors import BadModelError, TooLargeError, Unpicklable, UnsupportedError, UsageError
from ..models.huggingface.step import Folder, eos_of, refuse_wrong_weights
from ..option_checks import is_quantization
from ..processes.forks import Lock
from ..wording import counted, with_article
from .bandwidth import memory_bandwidth
from .cached_model import CachedModel, caches_of
from .decoding import Decoding, PlainDecoding
from .programs import Programs, QuantizedForm
from .results import Generated, Piece, Row
from .settings import Prompt, Sampling, length_of, options_of, prompts_of, stops_of, token_ids, whole_number
from .speculation import SpeculativeDecoding, draft_model
from .text import FILE, TextStream, Tokenizer

NEW = 128  # default of `max_new_tokens`, where so many fit


@contextmanager
def _memory_named() -> Iterator[None]:
    """Raise TooLargeError in place of a MemoryError."""
    try:
        yield
    except MemoryError as error:
        raise TooLargeError(f"memory ran out: {error or 'an allocation failed'}",
                            hint="fewer rows (batch), or a smaller max_length") from error  # fmt: skip


def _folder(given: Any, trust: bool) -> Folder:
    """Argument as a folder. Raises UsageError if it is neither a path nor a `Folder`."""
    if not isinstance(given, str | os.PathLike | Folder):
        raise UsageError(
            f"{with_article(type(given).__name__)} is no folder", hint="give the path of a folder with config.json"
        )
    return given if isinstance(given, Folder) else Folder(os.fspath(given), trust=trust)


class Generator(Unpicklable):
    """Text generator: a decoder from a folder in the Hugging Face layout or from a GGUF file, as optimized programs.

    `folder`: path of a folder with config.json, safetensors, and tokenizer.json if prompts are text, or of a .gguf
    file; or a `Folder` with config and weights in memory.
    `max_length`: largest number of tokens of a row, prompt included; by default 1024, or fewer if the model has fewer
    positions. `batch`: number of rows. `budget`: seconds of search for the decode program; a prefill program has half
    of it, a sampler 15 %. Programs are made when they are first needed, and kept in the plan cache for other processes;
    checks that a search had no time for do not delay these (`complete_checks`).
    `backend` and further keyword arguments are those of `tg.optimize`. `trust` allows links that lead out of the
    folder. `quantize`: an encoding of quantized weights ("int8", "int4", "fp8", "mxfp4") for the matrices of products,
    or None; `quantize_head=False` leaves the output matrix as it is.

    `draft`: folder of a smaller model with the same vocabulary, for speculative decoding: it proposes `draft_tokens`
    tokens, which one step of the model verifies. Tokens have the model's own distribution, and greedy ones are the same
    up to rounding. `reuse=True`: if a prompt begins like the previous prompt and its output, whose keys and values are
    in the caches, only the rest is computed; its logits differ by rounding from those of a prompt computed as a whole.

    Errors: BadModelError, BadWeightsError and UnsupportedError of the folder, UsageError for arguments. A call that
    raises leaves the generator usable.
    """

    kept_by = "tg.Generator(folder) where it is needed: its programs are in the plan cache"

    def __init__(
        self, folder: str | Path | Folder, *, budget: float = 60.0, max_length: int | None = None, batch: int = 1,
        backend: str | None = None, trust: bool = False, quantize: str | None = None, quantize_head: bool = True,
        draft: str | Path | Folder | None = None, draft_tokens: int = 4, reuse: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        is_quantization("quantize", quantize)
        self.folder = _folder(folder, trust)
        given = options_of(options if backend is None else {**options, "backend": backend}, budget)
        config = self.folder.config
        length = length_of(max_length, config)
        self.vocabulary, self.stops = config.size("vocab_size"), eos_of(self.folder)
        rows = whole_number("batch", batch, 1, "a number of rows from 1 on")
        gpu = on_gpu(select(given.get("backend")))
        self.caches = caches_of(config, rows, length, gpu=gpu)
        refuse_wrong_weights(self.folder, self.caches)
        self._path = Path(self.folder.where) if self.folder.where else None
        self._tokenizer: Tokenizer | None = None
        form = None if quantize is None else QuantizedForm(quantize, quantize_head)
        self._programs = Programs(self.folder, self.caches, self.vocabulary, float(budget), given, form=form)
        if not isinstance(reuse, bool):
            raise UsageError(f"invalid argument reuse={reuse!r}", hint="True or False")
        self._model = CachedModel(self._programs, reuse)
        self._count = whole_number("draft_tokens", draft_tokens, 1, "a number of tokens from 1 on")
        self._draft: CachedModel | None = None
        if draft is not None:
            self._draft = draft_model(_folder(draft, trust), self._model, self._count)
        self._lock, self._turn = Lock(), 0

    def __repr__(self) -> str:
        model, caches = self.folder.config.fields.get("model_type"), self.caches
        rows = counted(caches.batch, "row")
        return f"<Generator of {model}: {rows} of {caches.capacity} tokens; programs made: {', '.join(self.seconds) or 'none'}>"

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer. Raises BadModelError or UnsupportedError if there is none."""
        if self._path is None:
            raise BadModelError("a folder in memory has no tokenizer", hint="give token ids in place of text")
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self._path, trust=self.folder.trust)
        return self._tokenizer

    @property
    def report(self) -> dict[str, Any]:
        """Optimization report of each program made so far, by program name ("decode", "prefill-16",
        "sample-greedy")."""
        return {name: report for programs in self._all() for name, report in programs.reports().items()}

    @property
    def quantization(self) -> str:
        """Text about the weights of the decode step that `quantize` has changed, and about their error; empty if
        `quantize` is None."""
        return self._programs.quantization

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that making each program took, by program name ("decode", "prefill-16", "sample-greedy")."""
        return {name: seconds for programs in self._all() for name, seconds in programs.seconds.items()}

    def _all(self) -> list[Programs]:
        """Programs of the model and of the draft."""
        return [self._programs, *([] if self._draft is None else [self._draft.programs])]

    def memory(self) -> dict[str, int]:
        """Bytes that the programs hold on their device, by purpose, known before any is made.

        Keys: weights, as they are stored; caches, keys and values of all rows and positions; states, such as logits;
        workspace, the intermediate values of the programs made so far. Those of a draft are included. Weights take
        more while programs are searched, and where kernels pack them or expand quantized ones.
        """
        found = Counter[str]()
        for programs in self._all():
            found.update(programs.memory())
        return dict(found)

    @property
    def unchecked(self) -> dict[str, list[str]]:
        """Checks that the searches of the programs had no time for, by program name; empty if there are none."""
        return {name: checks for programs in self._all() for name, checks in programs.unchecked().items()}

    def complete_checks(self) -> None:
        """Complete the checks that the searches of the programs made so far had no time for (`unchecked`): verification
        on further inputs, and timing beside the graph as it is written. A program that fails is searched again and
        replaced.

        Takes up to `budget` seconds per program. Meanwhile the device holds the weights of that program twice. The
        results are kept in the plan cache, so that other processes need not repeat the checks. No effect with
        `measure=False` or `deterministic=True`, whose plans are not cached.
        """
        with self._lock, _memory_named():
            for programs in self._all():
                programs.complete()

    def bandwidth_share(self, step_us: float) -> float:
        """Share of the device's memory bandwidth used if a token that takes `step_us` µs reads all weights once.

        nan unless `step_us` is positive. The bandwidth of a GPU is that of its data sheet or measured once; that of the
        host is measured now. An embedding table that is not the output matrix as well is not counted: few of its rows
        are read.
        """
        if not step_us > 0:
            return float("nan")
        return self._programs.read_bytes() / step_us / memory_bandwidth(self._programs.tensors)

    # ------------------------------------------------------------ generating
    def generate(
        self, prompt: Prompt | Sequence[Prompt], max_new_tokens: int | None = None, *, temperature: float = 0.0, top_k: int = 0,
        top_p: float = 1.0, seed: int = 0, stop: Any = None, show: Callable[[Piece], object] | None = None,
    ) -> Generated:  # fmt: skip
        """Up to `max_new_tokens` tokens after a prompt, or after each of up to `batch` prompts; None: as many as fit,
        at most 128.

        A prompt is text or token ids. `temperature` 0 takes the most likely token; otherwise tokens are drawn from the
        `top_k` most likely ones (0: all), and of these from the fewest most likely ones whose probabilities sum to
        `top_p`; the same `seed` draws the same. `stop`: token ids and texts that end a row (a text is cut off, a token
        is kept); None: the end tokens that the folder names. `show` is called with each piece as it comes. Calls in
        several threads wait for one another. Raises UsageError for an empty or too long prompt, tokens outside the
        vocabulary and values out of range.
        """
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "stop": stop}
        if show is not None and not callable(show):
            raise UsageError(f"invalid argument show={repr(show)[:80]}", hint="a function of one Piece")
        with self._lock:
            return self._generated(self._prompts(prompt), max_new_tokens, show, options)

    def _prompts(self, prompt: Prompt | Sequence[Prompt]) -> list[Prompt]:
        return prompts_of(prompt, max(self.caches.batch, self.caches.capacity))

    def _generated(
        self, prompts: Sequence[Prompt], limit: int | None, show: Callable[[Piece], object] | None, options: dict[str, Any]
    ) -> Generated:  # fmt: skip
        rows, decoding, run = self._run(prompts, limit, **options)
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
            (last - first) * 1e6 / steps if steps else float("nan"), decoding.acceptance, decoding.drafting,
        )  # fmt: skip

    def stream(
        self, prompt: Prompt | Sequence[Prompt], max_new_tokens: int | None = None, *, temperature: float = 0.0, top_k: int = 0,
        top_p: float = 1.0, seed: int = 0, stop: Any = None,
    ) -> Iterator[Piece]:  # fmt: skip
        """Generated tokens, each yielded when it is known; the arguments are those of `generate`.

        Arguments are checked, and programs made, before the first piece is asked for. Beginning another generation ends
        this one: its next piece raises UsageError.
        """
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed, "stop": stop}
        _, _, run = self._run(self._prompts(prompt), max_new_tokens, **options)
        return (piece for pieces in run for piece in pieces)

    def _run(
        self, prompts: Sequence[Prompt], max_new_tokens: int | None, *, temperature: float = 0.0, top_k: int = 0,
        top_p: float = 1.0, seed: int = 0, stop: Any = None,
    ) -> tuple[list[Row], Decoding, Iterator[list[Piece]]]:  # fmt: skip
        """Check all arguments and make the programs now; return the rows, the way of decoding, and an iterator that
        runs the programs.
        """
        sampling = Sampling(temperature, top_k, top_p, seed)
        if not prompts:
            raise UsageError("there is no prompt")
        if len(prompts) > self.caches.batch:
            raise UsageError(f"{len(prompts)} prompts, the generator has {self.caches.batch} rows", hint=f"Generator(batch={len(prompts)})")  # fmt: skip
        ids = [self._ids(p) for p in prompts]
        longest = max(map(len, ids))
        limit = max(1, min(NEW, self.caches.capacity - longest)) if max_new_tokens is None else max_new_tokens
        limit = whole_number("max_new_tokens", limit, 1, "a number of tokens from 1 on")
        if longest + limit > self.caches.capacity:
            raise UsageError(
                f"{longest} tokens of the prompt and {limit} new ones are more than max_length={self.caches.capacity}",
                hint="a shorter prompt, fewer new tokens, or a Generator with a larger max_length",
            )
        ends, texts = stops_of(stop, self.stops, self.vocabulary)
        if texts:
            self._need_tokenizer_for_stops()
        has_text = texts or any(isinstance(p, str) for p in prompts) or self.decodes()
        rows = [Row(TextStream(self.tokenizer) if has_text else None) for _ in ids]
        with self._lock:
            self._turn += 1
            with _memory_named():
                decoding = self._ready(ids, limit, sampling)
            return rows, decoding, self._pieces(self._turn, decoding, ids, rows, limit, sampling, ends, texts)

    def _need_tokenizer_for_stops(self) -> None:
        """Raise BadModelError or UnsupportedError if there is no tokenizer, which texts in `stop` need."""
        try:
            assert self.tokenizer
        except (BadModelError, UnsupportedError) as error:
            error.hint += "; or leave stop texts out: rows end at the model's end tokens and after max_new_tokens"
            raise

    def _ids(self, prompt: Prompt) -> list[int]:
        return token_ids(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, self.vocabulary)

    def decodes(self) -> bool:
        """Whether there is a tokenizer: then results have text, also for prompts given as token ids."""
        path = self._path
        try:
            return path is not None and (path.is_file() or (path / FILE).is_file()) and bool(self.tokenizer)
        except UnsupportedError:
            return False

    def _pieces(
        self, turn: int, decoding: Decoding, ids: list[list[int]], rows: list[Row], limit: int, sampling: Sampling,
        ends: frozenset[int], texts: tuple[str, ...],
    ) -> Iterator[list[Piece]]:  # fmt: skip
        with self._running(turn):
            decoding.begin(ids, sampling)
            self._refuse_nan(decoding, range(len(ids)), 0, "after the prompt")
        while running := [i for i, row in enumerate(rows) if not row.end]:
            with self._running(turn):
                found = decoding.round(running, limit - min(len(rows[i].tokens) for i in running))
            for step in range(max(map(len, found))):
                pieces = [
                    row.add(i, found[i][step], len(row.tokens) + 1 == limit, ends, texts)
                    for i, row in enumerate(rows) if not row.end and step < len(found[i])
                ]  # fmt: skip
                if ended := [piece.row for piece in pieces if piece.end]:
                    with self._running(turn):
                        self._refuse_nan(decoding, ended, step, "during the generation")
                if pieces:
                    yield pieces

    def _refuse_nan(self, decoding: Decoding, rows: Sequence[int], index: int, when: str) -> None:
        """Raise BadModelError if the logits of the token `index` of the last round are NaN for some of the rows
        (sequences of the batch)."""
        if np.isnan(decoding.logits(index)[rows]).any():
            raise BadModelError(f"the logits {when} are NaN", where=self.folder.where,
                                hint="weights or config.json hold values that the model cannot compute with")  # fmt: skip

    @contextmanager
    def _running(self, turn: int) -> Iterator[None]:
        """Run programs of one generation; after a failure nothing in the caches is reused."""
        with self._lock:
            self._check_turn(turn)
            try:
                with _memory_named():
                    yield
            except BaseException:
                for model in (self._model, self._draft):
                    if model is not None:
                        model.forget()
                raise

    def _check_turn(self, turn: int) -> None:
        if turn != self._turn:
            raise UsageError("another generation has begun", hint="a generator continues one stream at a time")

    def _ready(self, ids: list[list[int]], limit: int, sampling: Sampling) -> Decoding:
        """Make the programs that a generation needs; returns how it decodes."""
        decoding: Decoding = PlainDecoding(self._model, sampling.kind, overlaps=True)
        self._model.ready(ids)
        if self._draft is not None and limit > 1:
            decoding = SpeculativeDecoding(PlainDecoding(self._model, sampling.kind), self._draft, self._count)
            self._draft.ready(ids)
        decoding.ready(max(map(len, ids)), limit)
        return decoding


__all__ = ["Generated", "Generator", "Piece"]
