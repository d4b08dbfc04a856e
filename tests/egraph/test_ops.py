"""Every entry of the op table: its law against its NumPy meaning, its algebra, its decomposition."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites.composite import expand
from tensor_graphs.egraph.evaluate.interpret import apply, evaluate
from tensor_graphs.egraph.ir.tensor import LEAVES, make, topological
from tensor_graphs.egraph.ops.laws_training import ATTENTION_ORDER
from tensor_graphs.egraph.ops.ops import OPS, Op
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.errors import ShapeError

FLOATS = ("float32", "float64", "float16", "bfloat16")
ALL = (*FLOATS, "int32", "int64", "uint8", "bool")
Shapes = tuple[tuple[int, ...], ...]

#: law -> operand shapes and attributes to try; ops of the pointwise laws take `_POINTWISE` by arity.
_POINTWISE: dict[int, tuple[Shapes, ...]] = {
    1: (((2, 3),), ((),), ((0, 2),), ((1,),)),
    2: (((2, 3), (2, 3)), ((2, 1), (1, 3)), ((), ()), ((0, 2), (1, 2))),
    3: (((2, 3), (2, 3), (2, 3)), ((2, 1), (1, 3), (1, 1)), ((0,), (1,), (1,))),
}
_POOLS = [(((1, 2, 5, 4),), {"kernel": (2, 3), "strides": (1, 2), "pads": (1, 1, 0, 1), "dilations": (1, 1)}),
          (((2, 1, 6),), {"kernel": (2,), "strides": (2,), "pads": (0, 0), "dilations": (2,)})]  # fmt: skip
_ATTENTION: list[dict[str, Any]] = [
    {"scale": 0.5}, {"scale": 0.5, "causal": True}, {"scale": 1.0, "causal": True, "window": 2},
    {"scale": 2.0, "softcap": 3.0}]  # fmt: skip
_QKV: Shapes = ((2, 2, 3, 4), (2, 1, 5, 4), (2, 1, 5, 6))
_QKV_GRADIENT: Shapes = ((2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 6))
CASES: dict[str, list[tuple[Shapes, dict[str, Any]]]] = {
    "reduce": [(((2, 3, 4),), {"axes": a}) for a in ((0,), (1, 2), (), (0, 1, 2))] + [(((2, 1),), {"axes": (1,)})],
    "arg_reduce": [(((2, 3),), {"axis": a}) for a in (0, 1)],
    "along": [(((2, 3),), {"axis": 0}), (((2, 3),), {"axis": 1}), (((0, 3),), {"axis": 1})],
    "along_index": [(((4, 3),), {"axis": a, "descending": d}) for a in (0, 1) for d in (False, True)],
    "matmul": [(s, {}) for s in (((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (1, 3, 4)), ((1, 0), (0, 2)))],
    "conv": [
        (((2, 4, 6, 5), (6, 2, 3, 2)), {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "groups": 2}),
        (((1, 3, 5), (2, 3, 1)), {"strides": (1,), "pads": (0, 0), "dilations": (1,), "groups": 1}),
        (((1, 4, 5), (4, 1, 3)), {"strides": (1,), "pads": (1, 1), "dilations": (1,), "groups": 4}),
        (((2, 3, 7, 6), (6, 1, 3, 2)), {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2), "groups": 3}),
    ],
    "pool": _POOLS,
    "reshape": [(((2, 6),), {"shape": s}) for s in ((12,), (3, 1, 4))] + [(((),), {"shape": (1, 1)})],
    "permute": [(((2, 3, 4),), {"perm": p}) for p in itertools.permutations(range(3))],
    "broadcast_to": [(((2, 1, 3),), {"shape": (2, 4, 3)}), (((1,),), {"shape": (0,)})],
    "slice": [(((7, 2),), {"axis": 0, "start": a, "stop": b, "step": s})
              for a, b, s in ((0, 7, 1), (1, 6, 2), (3, 3, 1), (2, 7, 3), (6, 7, 5))],
    "concat": [(((2, 3), (2, 4)), {"axis": 1}), (((0, 3), (2, 3)), {"axis": 0})],
    "pad": [(((2, 3),), {"axis": 1, "lo": 1, "hi": 2, "value": 1.0}), (((0, 2),), {"axis": 0, "lo": 1, "hi": 0})],
    "windows": [(((7, 2),), {"axis": 0, "size": 3, "stride": 2, "dilation": 2}), (((2, 5),), {"axis": 1, "size": 2})],
    "gather": [(((5, 3), (2, 2)), {"axis": 0}), (((2, 5), ()), {"axis": 1}), (((5,), (0,)), {"axis": 0})],
    "gather_elements": [(((5, 3), (2, 3)), {"axis": 0}), (((2, 5), (1, 4)), {"axis": 1})],
    "scatter_elements": [(((5, 3), (2, 3), (2, 3)), {"axis": 0, "mode": m})
                         for m in ("set", "add", "mul", "max", "min")],
    "norm": [(((2, 3, 4), (4,), (4,)), {}), (((1, 1), (1,), (1,)), {"eps": 0.5})],
    "channel_norm": [(((2, 4, 3), (4,), (4,), (4,), (4,)), {})],
    "linear": [(((2, 3, 4), (4, 5), (5,)), {})],
    "attention": [((*_QKV, (2, 1, 3, 5)), a) for a in _ATTENTION],
    "rope": [(((2, 3, 4), (1, 3, 4), (1, 3, 4)), {})],
    "cross_entropy": [(((3, 5), (3,)), {})],
    "recurrent": [
        (((3, 2, 4), (states,), (weights,)),
         {"cell": cell, "variant": variant, "activations": acts, "hidden": 5, "width": width, "layers": layers,
          "directions": directions})
        for cell, variant, acts, width, layers, directions, states, weights in (
            ("lstm", "", "sigmoid tanh tanh", 5, 2, 2, 80, 1120), ("lstm", "peephole coupled", "sigmoid tanh tanh", 3, 1, 1, 16, 210),
            ("gru", "", "sigmoid tanh", 5, 1, 2, 20, 330), ("gru", "reset first", "softsign softplus", 5, 2, 1, 20, 345),
            ("plain", "", "relu", 5, 1, 1, 10, 55))],
    "same": [(((2, 3, 4),), {"axis": a}) for a in (0, 1, 2)],
    "cast": [(((2, 3),), {"dtype": d}) for d in ALL],
    "from_float8": [(((2, 3),), {"dtype": d}) for d in FLOATS],
    "unpack": [(((2, 4),), {"bits": b, "form": f, "axis": a, "block": n, "dtype": d}) for b, f, a, n, d in (
        (4, "unsigned", 1, 2, "float32"), (4, "signed", 0, 1, "float64"), (2, "signed", 1, 4, "float32"), (4, "e2m1", 0, 2, "bfloat16"))],
    "conv_input_gradient": [(((2, 6, 4, 4), (6, 2, 3, 2)), {"shape": (2, 4, 7, 5), "strides": (2, 1), "pads": (1, 0, 1, 1),
                                                             "dilations": (1, 2), "groups": 2}),
                            (((1, 2, 7), (2, 3, 1)), {"shape": (1, 3, 5), "strides": (1,), "pads": (1, 1), "dilations": (1,), "groups": 1})],
    "conv_weight_gradient": [(((2, 4, 7, 5), (2, 6, 4, 4)), {"shape": (6, 2, 3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1),
                                                              "dilations": (1, 2), "groups": 2}),
                             (((1, 3, 5), (1, 2, 7)), {"shape": (2, 3, 1), "strides": (1,), "pads": (1, 1), "dilations": (1,), "groups": 1})],
    "norm_gradient": [(((2, 3, 4), (2, 3, 4), (4,), (2, 3, 1), (2, 3, 1)), {})],
    "channel_norm_gradient": [(((2, 4, 3), (2, 4, 3), (4,), (4,), (4,)), {})],
    "channel_statistic": [(((2, 4, 3),), {}), (((3, 2),), {})],
    "group_statistic": [(((2, 4, 3),), {"groups": 2}), (((3, 2),), {"groups": 1})],
    "group_gain_gradient": [(((2, 4, 3), (2, 4, 3), (2, 2), (2, 2)), {"groups": 2})],
    "softmax_gradient": [(((2, 3, 4), (2, 3, 4)), {"axis": a}) for a in (0, 1, 2)],
    "attention_statistics": [(((2, 2, 3, 4), (2, 2, 3, 4), (2, 1, 3, 3)), {"scale": 0.5, "causal": c}) for c in (False, True)],
    "attention_gradient": [
        ((*(_QKV_GRADIENT[i] for i in order), (2, 2, 3, 6), (2, 2, 3, 6), (2, 2, 3, 1), (2, 1, 3, 3)),
         {"of": of, "scale": 0.5, "causal": causal})
        for of, order in ATTENTION_ORDER.items() for causal in (False, True)],
    "pool_indices": _POOLS,
    "max_pool_gradient": [(((2, 2, 3, 2), (2, 2, 3, 2)), {"shape": (2, 2, 5, 4)}), (((1, 2, 3), (1, 2, 3)), {"shape": (1, 2, 7)})],
    "embedding_gradient": [(((2, 3, 4), (2, 3)), {"shape": (5, 4), "skipped": s}) for s in (-1, 1)],
    "dequantize": [(s, {}) for s in (((4, 6), (2, 3), (2, 3)), ((4, 6), (4, 1), (1, 1)), ((2, 0), (1, 1), (1, 1)))],
    "quantize": [(s, {}) for s in (((4, 6), (1, 1), (1, 1)), ((4, 6), (4, 1), (1, 1)), ((3, 2), (1, 2), (1, 2)), ((2, 0), (1, 1), (1, 1)))],
    "integer_conv": [(((2, 4, 7, 5), (6, 2, 3, 2), (1, 1, 1, 1), (6, 1, 1, 1)),
                      {"strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2), "groups": 2}),
                     (((1, 3, 5), (2, 3, 1), (1, 1, 1), (1, 1, 1)), {"strides": (1,), "pads": (0, 1), "dilations": (1,), "groups": 1})],
    "integer_matmul": [(s, {}) for s in (((2, 3, 4), (4, 5), (1, 1, 1), (1, 5)), ((2, 3, 4), (2, 4, 5), (1, 1, 1), (1, 1, 1)))],
}  # fmt: skip
#: op -> attributes beside those of its law's cases.
EXTRA: dict[str, dict[str, Any]] = {"group_norm": {"groups": 2}}
COMPUTED = [op for op in OPS.values() if op.name not in (*LEAVES, "full", "iota")]
FLOAT_MEANING = {"pow", "floordiv", "mod"}  # integers: negative powers and division by zero are not defined


#: Laws of ops whose second operand holds indices.
INDEXED = ("gather", "gather_elements", "scatter_elements", "cross_entropy", "max_pool_gradient", "embedding_gradient")


def cases(op: Op) -> list[tuple[Shapes, dict[str, Any]]]:
    """Operand shapes and attributes for an op."""
    if op.law in ("pointwise", "compare", "where"):
        return [(s, {}) for s in _POINTWISE[op.arity]]
    if op.name == "group_norm_gradient":
        return [(((2, 4, 3), (2, 4, 3), (4,), (2, 2), (2, 2)), {"groups": 2})]
    return [(s[: op.arity], {k: v for k, v in {**a, **EXTRA.get(op.name, {})}.items() if k in op.attrs})
            for s, a in CASES[op.law]]  # fmt: skip


def operand_dtypes(op: Op, dtype: str) -> list[str]:
    """The operands' dtypes where the first data operand has this one."""
    if op.law == "where":
        return ["bool", dtype, dtype]
    kinds = [dtype] * op.arity
    if op.law == "dequantize":
        kinds[1:] = "float32", "int8"
    if op.law == "quantize":
        kinds[2] = "int8"
    if op.name == "hiding_attention":
        kinds[3] = "bool"
    if op.law in ("integer_conv", "integer_matmul"):
        kinds[1] = kinds[3] = "int8"
    if op.law in INDEXED:
        kinds[1] = "int64"
    return kinds


