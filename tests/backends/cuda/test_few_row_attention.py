"""Attention of few rows in CUDA C++ (decode steps): every schedule, run by threads on the CPU against the
specification."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND, generated
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.cuda.few_row_attention import FewRowAttentionSchedule
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.extract.model.kernel import Call

from .. import kernel_interpreter
from ..cuda_host import compiled, source_of
from ..test_kernel_ir import error, x
from .test_cuda_cpp import TOLERANCE, call_of, check, memory

INFINITE = float("-inf")
AMPERE = "gpu:NVIDIA A100:sm80:multiprocessors=108|none|none"  # without clusters


def attention(
    room: int, head: int, heads: int = 4, groups: int = 1, *, batch: int = 1, window: int = 0, softcap: float = 0.0,
    norm: bool = False, sinks: bool = False, values: int = 0,
) -> Tensor:  # fmt: skip
    """A decode step's attention over a cache of `room` positions, those up to a number in memory visible; `window`: the
    cache is a ring of which so many are."""
    q = x("q", batch, groups, heads, head)
    if norm:
        q = c.rope(c.rms_norm(q, x("g", head), eps=1e-6), x("cos", 1, 1, 1, head), x("sin", 1, 1, 1, head))
    k, v = x("k", batch, groups, room, head), x("v", batch, groups, room, values or head)
    own = t.reshape(t.input("at", (batch,), "int64"), (batch, 1, 1, 1))
    held = t.iota((1, 1, 1, room), 3)
    if window:
        held = own - t.mod(own - held + room, room)
    hidden = t.gt(held, own)
    if window:
        hidden = t.logical_or(t.logical_or(hidden, t.le(held, own - window)), t.lt(held, 0))
    mask = t.where(hidden, t.full((1,) * 4, INFINITE), t.full((1,) * 4, 0.0))
    if not sinks:
        return c.masked_attention(q, k, v, mask, scale=head**-0.5, softcap=softcap)
    scores = t.matmul(q, t.transpose(k)) * head**-0.5 + mask
    sink = t.broadcast_to(x("sinks", 1, groups, heads, 1), (batch, groups, heads, 1))
    shares = c.softmax(t.concat([scores, sink], -1), axis=3)
    return t.matmul(t.slice_axis(shares, -1, 0, room), v)


def schedule(lanes: int, vector: int, groups: int, deep: int, **more: int) -> dict[str, int]:
    return {"lanes": lanes, "vector": vector, "groups": groups, "deep": deep, **more}


#: name -> (term, schedules beside the best ones of the ranking)
CASES: dict[str, tuple[Callable[[], Tensor], list[dict[str, int]]]] = {
    "grouped": (lambda: attention(64, 64, groups=2), [
        schedule(8, 8, 8, 1, split=4), schedule(8, 8, 4, 2, split=8, early=1), schedule(8, 8, 16, 1), schedule(16, 4, 2, 1, seen=1),
        schedule(8, 8, 4, 2, split=4, seen=1), schedule(32, 2, 4, 4, split=2)]),
    "head of 256": (lambda: attention(288, 256, norm=True, window=200), [schedule(32, 8, 4, 4, split=18)]),
    "head of 80": (lambda: attention(40, 80), [schedule(16, 8, 8, 1, split=5), schedule(8, 8, 4, 2)]),
    "batch": (lambda: attention(32, 64, 2, 2, batch=3), [schedule(8, 8, 4, 1, split=4, seen=1)]),
    "one head": (lambda: attention(48, 64, 1, 2), [schedule(8, 8, 16, 1, split=2), schedule(8, 8, 4, 1, seen=1)]),
    "sixteen rows": (lambda: attention(32, 64, 16), [schedule(16, 4, 8, 1, split=2)]),
    "soft cap": (lambda: attention(32, 64, softcap=30.0), [schedule(8, 8, 8, 1, split=2)]),
    "odd room": (lambda: attention(37, 64), [schedule(8, 8, 16, 1), schedule(8, 8, 4, 2)]),
    "two positions": (lambda: attention(2, 64), [schedule(8, 8, 4, 1)]),
    "narrow values": (lambda: attention(32, 128, values=64), [schedule(16, 8, 8, 1, split=2)]),
}  # fmt: skip


def made(name: str, dtype: str) -> list[tuple[GeneratedKernel, Call, CudaLaunch]]:
    """The kernels of a case: its own schedules of 16-bit operands, the best guess for others."""
    make, own = CASES[name]
    template = generated(make())
    call = call_of(template, dtype)
    lowered = template.lower(call)
    assert lowered is not None
    found = []
    for one in own if dtype == "bfloat16" else [lowered.space[0]]:
        scheduled = replace(call, schedule=one)
        (launch,) = launches(template, scheduled)
        assert isinstance(launch, CudaLaunch)
        found.append((template, scheduled, launch))
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_attention_of_few_rows_computes_what_is_specified(dtype: str, tmp_path: Path) -> None:
    names = CASES if dtype == "bfloat16" else ("grouped", "head of 80", "soft cap")
    found = [one for name in names for one in made(name, dtype)]
    kernels = compiled(source_of({launch.name: launch for *_, launch in found}.values()), tmp_path)
    for template, call, launch in found:
        check(template, call, launch, kernels[launch.name], dtype)


def test_a_sum_for_each_element_of_a_query_is_refused() -> None:
    """Threads along the head would each add up another sum, and exchange the parts. So reads a step that gathers its
    rows where a head may span two of them."""
    y = x("y", 32, 64)
    queries = x("q", 1, 1, 4, 32) * t.reshape(t.sum(y * y, axis=1), (1, 1, 1, 32))
    term = c.masked_attention(queries, x("k", 1, 1, 16, 32), x("v", 1, 1, 16, 32), x("m", 1, 1, 1, 16), scale=1.0)
    template = generated(term)
    assert template.lower(call_of(template, "float32")) is None


def check_visible(
    term: Tensor,
    chosen: dict[str, int],
    visible: Sequence[tuple[int, int]],
    folder: Path,
    unread: Callable[[int], int] | None,
) -> None:
    """Run attention of two batches with a schedule, at numbers of the last visible position of each batch.

    `unread`: function from that number to the first position of the first batch that is not read; its values become
    NaN. Results are NaN where no position is visible, as specified.
    """
    template = generated(term)
    call = replace(call_of(template, "bfloat16"), schedule=chosen)
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    kernel = compiled(source_of([launch]), folder)[launch.name]
    found = template.lower(call)
    assert found is not None
    for first, second in visible:
        where = memory(template, call)
        where["at"].array[:] = first, second
        want = {
            n: g.array.astype(np.float64) if g.array.dtype.kind == "V" else g.array.copy() for n, g in where.items()
        }
        with np.errstate(invalid="ignore"):
            kernel_interpreter.run(found.kernel, want)
        if unread is not None:
            where["v"].array.reshape(2, -1, 64)[0, unread(first) :] = np.nan
        kernel([where[a].array.ctypes.data for a in launch.args], launch.grid, launch.block)
        got = where["out"].array.astype(np.float64)
        assert (np.isnan(got) == np.isnan(want["out"])).all() and np.isnan(got).any() == (first < 0)
        there = ~np.isnan(got)
        assert error(got[there], want["out"][there]) < TOLERANCE["bfloat16"]


#: Numbers that stand for "all positions" and "none", to which nothing can be added or from which nothing subtracted.
LARGEST, SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


@pytest.mark.parametrize("seen", [False, True], ids=["all read", "visible ones read"])
def test_positions_beyond_the_number_in_memory_do_not_matter(seen: bool, tmp_path: Path) -> None:
    """Every number of visible positions: parts without any, one position, none at all."""
    unread = (lambda last: (min(max(last, -1), 32) // 4 + 1) * 4) if seen else None
    chosen = schedule(8, 8, 4, 1, split=4, **({"seen": 1} if seen else {}))
    visible = ((0, 31), (7, 8), (-1, 16), (40, 3), (31, LARGEST), (SMALLEST, 31))
    check_visible(attention(32, 64, 2, batch=2), chosen, visible, tmp_path, unread)


def test_every_ranked_schedule_can_be_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_GPU", AMPERE)
    for make, own in CASES.values():
        template = generated(make())
        call = call_of(template, "bfloat16")
        lowered = template.lower(call)
        assert lowered is not None and len(lowered.space) > 1
        for one in lowered.space:
            assert FewRowAttentionSchedule.parse(one) is not None
            assert launches(template, replace(call, schedule=one)), one
        assert all(BACKEND.emitter.fits(lowered.kernel, lowered.shape, one, lowered.cuts) for one in own)


def test_what_queries_are_computed_from_is_computed_once() -> None:
    """Norm, gain and rotary waves before the loop over positions: in it, one product for each element."""
    q, room = c.rms_norm(x("q", 1, 1, 4, 64), x("g", 64), eps=1e-6), 128
    wave = t.cast(t.reshape(t.input("at", (1,), "int64"), (1, 1, 1, 1)), "float32") * x("f", 1, 1, 1, 64)
    root = c.masked_attention(
        c.rope(q, t.cos(wave), t.sin(wave)),
        x("k", 1, 1, room, 64),
        x("v", 1, 1, room, 64),
        x("m", 1, 1, 1, room),
        scale=0.125,
    )
    template = generated(root)
    call = replace(call_of(template, "bfloat16"), schedule=schedule(8, 8, 4, 2, split=4))
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    assert re.search(r"acc\d+\[[^]]*\] \+= t\d+\[[^]]*\] \* wide\(v\d+\[", launch.text), "queries and keys"
    assert launch.text.count("op::cos(") == launch.text.count("op::sin(") == 1


def test_the_best_guess_spreads_a_single_head_over_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_GPU", AMPERE)
    template = generated(attention(768, 256, norm=True, window=512))
    first = next(iter(template.space(call_of(template, "bfloat16"))))  # type: ignore[misc]
    assert first["split"] >= 12 and first["vector"] == 8 and first["early"]


@pytest.mark.parametrize(
    "root",
    [attention(32, 64, 20), c.masked_attention(x("q", 1, 1, 4, 64), x("k", 1, 1, 32, 64), t.permute(x("v", 1, 1, 64, 32), (0, 1, 3, 2)),
                                               x("m", 1, 1, 1, 32), scale=0.125)],
    ids=["many rows", "values of a column apart"],
)  # fmt: skip
def test_what_threads_along_the_head_size_do_not_read_well_is_left_to_others(root: Tensor) -> None:
    template = generated(root)
    assert template.lower(call_of(template, "bfloat16")) is None
