"""Convolutions in C against float64: windows, strides, padding, groups, odd sizes, epilogues, layouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.backends.c.convolutions import SOURCE, VERSION, convolution_rows, pool_rows, winograd_packed
from tensor_graphs.backends.c.image_copies import image_copy_rows
from tensor_graphs.backends.registry import backend, select, unfused_backends
from tensor_graphs.backends.tuning.cpu_worker import answer, encode
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.library_kernel import LibraryKernel

from ..reference import expected
from ..together import library_results

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
ROWS = {row.name: row for row in (*convolution_rows(), *pool_rows())}


def last(shape: tuple[int, ...]) -> tuple[int, ...]:
    n, c, *space = shape
    first, *inner, _ = contiguous((n, *space, c))
    return (first, 1, *inner)


def call_of(
    name: str, x: tuple[int, ...], k: int, window: tuple[int, ...] = (3, 3), strides: tuple[int, ...] = (1, 1),
    pads: tuple[int, ...] = (1, 1, 1, 1), dilations: tuple[int, ...] = (1, 1), groups: int = 1, rows: bool = False,
) -> Call:  # fmt: skip
    """A call with channels-last operands; `rows`: x is row-major."""
    n, c, *size = x
    out = (n, k, *((d + pads[i] + pads[len(size) + i] - (window[i] - 1) * dilations[i] - 1) // strides[i] + 1
                   for i, d in enumerate(size)))  # fmt: skip
    kind = lambda shape: Type(shape, "float32")
    weights = (k, c // groups, *window)
    operands = {
        "x": Operand(kind(x), contiguous(x) if rows else last(x)),
        "w": Operand(kind(weights), contiguous(weights)),
        "b": Operand(kind((k,)), (1,)),
        "r": Operand(kind(out), last(out)),
    }
    attrs: dict[str, Any] = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    attrs |= {"s": (1, k) + (1,) * len(size)} if "bias" in name else {}
    attrs |= {"lo": -0.25, "hi": 1.5} if "clip" in name else {}
    attrs |= {"kernel": window} if "pool" in name else {}
    return Call({o: operands[o] for o in ROWS[name].operands}, Operand(kind(out), last(out)), attrs)


def drawn(call: Call) -> dict[str, Any]:
    """Random operands in the call's layouts, the same for each call."""
    rng = np.random.default_rng(0)
    return {n: in_layout(rng.standard_normal(o.type.shape).astype(np.float32), o) for n, o in call.operands.items()}


def check(calls: Iterable[tuple[str, Call]], limit: float = 2e-6) -> None:
    """Kernels, which are compiled together, accept these calls and agree with float64."""
    cases = [(ROWS[name], call, drawn(call)) for name, call in calls]
    for case, got, of in library_results(cases):
        want = expected(*case).astype(float)
        assert np.linalg.norm(got.astype(float) - want) <= limit * np.linalg.norm(want), of
        np.testing.assert_allclose(got.astype(float), want, rtol=1e-4, atol=1e-4, err_msg=of)


def usual_call(name: str) -> Call:
    """A call that the kernel accepts."""
    alone = "depthwise" in name or "pool" in name
    return call_of(name, (2, 16, 7, 9), 16 if alone else 48, groups=16 if alone else 4 if "grouped" in name else 1)


def test_every_epilogue() -> None:
    check((name, usual_call(name)) for name in ROWS)


WINDOWS = [
    {"x": (2, 70, 9, 8), "strides": (2, 1), "pads": (0, 1, 1, 2)},
    {"x": (1, 16, 5, 5), "window": (5, 2), "pads": (2, 0, 2, 1), "dilations": (1, 3)},
    {"x": (3, 5, 6, 7), "window": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)},
    {"x": (1, 100, 1, 1)},
    {"x": (1, 129, 11, 4), "window": (7, 7), "pads": (3, 3, 3, 3)},
    {"x": (1, 32, 12, 14), "strides": (2, 2), "dilations": (1, 2)},
    {"x": (2, 48, 9, 10), "window": (5, 5), "strides": (1, 2), "pads": (2, 1, 2, 2)},
    {"x": (1, 16, 12, 11), "window": (7, 7), "pads": (3, 3, 3, 3)},
    {"x": (1, 21, 60, 150), "window": (7, 7), "pads": (3, 3, 3, 3)},  # strips and parts
]
OUTSIDE = {"x": (2, 33, 6, 10), "window": (4, 3), "strides": (3, 2), "pads": (5, 4, 5, 4)}  # windows of padding alone


