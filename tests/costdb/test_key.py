"""Keys: one spelling per meaning, another digest for whatever changes a time, none for what does not."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.costdb.keys import device
from tensor_graphs.costdb.keys.key import (
    IDENTITY_FIELDS,
    KernelKey,
    Work,
    canonical,
    device_key,
    digest_of,
    toolchain_key,
)
from tensor_graphs.costdb.keys.source import normalise, source_hash
from tensor_graphs.errors import UsageError

from ..examples import examples
from ..only_in import only_in

scalars = st.text(max_size=8) | st.integers() | st.floats() | st.booleans()
plain = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=8)
few = settings(deadline=None, max_examples=examples(60))


@few
@given(plain)
def test_canonical_form_is_stable(value: Any) -> None:
    once = canonical(value)
    assert canonical(once) == once


@few
@given(plain, plain)
def test_digests_tell_values_apart_exactly_when_canonical_forms_differ(a: Any, b: Any) -> None:
    fixed = {"kernel": "k", "name": "n", "family": "f", "backend": "numpy", "emitter": "1", "source": "s"}
    left, right = KernelKey(**fixed, schedule=a), KernelKey(**fixed, schedule=b)
    assert (left.digest == right.digest) == (canonical(a) == canonical(b)) == (left == right)


@few
@given(st.dictionaries(st.text(max_size=4), st.integers(), max_size=5), st.booleans())
def test_another_schedule_is_another_key_by_either_way(schedule: dict[str, int], asked: bool) -> None:
    fixed = {"kernel": "k", "name": "n", "family": "f", "backend": "triton", "emitter": "1", "source": "s"}
    base, direct = KernelKey(**fixed, shapes=((1, 2),)), KernelKey(**fixed, shapes=((1, 2),), schedule=schedule)
    if asked:
        assert base.digest
    made = base.with_schedule(schedule)
    assert made == direct and made.digest == direct.digest and made.columns == direct.columns
    assert base.schedule == () and (made.digest == base.digest) == (not schedule)


@few
@given(st.dictionaries(st.text(max_size=4), st.integers(), max_size=5), st.randoms())
def test_a_mapping_has_no_order(schedule: dict[str, int], random: Any) -> None:
    shuffled = list(schedule.items())
    random.shuffle(shuffled)
    assert canonical(dict(shuffled)) == canonical(schedule)


def test_numpy_numbers_lists_and_tuples_are_the_same_key(key: Callable[..., KernelKey]) -> None:
    plainly = key(shapes=((2, 3),), constants=(1.5, True))
    from_numpy = key(shapes=[[np.int64(2), np.int32(3)]], constants=[np.float64(1.5), np.bool_(True)])
    assert plainly == from_numpy and plainly.digest == from_numpy.digest


def test_int_float_and_bool_of_equal_value_are_different_keys(key: Callable[..., KernelKey]) -> None:
    assert len({key(constants=(value,)).digest for value in (1, 1.0, True, "1", -0.0, 0.0)}) == 6


@pytest.mark.parametrize("field", IDENTITY_FIELDS)
def test_every_identity_field_counts(key: Callable[..., KernelKey], field: str) -> None:
    other = key(**{field: "another" if isinstance(getattr(key(), field), str) else ("another",)})
    assert other.digest != key().digest and other != key()


def test_labels_do_not_count(key: Callable[..., KernelKey]) -> None:
    assert key(name="x", family="reduction").digest == key().digest
    assert key(name="x", family="reduction") == key()


def test_columns_rebuild_the_digest(key: Callable[..., KernelKey]) -> None:
    wide = key(schedule={"tile": (64, 32)}, source="s\x00'\"\n")
    assert digest_of([wide.columns[name] for name in IDENTITY_FIELDS]) == wide.digest


def test_digest_is_the_same_in_every_release(key: Callable[..., KernelKey]) -> None:
    """A change of this value throws away every stored measurement: make it on purpose or not at all."""
    assert key(7).digest == "c4bc8dfd6efd00060aff9283b160c8d1"


@few
@given(st.text(min_size=1, max_size=30))
def test_any_text_can_be_stored(text: str) -> None:
    made = KernelKey(text, text, text, text, text, text)
    assert all(value.encode("utf-8") is not None for value in made.columns.values())


def test_lone_surrogates_and_huge_names_become_storable(key: Callable[..., KernelKey]) -> None:
    assert key(name="\ud800").name == "\\ud800"
    long = key(kernel="a" * 1_000_000), key(kernel="a" * 999_999 + "b")
    assert len(long[0].kernel) < 200 and long[0].digest != long[1].digest


@pytest.mark.parametrize(
    "fields", [{"kernel": ""}, {"source": ""}, {"backend": ""}, {"kernel": 3}, {"shapes": (object(),)}]
)
def test_keys_that_mean_nothing_are_refused(key: Callable[..., KernelKey], fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        key(**fields)


@pytest.mark.parametrize("amounts", [(-1.0, 0.0), (float("nan"), 0.0), (0.0, float("inf"))])
def test_work_is_finite_and_not_negative(amounts: tuple[float, float]) -> None:
    with pytest.raises(UsageError):
        Work(*amounts)


def test_keys_are_frozen(key: Callable[..., KernelKey]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        key().kernel = "other"  # type: ignore[misc]


PYTHON = '''
def add(a, b, out):
    """Adds, from layer 3."""
    # a comment
    np.add(a, b, out=out)  # another

    return "# not a comment"
'''
C = """
// header
__global__ void add(const float* a /* input */, float* out) {
    /* two
       lines */
    out[0] = a[0];  // done

    puts("// not a comment");
}
"""


@pytest.mark.parametrize(
    ("language", "first", "second"),
    [
        ("python", PYTHON, 'def add(a, b, out):\n    np.add(a, b, out=out)\n    return "# not a comment"\n'),
        ("python", "x = [1,2]\n", "x = [\n  1,  # one\n  2]"),
        ("python", "if x: # broken\n\n  y =", "if x:\n  y ="),
        ("c", C, '__global__ void add(const float* a, float* out) {\nout[0] = a[0];\nputs("// not a comment");\n}'),
    ],
)
def test_comments_and_layout_do_not_count(language: str, first: str, second: str) -> None:
    squeezed = [normalise(text, language).replace(" ", "") for text in (first, second)]
    assert squeezed[0] == squeezed[1]
    if language == "python":
        assert source_hash(first, language) == source_hash(second, language)


@pytest.mark.parametrize(
    ("language", "first", "second"),
    [
        ("python", 'x = "#a"', 'x = "#b"'),
        ("python", "x = 1", "x = 2"),
        ("python", "if a:\n  b\nc", "if a:\n  b\n  c"),
        ("c", 'p("/*a*/")', 'p("/*b*/")'),
        ("c", "a = 1;", "a = 2;"),
    ],
)
def test_code_counts(language: str, first: str, second: str) -> None:
    assert source_hash(first, language) != source_hash(second, language)


def test_normalising_runs_nothing(tmp_path: Any) -> None:
    target = tmp_path / "made"
    source_hash(f"open({str(target)!r}, 'w').write('x')")
    source_hash("import os; os._exit(1)")
    assert not target.exists()


def test_device_and_toolchain_name_what_matters() -> None:
    assert "threads=3" in device_key(threads=3) and device_key(threads=3) != device_key(threads=2)
    assert f"numpy={np.__version__}" in toolchain_key() and "torch" not in toolchain_key()
    assert "torch=" in toolchain_key("torch")


@pytest.mark.parametrize(
    ("told", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: gcc 13.2",
            "580",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n", "535"),
        ("GCC version: gcc version 13.2.0\n", "470"),
        (None, "470"),
    ],
)
def test_the_drivers_version_is_read_where_the_kernel_tells_it(
    told: str | None, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking the driver's own tool takes half a second; it is asked where nothing else tells."""
    place = tmp_path / "version"
    if told is not None:
        place.write_text(told)
    monkeypatch.setattr(device, "_KERNEL_MODULE", place)
    answered = subprocess.CompletedProcess([], 0, stdout="470.82.01\n")
    only_in(monkeypatch, device, "subprocess", run=lambda *given, **more: answered)
    assert device._nvidia_driver() == version
