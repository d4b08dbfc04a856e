"""Strategies and declared schedules: stored forms, a parameter and a strategy added at run time, and the page about
them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND as CUDA
from tensor_graphs.backends.generate.emitter import Launch, Lowered
from tensor_graphs.backends.generate.generator import KernelGenerator
from tensor_graphs.backends.generate.kernel_text import kernel_text
from tensor_graphs.backends.generate.schedule import Domain, Numbers, Schedule, declared, number, optional
from tensor_graphs.backends.generate.strategy import Request, Strategy
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.backends.triton.backend import BACKEND as TRITON
from tensor_graphs.backends.triton.backend import TILE
from tensor_graphs.backends.triton.schedules.parameters import TileSchedule
from tensor_graphs.backends.tuning.jobs import job_of, read_job
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.schedule_search import key_of_schedule
from tensor_graphs.backends.tuning.schedule_table import emitters, schedule_table
from tensor_graphs.backends.tuning.trials import search_of
from tensor_graphs.costdb.price.related_kernels import COMMON
from tensor_graphs.errors import UsageError
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

ROOT = Path(__file__).resolve().parents[3]

# Schedules as older versions stored them: backend, strategy, stored form as JSON text.
STORED = """
nvrtc | SIMT | {"early": 1, "split": 8, "t0": 64, "tm": 4, "u0": 8, "vm": 8}
nvrtc | SIMT | {"ahead": 3, "early": 1, "t0": 32, "tn": 4, "u0": 1, "um": 4, "un": 1, "v0": 4, "vn": 8}
nvrtc | SIMT | {"tm": 1, "tn": 256, "um": 1, "un": 2, "vm": 2, "vn": 8}
nvrtc | skinny GEMM | {"deep": 2, "early": 1, "n": 64, "split": 2, "um": 4, "warps": 4, "wide": 2}
nvrtc | skinny GEMM | {"early": 1, "n": 8, "um": 16, "warps": 16}
nvrtc | skinny GEMM | {"n": 16, "u1": 4, "um": 16, "v1": 8, "warps": 4}
nvrtc | short windows | {"early": 1, "threads": 128, "x": 4, "y": 1, "z": 1}
nvrtc | warp-specialized GEMM | {"across": 1, "down": 1, "early": 1, "group": 8, "m": 64, "n": 64, "parts": 1, "roles": 1, "stages": 8, "turns": 2}
nvrtc | tiled float32 GEMM | {"deep": 16, "group": 8, "high": 4, "join": 1, "m": 16, "n": 64, "split": 4, "stages": 3, "tiles": 1, "wide": 4}
nvrtc | tiled float32 GEMM | {"deep": 32, "group": 8, "high": 16, "m": 32, "n": 64, "precision": 1, "stages": 3, "tiles": 1, "wide": 32}
triton | tile | {"m": 32, "n": 32, "stages": 1, "warps": 4}
triton | tile | {"boxes": 1, "early": 1, "inside": 1, "join": 1, "k0": 128, "k1": 128, "m": 16, "n": 128, "split": 2, "stages": 3, "warps": 4}
triton | tile | {"group": 1, "k0": 128, "m": 64, "n": 32, "stages": 8, "warps": 4}
triton | tile | {"k0": 64, "k1": 64, "m": 128, "n": 64, "precision": 3, "split": 4, "stages": 3, "warps": 8}
triton | tile | {"beside": 1, "m": 1, "n": 512, "stages": 1, "walk": 1, "warps": 2}
triton | warp-specialized attention | {"k0": 64, "k1": 128, "m": 128, "n": 64, "roles": 1, "stages": 4, "warps": 8}
triton | warp-specialized attention | {"k0": 128, "k1": 128, "m": 128, "n": 128, "pieces": 1, "roles": 1, "stages": 3, "warps": 8}
triton | warp-specialized convolution | {"k0": 64, "m": 64, "more": 32, "n": 160, "roles": 1, "stages": 6, "tall": 64, "warps": 4, "wide": 128}
"""
CASES = [[x.strip() for x in line.split("|")] for line in STORED.strip().splitlines()]


@pytest.mark.parametrize(("backend", "strategy", "text"), CASES)
def test_schedules_of_older_stores_have_the_same_key(backend: str, strategy: str, text: str) -> None:
    emitter, old = emitters()[backend], json.loads(text)
    of = [s.name for s in emitter.strategies if s.schedule.parse(old) is not None]
    assert of == [strategy], "exactly one strategy has these parameters"
    parsed = emitter.parse(old)
    assert parsed.valid and json.dumps(parsed.numbers()) == text
    assert parsed.key == key_of_schedule(old) == tuple(sorted(old.items()))


def test_recorded_schedules_parse_and_have_the_same_key() -> None:
    """The searches that benchmarks/search/schedule_replay.py recorded on a GPU: some thousand schedules."""
    tables = json.loads((ROOT / "benchmarks/results/raw/schedules.json").read_text(encoding="utf-8"))
    found = [{n: v for n, v in zip(one["names"], row) if v} for one in tables.values() for row in one["rows"]]
    assert len(found) > 1000
    for old in found:
        parsed = [p for e in (TRITON.emitter, CUDA.emitter) if (p := e.find(old)) is not None]  # type: ignore[attr-defined]
        assert len(parsed) == 1 and parsed[0][1].numbers() == old and parsed[0][1].valid, old


@pytest.mark.parametrize(
    "wrong",
    [{"m": 16}, {"m": 16, "n": 16, "warps": 4, "stages": 1, "what": 1}, {"m": 16, "n": 16, "warps": 4, "stages": 1, "k1": 16},
     {"m": 16, "n": 16, "warps": 4, "stages": 1, "k01": 8}, {"m": 16, "n": 16, "warps": 4, "stages": 1, "early": 2}],
)  # fmt: skip
def test_parameters_of_no_strategy_are_a_named_error(wrong: Numbers) -> None:
    template, call = pointwise(TRITON)
    assert template.fits is not None and not template.fits(replace(call, schedule=wrong))
    with pytest.raises(UsageError, match="no strategy"):
        template.write(replace(call, schedule=wrong, names={"x": "x", "out": "out", "scratch": "s"}))
    assert list(TRITON.emitter.moves(wrong)) == []


def test_companions_come_and_go_with_their_parameter() -> None:
    start = TileSchedule(16, 64, 4, 3, (32, 32, 8), boxes=True)
    steps = {(p, d): s for p, d, s in start.moves()}
    assert steps["split", 1] == {**start.numbers(), "split": 2, "join": 1} and ("split", -1) not in steps
    split = start.cut(2)
    assert [s for p, d, s in split.moves() if (p, d) == ("split", -1)] == [start.numbers()]
    assert "boxes" not in steps["boxes", -1] and steps["early", 1] == {**start.numbers(), "early": 1}
    assert steps["k0", 1] == {**start.numbers(), "k0": 64, "k1": 64}, "equal depths together, after each alone"
    assert steps["stages", 1]["stages"] == 4 and steps["stages", -1]["stages"] == 2


def test_common_parameters_are_those_that_predictions_leave_out() -> None:
    found = {
        p.stored for e in emitters().values() for s in e.strategies for p in declared(s.schedule).values() if p.common
    }
    assert found == set(COMMON)


def test_the_page_about_schedules_is_current() -> None:
    page = (ROOT / "docs/schedules.md").read_text(encoding="utf-8")
    assert page == schedule_table(emitters()), (
        "python -m tensor_graphs.backends.tuning.schedule_table > docs/schedules.md"
    )


# ---------------------------------------------------------------- a parameter and a strategy of one's own
@dataclass(frozen=True)
class HintedSchedule(TileSchedule):
    """A tile schedule with one more parameter."""

    hint: int | None = optional("number in a comment of the kernel", Domain(1, 4, powers=True))


@dataclass(frozen=True)
class LineSchedule(Schedule):
    """Schedule of the strategy of this test."""

    tag: ClassVar[str] = "line"
    length: int = number("elements of a program", Domain(256, 1024, powers=True))


def _hinted(found: Lowered, s: HintedSchedule, name: str) -> Sequence[Launch]:
    comment = f"# hint {s.hint}\n" if s.hint else ""
    return [replace(x, source=comment + x.source) for x in TILE.emit(found, s, name)]  # type: ignore[type-var]


def _with_hints(asked: Request, count: int) -> list[HintedSchedule]:
    return [HintedSchedule(**vars(s)).but(hint=1) for s in TILE.ranked(asked, count)]


HINTED = replace(TILE, schedule=HintedSchedule, ranked=_with_hints, emit=_hinted)
LINES = Strategy(
    "lines",
    "Elementwise kernels in lines.",
    LineSchedule,
    applies=lambda kernel, shape: shape.kind == "pointwise" and not shape.rows,
    ranked=lambda asked, count: [LineSchedule(n) for n in (512, 256)],
    legal=lambda kernel, shape, s, splits: s.length <= shape.n,
    emit=lambda found, s, name: TILE.emit(found, TileSchedule(1, s.length, 4, 1), name),
)


def pointwise(backend: KernelGenerator) -> tuple[GeneratedKernel, Call]:
    """An elementwise kernel over 4096 elements."""
    root = t.exp(t.input("x", (4096,), "float32"))
    place = Operand(root.type, contiguous((4096,)))
    return template_of(backend.emitter, root), Call({"x": place}, place, {})


def test_a_parameter_and_a_strategy_added_in_one_place_flow_through_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [dict(s) for s in pointwise(TRITON)[0].space(pointwise(TRITON)[1])]  # type: ignore[misc]
    own = [HINTED if s is TILE else s for s in TRITON.emitter.strategies]  # type: ignore[attr-defined]
    monkeypatch.setattr(TRITON.emitter, "strategies", (LINES, *own))
    template, call = pointwise(TRITON)
    assert template.space is not None and template.fits is not None
    fits = lambda s: template.fits(replace(call, schedule=s))  # type: ignore[misc]
    space = [dict(s) for s in template.space(call)]
    assert space[0] == {"length": 512, "line": 1} and space[1] == {**before[0], "hint": 1}

    # legality: the declared domain, then the strategy's own check
    assert all(map(fits, space)) and fits({**space[1], "hint": 4}) and not fits({**space[1], "hint": 3})
    assert not fits({"length": 128, "line": 1}) and not fits({"length": 512, "line": 2})

    # moves of the search
    search = search_of(template, call)
    assert search is not None and search.moves is not None
    hinted = {(p, d): s for p, d, s in search.moves(space[1])}
    assert hinted["hint", 1] == {**space[1], "hint": 2} and ("hint", -1) not in hinted
    assert [s for *_, s in search.moves(space[0])] == [{"length": 1024, "line": 1}, {"length": 256, "line": 1}]
    for schedule in search.more():
        search.record(schedule, 1.0 if schedule == space[1] else 2.0)
    assert {**space[1], "hint": 2} in search.more()

    # keys and jobs
    chosen = [replace(call, schedule=s) for s in space[:2]]
    assert [key_of(template, c).schedule for c in chosen] == [key_of_schedule(s) for s in space[:2]]
    again, (read,) = read_job(json.loads(json.dumps(job_of(template, chosen[1]))))
    assert again.identity == template.identity and read.schedule == space[1]

    # emission
    texts = [kernel_text(template, c).text for c in (*chosen, replace(call, schedule={**space[1], "hint": 4}))]
    assert "hint" not in texts[0] and "# hint 1\n" in texts[1] and "# hint 4\n" in texts[2]
    assert "number in a comment of the kernel" in schedule_table(emitters()) and "### Lines" in schedule_table(
        emitters()
    )