@pytest.mark.parametrize(
    "name", ["c.depthwise_conv_bias_residual_relu", "c.depthwise_conv_bias_silu", "c.max_pool", "c.avg_pool"]
)
def test_windows_without_a_sum_over_channels(name: str) -> None:
    cases = [*WINDOWS, OUTSIDE] if "residual" in name else WINDOWS
    check((name, call_of(name, k=case["x"][1], groups=case["x"][1], **case)) for case in cases)


def test_a_maximum_of_nan_is_nan() -> None:
    call = call_of("c.max_pool", (1, 20, 4, 4), 20, window=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), groups=20)
    x = np.ones((1, 20, 4, 4), np.float32)
    x[0, 19, 0, 1], x[0, 0, 3, 2], x[0, 1] = np.nan, np.nan, -np.inf
    got = compiled(ROWS["c.max_pool"], call)({"x": in_layout(x, call.operands["x"])})()[0]
    assert np.isnan(got[0, 19, 0, 0]) and np.isnan(got[0, 0, 1, 1]) and np.isnan(got).sum() == 2
    assert (got[0, 1] == -np.inf).all()


DIRECT = [
    {"x": (1, 3, 23, 31), "k": 24, "window": (7, 7), "strides": (2, 2), "pads": (3, 3, 3, 3), "rows": True},
    {"x": (2, 3, 11, 8), "k": 16, "pads": (0, 1, 1, 2), "dilations": (2, 1)},
    {"x": (3, 20, 5, 6), "k": 33},
    {"x": (1, 70, 4, 4), "k": 130, "window": (1, 1), "pads": (0, 0, 0, 0)},
    {"x": (1, 32, 9, 9), "k": 64, "window": (1, 1), "strides": (2, 2), "pads": (0, 0, 0, 0)},
    {"x": (2, 64, 6, 7), "k": 96, "groups": 2, "strides": (2, 1)},
    {"x": (1, 17, 12, 12), "k": 5, "window": (5, 2), "pads": (2, 0, 2, 1), "dilations": (1, 3)},
    {"x": (1, 16, 1, 1), "k": 16},
]


def test_small_groups() -> None:
    """Groups of few channels, strided and dilated windows; tiles of twelve pixels, of which the last is not whole."""
    image = {"x": (1, 12, 9, 11), "k": 24, "groups": 6, "strides": (2, 1), "dilations": (1, 2)}
    line = {"x": (2, 48, 25), "k": 80, "groups": 16, "window": (5,), "strides": (1,), "pads": (2, 2), "dilations": (1,)}
    check((name, call_of(name, **at)) for name, at in (("c.grouped_conv", image), ("c.grouped_conv_bias_relu", line)))
    assert not ROWS["c.grouped_conv"].applies(call_of("c.grouped_conv", (1, 32, 8, 8), 32, groups=32))  # depthwise


@pytest.mark.parametrize(
    "name", ["c.tiled_conv", "c.tiled_conv_bias_residual_relu", "c.tiled_conv_bias_silu_residual_left"]
)
def test_direct_convolution(name: str) -> None:
    check((name, call_of(name, **case)) for case in DIRECT)


