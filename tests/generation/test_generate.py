"""Generation: tokens against the graph over whole sequences, batches, drawing, stops, streams, text, errors, the
command."""

from __future__ import annotations

import inspect
import json
import pickle
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.backends.program.weights import bytes_of
from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
from tensor_graphs.backends.tuning.measurement import Timing
from tensor_graphs.cli import app, outcome
from tensor_graphs.cli.generate import _Shown
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import structural_digest
from tensor_graphs.errors import (
    BadModelError,
    BadWeightsError,
    Interrupted,
    ShapeError,
    TooLargeError,
    UnsupportedError,
    UsageError,
)
from tensor_graphs.generation import Generator, Piece, cached_model
from tensor_graphs.generation import settings as settings_module
from tensor_graphs.generation.programs import later_arrays
from tensor_graphs.generation.results import Row
from tensor_graphs.generation.sampling import WORD, first_largest, sampler, threefry
from tensor_graphs.generation.text import TextStream, Tokenizer
from tensor_graphs.models.common import quantized_graph
from tensor_graphs.models.files.safetensors import read_folder, write_arrays
from tensor_graphs.models.huggingface.load import load_folder
from tensor_graphs.models.huggingface.step import Folder
from tensor_graphs.models.random_checkpoints import random_checkpoint, write_checkpoint
from tensor_graphs.pipeline.cache import plan_cache
from tensor_graphs.pipeline.stages import verify_program
from tensor_graphs.private import read_sealed, sealed
from tensor_graphs.processes import forks

from ..fuzz.hostile import nest

VOCAB, LENGTH, LONG = 24, 48, 23
#: Searches that take no longer than they must.
FAST: dict[str, Any] = {"budget": 1.0, "measure": False, "verify": False, "effort": 0, "backend": "numpy"}
CONFIG: dict[str, Any] = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": VOCAB, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 64,
    "tie_word_embeddings": False, "query_pre_attn_scalar": 2, "torch_dtype": "float32", "eos_token_id": 99,
}  # fmt: skip
WORDS = {f"w{i}": i for i in range(VOCAB)}
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "w0"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), CONFIG, seed=4)


@pytest.fixture(scope="module")
def made(folder: Path) -> Iterator[Generator]:
    """A generator of two rows whose longer prompts take several prefill steps of 8 tokens, over a ring of 12."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached_model, "BUCKETS", (4, 8))
        yield Generator(folder, max_length=LENGTH, batch=2, **FAST)


def test_a_generator_is_not_pickled_and_its_lock_is_free_in_a_forked_child(made: Generator) -> None:
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(made)
    assert isinstance(made._lock, forks.Lock)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(v) for v in np.random.default_rng(seed).integers(0, VOCAB, length)]


def continued(
    folder: Path, ids: list[int], count: int, change: Callable[[Graph], Graph] = lambda graph: graph
) -> list[int]:
    """The most likely tokens by the graph over whole sequences, changed by a function."""
    graph, found = change(load_folder(folder)), list(ids)
    for _ in range(count):
        bound = graph.bind({"batch": 1, "sequence": len(found)})
        found.append(int(evaluate(bound, {"input_ids": np.array([found])})[0][0, -1].argmax()))
    return found[len(ids) :]


# ---------------------------------------------------------------- tokens
def test_tokens_are_those_of_whole_sequences(made: Generator, folder: Path) -> None:
    """Short and long prompts beside each other: padded, and in several steps through a ring of positions."""
    prompts = [prompt(3), prompt(LONG, 1)]
    found = made.generate(prompts, 20)
    assert found.tokens == [continued(folder, p, 20) for p in prompts]
    assert len({*found.tokens[0], *found.tokens[1]}) > 3  # not one token over and over
    assert found.ends == ["length", "length"] and found.texts is None and found.first_token_s > 0
    assert found.tokens_per_second > 0 and made._programs.states["keys.0"].shape == (2, 1, 12, 8)


def test_quantized_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefill and decode compute with the same quantized weights; the output matrix is among them unless excepted."""
    monkeypatch.setattr(quantized_graph, "SMALLEST", 64)
    own = Generator(folder, max_length=LENGTH, quantize="int8", **FAST)
    wanted = continued(folder, prompt(9), 8, lambda graph: quantized_graph.quantized(graph, "int8")[0])
    assert own.generate(prompt(9), 8).tokens == [wanted]
    assert own.quantization.startswith("int8: 15 weights, ")
    other = Generator(folder, max_length=LENGTH, quantize="int8", quantize_head=False, **FAST)
    assert other._programs.step(1) and other.quantization.startswith("int8: 14 weights, ")


