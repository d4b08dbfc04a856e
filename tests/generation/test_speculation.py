"""Speculative decoding: the tokens and the distribution of plain decoding, ragged batches, ends, errors, the
command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.cli import app
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import BadModelError, BadWeightsError, TooLargeError, UsageError
from tensor_graphs.generation import Generator, speculation
from tensor_graphs.generation.settings import Sampling
from tensor_graphs.generation.speculation_graphs import acceptor, proposer
from tensor_graphs.models.common import quantized_graph
from tensor_graphs.models.files.safetensors import read_folder, write_arrays
from tensor_graphs.models.huggingface.load import load_folder

from ..models.decoder_cases import CASES, VOCAB, prompt, unfused_programs, write

Array = np.ndarray[Any, Any]
LENGTH, LONG = 48, 19


@pytest.fixture(scope="module", autouse=True)
def _unoptimized() -> Iterator[None]:
    """Programs of NumPy calls in place of optimized ones, prefill steps of at most 8 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        unfused_programs(patch, (4, 8))
        patch.setattr(speculation, "NOISE", float("inf"))  # whatever rounds take, the draft is used
        yield


def small(folder: Path, case: str, **more: Any) -> Path:
    """A draft for a case: its first layer only, with weights of its own."""
    layers = "n_layer" if case == "gpt2" else "num_hidden_layers"
    kinds = {"layer_types": CASES[case]["layer_types"][:1]} if "layer_types" in CASES[case] else {}
    folder.mkdir()
    return write(folder, case, **{layers: 1}, **kinds, **more)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a draft."""
    folder = tmp_path_factory.mktemp("llama")
    return write(folder, "llama"), small(folder / "draft", "llama")


@pytest.fixture(scope="module")
def plain(llama: tuple[Path, Path]) -> Generator:
    return Generator(llama[0], max_length=LENGTH, batch=2)


@pytest.fixture(scope="module")
def made(llama: tuple[Path, Path]) -> Generator:
    return Generator(llama[0], max_length=LENGTH, batch=2, draft=llama[1], draft_tokens=3)


# ---------------------------------------------------------------- tokens
@pytest.mark.parametrize(("case", "count"), [("llama", 3), ("gemma3", 4), ("qwen2", 1), ("gpt2", 2), ("gpt_oss", 7)])
def test_greedy_tokens_are_those_of_plain_decoding(tmp_path: Path, case: str, count: int) -> None:
    """To the end of the caches, through rings of positions, with rows that accept different numbers of proposals."""
    untied = {"tie_word_embeddings": False} if case == "gemma3" else {}  # tied ones repeat the last token
    folder, draft = write(tmp_path, case, **untied), small(tmp_path / "draft", case, **untied)
    prompts, limit = [prompt(3), prompt(LONG, 1)], LENGTH - LONG
    wanted = Generator(folder, max_length=LENGTH, batch=3).generate(prompts, limit)
    found = Generator(folder, max_length=LENGTH, batch=3, draft=draft, draft_tokens=count).generate(prompts, limit)
    assert found.tokens == wanted.tokens and found.ends == wanted.ends == ["length", "length"]
    assert 0 < found.acceptance < 1 and np.isnan(wanted.acceptance) and len({*found.tokens[1]}) > 3


def test_a_draft_that_is_the_model_is_always_right(llama: tuple[Path, Path], plain: Generator) -> None:
    same = Generator(llama[0], max_length=LENGTH, batch=2, draft=llama[0], draft_tokens=3)
    prompts = [prompt(3), prompt(LONG, 1)]
    found = same.generate(prompts, 17)
    assert found.tokens == plain.generate(prompts, 17).tokens and found.acceptance == 1
    assert same.generate(prompts, 17, temperature=0.9, top_k=9, top_p=0.9, seed=3).acceptance > 0.95
    rounds = len(set(same.seconds))
    assert rounds == len(same.seconds) and {"draft-prefill-8", "draft-follow", "verify-3"} <= {*same.report}


def test_nan_logits_of_a_later_token_are_named(llama: tuple[Path, Path], plain: Generator, tmp_path: Path) -> None:
    """A NaN row of the embedding table takes effect once its token was chosen. A draft's NaN changes no token."""
    wanted = plain.generate(prompt(3), 20).tokens[0]
    first = next(k for k, token in enumerate(wanted) if k and token not in [*prompt(3), *wanted[:k]])
    arrays = {n: a.load().copy() for n, a in read_folder(llama[0]).items()}
    arrays["model.embed_tokens.weight"][wanted[first]] = np.nan
    write_arrays(write(tmp_path, "llama") / "model.safetensors", arrays)
    for draft in (None, llama[1]):
        bad = Generator(tmp_path, max_length=LENGTH, draft=draft, draft_tokens=2)
        for temperature in (0, 0.001):
            with pytest.raises(BadModelError, match="during the generation are NaN"):
                bad.generate(prompt(3), 20, temperature=temperature)
            count = 1 if draft else first + 1  # a step that verifies proposals computes NaN if one of them is the token
            assert bad.generate(prompt(3), count).tokens[0] == wanted[:count]
    drafted = Generator(llama[0], max_length=LENGTH, draft=tmp_path, draft_tokens=2)
    assert drafted.generate(prompt(3), 20).tokens[0] == wanted


