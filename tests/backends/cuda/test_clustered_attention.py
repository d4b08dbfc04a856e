"""Clustered attention in CUDA C++: the blocks of a cluster as threads on the CPU against the specification."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND, generated
from tensor_graphs.backends.cuda.clustered_attention.decode_attention import attention_of
from tensor_graphs.backends.cuda.clustered_attention.parameters import ClusteredAttentionSchedule
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.machine import of_key, using_machine
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Tensor
from tensor_graphs.extract.model.kernel import Call

from ..cuda_host import compiled, source_of
from ..test_kernel_ir import x
from .test_cuda_cpp import call_of, check
from .test_few_row_attention import LARGEST, SMALLEST, attention, check_visible


def schedule(parts: int, warps: int, across: int, deep: int, **more: int) -> dict[str, int]:
    return {"parts": parts, "warps": warps, "across": across, "deep": deep, **more}


def step_and_masks() -> Tensor:
    """Queries with a norm, several tokens with a mask of their own, results that are gated."""
    q = c.rms_norm(x("q", 1, 1, 6, 64), x("g", 64), eps=1e-6)
    found = c.masked_attention(q, x("k", 1, 1, 48, 64), x("v", 1, 1, 48, 64), x("m", 1, 1, 6, 48), scale=0.125)
    return found * c.silu(x("gate", 1, 1, 6, 64))


def norm_of_another_row() -> Tensor:
    """Queries divided by the norm of a longer row, of which scores must not need a single element."""
    norm = t.rsqrt(t.mean(t.square(x("row", 1, 1, 1, 128)), axis=3) + 1e-5)
    return c.masked_attention(
        x("q", 1, 1, 4, 64) * norm, x("k", 1, 1, 32, 64), x("v", 1, 1, 32, 64), x("m", 1, 1, 1, 32), scale=0.125
    )


#: name -> (term, schedules)
CASES: dict[str, tuple[Callable[[], Tensor], list[dict[str, int]]]] = {
    "grouped": (lambda: attention(64, 64, groups=2), [
        schedule(4, 1, 1, 1), schedule(2, 2, 1, 1, early=1), schedule(1, 1, 1, 2), schedule(1, 1, 1, 1, seen=1),
        schedule(2, 1, 1, 1, seen=1), schedule(2, 1, 1, 1)]),
    "head of 256": (lambda: attention(240, 256, norm=True, window=200), [schedule(8, 2, 4, 1, early=1), schedule(2, 2, 4, 2)]),
    "head of 80": (lambda: attention(40, 80), [schedule(2, 1, 1, 1), schedule(1, 2, 2, 1)]),
    "batch": (lambda: attention(32, 64, 2, 2, batch=3), [schedule(2, 1, 1, 1, seen=1), schedule(1, 2, 1, 1)]),
    "one head": (lambda: attention(48, 64, 1, 2), [schedule(1, 1, 1, 1), schedule(2, 2, 1, 1)]),
    "eleven rows": (lambda: attention(32, 64, 11), [schedule(2, 1, 1, 1)]),
    "sixteen rows": (lambda: attention(96, 64, 16), [schedule(2, 1, 1, 1), schedule(2, 3, 1, 1, early=1)]),
    "soft cap": (lambda: attention(32, 64, softcap=30.0), [schedule(2, 1, 1, 1)]),
    "odd room": (lambda: attention(37, 64), [schedule(2, 2, 1, 1), schedule(1, 1, 1, 1)]),
    "two positions": (lambda: attention(2, 64), [schedule(1, 1, 1, 1)]),
    "narrow values": (lambda: attention(32, 128, values=64), [schedule(2, 1, 1, 1)]),
    "norm of another row": (norm_of_another_row, [schedule(1, 1, 1, 1)]),
    "masks and gates": (step_and_masks, [schedule(1, 3, 1, 1), schedule(2, 1, 1, 1), schedule(2, 2, 1, 1, early=1)]),
}  # fmt: skip


def made(name: str, dtype: str) -> list[tuple[GeneratedKernel, Call, CudaLaunch]]:
    """The kernels of a case in its schedules, all of them legal."""
    make, own = CASES[name]
    template = generated(make())
    call = call_of(template, dtype)
    lowered = template.lower(call)
    assert lowered is not None
    found = []
    for one in own:
        assert BACKEND.emitter.fits(lowered.kernel, lowered.shape, one, lowered.cuts), one
        scheduled = replace(call, schedule=one)
        (launch,) = launches(template, scheduled)
        assert isinstance(launch, CudaLaunch) and "ClusteredAttention" in launch.text
        assert (
            f"__cluster_dims__({one['parts']}, 1, 1)" in launch.text
        )  # of one block, too: st.async is illegal without
        found.append((template, scheduled, launch))
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_attention_in_clusters_computes_what_is_specified(dtype: str, tmp_path: Path) -> None:
    found = [one for name in (CASES if dtype == "bfloat16" else ("grouped", "head of 80")) for one in made(name, dtype)]
    kernels = compiled(source_of({launch.name: launch for *_, launch in found}.values()), tmp_path)
    for template, call, launch in found:
        check(template, call, launch, kernels[launch.name], dtype)


@pytest.mark.parametrize("seen", [False, True], ids=["all read", "visible ones read"])
def test_positions_beyond_the_number_in_memory_do_not_matter(seen: bool, tmp_path: Path) -> None:
    """Every number of visible positions: blocks without any, one position, none at all."""
    unread = (lambda last: min(max(last, -1), 63) + 1) if seen else None
    chosen = schedule(2, 1, 1, 1, **({"seen": 1} if seen else {}))
    visible = ((0, 63), (7, 8), (-1, 16), (40, 3), (63, LARGEST), (SMALLEST, 31), (32, 17))
    check_visible(attention(64, 64, 2, batch=2), chosen, visible, tmp_path, unread)


def test_every_ranked_schedule_is_legal_and_can_be_emitted() -> None:
    for make, _ in CASES.values():
        template = generated(make())
        call = call_of(template, "bfloat16")
        lowered = template.lower(call)
        assert lowered is not None and lowered.space
        for one in lowered.space:
            assert ClusteredAttentionSchedule.parse(one) is not None
            assert BACKEND.emitter.fits(lowered.kernel, lowered.shape, one, lowered.cuts), one
            assert launches(template, replace(call, schedule=one)), one


def test_the_best_guess_holds_all_positions_of_the_largest_cluster_at_once() -> None:
    template = generated(attention(768, 256, norm=True, window=512))
    first, second, *_ = template.space(call_of(template, "bfloat16"))  # type: ignore[misc]
    assert first["parts"] == 16 and first["warps"] * first["deep"] == 3 and first["early"]
    assert second["parts"] == 8  # not every GPU has clusters of 16


def test_keys_and_values_are_loaded_before_queries_are_computed() -> None:
    """One wait for memory: loads of queries, keys and values, then the norm; the position's number before all."""
    template = generated(attention(768, 256, norm=True, window=512))
    call = replace(call_of(template, "bfloat16"), schedule=schedule(16, 3, 4, 1, early=1))
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    at, keys, norm = (launch.text.index(s) for s in ("at_[0]", "attention.load_keys", "across_warp<Sum"))
    assert at < keys < norm and "read<" not in launch.text[norm:]
    assert launch.text.index("begin_next();") < launch.text.index("await_previous();") < at
    assert "chunk +=" not in launch.text