def test_programs_hold_one_copy_of_the_weights(made: Generator) -> None:
    made.generate(prompt(LONG), 2)
    programs = made._programs
    prefill, decode = programs.prefill(8, fresh=True), programs.decode()
    assert programs.weights.held(prefill._weights) == sum(map(bytes_of, prefill.manifest.weights)) > 0
    assert prefill.states["keys.1"] is decode.states["keys.1"] is programs.states["keys.1"]
    shared = set(map(structural_digest, prefill._weights.terms.values())) & set(  # type: ignore[attr-defined]
        map(structural_digest, decode._weights.terms.values())  # type: ignore[attr-defined]
    )
    assert len(shared) > 10


def test_a_row_does_not_depend_on_its_neighbours(made: Generator) -> None:
    alone = made.generate(prompt(LONG, 1), 6).tokens[0]
    assert made.generate([prompt(8, 5), prompt(LONG, 1)], 6).tokens[1] == alone
    assert made.generate([prompt(LONG, 1), prompt(1, 2)], 6).tokens[0] == alone


def test_a_stream_gives_the_same_one_by_one(made: Generator) -> None:
    pieces = list(made.stream([prompt(3), prompt(5)], 4))
    assert [p.row for p in pieces] == [0, 1] * 4 and [p.end for p in pieces[-2:]] == ["length"] * 2
    found = made.generate([prompt(3), prompt(5)], 4)
    assert [[p.token for p in pieces if p.row == row] for row in (0, 1)] == found.tokens
    shown: list[int] = []
    made.generate(prompt(3), 4, show=lambda piece: shown.append(piece.token))
    assert shown == found.tokens[0]


def test_one_stream_at_a_time(made: Generator) -> None:
    first = made.stream(prompt(3), 5)
    next(first)
    assert len(list(made.stream(prompt(4), 2))) == 2
    with pytest.raises(UsageError, match="another generation has begun"):
        next(first)


def test_calls_in_threads_wait_for_one_another(made: Generator) -> None:
    """Also beside a stream, which another call ends, and with callbacks that raise in the middle of a text."""
    prompts = [prompt(n, n) for n in (3, 5, LONG, 4)]
    expected = [made.generate(p, 6, temperature=1.0, seed=7).tokens for p in prompts]
    found: dict[int, Any] = {}

    def fails(piece: Piece) -> None:
        raise LookupError

    def call(i: int) -> None:
        with pytest.raises(LookupError):
            made.generate(prompts[i - 1], 6, show=fails)
        found[i] = made.generate(prompts[i], 6, temperature=1.0, seed=7).tokens

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.get(i) for i in range(len(prompts))] == expected


def test_a_callback_may_generate_which_ends_the_call_around_it(made: Generator) -> None:
    inner: list[Any] = []
    with pytest.raises(UsageError, match="another generation has begun"):
        made.generate(prompt(3), 5, show=lambda piece: inner.append(made.generate(prompt(4), 2).tokens))
    assert inner == [made.generate(prompt(4), 2).tokens]


def test_end_tokens_end_a_row(made: Generator) -> None:
    whole = made.generate([prompt(3), prompt(LONG, 1)], 12).tokens
    stop = next(v for v in whole[0] if v not in whole[1])
    found = made.generate([prompt(3), prompt(LONG, 1)], 12, stop=stop)
    assert found.tokens == [whole[0][: whole[0].index(stop) + 1], whole[1]]
    assert found.ends == ["stop", "length"]
    assert made.generate(prompt(3), 12, stop=()).tokens[0] == whole[0]


def test_the_folder_names_its_end_tokens(folder: Path, made: Generator, tmp_path: Path) -> None:
    first = made.generate(prompt(3), 1).tokens[0][0]
    assert made.stops == ()  # 99 is outside the vocabulary
    other = write_checkpoint(tmp_path, {**CONFIG, "eos_token_id": first}, seed=4)
    assert Generator(other, **FAST).stops == (first,)
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert Generator(other, **FAST).stops == (1, 2)
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": ["end"]}))
    with pytest.raises(BadModelError, match="eos_token_id"):
        Generator(other, **FAST)