def legal(op: Op) -> tuple[str, ...]:
    """The dtypes an op is defined for."""
    if op.law in ("from_float8", "unpack"):
        return ("uint8",)
    if op.law in ("integer_conv", "integer_matmul"):
        return ("uint8", "int8")
    if (
        op.floats_only
        or op.law in ("attention", "conv", "max_pool_gradient", "embedding_gradient")
        or op.name in FLOAT_MEANING
    ):
        return FLOATS
    if op.name in ("cross_entropy", "quantize"):
        return ("float32", "float64")
    if op.name in ("and", "or", "xor"):
        return ("int32", "int64", "uint8", "bool")
    if op.name == "not":
        return ("bool",)
    if op.name in ("neg", "sign", "sub"):
        return tuple(d for d in ALL if d != "bool")
    return ALL


def arrays(op: Op, shapes: Shapes, kinds: list[str], seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Operand data: small positive numbers, indices within the first operand's axis."""
    rng = np.random.default_rng(seed)
    found = []
    for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True)):
        category = dtypes.category(kind)
        if i == 1 and op.law in INDEXED:
            found.append(_indices(op, shapes, rng))
        elif category == "float":
            found.append(np.asarray(rng.uniform(0.25, 2.0, shape)).astype(dtypes.numpy_dtype(kind)))
        else:
            found.append(np.asarray(rng.integers(0, 2 if category == "bool" else 6, shape)).astype(kind))
    return found