def test_weights_are_read_before_the_wait_for_the_previous_kernel() -> None:
    template = generated(attention(96, 64, norm=True) * x("scale", 1, 1, 1, 1, 64))
    call = replace(
        call_of(template, "bfloat16"), schedule=schedule(2, 3, 1, 1, early=1), constant=frozenset({"g", "scale"})
    )
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    before, after = launch.text.split("await_previous();")
    assert re.search(r"read<8>\(g_", before) and not re.search(r"read<8>\((q|k|v)_|at_\[", before)
    assert "scale_" in after  # of the epilogue
    assert "load_keys" in after


@pytest.mark.parametrize(
    "root",
    [
        attention(32, 64, 20),
        c.masked_attention(x("q", 1, 1, 4, 64), x("k", 1, 1, 32, 64), t.permute(x("v", 1, 1, 64, 32), (0, 1, 3, 2)),
                           x("m", 1, 1, 1, 32), scale=0.125),
    ],
    ids=["many rows", "values of a column apart"],
)  # fmt: skip
def test_other_attention_is_left_to_other_strategies(root: Tensor) -> None:
    template = generated(root)
    assert template.lower(call_of(template, "bfloat16")) is None


def test_other_gpus_and_dtypes_have_the_form_without_clusters() -> None:
    template = generated(attention(64, 64))
    for key, dtype in (
        ("gpu:NVIDIA A100:sm80:multiprocessors=108", "bfloat16"),
        ("gpu:NVIDIA H200:sm90:multiprocessors=132", "float32"),
    ):
        with using_machine(of_key(key)):
            found = generated(attention(64, 64)).lower(call_of(template, dtype))
            assert found is not None and all("lanes" in one for one in found.space)
            clustered = attention_of(found.kernel, found.shape)
            assert (clustered is not None) == (dtype == "bfloat16")
