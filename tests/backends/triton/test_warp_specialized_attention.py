"""Warp-specialized attention: values on a simulated GPU (gluon_host.py), and when it is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.ir.tiling import padded
from tensor_graphs.backends.triton.backend import BACKEND, generated, launches
from tensor_graphs.backends.triton.warp_specialized.schedules import attention_schedules
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, Template, contiguous

from ..gluon_host import host

GOLDEN = Path(__file__).parents[1] / "golden"


def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def _grouped() -> Tensor:
    q, k, v = x("q", 1, 4, 256, 16), x("k", 1, 2, 256, 16), x("v", 1, 2, 256, 16)
    k, v = (
        t.reshape(t.broadcast_to(t.reshape(a, (1, 2, 1, 256, 16)), (1, 2, 2, 256, 16)), (1, 4, 256, 16)) for a in (k, v)
    )
    return c.attention(q, k, v, scale=0.25, causal=True)


def _positions_first() -> Tensor:
    """Heads inside positions, as layers make and want them, all of one tensor; two heads share keys."""
    packed = x("qkv", 2, 200, 8, 16)
    q, k, v = (t.permute(t.slice_axis(packed, 2, i, j), (0, 2, 1, 3)) for i, j in ((0, 4), (4, 6), (6, 8)))
    k, v = (
        t.reshape(t.broadcast_to(t.reshape(a, (2, 2, 1, 200, 16)), (2, 2, 2, 200, 16)), (2, 4, 200, 16)) for a in (k, v)
    )
    return t.permute(c.attention(q, k, v, scale=0.25, causal=True), (0, 2, 1, 3))


def _keyed() -> Tensor:
    """What each key adds, and what each row and key add, are read beside the products."""
    scores = (
        t.matmul(x("q", 2, 150, 16), t.transpose(x("k", 2, 190, 16))) * 0.25
        + x("pad", 2, 1, 190)
        + x("bias", 1, 150, 190)
    )
    return t.matmul(c.softmax(scores, axis=2), x("v", 2, 190, 16))


def _sink() -> Tensor:
    """A number beside each head's scores takes its share; the sum of exponentials is taken once."""
    q, k, v = (x(n, 1, 3, 160, 16) for n in "qkv")
    scores = t.matmul(q, t.transpose(k)) * 0.25 + t.with_rank(c.causal_mask(160, 160, True, 0, "float32"), 4)
    return t.matmul(c.softmax(scores, axis=3), v) * c.sigmoid(c.logsumexp(scores, axes=(3,)) - x("sink", 1, 3, 1, 1))


def _tokens() -> Tensor:
    """Keys that a mask of tokens hides by the least number."""
    hidden = t.where(t.lt(t.full((1, 1, 1), 0.0), x("keep", 2, 1, 190)), t.full((1, 1, 1), 0.0), t.full((1, 1, 1), 1.0))
    scores = t.matmul(x("q", 2, 150, 16), t.transpose(x("k", 2, 190, 16))) * 0.25 + hidden * float(
        np.finfo(np.float32).min
    )
    return t.matmul(c.softmax(scores, axis=2), x("v", 2, 190, 16))


def _hiding() -> Tensor:
    """The condition hides what lies at its places, NaN, too."""
    hidden = t.lt(t.iota((1, 190), 1), t.iota((150, 1), 0))
    hidden = t.logical_or(hidden, t.le(t.full((1, 1), 189, "int64"), t.iota((150, 190), 1)))
    return c.hiding_attention(
        x("q", 2, 150, 16), x("k", 2, 190, 16), x("v", 2, 190, 16), t.with_rank(hidden, 3), scale=0.25
    )