# ---------------------------------------------------------------- drawing
def test_threefry_gives_its_published_words() -> None:
    words = [t.input(n, (1,), "int64") for n in "abcd"]
    results = threefry((words[0], words[1]), (words[2], words[3]))
    known = {  # key, counter -> words: test vectors of Random123
        (0, 0, 0, 0): (0x6B200159, 0x99BA4EFE),
        (WORD, WORD, WORD, WORD): (0x1CB996FC, 0xBB002BE7),
        (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3): (0xC4923A9C, 0x483DF7A0),
    }
    for given, wanted in known.items():
        found = evaluate(results, dict(zip("abcd", (np.array([v]) for v in given))))
        assert [int(w[0]) for w in found] == list(wanted)


def test_outputs_of_several_steps_come_in_one_copy() -> None:
    torch = pytest.importorskip("torch")
    given = [torch.tensor([3, 4]), torch.tensor([5, 6])]
    for values in (given, given[:1], [x.numpy() for x in given]):
        assert [x.tolist() for x in later_arrays(values)()] == [[3, 4], [5, 6]][: len(values)]


@pytest.mark.parametrize("columns", [37, 256])
def test_the_largest_of_a_row_in_parts(columns: int) -> None:
    """The first one of equal ones, and the first NaN, as without parts."""
    values = np.random.default_rng(0).integers(-3, 4, (6, columns)).astype(np.float32)
    values[1], values[2, 20:22], values[3, :30] = -np.inf, np.nan, -np.inf
    x = tg.input("x", values.shape)
    (found,) = evaluate(Graph.of(first_largest(x, 8)), {"x": values})
    np.testing.assert_array_equal(found[:, 0], values.argmax(1))


@pytest.mark.parametrize(("kind", "k", "p"), [("plain", 11, 2.0), ("filtered", 6, 0.9), ("filtered", 11, 0.5)])
def test_draws_have_their_distribution(kind: Any, k: int, p: float) -> None:
    rows, count, temperature = 256, 40, 0.8
    logits = np.tile(np.random.default_rng(0).standard_normal(11).astype(np.float32) * 1.5, (rows, 1))
    graph = sampler(kind, rows, 11)
    values = {"logits": logits, "temperature": np.full((1, 1), temperature, np.float32), "top_k": np.full((1, 1), k),
              "top_p": np.full((1, 1), p, np.float32), "seed": np.array([[7, 9]]), "draws": np.array([[0]])}  # fmt: skip
    found = np.zeros(11)
    for _ in range(count):
        tokens, _, values["draws"] = evaluate(graph, values)
        found += np.bincount(tokens, minlength=11)
    shares = np.exp(logits[0].astype(np.float64) / temperature)
    order = np.argsort(-shares)
    ranked = shares[order] * (np.arange(11) < k)
    ranked /= ranked.sum()
    ranked *= np.cumsum(ranked) - ranked < p
    shares[order] = ranked / ranked.sum()
    kept = shares > 0
    expected = rows * count * shares[kept]
    assert not found[~kept].any() and ((found[kept] - expected) ** 2 / expected).sum() < 30


def test_a_seed_draws_the_same_and_another_seed_others(made: Generator) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 20, "top_p": 0.95}
    first = made.generate([prompt(3), prompt(3)], 12, seed=1 << 40, **options).tokens
    assert first == made.generate([prompt(3), prompt(3)], 12, seed=1 << 40, **options).tokens
    assert first[0] != first[1]  # rows draw for themselves
    assert first != made.generate([prompt(3), prompt(3)], 12, seed=2 << 40, **options).tokens


def test_drawing_from_one_token_is_taking_the_largest(made: Generator) -> None:
    wanted = made.generate(prompt(3), 6).tokens
    assert made.generate(prompt(3), 6, temperature=1.0, top_k=1).tokens == wanted
    assert made.generate(prompt(3), 6, temperature=1.0, top_p=1e-9).tokens == wanted


@pytest.mark.parametrize("options", [{}, {"top_k": 5}])
@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 1e-38, 1e-20])
def test_the_coldest_temperatures_take_the_largest(
    made: Generator, temperature: float, options: dict[str, int]
) -> None:
    wanted = made.generate(prompt(3), 6).tokens
    assert made.generate(prompt(3), 6, temperature=temperature, **options).tokens == wanted