def test_the_smallest_top_p_is_greedy(made: Generator, plain: Generator) -> None:
    """In float32 it would be 0, and no token would be left."""
    for generator in (plain, made):
        wanted = plain.generate(prompt(3), 20).tokens
        assert generator.generate(prompt(3), 20, temperature=1.0, top_p=1e-300).tokens == wanted


def test_quantized_weights_are_those_of_all_steps(llama: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_graph, "SMALLEST", 64)
    options: dict[str, Any] = {"max_length": LENGTH, "quantize": "int4", "quantize_head": False}
    wanted = Generator(llama[0], **options).generate(prompt(5), 20).tokens
    other = Generator(llama[0], **options, draft=llama[1], draft_tokens=2)
    assert other.generate(prompt(5), 20).tokens == wanted and "int4" in other.quantization


def test_a_stream_gives_the_same_and_ends_where_it_should(made: Generator, plain: Generator) -> None:
    prompts = [prompt(3), prompt(LONG, 1)]
    wanted = plain.generate(prompts, 12).tokens
    for limit in (1, 2, 5, 12):
        pieces = list(made.stream(prompts, limit))
        assert [[p.token for p in pieces if p.row == row] for row in (0, 1)] == [t[:limit] for t in wanted]
        assert [p.row for p in pieces if p.end == "length"] == [0, 1] or limit > 1
        assert sum(p.end == "length" for p in pieces) == 2


def test_end_tokens_end_a_row_in_the_middle_of_a_round(made: Generator, plain: Generator) -> None:
    prompts = [prompt(3), prompt(LONG, 1)]
    whole = plain.generate(prompts, 20).tokens
    for stop in sorted({*whole[0], *whole[1]}):
        wanted = plain.generate(prompts, 20, stop=stop)
        found = made.generate(prompts, 20, stop=stop)
        assert (found.tokens, found.ends) == (wanted.tokens, wanted.ends)


def test_a_row_does_not_depend_on_its_neighbours(made: Generator) -> None:
    alone = made.generate(prompt(LONG, 1), 12).tokens[0]
    assert made.generate([prompt(8, 5), prompt(LONG, 1)], 12).tokens[1] == alone
    ended = made.generate([prompt(8, 5), prompt(LONG, 1)], 29, stop=alone[2])  # row 0 goes on
    assert ended.tokens[1] == alone[: alone.index(alone[2]) + 1]