KERNELS: dict[str, Callable[[], Tensor]] = {
    "tokens": _tokens,
    "sink": _sink,
    "ragged": lambda: c.attention(x("q", 3, 150, 16), x("k", 3, 190, 16), x("v", 3, 190, 16), scale=0.25),
    "ragged, causal": lambda: c.attention(c.rms_norm(x("q", 2, 200, 24), x("g", 24), eps=1e-6), x("k", 2, 200, 24), x("v", 2, 200, 40), scale=0.25, causal=True),
    "ragged, windowed": lambda: c.attention(x("q", 2, 2, 300, 24), x("k", 2, 1, 300, 24), x("v", 2, 1, 300, 24), scale=0.25, causal=True, window=70, softcap=3.0),
    "positions first": _positions_first,
    "keyed": _keyed,
    "pieces": lambda: c.attention(x("q", 3, 150, 80), x("k", 3, 190, 80), x("v", 3, 190, 72), scale=0.1),
    "pieces of keys": lambda: t.permute(c.attention(x("q", 1, 3, 150, 48), x("k", 1, 1, 150, 48), x("v", 1, 1, 150, 32), scale=0.1, causal=True), (0, 2, 1, 3)),
    "pieces, normed": lambda: c.attention(c.rms_norm(x("q", 2, 200, 32), x("g", 32), eps=1e-6), x("k", 2, 200, 32), x("v", 2, 200, 40), scale=0.25, causal=True),
    "wide": lambda: c.attention(x("q", 5, 200, 256), x("k", 5, 200, 256), x("v", 5, 200, 256), scale=0.06, causal=True),
    "causal": lambda: c.attention(c.rms_norm(x("q", 2, 256, 16), x("g", 16), eps=1e-6), x("k", 2, 256, 16), x("v", 2, 256, 16), scale=0.25, causal=True),
    "whole": lambda: c.attention(x("q", 2, 128, 16), x("k", 2, 256, 16), x("v", 2, 256, 32), scale=0.25),
    "windowed": lambda: c.attention(x("q", 1, 256, 16), x("k", 1, 256, 16), x("v", 1, 256, 16), scale=0.25, causal=True, window=100, softcap=3.0),
    "grouped": _grouped,
    "hiding": _hiding,
}  # fmt: skip


def called(name: str, keys: int, stages: int = 2, **more: int) -> tuple[Template, Call]:
    root = KERNELS[name]()
    kinds = {
        str(n.attr("name")): Operand(Type(n.shape, "float16"), contiguous(n.shape))
        for n in topological([root])
        if n.op == "input"
    }  # type: ignore[arg-type]
    template = generated(root)
    width = padded(int(next(o.type.shape[-1] for o in kinds.values())))  # type: ignore[arg-type]
    schedule = {
        "m": 128,
        "n": padded(int(root.shape[-1])),
        "k0": width,
        "k1": keys,
        "warps": 8,
        "stages": stages,
        "roles": 1,
        **more,
    }
    out = Operand(Type(root.shape, "float16"), contiguous(root.shape))  # type: ignore[arg-type]
    return template, Call({o: kinds[o] for o in template.operands}, out, {}, schedule=schedule)