def test_numbers_of_numpy_and_large_ones_are_taken(made: Generator) -> None:
    drawn = made.generate(prompt(3), 6, temperature=1.0, seed=5, top_k=VOCAB).tokens
    assert made.generate(prompt(3), 6, temperature=np.float32(1), seed=np.int8(5), top_k=1 << 70).tokens == drawn
    assert made.generate(prompt(3), 6, temperature=1.0, seed=np.uint64(5), top_k=np.int8(VOCAB)).tokens == drawn


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ([], {}, "the prompt is empty"),
        ("", {}, "tokenizer"),
        ([[1], []], {}, "the prompt is empty"),
        ([VOCAB], {}, "token 24 is outside the vocabulary of 24"),
        ([1, -1], {}, "token -1 is outside"),
        ([1.5], {}, r"a prompt is text or a list of token ids, not \[1\.5\]$"),
        (5, {}, "not int"),
        ([[1], [2], [3]], {}, "3 prompts, the generator has 2 rows"),
        ([1] * LENGTH, {}, "more than max_length=48"),
        ([1], {"max_new_tokens": LENGTH}, "more than max_length=48"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens=0"),
        ([1], {"max_new_tokens": -3}, "max_new_tokens=-3"),
        ([1], {"max_new_tokens": True}, "max_new_tokens=True"),
        ([1], {"temperature": -1.0}, "temperature=-1.0"),
        ([1], {"temperature": float("nan")}, "temperature=nan"),
        ([1], {"top_p": 0.0}, "top_p=0.0"),
        ([1], {"top_p": 1.5}, "top_p=1.5"),
        ([1], {"top_k": -1}, "top_k=-1"),
        ([1], {"seed": -1}, "seed=-1"),
        ([1], {"seed": 1 << 64}, "seed="),
        ([1], {"stop": [VOCAB]}, "outside the vocabulary"),
        ([1], {"stop": 1.5}, "stop=1.5"),
        ([1], {"stop": [""]}, "stop: it has an empty text"),
        ([1], {"stop": b"w"}, "stop=b'w'"),
        ([1], {"stop": "w"}, "leave stop texts out"),
        ([1], {"show": "print"}, "show='print'"),
        (range(1 << 40), {}, "a prompt of more than 48 tokens"),
        ([[1], range(1 << 70)], {}, "a prompt of more than 48 tokens"),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(
    made: Generator, given: Any, options: dict[str, Any], words: str
) -> None:
    before = made.generate(prompt(3), 3).tokens
    with pytest.raises((UsageError, BadModelError), match=words):
        made.generate(given, **options)
    assert made.generate(prompt(3), 3).tokens == before


def test_a_failing_program_leaves_the_generator_usable(made: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made.generate(prompt(3), 3).tokens
    decode = made._programs.decode()
    with monkeypatch.context() as patch:
        patch.setattr(decode, "_run", lambda: (_ for _ in ()).throw(MemoryError("no more")))
        with pytest.raises(TooLargeError, match="memory ran out: no more"):
            made.generate(prompt(3), 3)
    assert made.generate(prompt(3), 3).tokens == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 65}, "max_length=65 exceeds the 64 positions"),
        ({"max_length": 1}, "max_length=1"),
        ({"batch": 0}, "batch=0"),
        ({"budget": "60"}, "budget='60'"),
        ({"tolerance": "none"}, "tolerance 'none'"),
        ({"bugdet": 5}, r"options of a Generator are called \['bugdet'\]"),
    ],
)
def test_bad_sizes_are_named(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Generator(folder, **options)


def test_bad_folders_are_named_when_a_generator_is_made(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match="no config"):
        Generator(tmp_path)
    arrays = {n: a.load().copy() for n, a in read_folder(folder).items()}

    def with_(config: dict[str, Any], kept: dict[str, Any]) -> Path:
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **config}))
        write_arrays(tmp_path / "model.safetensors", kept)
        return tmp_path

    with pytest.raises(BadWeightsError, match=r"config says \[25, 16\]"):
        Generator(with_({"vocab_size": 25}, arrays))
    with pytest.raises(BadWeightsError, match="missing"):
        Generator(with_({}, {n: a for n, a in arrays.items() if "q_proj" not in n}))
    with pytest.raises(BadWeightsError, match="have no place"):
        Generator(with_({}, {**arrays, "model.extra": np.zeros(2, np.float32)}))
    with pytest.raises(UnsupportedError, match="model_type='other'"):
        Generator(with_({"model_type": "other"}, arrays))
    with pytest.raises(UnsupportedError, match="quantized"):
        Generator(with_({"quantization_config": {"bits": 4}}, arrays))
    with pytest.raises(UsageError, match="quantize='int5'"):
        Generator(folder, quantize="int5")
    for wrong in (None, 5, ["folder"]):
        with pytest.raises(UsageError, match="is no folder"):
            Generator(wrong)  # type: ignore[arg-type]


