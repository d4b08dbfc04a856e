"""Prices: measured beats predicted beats bound, and predictions follow a kernel's own sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND as CUDA
from tensor_graphs.backends.generate.template import template_of
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.costdb.keys.device import device_key
from tensor_graphs.costdb.keys.key import KernelKey, Work
from tensor_graphs.costdb.price.predict import Query
from tensor_graphs.costdb.price.roofline import DEFAULTS, DeviceRoofline, Rooflines
from tensor_graphs.costdb.store import calibrate
from tensor_graphs.costdb.store.schema import TimingRow
from tensor_graphs.costdb.store.snapshot import Snapshot
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

Make = Callable[..., TimingRow]
Keys = Callable[..., KernelKey]
SIZES = [2**power for power in range(6, 24)]


def work(size: float) -> Work:
    return Work(size, 12.0 * size)


def truth(kernel: int, size: int) -> float:
    """A made-up machine: every kernel has its own overhead and its own efficiency, which falls off with size."""
    bound = DEFAULTS["numpy"].us(work(size))
    return bound * (1.5 + kernel) * (1.0 + 0.1 * kernel * math.log10(size)) + 0.3 * kernel


def measured(timing: Make, kernel: int, size: int) -> TimingRow:
    return timing(truth(kernel, size), size, kernel=f"k{kernel}", name=f"n{kernel}", work=work(size))


def test_sources_only_get_better_as_rows_come_in(tmp_path: Path, timing: Make, key: Keys) -> None:
    store = Store(tmp_path)
    query = Query(key(1000), work(1000))
    (nothing,) = store.price([query])
    assert nothing.source == "bound" and nothing.us == nothing.low == DEFAULTS["numpy"].us(query.work) < nothing.high
    assert nothing.n == 0
    store.add([timing(50.0, 900, work=work(900))])
    (relatives,) = store.price([query])
    assert relatives.source == "predicted" and relatives.low < relatives.us < relatives.high and relatives.n == 1
    store.add([timing(60.0, 1000, work=work(1000))])
    (known,) = store.price([query])
    assert known.source == "measured" and known.us == pytest.approx(60.0) and known.n == 1
    store.add([timing(70.0, 1100, work=work(1100))])
    assert store.price([query]) == [known]


def test_kernels_that_differ_in_numbers_are_the_nearest_relatives(tmp_path: Path) -> None:
    """A norm of 4096 columns was never measured; one of 2048 with another epsilon was, beside many faster kernels."""

    def query(size: int, eps: float, *, norm: bool) -> Query:
        x, ones = t.input("x0", (1, size)), t.full((size,), 1.0, "float32")
        template = template_of(CUDA.emitter, c.rms_norm(x, ones, eps=eps) if norm else t.sum(x + eps, axis=1))
        row = Operand(Type((1, size), "float32"), contiguous((1, size)))
        result = Operand(Type(template.root.shape, "float32"), contiguous(template.root.shape))
        schedule = next(iter(template.space(Call({"x0": row}, result, {})) or [{}]))
        return Query(replace(key_of(template, Call({"x0": row}, result, {}, schedule)), device="gpu:x"), work(size))

    known = [(query(2048, 1e-5, norm=True), 30.0), *((query(4096, float(n), norm=False), 2.0) for n in range(1, 30))]
    assert len({q.key.name for q, _ in known}) == 2 and {q.key.family for q, _ in known} == {"reduction"}
    store = Store(tmp_path)
    store.add([TimingRow(key=q.key, work=q.work, samples=[us] * 3, regime="cold") for q, us in (*known, *known[:1])])
    store.add([TimingRow(key=query(1024, 2e-5, norm=True).key, work=work(1024), samples=[30.0] * 3, regime="cold")])
    (price,) = store.price([query(4096, 1e-6, norm=True)], regime="cold")
    assert price.source == "predicted" and price.us == pytest.approx(30.0, rel=0.3)


def test_shapes_of_one_kernel_beat_the_family_mean(tmp_path: Path, timing: Make, key: Keys) -> None:
    store = Store(tmp_path)
    store.add([measured(timing, kernel, size) for kernel in range(6) for size in SIZES[::2]])
    asked = [(kernel, size) for kernel in range(6) for size in SIZES[1:-1:2]]
    prices = store.price([Query(key(size, kernel=f"k{k}", name=f"n{k}"), work(size)) for k, size in asked])
    ratios = [truth(k, size) / DEFAULTS["numpy"].us(work(size)) for k in range(6) for size in SIZES[::2]]
    family_mean = float(np.mean(np.log(ratios)))
    own = [abs(math.log(price.us / truth(k, size))) for price, (k, size) in zip(prices, asked)]
    mean = [abs(math.log(truth(k, size) / DEFAULTS["numpy"].us(work(size))) - family_mean) for k, size in asked]
    assert all(price.source == "predicted" for price in prices)
    assert np.median(own) < 0.05 and np.median(own) < np.median(mean) / 5
    inside = [price.low <= truth(k, size) <= price.high for price, (k, size) in zip(prices, asked)]
    assert np.mean(inside) > 0.8


def test_what_is_slow_in_one_layout_may_be_fast_in_another(tmp_path: Path, timing: Make, key: Keys) -> None:
    rows, columns = {"shapes": ((64, 64),), "strides": ((64, 1),)}, {"shapes": ((64, 64),), "strides": ((1, 64),)}
    bound = DEFAULTS["numpy"].us(work(4096))
    store = Store(tmp_path)
    store.add([timing(20 * bound, 4096, work=work(4096), **rows, toolchain="other")])
    alike, other = store.price([Query(key(4096, **x), work(4096)) for x in (rows, columns)])
    assert 10 * bound < alike.low < alike.us and bound <= other.low < 3 * bound < other.us


def test_schedules_of_another_form_may_be_much_faster(tmp_path: Path, timing: Make, key: Keys) -> None:
    bound = DEFAULTS["numpy"].us(work(4096))
    store = Store(tmp_path)
    store.add([timing(20 * bound, 4096, work=work(4096), schedule=(("m", 64),))])
    asked = ((("m", 32),), (("early", 1), ("m", 64)), (("m", 64), ("roles", 1)))
    alike, early, other = store.price([Query(key(4096, schedule=s), work(4096)) for s in asked])
    assert min(alike.low, early.low) > 10 * bound and bound <= other.low < 3 * bound < other.us


def test_an_unseen_kernel_is_priced_like_its_family_with_a_wider_interval(
    tmp_path: Path, timing: Make, key: Keys
) -> None:
    store = Store(tmp_path)
    store.add([measured(timing, kernel, size) for kernel in range(6) for size in SIZES[::3]])
    seen, unseen = store.price([
        Query(key(5000, kernel="k2", name="n2"), work(5000)),
        Query(key(5000, kernel="new", name="new"), work(5000)),
    ])  # fmt: skip
    assert seen.source == unseen.source == "predicted"
    assert unseen.high / unseen.low > 2 * seen.high / seen.low
    assert truth(0, 5000) < unseen.us < truth(5, 5000)


def test_other_kinds_of_devices_and_other_backends_teach_nothing(tmp_path: Path, timing: Make, key: Keys) -> None:
    store = Store(tmp_path)
    store.add([timing(50.0, size, device="gpu:other") for size in SIZES])
    store.add([timing(50.0, size, backend="torch") for size in SIZES])
    assert store.price([Query(key(1000), work(1000))])[0].source == "bound"


def test_other_devices_of_a_kind_teach_until_this_one_has_rows(tmp_path: Path, timing: Make, key: Keys) -> None:
    store = Store(tmp_path)
    store.add([timing(truth(1, size), size, device="cpu:other", work=work(size)) for size in SIZES])
    (elsewhere,) = store.price([Query(key(1000), work(1000))])
    assert elsewhere.source == "predicted" and elsewhere.us == pytest.approx(truth(1, 1000), rel=0.2)
    assert elsewhere.high / elsewhere.low > 1.5**2
    store.add([timing(3 * truth(1, 1024), 1024, work=work(1024))])
    (here,) = store.price([Query(key(1000), work(1000))])
    assert here.us > 2 * elsewhere.us, "one row of this device counts more than all others"


def test_predictions_extrapolate_with_the_roofline_not_with_volume(tmp_path: Path, timing: Make, key: Keys) -> None:
    store = Store(tmp_path)
    store.add([measured(timing, 1, size) for size in SIZES[:3]])
    (price,) = store.price([Query(key(10**7, kernel="k1", name="n1"), work(10**7))])
    assert 0.3 < price.us / truth(1, 10**7) < 3.0
    assert price.high / price.low > 1.5


def test_old_toolchains_predict_new_ones(tmp_path: Path, timing: Make, key: Keys) -> None:
    store = Store(tmp_path)
    store.add([timing(50.0, 1000, toolchain="old", work=work(1000)), timing(9.0, 10, toolchain="old", work=work(10))])
    (price,) = store.price([Query(key(1000, toolchain="new"), work(1000))])
    assert price.source == "predicted" and 20.0 < price.us < 60.0


def test_absurd_teachers_are_ignored(tmp_path: Path, timing: Make, key: Keys) -> None:
    store = Store(tmp_path)
    store.add([measured(timing, 1, size) for size in SIZES])
    query = Query(key(3 * 10**6, kernel="k1", name="n1"), work(3 * 10**6))
    (before,) = store.price([query])
    store.add([timing(0.01, size, kernel="k1", name="n1", work=work(size)) for size in (2_900_000, 3_100_000)])
    assert store.price([query])[0].us == pytest.approx(before.us)


def test_prices_do_not_depend_on_what_else_is_asked(tmp_path: Path, timing: Make, key: Keys) -> None:
    store = Store(tmp_path)
    store.add([measured(timing, kernel, size) for kernel in range(3) for size in SIZES])
    queries = [Query(key(n, kernel=f"k{n % 4}", name="x"), work(n)) for n in range(100, 2000, 77)]
    assert store.price(queries) == [store.price([query])[0] for query in queries]
    assert store.price([]) == []


def test_held_out_error_is_that_of_prediction(tmp_path: Path, timing: Make) -> None:
    smooth, rough = Store(tmp_path / "smooth"), Store(tmp_path / "rough")
    noise = np.random.default_rng(0).uniform(0.2, 5.0, len(SIZES))
    smooth.add([measured(timing, 1, size) for size in SIZES])
    rough.add([timing(truth(1, size) * factor, size, work=work(size)) for size, factor in zip(SIZES, noise)])
    (good,), (bad,) = smooth.stats().families, rough.stats().families
    assert good.held_out == bad.held_out == len(SIZES)
    assert good.median_error < 0.1 < 0.5 < bad.median_error <= bad.p90_error


amounts = st.floats(0, 1e12)


@settings(deadline=None, max_examples=60)
@given(amounts, amounts, st.floats(1, 100))
def test_more_work_never_has_a_lower_bound(flops: float, moved: float, factor: float) -> None:
    for roofline in DEFAULTS.values():
        here = roofline.us(Work(flops, moved))
        assert here >= roofline.launch_us
        assert here <= roofline.us(Work(flops * factor, moved)) and here <= roofline.us(Work(flops, moved * factor))


def test_calibration_sets_the_roofline(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(calibrate.measure(1))
    roofline = store.predictor().rooflines.of(device_key(1), "numpy")
    again = Store(tmp_path)
    assert again.predictor().rooflines.of(device_key(1), "numpy") == roofline != DEFAULTS["numpy"]
    assert 0.05 < roofline.launch_us < 100 and roofline.cache_bytes_per_us >= roofline.bytes_per_us
    assert set(again.stats().rooflines[device_key(1)]) == {"copy", "read", "cache", "gemm", "launch:numpy"}
    assert again.predictor().rooflines.of("another device", "numpy") == DEFAULTS["numpy"]
    half = again.predictor().rooflines.of(device_key(1), "numpy", "float64")
    assert half.flops_per_us == roofline.flops_per_us / 2
    (price,) = again.price([Query(KernelKey("k", "n", "f", "numpy", "1", "s", device=device_key(1)), Work(0, 0))])
    assert price.source == "bound" and price.us == roofline.launch_us  # calibration rows are no relatives


def test_absurd_calibration_is_not_believed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = calibrate.measure(1, seconds=0.01)
    lies = [TimingRow(key=row.key, work=Work(row.work.flops, row.work.bytes), samples=(3e-3,)) for row in rows]
    store.add(lies)
    assert store.predictor().rooflines.of(device_key(1), "numpy") == DEFAULTS["numpy"]


def test_kernels_that_read_faster_than_a_copy_set_the_bandwidth(tmp_path: Path, timing: Make) -> None:
    """The third fastest of those that exceed the cache by far."""
    store, rows = Store(tmp_path), []
    for nbytes, rate in ((4e8, 9e6), (4e8, 4.6e6), (3e8, 4.5e6), (2e8, 4.4e6), (3e7, 7e6), (4e8, 1e9)):
        moved = Work(1.0, nbytes)
        rows.append(timing(nbytes / rate, len(rows) + 1, regime="cold", device="gpu:x", backend="triton", work=moved))
    store.add(rows)
    assert store.predictor("cold").rooflines.of("gpu:x", "triton").bytes_per_us == pytest.approx(4.5e6, rel=0.01)
    assert store.predictor("hot").rooflines.of("gpu:x", "triton") == DEFAULTS["triton"]


def test_unknown_backends_get_a_roofline() -> None:
    rooflines = Rooflines(Snapshot())
    assert isinstance(rooflines.of("cpu:x", "new"), DeviceRoofline)
    assert rooflines.of("gpu:x", "new").bytes_per_us > rooflines.of("cpu:x", "new").bytes_per_us


def test_rows_at_odd_addresses_may_take_as_many_times_longer_as_loads_are_narrower(
    tmp_path: Path, timing: Make, key: Keys
) -> None:
    """A product whose rows are 2 bytes off where relatives' are at multiples of 16: until one like it was measured."""

    def product(n: int) -> dict[str, object]:
        shapes = ((64, 64), (64, n), (64, n))
        return {"shapes": shapes, "strides": ((64, 1), (n, 1), (n, 1)), "dtypes": ("bfloat16",) * 3}

    def asked(n: int, flops: float = 1e12) -> Query:
        return Query(key(n, **product(n)), Work(flops, 1e6))

    def bound(query: Query) -> float:
        return Rooflines(Snapshot()).of(query.key.device, query.key.backend, "bfloat16").us(query.work)

    store, long = Store(tmp_path), bound(asked(512))
    store.add([timing(1.2 * long, n, work=Work(1e12, 1e6), **product(n)) for n in (512, 1024)])
    even, odd, wide = store.price([asked(n) for n in (768, 513, 516)])
    assert even.us == pytest.approx(1.2 * long) and even.high < 2 * even.us
    assert odd.us == pytest.approx(8**0.5 * even.us) and odd.high > 8 * even.us and odd.low <= even.us
    assert even.us < wide.us < odd.us, "rows at multiples of 8 bytes: half as wide"
    (moved,) = store.price([asked(513, 1.0)])
    assert moved.us == pytest.approx(1.2 * bound(asked(513, 1.0))), "traffic bounds it"
    store.add([timing(5 * long, 511, work=Work(1e12, 1e6), **product(511))])
    even, odd = store.price([asked(768), asked(513)])
    assert 4 * long < odd.us < 5 * long and even.us < 1.5 * long, "now it is known"