def error_of(template: Template, call: Call, bad: str = "") -> float:
    """The relative error of a kernel's results on random operands; in those named `bad`, the last position is NaN."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(o.type.shape).astype(np.float16) for n, o in call.operands.items()}
    for name in bad:
        given[name][..., -1, :] = np.nan
    want = evaluate([template.root], {n: v.astype(np.float32) for n, v in given.items()}, float64=True)[0]  # type: ignore[attr-defined]
    out = torch.full(want.shape, float("nan"), dtype=torch.float16)
    module_of(kernel_text(template, call)).run(*(torch.from_numpy(given[o]) for o in template.operands), out, None)  # type: ignore[attr-defined]
    seen = ~np.isnan(want)
    assert np.isnan(out.numpy()[~seen]).all()
    return float(np.linalg.norm((out.numpy() - want)[seen]) / np.linalg.norm(want[seen]))


@pytest.mark.parametrize("name", ["causal", "windowed", "hiding"])
def test_hidden_scores_that_are_nan_change_nothing(name: str) -> None:
    with host(3):
        assert error_of(*called(name, 64), "k") < 2e-3


#: Term, keys of a tile, and multiprocessors: some blocks have a tile more than others; or all are one's; or each is.
COMPUTED = [
    (*one, multiprocessors)
    for one in (("causal", 64), ("causal", 128), ("whole", 64), ("windowed", 32), ("grouped", 64), ("ragged", 64), ("ragged, causal", 64),
     ("ragged, causal", 128), ("ragged, windowed", 32), ("positions first", 64), ("keyed", 64), ("sink", 64), ("tokens", 64), ("wide", 32),
     ("pieces", 64), ("pieces of keys", 64), ("pieces, normed", 64))
    for multiprocessors in ((1, 3, 132) if one[0] in ("causal", "ragged, windowed", "grouped", "pieces") else (3,))
]  # fmt: skip


@pytest.mark.parametrize(("name", "keys", "multiprocessors"), COMPUTED)
def test_roles_compute_what_the_term_means(name: str, keys: int, multiprocessors: int) -> None:
    with host(multiprocessors):
        assert error_of(*called(name, keys, **({"pieces": 2} if "pieces" in name else {}))) < 2e-3


def test_roles_are_proposed_where_they_are_legal() -> None:
    q, k, v = (x(n, 4, 2048, 128) for n in "qkv")
    template = generated(c.attention(q, k, v, scale=0.1, causal=True))
    narrow = Operand(Type((4, 2048, 128), "bfloat16"), contiguous((4, 2048, 128)))
    call = Call(dict.fromkeys(template.operands, narrow), narrow, {})
    found = template.lower(call)
    assert found is not None
    proposed = [s.numbers() for s in attention_schedules(found.kernel, found.shape)]
    assert proposed and list(template.space(call))[: 2 * len(proposed) : 2] == proposed  # type: ignore[misc]
    fits = template.fits
    assert fits is not None and all(fits(replace(call, schedule=s)) for s in proposed)
    for change in ({"m": 64}, {"warps": 4}, {"stages": 9}, {"k1": 256}, {"boxes": 1}, {"k1": 24}, {"k0": 256}):
        assert not BACKEND.emitter.fits(found.kernel, found.shape, {**proposed[0], **change}, False), change
    wide = Operand(Type((4, 2048, 128), "float32"), contiguous((4, 2048, 128)))
    plain = template.lower(Call(dict.fromkeys(template.operands, wide), wide, {}))
    assert plain is not None and not list(attention_schedules(plain.kernel, plain.shape))


def test_a_width_of_96_is_split_in_64_and_32() -> None:
    """With `pieces=2`; schedules of older stores have `pieces=1`, and their times are those of padded kernels."""
    template = generated(c.attention(*(x(n, 4, 2048, 96) for n in "qkv"), scale=0.1, causal=True))
    kind = Operand(Type((4, 2048, 96), "bfloat16"), contiguous((4, 2048, 96)))
    call = Call(dict.fromkeys(template.operands, kind), kind, {})
    found = template.lower(call)
    assert found is not None
    proposed = [s.numbers() for s in attention_schedules(found.kernel, found.shape)]
    assert proposed[0]["pieces"] == 2 and any("pieces" not in s for s in proposed)

    def text(pieces: dict[str, int]) -> str:
        schedule = {**{n: v for n, v in proposed[0].items() if n != "pieces"}, **pieces}
        (one,) = launches(template, replace(call, schedule=schedule))
        return re.sub(r"_[0-9a-f]{10}", "", one.source)

    split, padded_text = text({"pieces": 2}), text({})
    assert "values_1" in split and "values_1" not in padded_text
    assert text({"pieces": 1}) == padded_text


def test_one_group_computes_alone() -> None:
    with host(3):
        template, call = called("ragged, causal", 64)
        assert error_of(template, replace(call, schedule={**call.schedule, "m": 64, "warps": 4})) < 2e-3


def test_schedules_near_those_that_are_proposed_are_legal_or_not() -> None:
    template, call = called("pieces", 64, pieces=2)
    found = template.lower(call)  # type: ignore[attr-defined]
    schedule = dict(call.schedule)
    assert BACKEND.emitter.fits(found.kernel, found.shape, schedule, False)
    for name in schedule:
        for changed in (schedule[name] // 2, schedule[name] * 2):
            assert BACKEND.emitter.fits(found.kernel, found.shape, {**schedule, name: changed}, False) in (True, False)


def test_the_source_of_roles_is_the_golden_file(update_golden: bool) -> None:
    (one,) = launches(*called("causal", 64))  # type: ignore[arg-type]
    text = re.sub(r"_[0-9a-f]{10}\b", "", re.sub(r"_[0-9a-f]{10}_", "_", one.source))
    path = GOLDEN / "gluon_attention.py"
    if update_golden:
        path.write_text(f"# Generated; see test_warp_specialized_attention.py.\n{text}", encoding="utf-8")
    assert path.read_text(encoding="utf-8").partition("\n")[2] == text


@pytest.mark.parametrize(("stages", "slots"), [(2, 2), (6, 1)])
def test_queries_of_the_next_tile_come_ahead_where_there_is_room(stages: int, slots: int) -> None:
    q, k, v = (x(n, 64, 1024, 64) for n in "qkv")
    template = generated(c.attention(q, k, v, scale=0.1))
    kind = Operand(Type((64, 1024, 64), "float16"), contiguous((64, 1024, 64)))
    schedule = {"m": 128, "n": 64, "k0": 64, "k1": 128, "warps": 8, "stages": stages, "roles": 1}
    (one,) = launches(template, Call(dict.fromkeys(template.operands, kind), kind, {}, schedule=schedule))
    assert f"gl.float16, [{2 * slots}, 64, 64]" in one.source
    assert f"queries_full = gl.allocate_shared_memory(gl.int64, [{slots}, 1]" in one.source