def _indices(op: Op, shapes: Shapes, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    lines = [rng.permutation(2) for _ in range(int(np.prod(shapes[1])))]  # distinct where a scatter would collide
    if op.law == "scatter_elements":
        return np.stack([rng.permutation(5)[:2] for _ in range(3)], 1).astype(np.int64)
    return np.array([line[0] for line in lines], np.int64).reshape(shapes[1])


@pytest.mark.parametrize("op", COMPUTED, ids=lambda op: op.name)
def test_the_law_agrees_with_the_meaning(op: Op) -> None:
    for dtype, (shapes, attrs) in itertools.product(legal(op), cases(op)):
        kinds = operand_dtypes(op, dtype)
        leaves = [t.input(f"x{i}", s, k) for i, (s, k) in enumerate(zip(shapes, kinds, strict=True))]
        node = make(op.name, leaves, attrs)
        data = arrays(op, shapes, kinds)
        with np.errstate(all="ignore"):
            found = apply(node, data) if not op.composite else evaluate([node], named(data))[0]
        assert found.shape == node.shape, (dtype, shapes, attrs)
        assert dtypes.name_of(found.dtype) == node.dtype, (dtype, shapes, attrs)


def named(data: list[np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {f"x{i}": a for i, a in enumerate(data)}


@pytest.mark.parametrize("op", [op for op in COMPUTED if op.composite], ids=lambda op: op.name)
def test_decompositions(op: Op) -> None:
    """The type of a decomposition is the op's, its own op is not in it, and expanding ends."""
    for shapes, attrs in cases(op):
        kinds = operand_dtypes(op, "float32" if "float32" in legal(op) else legal(op)[0])
        node = make(op.name, [t.input(f"x{i}", s, k) for i, (s, k) in enumerate(zip(shapes, kinds))], attrs)
        seen: set[str] = set()
        pending = [node]
        while pending:
            inner = expand(pending.pop())
            names = {n.op for n in topological([inner])}
            assert op.name not in names
            pending += [n for n in topological([inner]) if OPS[n.op].composite and n.op not in seen]
            seen |= names
        assert expand(node).type == node.type


@pytest.mark.parametrize("dtype", ["float64", "int64"])
@pytest.mark.parametrize("op", [op for op in COMPUTED if op.commutative or op.associative], ids=lambda op: op.name)
def test_commutative_and_associative(op: Op, dtype: str) -> None:
    dtype = dtype if dtype in legal(op) else "bool"
    x, y, z = (a for seed in range(3) for a in arrays(op, ((4, 3),), [dtype], seed))
    f = OPS[op.name].numpy
    assert f is not None
    if op.commutative:
        np.testing.assert_array_equal(f({}, x, y), f({}, y, x))
    if op.associative:
        np.testing.assert_allclose(f({}, f({}, x, y), z), f({}, x, f({}, y, z)), rtol=1e-14)


@pytest.mark.parametrize("op", [op for op in COMPUTED if op.linear], ids=lambda op: op.name)
def test_linear_operands(op: Op) -> None:
    """Bilinear ops are linear in each named operand; add, sub, where and concat in all of them at once."""
    jointly = op.name in ("add", "sub", "where")
    for shapes, attrs in cases(op):
        if attrs.get("dtype", "float64") not in ("float32", "float64"):
            continue
        kinds = operand_dtypes(op, "float64")
        first, second = arrays(op, shapes, kinds, 1), arrays(op, shapes, kinds, 2)
        rest = arrays(op, shapes, kinds, 3)
        for group in [op.linear] if jointly else [(i,) for i in op.linear]:
            u = [first[i] if i in group else rest[i] for i in range(op.arity)]
            v = [second[i] if i in group else rest[i] for i in range(op.arity)]
            both = [2.0 * a - b if i in group else a for i, (a, b) in enumerate(zip(u, v))]
            found, parts = meaning(op, attrs, both), [meaning(op, attrs, w) for w in (u, v)]
            np.testing.assert_allclose(found, 2.0 * parts[0] - parts[1], rtol=1e-5, atol=1e-6)


def meaning(op: Op, attrs: dict[str, Any], data: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    leaves = [t.input(f"x{i}", a.shape, dtypes.name_of(a.dtype)) for i, a in enumerate(data)]
    return evaluate([make(op.name, leaves, attrs)], named(data), float64=True)[0]


@pytest.mark.parametrize("op", [op for op in COMPUTED if op.monoid], ids=lambda op: op.name)
def test_reductions_fold_their_monoid(op: Op) -> None:
    (x,) = arrays(op, ((3, 4),), ["float64"])
    fold = OPS[op.monoid].numpy
    assert fold is not None and op.numpy is not None
    total = x[:, :1]
    for k in range(1, 4):
        total = fold({}, total, x[:, k : k + 1])
    np.testing.assert_allclose(op.numpy({"axes": (1,)}, x), total, rtol=1e-14)


#: What NumPy and Python call the same thing, as a check that is independent of the table.
REFERENCE: dict[str, Any] = {
    "relu": lambda x: np.maximum(x, 0), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)), "softplus": lambda x: np.log1p(np.exp(x)),
    "rsqrt": lambda x: 1 / np.sqrt(x), "recip": lambda x: 1 / x, "round": np.round,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6, "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCE)
def test_known_functions(name: str) -> None:
    x = np.linspace(0.1, 5, 7) if name in ("rsqrt", "recip") else np.linspace(-5, 5, 21)
    np.testing.assert_allclose(meaning(OPS[name], {}, [x]), REFERENCE[name](x), rtol=1e-12, atol=1e-15)


def test_composites_against_torch() -> None:
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    x, w, b, m, v = arrays(OPS["batch_norm"], ((2, 4, 5), (4,), (4,), (4,), (4,)), ["float64"] * 5)
    last = [a[:4] for a in arrays(OPS["layer_norm"], ((2, 5, 4), (4,), (4,)), ["float64"] * 3)]
    q, k, u = arrays(OPS["attention"], ((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 6)), ["float64"] * 3)
    T = torch.from_numpy
    pairs = {
        "batch_norm": ([x, w, b, m, v], {}, F.batch_norm(T(x), T(m), T(v), T(w), T(b))),
        "group_norm": ([x, w, b], {"groups": 2}, F.group_norm(T(x), 2, T(w), T(b))),
        "layer_norm": (last, {}, F.layer_norm(T(last[0]), (4,), T(last[1]), T(last[2]))),
        "rms_norm": (last[:2], {}, F.rms_norm(T(last[0]), (4,), T(last[1]), 1e-6)),
        "gelu": ([x - 1], {}, F.gelu(T(x - 1))),
        "gelu_tanh": ([x - 1], {}, F.gelu(T(x - 1), approximate="tanh")),
        "elu": ([x - 1], {"alpha": 0.7}, F.elu(T(x - 1), 0.7)),
        "leaky_relu": ([x - 1], {}, F.leaky_relu(T(x - 1))),
        "hard_sigmoid": ([x * 4 - 5], {}, F.hardsigmoid(T(x * 4 - 5))),
        "softmax": ([x], {"axis": 1}, F.softmax(T(x), 1)),
        "log_softmax": ([x], {"axis": 2}, F.log_softmax(T(x), 2)),
        "logsumexp": ([x], {"axes": (1, 2)}, torch.logsumexp(T(x), (1, 2), keepdim=True)),
        "attention": ([q, k, u], {"scale": 0.3, "causal": True},
                      F.scaled_dot_product_attention(T(q), T(k), T(u), is_causal=True, scale=0.3)),
        "max_pool": ([x[None]], {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 1, 1, 1), "dilations": (1, 2)},
                     F.max_pool2d(T(x[None]), (3, 2), (2, 1), (1, 1), (1, 2))),
        "avg_pool": ([x[None]], {"kernel": (2, 2), "strides": (1, 2), "pads": (1, 0, 1, 0), "dilations": (1, 1)},
                     F.avg_pool2d(T(x[None]), (2, 2), (1, 2), (1, 0))),
        "conv": ([x, w.reshape(4, 1, 1) * np.ones((4, 2, 3))],
                 {"strides": (2,), "pads": (1, 1), "dilations": (2,), "groups": 2},
                 F.conv1d(T(x), T(w.reshape(4, 1, 1) * np.ones((4, 2, 3))), None, 2, 1, 2, 2)),
    }  # fmt: skip
    for name, (data, attrs, expected) in pairs.items():
        np.testing.assert_allclose(meaning(OPS[name], attrs, data), expected.numpy(), rtol=1e-10, err_msg=name)


# ---------------------------------------------------------------- indexing against NumPy
def _keys(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    one = lambda n: st.one_of(st.integers(-n, n - 1), st.slices(n))
    parts = st.tuples(*(one(n) for n in shape))
    cut = st.tuples(parts, st.integers(0, len(shape)), st.lists(st.integers(0, len(shape)), max_size=2), st.booleans())

    def build(drawn: Any) -> Any:
        keys, keep, news, dots = drawn
        found: list[Any] = list(keys[:keep])
        for at in news:
            found.insert(min(at, len(found)), None)
        return (*found, ...) if dots else tuple(found)

    return cut.map(build)


@settings(deadline=None, max_examples=200)
@given(_keys((3, 4, 2)))
def test_basic_indexing_is_numpys(key: Any) -> None:
    x = np.arange(24.0).reshape(3, 4, 2)
    found = evaluate([t.input("x", x.shape, "float64")[key]], {"x": x})[0]
    np.testing.assert_array_equal(found, x[key])


def test_a_tensor_index_gathers() -> None:
    x, i = np.arange(24.0).reshape(3, 4, 2), np.array([[3, 0], [1, 1]])
    value = t.input("x", x.shape, "float64")
    index = t.constant(i)
    for key, expected in (((index,), x[i.clip(0, 2)]), ((slice(None), index), x[:, i]), ((0, index), x[0, i])):
        np.testing.assert_array_equal(evaluate([value[key]], {"x": x})[0], expected)


BUILDERS: dict[str, tuple[Any, Any]] = {
    "matmul 1-d": (lambda x, y: t.matmul(t.reshape(x, (6,)), t.reshape(y, (6,))), lambda x, y: x.ravel() @ y.ravel()),
    "matmul row": (lambda x, y: t.reshape(x, (6,)) @ t.reshape(y, (6, 1)), lambda x, y: x.ravel() @ y.reshape(6, 1)),
    "matmul column": (lambda x, y: x @ y[0], lambda x, y: x @ y[0]),
    "broadcast": (lambda x, y: x[:, None] + y, lambda x, y: x[:, None] + y),
    "reflected": (lambda x, y: 2 / (1 - x) - y, lambda x, y: 2 / (1 - x) - y),
    "power": (lambda x, y: x**2 + y**0.5, lambda x, y: x**2 + y**0.5),
    "compare": (lambda x, y: t.where(x >= y, x, 0.0), lambda x, y: np.where(x >= y, x, 0.0)),
    "variance": (lambda x, y: t.var(x, -1, correction=1), lambda x, y: x.var(-1, ddof=1)),
    "mean of all": (lambda x, y: t.mean(x), lambda x, y: x.mean()),
    "stack": (lambda x, y: t.stack([x, y], -1), lambda x, y: np.stack([x, y], -1)),
    "split": (lambda x, y: t.split(x, [1, 2], 1)[1], lambda x, y: x[:, 1:]),
    "swapaxes": (lambda x, y: t.swapaxes(x, 0, -1) + y.T, lambda x, y: x.T + y.T),
    "squeeze": (lambda x, y: t.squeeze(t.expand_dims(x, -1)), lambda x, y: x),
    "pad": (
        lambda x, y: t.pad(x, [(0, 1), (2, 0)], 7.0),
        lambda x, y: np.pad(x, [(0, 1), (2, 0)], constant_values=7.0),
    ),
    "flip": (lambda x, y: t.flip(x, -1), lambda x, y: x[:, ::-1]),
    "cumsum": (lambda x, y: t.cumsum(x, -1), lambda x, y: x.cumsum(-1)),
    "argsort": (lambda x, y: t.argsort(x, 1, True), lambda x, y: np.argsort(-x, 1, kind="stable")),
    "argmax": (lambda x, y: t.argmax(x, -1), lambda x, y: x.argmax(-1)),
    "any, all": (lambda x, y: t.any(x > y, 1) & t.all(x < y + 9, 1), lambda x, y: (x > y).any(1) & (x < y + 9).all(1)),
    "reshape -1": (lambda x, y: x.reshape(-1, 2), lambda x, y: x.reshape(-1, 2)),
    "broadcast_to": (lambda x, y: t.broadcast_to(x, (4, 2, 3)), lambda x, y: np.broadcast_to(x, (4, 2, 3))),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_builders_are_numpys(name: str) -> None:
    ours, theirs = BUILDERS[name]
    rng = np.random.default_rng(3)
    x, y = rng.uniform(1.5, 3, (2, 3)), rng.uniform(1.5, 3, (2, 3))
    found = evaluate([ours(t.input("x", (2, 3), "float64"), t.input("y", (2, 3), "float64"))], {"x": x, "y": y})[0]
    np.testing.assert_allclose(found, theirs(x, y), rtol=1e-14)


def test_importers_compose_only_functions_that_are_no_ops() -> None:
    """An op of the same name would have a meaning and texts of its own: the importers must then call it."""
    from tensor_graphs.models.common import identities

    assert not {*identities.__all__} & {*OPS}


@pytest.mark.parametrize(
    "build",
    [
        lambda x, w: make("reshape", (x,), {"shape": (1, 1, -5, -5)}),
        lambda x, w: t.broadcast_to(x, (-2, 1, 1, 5, 5)),
        lambda x, w: t.windows(x, 3, 0),
        lambda x, w: t.windows(x, 3, -1),
        lambda x, w: t.windows(x, 3, 2, 0),
        *[
            lambda x, w, how=how: t.conv(x, w, **how)
            for how in (
                {"strides": (0, 1)}, {"strides": (-1, 1)}, {"strides": (1 << 62, 1)}, {"dilations": (0, 0)}, {"dilations": (-1, 1)},
                {"pads": (-1, 0, 0, 0)}, {"pads": (0, 0, 0, -1)},
            )
        ],
    ],
)  # fmt: skip
def test_impossible_sizes_are_refused(build):
    with pytest.raises(ShapeError):
        build(t.input("x", (1, 1, 5, 5)), t.param("w", (1, 1, 3, 3)))