def test_a_draft_that_does_not_pay_is_used_no_further(
    made: Generator, plain: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Greedy decoding goes on without it, with the same tokens; drawing does not, so that a seed draws the same."""
    prompts, drawing = [prompt(3), prompt(LONG, 1)], {"temperature": 0.9, "seed": 3}
    wanted, drawn = plain.generate(prompts, 25).tokens, made.generate(prompts, 25, **drawing)
    launched = list[int]()
    launch = speculation.SpeculativeDecoding._launch
    monkeypatch.setattr(speculation.SpeculativeDecoding, "_launch", lambda self: (launched.append(1), launch(self))[1])
    assert made.generate(prompts, 25).drafting == drawn.drafting == "" and len(launched) > speculation.TRIAL + 1
    monkeypatch.setattr(speculation, "NOISE", 0.0)
    launched.clear()
    found = made.generate(prompts, 25)
    assert found.tokens == wanted and len(launched) == speculation.TRIAL + 1 and found.acceptance < 1
    assert found.drafting.startswith("the draft was not used further") and "ms without" in found.drafting
    again = made.generate(prompts, 25, **drawing)
    assert again.tokens == drawn.tokens and again.drafting.startswith("the draft does not pay")


# ---------------------------------------------------------------- distribution
def chi_square(found: Array, expected: Array) -> tuple[float, float]:
    """The statistic, cells of few expected counts together, and a bound that chance exceeds once in 10,000 cases."""
    order = np.argsort(expected)
    few = order[np.cumsum(expected[order]) <= 8]
    many = np.setdiff1d(np.arange(expected.size), few)
    counts, wanted = (np.append(x[many], x[few].sum()) for x in (found, expected))
    assert not counts[wanted == 0].any()
    kept = wanted > 0
    freedom = kept.sum() - 1
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * np.sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty
    return float(((counts - wanted)[kept] ** 2 / wanted[kept]).sum()), float(bound)


def filtered(logits: Array, options: dict[str, Any]) -> Array:
    """Shares that tokens are to be drawn with."""
    shares = np.exp((logits - logits.max()).astype(np.float64) / options["temperature"])
    order = np.argsort(-shares)
    ranked = shares[order] * (np.arange(shares.size) < (options.get("top_k") or shares.size))
    ranked /= ranked.sum()
    ranked *= np.cumsum(ranked) - ranked < options.get("top_p", 2.0)
    shares[order] = ranked / ranked.sum()
    return shares


DRAWING: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.8},
]


@pytest.mark.parametrize("options", DRAWING)
def test_rounds_have_the_large_models_distribution(options: dict[str, Any]) -> None:
    """Tokens of one round over logits that do not depend on them: each position has its own distribution."""
    rows, count, vocabulary = 256, 2, 7
    random, kind = np.random.default_rng(0), Sampling(**options).kind
    scores, noise = random.standard_normal((2, count + 1, vocabulary)).astype(np.float32) * 1.5
    guessed = scores + 0.7 * noise
    propose, accept = proposer(kind, rows, vocabulary, count), acceptor(kind, rows, vocabulary, count)
    drawn = {name: np.array(v, dtype) for name, (v, dtype) in Sampling(**options, seed=5).states(vocabulary).items()}
    own = {name: np.array(v, dtype) for name, (v, dtype) in Sampling(**options, seed=5).states(vocabulary, 9).items()}
    states: dict[str, Array] = {
        "scores": np.tile(scores, (rows, 1, 1)), "shares": np.zeros((rows, count, vocabulary), np.float32),
        "proposals": np.zeros((rows, count), np.int64), "token": np.zeros((rows, 1), np.int64),
        "target.length": np.full(rows, 5), "length": np.full(rows, 5), "previous": np.zeros((rows, 1), np.int64),
    }  # fmt: skip

    def run(graph: Graph, values: dict[str, Array]) -> Array:
        first, *new = evaluate(graph, values)
        values.update(zip(graph.updates, new, strict=True))
        return first

    found = np.zeros((count + 1, vocabulary))
    for _ in range(24):
        for place in range(count):
            values = {**states, **own, "logits": np.tile(guessed[place], (rows, 1)), "length": np.full(rows, 6 + place)}
            run(propose, values)
            states |= {name: values[name] for name in ("shares", "proposals")}
            own["draws"] = values["draws"]
        values = {**states, **drawn, "length": np.full(rows, 5)}
        result = run(accept, values)
        drawn["draws"], accepted = values["draws"], result[:, -1]
        assert (values["length"] == 6 + accepted).all() and (values["token"][:, 0] == result[:, count]).all()
        for place in range(count + 1):
            reached = accepted >= place
            tokens = np.where(accepted > place, result[:, place], result[:, count])[reached]
            found[place] += np.bincount(tokens, minlength=vocabulary)
    assert found[0].sum() > found[1].sum() > found[2].sum() > 500
    for place in range(count + 1):
        statistic, bound = chi_square(found[place], found[place].sum() * filtered(scores[place], options))
        assert statistic < bound


@pytest.mark.parametrize("options", DRAWING[:2])
def test_texts_have_the_large_models_distribution(tmp_path: Path, options: dict[str, Any]) -> None:
    """Three drawn tokens together, against their probabilities by the graph over whole sequences."""
    rows, tokens, sizes = 256, 3, {"vocab_size": 5, "num_hidden_layers": 1}
    folder = write(tmp_path, "qwen2", **sizes)
    (tmp_path / "draft").mkdir()
    draft = write(tmp_path / "draft", "qwen2", **sizes, hidden_size=16, intermediate_size=16)
    graph, begun = load_folder(folder), [1, 3]

    def shares(ids: list[int]) -> Array:
        bound = graph.bind({"batch": 1, "sequence": len(ids)})
        return filtered(evaluate(bound, {"input_ids": np.array([ids])})[0][0, -1], options)

    expected = np.zeros((5,) * tokens)
    for a, p in enumerate(shares(begun)):
        for b, q in enumerate(shares([*begun, a])):
            expected[a, b] = p * q * shares([*begun, a, b])
    made = Generator(folder, max_length=16, batch=rows, draft=draft, draft_tokens=2)
    found, acceptance = np.zeros((5,) * tokens), []
    for seed in range(12):
        result = made.generate([begun] * rows, tokens, seed=seed, **options)
        np.add.at(found, tuple(np.array(result.tokens).T), 1)
        acceptance.append(result.acceptance)
    assert 0.2 < np.mean(acceptance) < 0.95  # draws are accepted and refused
    statistic, bound = chi_square(found.ravel(), found.sum() * expected.ravel())
    assert statistic < bound


def test_a_seed_draws_the_same_and_rows_draw_for_themselves(made: Generator) -> None:
    draw = partial(made.generate, [prompt(3), prompt(3)], 12, temperature=1.5)
    first = draw(seed=1).tokens
    assert first == draw(seed=1).tokens != draw(seed=2).tokens and first[0] != first[1]


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ({"vocab_size": VOCAB + 1}, {}, "the draft has a vocabulary of 25 tokens, the model one of 24"),
        ({"max_position_embeddings": 32}, {}, "the draft model has 32 positions, fewer than max_length=48"),
        ({}, {"draft_tokens": 0}, "draft_tokens=0"),
        ({}, {"draft_tokens": 8}, "draft_tokens=8\n.*at most 7"),
        ({}, {"draft_tokens": 2.5}, "draft_tokens=2.5"),
        ({}, {"draft": 5}, "an int is no folder"),
        ({}, {"reuse": "no"}, "reuse='no'"),
    ],
)
def test_bad_drafts_are_named(llama: tuple[Path, Path], tmp_path: Path, more: Any, options: Any, words: str) -> None:
    draft = small(tmp_path / "other", "llama", **more)
    with pytest.raises(UsageError, match=words):
        Generator(llama[0], **{"draft": draft, "max_length": LENGTH, **options})


def test_a_draft_with_wrong_weights_is_named(llama: tuple[Path, Path], tmp_path: Path) -> None:
    draft = small(tmp_path / "other", "llama")
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(BadWeightsError, match="missing"):
        Generator(llama[0], draft=draft, max_length=LENGTH)


def test_a_failing_draft_leaves_the_generator_usable(made: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made.generate(prompt(3), 9).tokens
    assert made._draft is not None
    follow = made._draft.programs.follow()
    with monkeypatch.context() as patch:
        patch.setattr(follow, "_run", lambda: (_ for _ in ()).throw(MemoryError("no more")))
        with pytest.raises(TooLargeError, match="memory ran out: no more"):
            made.generate(prompt(3), 9)
    assert made.generate(prompt(3), 9).tokens == before


# ---------------------------------------------------------------- the command
def test_the_command_takes_a_draft(
    llama: tuple[Path, Path], plain: Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        str(llama[0]),
        "--max-length",
        str(LENGTH),
        "--prompt-tokens",
        "3,7,1",
        "--max-new-tokens",
        "9",
        "--json",
    ]
    assert app.run(["generate", *arguments, "--draft", str(llama[1]), "--draft-tokens", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == plain.generate([3, 7, 1], 9).tokens[0] and 0 <= found["acceptance"] <= 1
    assert "verify-2" in found["programs"] and "draft-follow" in found["programs"]
    assert app.run(["generate", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["acceptance"] is None