def part_of_an_image(x: tuple[int, ...], window: int) -> tuple[LibraryKernel, Call, dict[str, Any]]:
    """A convolution of the second of three parts of a channels-last image's channels."""
    n, c, *space = x
    line = {"window": (window,) * len(space), "strides": (1,) * len(space), "dilations": (1,) * len(space)}
    call = call_of("c.tiled_conv_bias", x, 40, pads=(window // 2,) * 2 * len(space), **line)
    whole = np.random.default_rng(0).standard_normal((n, *space, 3 * c)).astype(np.float32)
    part = np.moveaxis(whole[..., c : 2 * c], -1, 1)
    operand = Operand(Type(x, "float32"), tuple(s // 4 for s in part.strides))
    call = replace(call, operands={**call.operands, "x": operand})
    rng = np.random.default_rng(1)
    weights = {o: rng.standard_normal(call.operands[o].type.shape).astype(np.float32) for o in "wb"}
    return ROWS["c.tiled_conv_bias"], call, {"x": part, **weights}


def test_direct_convolution_of_some_channels_of_an_image() -> None:
    cases = [part_of_an_image(x, window) for x in ((2, 24, 5, 6), (1, 32, 1, 9), (3, 20, 7)) for window in (1, 3)]
    for case, got, of in library_results(cases):
        np.testing.assert_allclose(got, expected(*case), rtol=1e-4, atol=1e-4, err_msg=of)


def test_weights_for_winograd_are_rounded_once() -> None:
    """The transform is computed in float64, its results are rounded to float32."""
    w = np.random.default_rng(0).standard_normal((48, 5, 3, 3), dtype=np.float32)
    g = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])
    want = np.einsum("ai,kcij,bj->abkc", g, w.astype(np.float64), g).astype(np.float32)
    found = winograd_packed(w)
    assert found.shape == (16, 3, 5, 16) and found.dtype == np.float32 and found.flags.c_contiguous
    np.testing.assert_array_max_ulp(found, want.reshape(16, 3, 16, 5).transpose(0, 1, 3, 2), maxulp=1)


@pytest.mark.parametrize("name", ["c.winograd_conv", "c.winograd_conv_bias_residual_relu"])
def test_winograd(name: str) -> None:
    images = ((1, 16, 1, 1), (2, 32, 5, 4), (1, 64, 33, 30), (3, 16, 2, 17))
    pads = ((1, 1, 1, 1), (0, 0, 2, 2), (2, 1, 2, 1))
    check((name, call_of(name, x, 80, pads=p)) for x in images for p in pads)


LINES = [
    {"x": (1, 64, 100), "k": 128, "window": (3,), "pads": (16, 0), "dilations": (8,)},
    {"x": (2, 20, 33), "k": 24, "window": (5,), "strides": (2,), "pads": (2, 1)},
    {"x": (1, 1, 40), "k": 32, "window": (7,), "pads": (3, 3)},
    {"x": (1, 3, 50), "k": 16, "window": (4,), "strides": (3,), "pads": (0, 5), "rows": True},
    {"x": (1, 48, 9), "k": 40, "window": (1,), "pads": (0, 0)},
    {"x": (2, 64, 12), "k": 96, "window": (3,), "groups": 2},
]


@pytest.mark.parametrize("name", ["c.tiled_conv", "c.tiled_conv_bias_silu", "c.tiled_conv_bias_residual_relu"])
def test_convolution_of_lines(name: str) -> None:
    usual = {"strides": (1,), "pads": (1, 1), "dilations": (1,)}
    check((name, call_of(name, **{**usual, **case})) for case in LINES)


@pytest.mark.parametrize("name", ["c.depthwise_conv", "c.depthwise_conv_bias_silu"])
def test_depthwise_convolution_of_lines(name: str) -> None:
    usual = {"window": (4,), "strides": (1,), "pads": (2, 1), "dilations": (1,)}
    cases = ({}, {"pads": (3, 0)}, {"strides": (2,)}, {"window": (3,), "dilations": (4,), "pads": (8, 0)})
    check((name, call_of(name, (2, c, 21), c, groups=c, **{**usual, **case})) for case in cases for c in (16, 70))


def test_long_sums_round_little() -> None:
    """Partial sums of 256 terms: a sum of 4608 terms in one accumulator is off by 6e-7."""
    name, point = "c.tiled_conv", {"window": (1, 1), "pads": (0, 0, 0, 0)}
    calls = (call_of(name, (1, 512, 6, 5), 32), call_of(name, (1, 2048, 3, 3), 16, **point))
    check(((name, call) for call in calls), limit=3e-7)


def test_what_they_cannot_compute_is_refused() -> None:
    for more in ({"strides": (2, 2)}, {"dilations": (2, 2)}, {"window": (3, 5)}, {"groups": 2}):
        assert not ROWS["c.winograd_conv"].applies(call_of("c.winograd_conv", (1, 32, 8, 8), 32, **more))
    for x, k in (((1, 24, 8, 8), 32), ((1, 32, 8, 8), 40)):
        assert not ROWS["c.winograd_conv"].applies(call_of("c.winograd_conv", x, k))
    assert not ROWS["c.tiled_conv"].applies(call_of("c.tiled_conv", (1, 32, 8, 8), 32, rows=True))
    assert not ROWS["c.tiled_conv"].applies(call_of("c.tiled_conv", (1, 32, 8, 8), 32, groups=32))
    wide = call_of("c.tiled_conv", (1, 32, 30, 30), 16, window=(9, 9), pads=(0, 0, 0, 0))
    assert not ROWS["c.tiled_conv"].applies(wide)


def test_nan_and_infinities_stay_where_eager_has_them() -> None:
    call = call_of("c.tiled_conv_relu", (1, 16, 4, 6), 16, window=(1, 1), pads=(0, 0, 0, 0))
    x = np.ones((1, 16, 4, 6), np.float32)
    x[0, 3, 1, 2], x[0, 4, 2, 5], x[0, 4, 3, 0] = np.nan, np.inf, -np.inf
    w = np.ones((16, 16, 1, 1), np.float32)
    got = compiled(ROWS["c.tiled_conv_relu"], call)({"x": in_layout(x, call.operands["x"]), "w": w})()[0]
    assert np.isnan(got[0, :, 1, 2]).all() and (got[0, :, 2, 5] == np.inf).all() and (got[0, :, 3, 0] == 0).all()
    assert np.isfinite(got).sum() == got.size - 32


def test_a_program_joins_their_calls_and_works_after_saving(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    params = {n: rng.standard_normal(s).astype(np.float32) / 12 for n, s in
              {"u": (16, 3, 3, 3), "w": (16, 16, 3, 3), "v": (16, 16, 1, 1)}.items()}  # fmt: skip
    x = rng.standard_normal((1, 3, 12, 13)).astype(np.float32)
    at = {n: torch.tensor(w) for n, w in params.items()}
    f = torch.nn.functional

    class Block(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            h = f.conv2d(x, at["u"], padding=1).relu()
            return (f.conv2d(f.conv2d(h, at["w"], padding=1).relu(), at["v"]) + h).relu()

    with settings.override(home=str(tmp_path / "home")):
        program = tg.optimize(Block(), (torch.tensor(x),), backend="c", budget=4, measure=False)
        names = {k.name for k in program.report.kernels}
        assert any(n.startswith("c.tiled_conv") for n in names) and "np.conv" not in names
        assert "tiled_conv(at[" in program.source  # consecutive calls are one C function
        want = Block()(torch.tensor(x)).numpy()
        np.testing.assert_allclose(program(torch.tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)
        program.save(tmp_path / "saved")
        again = tg.load_program(tmp_path / "saved")
        np.testing.assert_allclose(again(torch.tensor(x)).numpy(), want, rtol=1e-5, atol=1e-5)


def test_the_unfused_baseline_stays_that_of_libraries() -> None:
    order = [b.name for b in unfused_backends(select("auto"))]
    assert order[-1] == "c" and {*order} == {b.name for b in select("auto")}


def test_the_text_is_the_same_for_all_kernels() -> None:
    """So that a search compiles it once."""
    call = call_of("c.tiled_conv", (1, 16, 4, 4), 16)
    rows = {name: row for name, row in ROWS.items() if "grouped" not in name}  # these have one function more
    assert all(row.source is not None and row.source(replace(call)) is SOURCE for row in rows.values())
    versions = {row.version for name, row in rows.items() if "depthwise" not in name}
    assert versions == {VERSION} != {ROWS["c.depthwise_conv"].version}, "measurements belong to the text"


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_copy_to_channels_last(dtype: str) -> None:
    suffix = "_bytes" if dtype == "int8" else ""
    row, back = ({r.name: r for r in image_copy_rows()}[f"c.{way}_channels_last{suffix}"] for way in ("to", "from"))
    assert row.applies is not None and back.applies is not None
    rng, cases = np.random.default_rng(0), []
    for shape in ((1, 64, 32, 32), (2, 6, 5, 5), (1, 17, 1, 19), (3, 1, 4, 4), (2, 33, 40)):
        rows, lasts = (Operand(Type(shape, dtype), strides) for strides in (contiguous(shape), last(shape)))
        there, turned = Call({"x": rows}, lasts, {}), Call({"x": lasts}, rows, {})
        x = (9 * rng.standard_normal(shape)).astype(dtype)
        cases.append((row, there, {"x": x}))
        if shape[1] > 1:
            assert not row.applies(Call({"x": lasts}, lasts, {})) and not row.applies(Call({"x": rows}, rows, {}))
            assert back.applies(turned) != lasts.dense
            if back.applies(turned):
                cases.append((back, turned, {"x": in_layout(x, lasts)}))
    assert {r.name for r, *_ in cases} == {row.name, back.name}
    for (kernel, _, given), found, of in library_results(cases):
        np.testing.assert_array_equal(found, given["x"], err_msg=of)
        assert kernel is back or found.strides[1] == found.itemsize or found.shape[1] == 1


def test_row_major_values_reach_convolutions_in_c() -> None:
    """The graph's input and a concatenation are row-major; both convolutions have kernels in C behind a copy."""
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.Conv2d(128, 64, 3, padding=1)

        def forward(self, x: Any) -> Any:
            up = torch.nn.functional.interpolate(self.a(x), scale_factor=2.0)
            return self.b(torch.cat([up, up.sin()], 1))

    module, x = Module().eval().requires_grad_(False), torch.randn(1, 64, 8, 8)
    explorer = tg.saturate(module, (x,), budget=5)
    candidates = explorer.choice.hypergraph.candidates
    reads = lambda c: c.call.operands["x"].type.shape[1]
    assert {reads(c) for c in candidates if c.template.name == "c.winograd_conv_bias"} == {64, 128}
    assert {reads(c) for c in candidates if c.template.name == "c.to_channels_last"} >= {64, 128}


def test_pointwise_kernels_between_convolutions_stay_channels_last() -> None:
    """Squeeze and excitation: generated kernels read and write channels-last images; each agrees with float64."""
    torch = pytest.importorskip("torch")
    f = torch.nn.functional

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.Conv2d(32, 32, 3, padding=1)
            self.g = torch.nn.Conv2d(32, 32, 1)

        def forward(self, x: Any) -> Any:
            y = f.hardswish(self.a(x))
            return self.b(y * torch.sigmoid(self.g(y.mean((2, 3), keepdim=True))) + torch.tanh(y))

    explorer = tg.saturate(Module().eval().requires_grad_(False), (torch.randn(1, 32, 7, 9),), budget=10)
    found = [c for c in explorer.choice.hypergraph.candidates if c.template.name == "c.pointwise_last"]
    assert any("sigmoid" in c.template.pattern and "tanh" in c.template.pattern for c in found)
    rng = np.random.default_rng(0)
    for one in {c.template.identity: c for c in found}.values():
        assert one.call.output.strides[1] == 1
        job = encode(one.template, one.call)  # of a measuring process, which generates the kernel again
        assert answer({**job, "seconds": 0.001})["ok"]
        draw = lambda o: rng.standard_normal(o.type.shape).astype(np.float32)
        operands = {n: in_layout(draw(o), o) for n, o in one.call.operands.items()}
        got = compiled(one.template, one.call)(operands)()[0]
        np.testing.assert_allclose(got, expected(one.template, one.call, operands), rtol=1e-5, atol=1e-5)
