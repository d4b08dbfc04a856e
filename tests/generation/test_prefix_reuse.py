"""Prompts that begin with tokens whose keys and values the caches hold: what is computed, and that tokens are the
same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.errors import TooLargeError
from tensor_graphs.generation import Generator
from tensor_graphs.generation.cached_model import HeldRow, caches_of
from tensor_graphs.generation.decoding import PlainDecoding
from tensor_graphs.models.huggingface.step import Caches, Folder, ring_slack

from ..models.decoder_cases import prompt, unfused_programs, write

LENGTH = 96


@pytest.fixture(scope="module", autouse=True)
def _unoptimized() -> Iterator[None]:
    """Programs of NumPy calls in place of optimized ones, prefill steps of at most 16 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        unfused_programs(patch, (4, 16))
        yield


def folder_of(folder: Path, case: str, **more: Any) -> Path:
    return write(folder, case, **({"tie_word_embeddings": False} if case == "gemma3" else {}), **more)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with layers of a window of 9 positions, which are rings of 24."""
    return folder_of(tmp_path_factory.mktemp("gemma"), "gemma3")


@pytest.fixture(scope="module")
def fresh(gemma: Path) -> Generator:
    return Generator(gemma, max_length=LENGTH, batch=2)


@pytest.fixture
def kept(gemma: Path) -> Generator:
    return Generator(gemma, max_length=LENGTH, batch=2, reuse=True)


# ---------------------------------------------------------------- steps
def test_a_host_computes_no_step_before_it_is_needed(fresh: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes at once: a step ahead would delay each token, and be in vain at the end of the text."""
    steps: list[int] = []
    decode = fresh._programs.decode
    monkeypatch.setattr(fresh._programs, "decode", lambda: steps.append(1) or decode())
    stream = fresh.stream([prompt(5), prompt(9)], 6)
    steps.clear()  # the program was made
    for count in range(4):
        assert next(stream).row == 0 and len(steps) == count and next(stream).row == 1


# ---------------------------------------------------------------- conversations
@pytest.mark.parametrize("case", ["llama", "gemma3", "gpt2", "gpt_oss"])
def test_a_conversation_computes_its_new_tokens_only(tmp_path: Path, case: str) -> None:
    folder = folder_of(tmp_path, case)
    kept = Generator(folder, max_length=LENGTH, reuse=True)
    whole = Generator(folder, max_length=LENGTH)
    ids = prompt(30)
    for turn in range(4):
        found = kept.generate(ids, 9)
        assert found.tokens == whole.generate(ids, 9).tokens
        assert kept._model.computed == (32 if not turn else 4) and whole._model.computed >= 32
        ids = [*ids, *found.tokens[0], *prompt(3, turn)]  # the last token, and three others


def test_rows_have_beginnings_of_their_own(kept: Generator, fresh: Generator) -> None:
    ids = [prompt(40), prompt(7, 1)]
    first = kept.generate(ids, 12).tokens
    ids = [[*ids[0], *first[0][:5], 3], [*ids[1], *first[1], *prompt(14, 2)]]
    assert kept.generate(ids, 9).tokens == fresh.generate(ids, 9).tokens
    assert kept._model.computed == 16 and fresh._model.computed == 48
    one = [*ids[0], 7]  # the other row has no prompt now
    assert kept.generate(one, 9).tokens == fresh.generate(one, 9).tokens and kept._model.computed == 4
    assert kept.generate(ids, 9).tokens == fresh.generate(ids, 9).tokens


