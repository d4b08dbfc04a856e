"""Rules of convolutions and means over windows, for all sizes, strides and paddings: right ones are proved, wrong ones
are not."""

from __future__ import annotations

import pytest

from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.rules.smt.prove import prove

pytest.importorskip("z3")
CONV = "strides=s, pads=p, dilations=d, groups=g"
POOL = "kernel=k, strides=s, pads=p, dilations=d"
ONE = "strides=s, pads=p, dilations=d, groups=1"
SAME = ("shape(x) == shape(y)",)

RIGHT = (
    (f"conv(x, w, {CONV}) + conv(y, w, {CONV})", f"conv(x + y, w, {CONV})", SAME),
    (f"conv(concat(x, y, axis=0), w, {CONV})", f"concat(conv(x, w, {CONV}), conv(y, w, {CONV}), axis=0)", ()),
    (f"conv(x, concat(a, b, axis=0), {ONE})", f"concat(conv(x, a, {ONE}), conv(x, b, {ONE}), axis=1)", ()),
    (f"avg_pool(x + y, {POOL})", f"avg_pool(x, {POOL}) + avg_pool(y, {POOL})", SAME),
)
WRONG = (
    (f"conv(x + y, w, {CONV})", f"conv(x, w, {CONV}) + conv(y, w, {CONV})", ()),  # a row is not an image
    (f"conv(x, w, {CONV}) + conv(y, w, {CONV})", f"conv(x - y, w, {CONV})", SAME),
    (
        "conv(x, w, strides=s, pads=p, dilations=d, groups=g)",
        "conv(x, w, strides=d, pads=p, dilations=s, groups=g)",
        (),
    ),
    (f"conv(x, w, {ONE})", "conv(x, w, strides=(s[1], s[0]), pads=p, dilations=d, groups=1)", ("rank(x) == 4",)),
    (f"conv(x, concat(a, b, axis=0), {CONV})", f"concat(conv(x, a, {CONV}), conv(x, b, {CONV}), axis=1)", ()),  # groups
    (f"conv(x, concat(a, b, axis=0), {ONE})", f"concat(conv(x, b, {ONE}), conv(x, a, {ONE}), axis=1)", ()),
    (f"conv(pad(x, axis=2, lo=l, hi=h), w, {CONV})", f"conv(x, w, {CONV})", ()),
    (f"avg_pool(x * y, {POOL})", f"avg_pool(x, {POOL}) * avg_pool(y, {POOL})", SAME),
    (f"avg_pool(x, {POOL})", "avg_pool(x, kernel=k, strides=s, pads=p, dilations=s)", ()),
    (f"avg_pool(avg_pool(x, {POOL}), {POOL})", f"avg_pool(x, {POOL})", ()),
    (f"avg_pool(concat(x, y, axis=2), {POOL})", f"concat(avg_pool(x, {POOL}), avg_pool(y, {POOL}), axis=2)", ()),
    (f"conv(concat(x, y, axis=1), w, {ONE})", f"conv(concat(y, x, axis=1), w, {ONE})", ()),
)


@pytest.mark.parametrize(("left", "right", "when"), RIGHT)
def test_right_rules_are_proved(left: str, right: str, when: tuple[str, ...]) -> None:
    done, why = prove(Rule("one", left, right, when=when))
    assert done, why


@pytest.mark.parametrize(("left", "right", "when"), WRONG)
def test_wrong_rules_are_not(left: str, right: str, when: tuple[str, ...]) -> None:
    assert not prove(Rule("one", left, right, when=when))[0]


UNIT = "cast(eq(iota(axis=0, shape=s, dtype='int64'), iota(axis=1, shape=s, dtype='int64')), dtype=f)"


def test_unit_matrices_are_square() -> None:
    assert prove(Rule("one", f"x @ {UNIT}", "x", when=("len(s) == 2", "s[0] == s[1]")))[0]
    assert not prove(Rule("one", f"x @ {UNIT}", "x", when=("len(s) == 2",)))[0]
    assert not prove(Rule("one", f"x @ {UNIT.replace('axis=1', 'axis=0')}", "x", when=("len(s) == 2", "s[0] == s[1]")))[
        0
    ]
    assert not prove(Rule("one", f"{UNIT} @ x", "x + x", when=("len(s) == 2", "s[0] == s[1]")))[0]


def test_a_constant_in_other_shapes() -> None:
    fill = "broadcast_to(full(value=v, shape=s, dtype=d), shape=t)"
    assert prove(Rule("one", fill, "full(value=v, shape=t, dtype=d)", exact=True))[0]
    assert not prove(Rule("one", fill, "full(value=v, shape=s, dtype=d)", exact=True))[0]


POINTWISE = ("size(w, 2) == 1", "size(w, 3) == 1")
STRIDED = "conv(x, w, strides=s, pads=(0, 0, 0, 0), dilations=d, groups=g)"
SLICED = ("conv(slice(slice(x, axis=2, start=0, stop=size(x, 2), step=s[0]), axis=3, start=0, stop=size(x, 3), step=s[1]), w,"
          " strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=g)")  # fmt: skip


def test_windows_of_one_place_are_slices() -> None:
    assert prove(Rule("one", STRIDED, SLICED, when=POINTWISE))[0]
    assert not prove(Rule("one", STRIDED, SLICED, when=POINTWISE[:1]))[0]
    for old, new in (("start=0", "start=1"), ("step=s[1]", "step=s[0]"), ("step=s[1]", "step=1"), ("(1, 1),", "s,")):
        assert not prove(Rule("one", STRIDED, SLICED.replace(old, new, 1), when=POINTWISE))[0]


@pytest.mark.parametrize(
    ("left", "right", "holds"),
    [
        ("recip(recip(x))", "x", True),
        ("x / (y / z)", "(x * z) / y", True),
        ("recip(x) + recip(recip(x))", "recip(x) + x", True),
        ("recip(recip(x))", "abs(x)", False),
        ("recip(x / y) * recip(y)", "recip(x)", False),  # 0 times infinity where y is 0
        ("x / (x / y)", "y", False),  # 0 / 0 where x is 0
        ("(x / y) / (z / y)", "x / z", False),
        ("recip(x) * x", "recip(x) * x * x * recip(x)", True),
        ("x / (y / y)", "x", False),
    ],
)
def test_by_what_is_infinite_nothing_is_left(left: str, right: str, holds: bool) -> None:
    assert prove(Rule("one", left, right, when=("floating(x)",)))[0] == holds