def test_a_model_that_computes_nan_is_named(folder: Path, tmp_path: Path) -> None:
    """The largest of NaN logits is token 0, which nobody could tell from a choice."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    arrays = {n: a.load().copy() for n, a in read_folder(folder).items()}
    next(a for n, a in arrays.items() if "q_proj" in n)[:] = np.nan
    write_arrays(tmp_path / "model.safetensors", arrays)
    generator = Generator(tmp_path, max_length=LENGTH, **FAST)
    for _ in range(2):
        with pytest.raises(BadModelError, match="NaN"):
            generator.generate([1, 2, 3], 3)


def test_caches_beyond_the_memory_are_refused(folder: Path) -> None:
    with pytest.raises((TooLargeError, ShapeError)):
        Generator(folder, batch=1 << 36, **FAST).generate([1], 2)


# ---------------------------------------------------------------- text
def test_text_without_a_tokenizer_is_refused(made: Generator) -> None:
    with pytest.raises(BadModelError, match=r"no tokenizer\.json"):
        made.generate("w1 w2")
    with pytest.raises(BadModelError, match=r"no tokenizer\.json"):
        made.generate([1], stop="w3")


def test_text_that_is_no_unicode_is_refused(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    with pytest.raises(UsageError, match="not valid Unicode"):
        Tokenizer(tmp_path).encode("w1 \ud800")


def test_a_prompt_is_the_whole_text(tmp_path: Path) -> None:
    """Truncation and padding of tokenizer.json are meant for training; a padding of 10**9 tokens ended the process."""
    pytest.importorskip("tokenizers")
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padded = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
              "pad_token": "w0"}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "truncation": cut, "padding": padded}))
    assert Tokenizer(tmp_path).encode("w3 w7 w1") == [3, 7, 1]


class FailingTokenizers:
    """In place of the package `tokenizers`: every call fails, as a panic in the package does."""

    class PanicException(BaseException):
        pass

    def __init__(self, failing: str) -> None:
        self.Tokenizer, self.failing = self, failing

    def from_str(self, _text: str) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            if name == self.failing:
                raise FailingTokenizers.PanicException("index out of bounds")
            return type("Encoding", (), {"ids": [3]})

        return call


@pytest.mark.parametrize("failing", ["no_padding", "encode", "decode"])
def test_a_tokenizer_that_fails_is_named(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", FailingTokenizers(failing))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadModelError, match="index out of bounds"):
        Tokenizer(tmp_path).decode(Tokenizer(tmp_path).encode("w3"))


def replaced(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


@pytest.mark.parametrize(
    ("parts", "words"),
    [({"normalizer": {"type": "Sequence", "normalizers": [replaced("a", "aa")] * 40}}, "may become more than"),
     ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 40}}, "may become more than"),
     ({"decoder": replaced("", "x" * 5000)}, "may become more than"),
     ({"normalizer": {"type": "Prepend", "prepend": "x" * 5000}}, "may become more than"),
     ({"post_processor": [{"type": "TemplateProcessing", "single": [{"Sequence": {}}] * 5000}]}, "may become more than"),
     ({"model": {"type": "Unigram", "vocab": [["a" * 5000, 0.0]]}}, "a token has more than"),
     ({"model": {"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 10**12}}, "would be split"),
     ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}}, "no table"),
     ({"normalizer": nest(50, 1)}, "nested too deeply")],
)  # fmt: skip
def test_tokenizers_whose_texts_grow_are_refused(
    parts: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package tokenizers would take all time and memory, or end the process."""
    monkeypatch.setitem(sys.modules, "tokenizers", FailingTokenizers(""))
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts))
    with pytest.raises(BadModelError, match=words):
        Tokenizer(tmp_path)
    fine = {"normalizer": [replaced(" ", "_"), {"type": "NFC"}], "pre_tokenizer": {"type": "ByteLevel"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(fine))
    assert Tokenizer(tmp_path).encode("w3") == [3]


def test_a_tokenizer_outside_the_folder_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", FailingTokenizers(""))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    with pytest.raises(BadModelError, match="outside the model's folder"):
        Tokenizer(tmp_path / "model")
    assert Tokenizer(tmp_path / "model", trust=True).encode("w3") == [3]
    monkeypatch.chdir(tmp_path)  # a folder in memory has no tokenizer, whatever is in the current folder
    made = Generator(Folder.of(CONFIG, random_checkpoint(CONFIG, seed=4)), **FAST)
    assert not made.decodes()
    with pytest.raises(BadModelError, match="in memory"):
        made.tokenizer  # noqa: B018


def test_characters_are_given_out_once_they_are_complete() -> None:
    class Bytes:
        def decode(self, tokens: list[int]) -> str:
            return bytes(tokens).decode("utf-8", "replace")

    stream = TextStream(Bytes())  # type: ignore[arg-type]
    assert [stream.add(b) for b in "é!".encode()] == ["", "é", "!"]
    assert stream.add(0xC3) == "" and stream.finish() == "\ufffd"


def test_decoding_a_long_text_takes_linear_time() -> None:
    """Also for text without end that is no UTF-8, and with tokens that have no text."""
    decoded = 0

    class Bytes:
        def decode(self, tokens: list[int]) -> str:
            nonlocal decoded
            decoded += len(tokens)
            return bytes(v for v in tokens if v).decode("utf-8", "replace")

    random = np.random.default_rng(0)
    whole = "né€𝄞!".encode() * 60
    for data in (whole, whole[3:], b"\xff" * 600, b"a" + b"\0" * 600, bytes(random.integers(1, 256, 600, np.uint8))):
        decoded, stream = 0, TextStream(Bytes())  # type: ignore[arg-type]
        text = "".join([*map(stream.add, data), stream.finish()])
        assert text == data.replace(b"\0", b"").decode("utf-8", "replace")
        assert decoded < 30 * len(data)


def test_spaces_between_words_survive_tokens_without_text() -> None:
    """A decoder that drops the space before the first word, as those of Llama do."""

    class Words:
        def decode(self, tokens: list[int]) -> str:
            return "".join(f" w{v}" for v in tokens if v).removeprefix(" ")

    stream = TextStream(Words())  # type: ignore[arg-type]
    assert "".join(map(stream.add, [0, 3, 0, 0, 4, 5])) == "w3 w4 w5"


def test_a_stop_text_across_pieces_is_found() -> None:
    class Letters:
        def decode(self, tokens: list[int]) -> str:
            return "".join(chr(v) for v in tokens)

    row = Row(TextStream(Letters()))  # type: ignore[arg-type]
    pieces = [row.add(0, ord(c), False, frozenset(), ("cde", "xy")) for c in "abcde"]
    assert row.text == "ab" and pieces[-1].end == "stop" and pieces[-2].end == ""
    assert [p.text for p in pieces] == ["a", "b", "", "", ""]  # "c" and "cd" may begin a stop text


@pytest.mark.parametrize("stops", [("aab",), ("abb", "ba"), ("b" * 5,), ("x",), ("aaaa", "aab", "bb")])
def test_pieces_are_the_whole_text(stops: tuple[str, ...]) -> None:
    """All pieces together, and what is shown meanwhile, are the beginning of the text before the first stop text."""

    class Syllables:
        def decode(self, tokens: list[int]) -> str:
            return "".join(("a", "b", "aa", "ab", "", "bab")[v] for v in tokens)

    random = np.random.default_rng(0)
    for _ in range(100):
        tokens = [int(v) for v in random.integers(0, 6, 9)]
        row = Row(TextStream(Syllables()))  # type: ignore[arg-type]
        pieces: list[str] = []
        for i, token in enumerate(tokens):
            pieces.append(row.add(0, token, i == len(tokens) - 1, frozenset(), stops).text)
            assert row.text.startswith("".join(pieces))
            if row.end:
                break
        whole = Syllables().decode(tokens)
        assert "".join(pieces) == row.text == whole[: min([whole.find(s) for s in stops if s in whole], default=None)]


def test_text_in_and_out(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    other = write_checkpoint(tmp_path, CONFIG, seed=4)
    (other / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    made = Generator(other, max_length=32, **FAST)
    found = made.generate("w3 w7 w1", 6)
    assert found.tokens[0] == continued(folder, [3, 7, 1], 6)
    assert found.texts == [" ".join(f"w{v}" for v in found.tokens[0])]
    word = f"w{found.tokens[0][2]}"
    stopped = made.generate("w3 w7 w1", 6, stop=[word])
    assert word not in stopped.texts[0] and stopped.ends == ["stop"]  # type: ignore[index]
    with_start = {"type": "BertProcessing", "sep": ["w9", 9], "cls": ["w8", 8]}
    (other / "tokenizer.json").write_text(json.dumps({**TOKENIZER, "post_processor": with_start}))
    assert Tokenizer(other).encode("w3 w7") == [8, 3, 7, 9] and Tokenizer(other).encode("w3 w7", special=False) == [
        3,
        7,
    ]
    (other / "tokenizer.json").write_text("{")
    with pytest.raises(BadModelError, match=r"tokenizer\.json cannot be read"):
        Generator(other).tokenizer  # noqa: B018


# ---------------------------------------------------------------- inspection
def test_memory_is_known_before_programs_are_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_graph, "SMALLEST", 100)
    small, large = (Generator(folder, max_length=n, batch=2, **FAST) for n in (16, 32))
    found = small.memory()
    layers = [
        leaf for leaf in small._programs.step(1).leaves("state") if leaf.attr("name").startswith(("keys.", "values."))
    ]
    assert found["caches"] == sum(leaf.type.nbytes for leaf in layers) > 0 and len(layers) == 4
    assert found["weights"] == sum(a.nbytes for a in read_folder(folder).values()) and found["workspace"] == 0
    assert large.memory()["caches"] > found["caches"] and not small.seconds, "nothing was made"
    small.generate([1, 2], 2)
    made = [program.memory_by_kind() for program in small._programs._made.values()]
    assert small.memory() == {**found, "workspace": sum(m["workspace"] for m in made)}
    held = {name: array.nbytes for name, array in small._programs.states.items()}
    assert sum(held.values()) >= found["caches"] + found["states"]
    packed = Generator(folder, max_length=16, batch=2, quantize="int8", **FAST)
    assert packed.memory()["weights"] < found["weights"] and packed.memory()["caches"] == found["caches"]
    both = Generator(folder, max_length=16, batch=2, draft=folder, **FAST)
    assert both.memory()["weights"] == 2 * found["weights"]


def test_a_generator_says_what_it_is(folder: Path) -> None:
    made = Generator(folder, max_length=16, **FAST)
    assert repr(made) == "<Generator of gemma3_text: 1 row of 16 tokens; programs made: none>"
    made.generate([1], 1)
    assert "prefill" in repr(made) and "sample-greedy" in repr(made)


def test_misspelt_options_are_named_with_what_they_are_close_to(folder: Path, made: Generator) -> None:
    own = [name for name in inspect.signature(Generator).parameters if name != "options"]
    assert set(own) == set(settings_module.OWN)
    for given, close in (("max_lenght", "max_length"), ("effrt", "effort"), ("xyzzy", "tg.optimize")):
        with pytest.raises(UsageError, match=close):
            Generator(folder, **{given: 3})
    with pytest.raises(TypeError, match=r"stream\(\).*'top_q'"):
        made.stream([1], 1, top_q=1)  # type: ignore[call-arg]
    both = [inspect.signature(f).parameters for f in (Generator.generate, Generator.stream)]
    assert [p for p in both[0].values() if p.name != "show"] == list(both[1].values())


# ---------------------------------------------------------------- checks that searches had no time for
SEARCHED: dict[str, Any] = {"budget": 30.0, "effort": 0, "backend": "numpy", "max_length": 16}


@pytest.fixture(scope="module")
def searched(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A home whose plan cache has programs of a generator, verified on one input as if there had been no time for more;
    and the files of the cache."""
    home, files = tmp_path_factory.mktemp("searched"), dict[str, bytes]()
    with pytest.MonkeyPatch.context() as patch, settings.override(home=str(home)):
        took = lambda self, template, call: Timing((float(len(template.name)),) * 5, {"rel_fro": 0.0})
        patch.setattr(CpuMeasurer, "time", took)
        Generator(folder, **SEARCHED).generate([3, 7, 1], 2)
    for path in (home / plan_cache.FOLDER).glob("*.json"):
        data = json.loads(read_sealed(path, name=path.name))
        data["report"]["omitted"] = ["verification on 2 of 3 inputs"]
        files[path.name] = sealed(json.dumps(data).encode(), path.name)
    return home, files


@pytest.fixture
def cut_short(searched: tuple[Path, dict[str, bytes]]) -> Iterator[None]:
    """That home, its plan cache as it was left."""
    home, files = searched
    shutil.rmtree(home / plan_cache.FOLDER)
    (home / plan_cache.FOLDER).mkdir(mode=0o700)
    for name, data in files.items():
        (home / plan_cache.FOLDER / name).write_bytes(data)
    with settings.override(home=str(home)):
        yield


@pytest.mark.usefixtures("cut_short")
def test_checks_are_completed_on_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, verified, verify = Generator(folder, **SEARCHED), list[Any](), verify_program.verify
    monkeypatch.setattr(verify_program, "verify", lambda *a, **k: verified.append(a) or verify(*a, **k))
    tokens = made.generate([3, 7, 1], 4).tokens
    assert made.unchecked == {name: ["verification on 2 of 3 inputs"] for name in made.seconds} and not verified
    stream = made.stream([3, 7, 1], 4)
    first = next(stream)
    made.complete_checks()
    assert made.unchecked == {} and len(verified) == 3
    assert [first.token, *(piece.token for piece in stream)] == tokens[0], "a generation goes on meanwhile"
    assert all(report.verification["seeds"] == 3 for report in made.report.values())
    again = Generator(folder, **SEARCHED)
    assert again.generate([3, 7, 1], 4).tokens == tokens and again.unchecked == {} and len(verified) == 3


@pytest.mark.usefixtures("cut_short")
def test_the_command_completes_checks_after_its_answer(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(outcome, "discard", lambda stream: order.append(capsys.readouterr().out))
    complete = Generator.complete_checks
    monkeypatch.setattr(Generator, "complete_checks", lambda self: order.append("checks") or complete(self))
    monkeypatch.setattr("tensor_graphs.generation.Generator", partial(Generator, effort=0))
    command = ["generate", str(folder), "--prompt-tokens", "3,7,1", "--max-new-tokens", "2", "--budget", "30",
               "--max-length", "16", "--backend", "numpy"]  # fmt: skip
    assert app.run(command) == 0 and len(order) == 2 and order[0].count(",") == 1 and order[1] == "checks"
    assert app.run(command) == 0 and len(order) == 2, "they are done"


# ---------------------------------------------------------------- the command
def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = app.run(["generate", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_prints_tokens(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensor_graphs.generation.Generator", partial(Generator, verify=False, effort=0))
    common = (str(folder), "--max-length", "32", "--budget", "1", "--no-measure", "--backend", "numpy")
    code, found = run(capsys, *common, "--prompt-tokens", "3,7,1", "--max-new-tokens", "5")
    assert code == 0 and found["tokens"] == continued(folder, [3, 7, 1], 5)
    assert (
        found["text"] is None
        and found["end"] == "length"
        and found["quantization"] == ""
        and found["tokens_per_second"] > 0
    )
    assert found["first_token_s"] > 0 and found["bandwidth_share"] > 0 and "decode" in found["programs"]
    assert app.run(["generate", *common, "--prompt-tokens", "3,7,1", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out == ",".join(map(str, found["tokens"])) + "\n"


def test_an_interrupted_command_keeps_its_tokens(
    made: Generator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(_Shown):
        def __call__(self, piece: Piece) -> None:
            super().__call__(piece)
            self.progress.stopped = len(self.pieces) == 3

    monkeypatch.setattr("tensor_graphs.generation.Generator", lambda *_, **__: made)
    monkeypatch.setattr("tensor_graphs.cli.generate._Shown", Stopped)
    code, found = run(capsys, "folder", "--prompt-tokens", "3,7,1", "--max-new-tokens", "8")
    assert code == 130 and not found["ok"] and found["error"]["code"] == "interrupted"
    assert found["tokens"] == made.generate([3, 7, 1], 3).tokens[0] and found["end"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--prompt-tokens", "1,x"), 2, "--prompt-tokens"),
        ((), 2, "--prompt or --prompt-tokens"),
        (("--prompt", "a", "--prompt-tokens", "1"), 2, "--prompt or --prompt-tokens"),
        (("--prompt-tokens", ""), 2, "prompt is empty"),
        (("--prompt-tokens", "1", "--max-new-tokens", "0"), 2, "max_new_tokens=0"),
        (("--prompt", "a"), 3, "no tokenizer.json"),
    ],
)
def test_the_command_names_what_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str) -> None:  # fmt: skip
    found = run(capsys, str(folder), *arguments)
    assert found[0] == code and words in found[1]["error"]["message"]


def test_a_signal_after_the_search_ends_the_generation(made: Generator) -> None:
    progress = tg.Progress()
    progress.stopped = True  # a signal during the search
    shown = _Shown(progress, live=False)

    def show(piece: Piece) -> None:
        shown(piece)
        progress.stopped = progress.stopped or len(seen) == 3
        seen.append(piece.token)

    seen: list[int] = []
    with pytest.raises(Interrupted):
        made.generate(prompt(3), 8, show=show)
    assert len(seen) == 4 and len(made.generate(prompt(3), 2).tokens[0]) == 2


def test_it_is_public() -> None:
    assert tg.Generator is Generator
