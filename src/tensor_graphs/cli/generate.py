"""Implements the command `generate`: text or tokens after a prompt, streamed to a terminal or as one JSON document."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import Interrupted, UsageError
from ..options import Options, summary
from ..plain import as_int
from ..progress import Progress
from .console import Answer, Json, Verbose, printable, tell, working

if TYPE_CHECKING:
    from ..generation import Generated, Generator, Piece

Prompt = Annotated[str | None, typer.Option("--prompt", help="text of the prompt (needs the package tokenizers)")]
Tokens = Annotated[str | None, typer.Option("--prompt-tokens", help="token ids of the prompt, separated by commas")]


def generate(
    folder: Annotated[str, typer.Argument(help="a folder with config.json and safetensors, or a .gguf file")],
    prompt: Prompt = None, prompt_tokens: Tokens = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="maximum number of new tokens; default: as many as fit, at most 128")] = None,
    max_length: Annotated[int | None, typer.Option(help="maximum number of tokens, prompt included; default 1024 or what the model allows")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token; larger values make unlikely tokens more frequent")] = 0.0,
    top_k: Annotated[int, typer.Option(help="draw from this many most likely tokens; 0: from all")] = 0,
    top_p: Annotated[float, typer.Option(help="draw from the fewest most likely tokens whose probabilities sum to this")] = 1.0,
    seed: Annotated[int, typer.Option(help="random seed of the drawn tokens")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="text that ends the output, instead of the model's end tokens; repeatable")] = None,
    budget: Annotated[float, typer.Option(help="seconds of search for the decode program; prefill has half, sampling 15 %")] = 60.0,
    backend: Annotated[str, typer.Option(help=summary("backend"))] = "auto",
    costdb: Annotated[Path | None, typer.Option(help=summary("costdb"))] = None,
    measure: Annotated[bool, typer.Option(help=summary("measure"))] = Options.measure,
    quantize: Annotated[str | None, typer.Option(help=summary("quantize"))] = None,
    draft: Annotated[Path | None, typer.Option(help="folder or .gguf file of a smaller model with the same vocabulary, which proposes tokens (speculative decoding)")] = None,
    draft_tokens: Annotated[int, typer.Option(help="number of tokens that the draft proposes a round")] = 4,
    trust_model: Annotated[bool, typer.Option("--trust-model", help="allow links that lead out of the folder")] = False,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Generate text with a decoder from a Hugging Face folder or a GGUF file. Its programs are made once and cached."""
    from ..generation import Generator as made

    if (prompt is None) == (prompt_tokens is None):
        raise UsageError("give either --prompt or --prompt-tokens")
    given = prompt if prompt is not None else _numbers(prompt_tokens or "")
    with working(verbose, as_json) as progress:
        generator = made(
            folder, budget=budget, max_length=max_length, backend=backend, trust=trust_model, costdb=costdb, measure=measure,
            progress=progress, quantize=quantize, draft=draft, draft_tokens=draft_tokens,
        )  # fmt: skip
        live = not as_json and sys.stdout.isatty() and generator.decodes()
        shown, error = _Shown(progress, live), None
        try:
            found = generator.generate(
                given, max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop or None, show=shown,
            )  # fmt: skip
        except Interrupted as stopped:
            if not shown.begun:
                raise
            found, error = shown.so_far(generator.decodes()), stopped
    document: dict[str, Any] = {
        "tokens": found.tokens[0], "text": None if found.texts is None else found.texts[0], "end": found.ends[0],
        "tokens_per_second": found.tokens_per_second, "first_token_s": found.first_token_s,
        "acceptance": None if math.isnan(found.acceptance) else found.acceptance,
        "drafting": found.drafting, "quantization": generator.quantization, "bandwidth_share": generator.bandwidth_share(found.step_us),
        "programs": {name: round(seconds, 3) for name, seconds in generator.seconds.items()},
    }  # fmt: skip
    text = "" if live else ",".join(map(str, found.tokens[0])) if found.texts is None else found.texts[0]
    if verbose and generator.quantization:
        tell(generator.quantization)
    if verbose and not math.isnan(found.tokens_per_second):
        accepted = "" if draft is None else f", {found.acceptance:.0%} of the draft's tokens accepted"
        accepted += f"; {found.drafting}" if found.drafting else ""
        tell(f"{found.tokens_per_second:.1f} tokens/s, first token after {found.first_token_s:.3f} s{accepted}")
    afterwards = partial(_complete_checks, generator) if generator.unchecked and not progress.stopped else None
    return Answer(document, text, error, exact=True, afterwards=afterwards)


def _complete_checks(generator: Generator) -> None:
    """Complete the checks that the searches had no time for, so that later runs find them done."""
    if sys.stderr.isatty():
        tell(f"completing checks of {', '.join(generator.unchecked)} for later runs (Ctrl-C to leave them)")
    generator.complete_checks()


class _Shown:
    """Receiver of generated pieces, which prints them at once if `live`, and keeps them. A Ctrl-C before the first
    piece ended the search only; one after it raises Interrupted.
    """

    def __init__(self, progress: Progress, live: bool) -> None:
        self.progress, self.live, self.begun = progress, live, False
        self.pieces: list[Piece] = []

    def __call__(self, piece: Piece) -> None:
        if not self.begun:
            self.begun, self.progress.stopped = True, False
            self.progress.say("" if self.live else "generate", "")  # no line between words that are printed
        if self.progress.stopped:
            raise Interrupted("stopped on request; the tokens so far were kept")
        self.pieces.append(piece)
        if self.live:
            print(printable(piece.text), end="", flush=True)

    def so_far(self, decoded: bool) -> Generated:
        """The tokens so far as a result that was interrupted; `decoded`: with their text."""
        from ..generation.results import Generated

        texts = ["".join(piece.text for piece in self.pieces)] if decoded else None
        return Generated([[piece.token for piece in self.pieces]], texts, ["interrupted"], math.nan, math.nan)


def _numbers(text: str) -> list[int]:
    found = [as_int(part.strip()) for part in text.split(",")] if text.strip() else []
    if None in found:
        raise UsageError(f"invalid --prompt-tokens {text[:80]!r}", hint="whole numbers, separated by commas: 1,2,3")
    return [n for n in found if n is not None]
