"""Shape laws and index maps of views in proofs, on concrete sizes, against those in Python."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.ops.ops import OPS, Type
from tensor_graphs.egraph.ops.type_laws import infer
from tensor_graphs.errors import ShapeError
from tensor_graphs.rules.semantics.structures import VIEW_LAWS, is_view

pytest.importorskip("z3")
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.rules.smt.prove import _World
from tensor_graphs.rules.smt.unknowns import IllTyped, SizeFacts, Sym

CASES: list[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    ("permute", ((2, 3, 4),), {"perm": (2, 0, 1)}),
    ("permute", ((2, 3),), {"perm": (0, 0)}),
    ("slice", ((3, 7),), {"axis": 1, "start": 1, "stop": 6, "step": 2}),
    ("slice", ((3, 7),), {"axis": 1, "start": 2, "stop": 7, "step": 1}),
    ("slice", ((3, 7),), {"axis": 1, "start": 2, "stop": 8, "step": 1}),
    ("slice", ((3, 7),), {"axis": 0, "start": 2, "stop": 1, "step": 1}),
    ("flip", ((3, 4),), {"axis": 1}),
    ("concat", ((2, 3), (2, 4)), {"axis": 1}),
    ("concat", ((2, 3), (3, 3)), {"axis": 1}),
    ("pad", ((2, 3),), {"axis": 1, "lo": 2, "hi": 1, "value": 0.5}),
    ("pad", ((2, 3),), {"axis": 1, "lo": -1, "hi": 1, "value": 0.5}),
    ("broadcast_to", ((2, 1, 3),), {"shape": (2, 4, 3)}),
    ("broadcast_to", ((2, 1, 3),), {"shape": (3, 4, 3)}),
]


def _element(data: np.ndarray, world: _World, i: Any) -> Any:
    at = [int(str(world.z.simplify(k))) if world.z.is_expr(k) else int(k) for k in i]
    inside = all(0 <= k < n for k, n in zip(at, data.shape))
    return world.z.RealVal(float(data[tuple(at)]) if inside else 99)  # a guard discards what lies outside


@pytest.mark.parametrize(("op", "shapes", "attrs"), CASES)
def test_views_in_proofs_are_those_in_python(op: str, shapes: Any, attrs: dict[str, Any]) -> None:
    world = _World(Rule("r", "x + y", "y + x"), {"x": 1, "y": 1}, {}, True)
    z, entry, facts = world.z, OPS[op], SizeFacts()
    data = [np.arange(float(np.prod(s))).reshape(s) + 7 * k for k, s in enumerate(shapes)]
    args = [
        Sym(tuple(map(z.IntVal, d.shape)), world.code("float32"), lambda i, d=d: _element(d, world, i)) for d in data
    ]
    solver = {n: z.IntVal(v) if isinstance(v, int) and n not in ("axis", "step") else v for n, v in attrs.items()}
    try:
        want = infer(entry, [Type(s, "float32") for s in shapes], attrs).shape
    except ShapeError:
        try:
            world.view(entry, args, solver, facts)
        except IllTyped:
            return
        assert z.is_false(z.simplify(z.And(*facts.conditions)))
        return
    found = world.view(entry, args, solver, facts)
    assert tuple(int(str(z.simplify(d))) if z.is_expr(d) else d for d in found.shape) == want
    assert z.is_true(z.simplify(z.And(*facts.conditions, True)))
    assert entry.numpy is not None
    values = entry.numpy(attrs, *data)
    for i in product(*map(range, want)):
        made = z.simplify(found.at(list(map(z.IntVal, i))))
        assert float(made.as_fraction()) == values[i]


def test_the_known_laws_are_those_listed() -> None:
    world = _World(Rule("r", "x + y", "y + x"), {"x": 1, "y": 1}, {}, True)
    assert tuple(world.laws) == VIEW_LAWS and not is_view("windows")