@pytest.mark.parametrize("steps", [1, 3])
def test_random_conversations_give_what_whole_prompts_give(
    kept: Generator, fresh: Generator, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that share beginnings of all lengths with the contents of the caches, ends and abandoned streams; in
    rounds of several steps, of which the next begins before the tokens of the present one are known, as on a GPU."""
    monkeypatch.setattr(PlainDecoding, "steps", lambda self, device: steps if self.model is kept._model else 1)
    random, computed = np.random.default_rng(0), [0, 0]
    ids = [prompt(20, row) for row in range(2)]
    for turn in range(25):
        limit = int(random.integers(1, 12))
        if turn % 5 == 4:
            stream = kept.stream(ids, limit)
            next(stream)
        else:
            stop = [fresh.generate(ids, 3).tokens[0][-1]] if turn % 5 == 2 else None
            found = kept.generate(ids, limit, stop=stop).tokens
            assert found == fresh.generate(ids, limit, stop=stop).tokens, turn
            computed[0] += kept._model.computed
            computed[1] += fresh._model.computed
            ids = [[*i, *f] for i, f in zip(ids, found)]
        cuts = [int(random.integers(1, len(i) + 1)) if random.random() < 0.4 else len(i) for i in ids]
        ids = [[*i[: min(c, LENGTH - 40)], *prompt(int(random.integers(0, 25)), turn)] for i, c in zip(ids, cuts)]
    assert computed[0] < 0.9 * computed[1]


def test_positions_that_a_ring_has_lost_are_computed_again(kept: Generator, fresh: Generator) -> None:
    """A window of 9 in a ring of 24: a prompt that goes back more than 15 positions starts from its beginning."""
    slack = ring_slack(kept.folder.config, kept.caches)
    assert slack == 24 - 9
    ids = prompt(48)
    for back, computed in ((slack, 4), (slack + 1, 48)):
        kept.generate(ids, 2)  # position 48 was written
        shorter = [*ids[: 48 - back], 5, 7]
        assert kept.generate(shorter, 1).tokens == fresh.generate(shorter, 1).tokens
        logits = (made._programs.get("logits")[0] for made in (kept, fresh))
        np.testing.assert_allclose(*logits, atol=1e-4)
        assert kept._model.computed == computed


def test_models_without_windows_have_no_rings(tmp_path: Path) -> None:
    config = Folder(write(tmp_path, "llama")).config
    assert ring_slack(config, Caches(1, LENGTH, 16)) is None
    assert ring_slack(Folder(write(tmp_path, "gpt2")).config, Caches(1, LENGTH, 16)) is None
    assert ring_slack(Folder(write(tmp_path, "mistral")).config, Caches(1, 20, 16)) is None  # the ring would be longer


@pytest.mark.parametrize(
    ("case", "batch", "capacity", "gpu", "most"),
    [("gpt2", 1, 2000, True, 1024), ("gpt2", 8, 2000, True, 512), ("gpt2", 9, 2000, True, 16), ("gpt2", 1, 700, True, 700),
     ("gpt2", 1, 2000, False, 16), ("mistral", 1, 2000, True, 16), ("mistral", 1, 20, True, 20)],
)  # fmt: skip
def test_long_prefill_steps_are_for_gpus_and_caches_without_rings(
    tmp_path: Path, case: str, batch: int, capacity: int, gpu: bool, most: int
) -> None:
    made = caches_of(Folder(write(tmp_path, case)).config, batch, capacity, gpu=gpu)
    assert made == Caches(batch, capacity, most)


def test_a_row_knows_what_it_holds() -> None:
    row = HeldRow()
    row.write(0, [1, 2, 3], 8)
    assert (row.tokens, row.top, row.common([1, 2, 9]), row.common([1, 2, 3, 4])) == ([1, 2, 3], 7, 2, 3)
    row.write(3, [4, 5])
    row.write(4, [6])
    assert (row.tokens, row.top) == ([1, 2, 3, 4, 6], 7)
    row.write(0, [1])
    assert (row.tokens, row.top) == ([1], 0)


# ---------------------------------------------------------------- with a draft, and after failures
def test_a_draft_reuses_its_own_caches(tmp_path: Path, gemma: Path, fresh: Generator) -> None:
    draft = folder_of(tmp_path, "gemma3", num_hidden_layers=1, layer_types=["sliding_attention"])
    kept = Generator(gemma, max_length=LENGTH, batch=2, draft=draft, draft_tokens=3, reuse=True)
    ids = [prompt(20), prompt(14, 1)]
    for turn in range(4):
        found = kept.generate(ids, 7 + turn).tokens
        assert found == fresh.generate(ids, 7 + turn).tokens
        ids = [[*i, *f, *prompt(2, turn)] for i, f in zip(ids, found)]
    assert kept._draft is not None
    assert kept._model.computed <= 16 < fresh._model.computed and kept._draft.computed <= 16


def test_nothing_is_reused_after_a_failure(kept: Generator, fresh: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(40)
    kept.generate(ids, 4)
    decode = kept._programs.decode()
    with monkeypatch.context() as patch:
        patch.setattr(decode, "_run", lambda: (_ for _ in ()).throw(MemoryError("no more")))
        with pytest.raises(TooLargeError):
            kept.generate([*ids, 3], 4)
    kept._programs.set("keys.0", np.full(kept._programs.states["keys.0"].shape, 50.0), "float32")
    assert kept.generate([*ids, 3], 4).tokens == fresh.generate([*ids, 3], 4).tokens
    assert kept._model.computed == 48


def test_prompts_are_computed_whole_unless_asked(fresh: Generator) -> None:
    for _ in range(2):
        fresh.generate(prompt(40), 3)
        assert fresh._model.computed == 48
