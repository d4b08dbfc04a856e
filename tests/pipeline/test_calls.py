"""What a caller may hand to `optimize` and to a program: named and nested arguments, results with None, Torch
functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.runtime.arguments import unfolded
from tensor_graphs.errors import ExportError, ShapeError, TooLargeError, UsageError

QUICK: dict[str, Any] = {"backend": "numpy", "measure": False, "budget": 5.0}


def test_modules_are_called_as_they_were_exported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Nested(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, batch: Any, pair: Any, *, scale: Any, extra: Any = None) -> Any:
            first = batch["x"] * scale + pair[0]
            return {"a": first, "b": [pair[1], (batch["y"],)], "none": None, "deep": {"n": (None, first - 1)}}

    batch, pair, scale = (
        {"x": torch.ones(3), "y": torch.full((3,), 2.0)},
        [torch.ones(3), torch.zeros(2)],
        torch.ones(3),
    )
    made = tg.optimize(Nested(), (batch, pair), example_kwargs={"scale": scale}, **QUICK)
    for program in (made, tg.load_program(made.save(tmp_path / "out"))):
        found = program({"y": batch["y"], "x": 3 * batch["x"]}, pair, scale=scale)
        assert found["none"] is None and found["deep"]["n"][0] is None
        assert found["a"].tolist() == [4, 4, 4] and found["b"][1][0].tolist() == [2, 2, 2]
        assert found["deep"]["n"][1].tolist() == [3, 3, 3] and found["b"][0].shape == (2,)
        with pytest.raises(UsageError, match="missing"):
            program(batch, pair)
        with pytest.raises(ShapeError, match="batch_x"):
            program({"x": torch.ones(4), "y": batch["y"]}, pair, scale=scale)


@pytest.mark.parametrize(
    ("args", "named", "names", "order"),
    [
        (({"b": 2, "a": 1}, 3), {}, ["d_a", "d_b", "x"], {"d_a": 1, "d_b": 2, "x": 3}),
        (([1, 2], [3]), {}, ["p_0", "p_1", "q_0"], {"p_0": 1, "p_1": 2, "q_0": 3}),
        ((1,), {"kv": (2, 3)}, ["x", "kv_0", "kv_1"], {"x": 1, "kv_0": 2, "kv_1": 3}),
        (([1, [2]],), {}, ["s_0", "s_1_0"], {"s_0": 1, "s_1_0": 2}),
        (([1, 2],), {}, ["s_0"], None),
        ((1, 2), {}, ["x", "y"], None),
    ],
)
def test_nested_arguments_find_their_inputs(args: Any, named: Any, names: list[str], order: Any) -> None:
    wrap = lambda v: (
        np.array(v) if isinstance(v, int)
        else {k: wrap(w) for k, w in v.items()} if isinstance(v, dict) else type(v)(map(wrap, v))
    )  # fmt: skip
    found = unfolded(wrap(args), wrap(named), names)
    assert (found if found is None else {k: int(v) for k, v in found.items()}) == order


def steps(x: Any, n: int, s: float = 2.0, t: float = 0.5) -> Any:
    for _ in range(n):
        x = np.tanh(x) * s
    return x + t


def test_numbers_among_the_examples_are_fixed_and_calls_may_give_them(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 6, dtype=np.float32)
    made = tg.optimize(steps, (x, 3, 3.0), **QUICK)
    assert made.report.fixed_arguments == {"n": "3", "s": "3.0"} and "n=3, s=3.0" in str(made.report)
    wanted = steps(x, 3, 3.0)
    for program in (made, tg.load_program(made.save(tmp_path / "out"))):
        for found in (program(x), program(x, 3), program(x, 3, 3.0, 0.5), program(x, s=3.0), program(n=3, x=x)):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        for args, named, words in (
            ((x, 3, 2.0), {}, "s was fixed at 3.0 .* gives 2.0"),
            ((x, 3, 3), {}, "s was fixed at 3.0 .* gives 3$"),
            ((x,), {"n": True}, "n was fixed at 3 .* gives True"),
            ((x, 4), {}, "n was fixed at 3"),
            ((x, 3, 3.0, 1.0), {}, "t was fixed at 0.5"),
            ((x, x), {}, "n was fixed at 3 .* gives an array"),
            ((x, 3, 3.0, 0.5, 1), {}, "inputs given, the program has 1"),
            ((x,), {"u": 1}, "no inputs are called"),
        ):
            with pytest.raises(UsageError) as error:
                program(*args, **named)
            assert re.search(words, error.value.message), error.value.message
    first = tg.optimize(lambda s, x: s * x, (2.0, x), **QUICK)
    assert (first(x) == first(2.0, x)).all()


def test_numbers_inside_of_nested_arguments_are_fixed() -> None:
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, options: Any, scale: float = 1.0, flag: Any = None) -> Any:
            return x * scale + options["a"] * options["k"]

    x = torch.ones(4)
    made = tg.optimize(Scaled(), (x, {"a": x, "k": 2}), example_kwargs={"scale": 3.0}, **QUICK)
    assert made.report.fixed_arguments == {"options['k']": "2", "scale": "3.0"}
    for args, named in (
        ((x, {"a": x, "k": 2}), {}), ((x, {"a": x}, 3.0), {}), ((x, {"a": x}), {"scale": 3.0, "flag": None}),
        ((x, x), {}), ((x,), {"options": {"a": x, "k": 2}}),
    ):  # fmt: skip
        assert made(*args, **named).tolist() == [5] * 4
    for args, named, words in (
        ((x, {"a": x, "k": 5}), {}, r"options\['k'\] was fixed at 2"), ((x, {"a": x, "k": x}), {}, "gives an array"),
        ((x, {"a": x}, 4.0), {}, "scale was fixed at 3.0"), ((x, {"a": x}), {"flag": x}, "flag was fixed at None"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            made(*args, **named)


def test_functions_of_torch_tensors_are_exported() -> None:
    torch = pytest.importorskip("torch")
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    function = lambda x: torch.nn.functional.softmax(x, -1) + x.mean()
    np.testing.assert_allclose(tg.optimize(function, (x,), **QUICK)(x).numpy(), function(x).numpy(), rtol=1e-6)
    ours = tg.optimize(lambda x: tg.softmax(x), (x,), **QUICK)
    np.testing.assert_allclose(ours(x).numpy(), torch.softmax(x, -1).numpy(), rtol=1e-6)
    with pytest.raises(UsageError, match="are for an nn"):
        tg.optimize(function, (x,), example_kwargs={"y": x}, **QUICK)


@pytest.mark.parametrize(
    "wrong", [{"budget": -1.0}, {"budget": float("nan")}, {"tolerance": -0.5}, {"tolerance": "loose"}]
)
def test_options_that_cannot_mean_anything(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        tg.optimize(tg.input("x", (3,)) + 1, **{**QUICK, **wrong})


@pytest.mark.parametrize("shape", [(2.5, 3), ("a", 3), (None,), "ab", 5])
def test_shapes_that_are_none(shape: Any) -> None:
    with pytest.raises(ShapeError, match="is no "):
        tg.input("x", shape)


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": "a"}, {"budget": -1}, {"budget": float("nan")}, {"backend": ["numpy"]}, {"limits": 5}, {"seed": "a"}, {"seed": 0.5},
        {"tolerance": [1]}, {"costdb": 3}, {"memory_limit": "1k"}, {"error_budget": "a"}, {"effort": 0.5}, {"effort": -1},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_mean_nothing_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        tg.optimize(tg.exp(tg.input("x", (2,))), **QUICK | wrong)


def test_limits_are_numbers() -> None:
    for wrong in ({"nodes": -1}, {"beam": "a"}, {"slack": None}, {"seconds": float("nan")}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            tg.Limits(**wrong)
    assert tg.Limits(beam=None).beam is None


def test_settings_from_the_environment_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_THREADS", "two")
    with pytest.raises(UsageError, match="TENSOR_GRAPHS_THREADS='two'"):
        tg.settings.current()


def test_own_rules_are_tried_used_and_replayed(tmp_path: Path) -> None:
    own = tg.Rule("sum-of-abs", "abs(sum(abs(x), axes=a))", "sum(abs(x), axes=a)")
    x = tg.input("x", (4, 6))
    graph = tg.abs(tg.sum(tg.abs(x), 1, keepdims=True)) * 2.0
    program = tg.optimize(graph, **QUICK, rules=[own])
    assert program.report.rules["sum-of-abs"][0] and program.report.kernels_after < program.report.kernels_before
    from tensor_graphs.cli.explain import explain_steps

    _, text = explain_steps(program.save(tmp_path / "p"))
    assert "sum-of-abs: operand" in text and "replayed" in text
    given = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_allclose(program(given), 2 * np.abs(given).sum(1, keepdims=True), rtol=1e-6)


def test_own_rules_that_are_wrong_are_refused() -> None:
    from tensor_graphs.errors import RuleError

    x = tg.input("x", (4, 6))
    for rule, error, words in (
        (tg.Rule("wrong", "x - y", "y - x"), RuleError, "the rule is wrong"), (tg.Rule("op", "foo(x)", "x + x"), RuleError, "foo"),
        (tg.Rule("add-commutes", "x + y", "y + x"), UsageError, "two rules"), ("x => x", UsageError, "a str is not a rule"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            tg.optimize(x + 1.0, **QUICK, rules=[rule])
    untested = tg.Rule("seventh", "softmax(x + c, axis=7)", "softmax(x, axis=7)")
    warnings = tg.optimize(x + 1.0, **QUICK, rules=[untested]).report.warnings
    assert any("the rule seventh is untested: no shapes" in text for text in warnings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"dims": {"T": "a"}}, "not integers"),
        ({"fixed": {"T": 2.5}}, "not integers"),
        ({"dims": {"T": 4}, "fixed": {"T": 5}}, "twice"),
    ],
)
def test_seeds_and_sizes_that_mean_nothing_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        tg.optimize(tg.input("x", (tg.dim("T", max=8), 2)) * 2, **{**QUICK, **options})


def test_examples_that_are_not_what_is_called_are_named() -> None:
    with pytest.raises(UsageError, match=r"0 examples: missing .* 'a'"):
        tg.optimize(lambda a: a * 2, **QUICK)
    torch = pytest.importorskip("torch")
    for example, words in ((np.ones((2, 3), np.float32), "torch.from_numpy"), (torch.ones(2, 5), "does it run")):
        with pytest.raises(ExportError) as raised:
            tg.optimize(torch.nn.Linear(3, 4), (example,), **QUICK)
        assert words in str(raised.value.hint)
    scripted = torch.jit.script(torch.nn.Linear(3, 4))
    with pytest.raises(ExportError) as raised:
        tg.optimize(scripted, (torch.ones(2, 3),), **QUICK)
    assert "scripted" in str(raised.value.hint)


def test_functions_of_torchs_that_are_builtins() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([-2.0, 0.0, float("nan")])
    program = tg.optimize(torch.sign, (x,), **QUICK)
    assert program(x).tolist() == torch.sign(x).tolist() == [-1, 0, 0]


def test_objects_that_are_called_with_torch_tensors() -> None:
    torch = pytest.importorskip("torch")

    class Scaled:
        def __call__(self, *x: Any) -> Any:
            return torch._safe_softmax(x[0], -1) * 2 + torch.relu(x[0])

    x = torch.tensor([[-2.0, 0.0, 1.5]])
    torch.testing.assert_close(tg.optimize(Scaled(), (x,), **QUICK)(x), Scaled()(x))


def test_what_the_machine_does_not_hold_is_named_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = tg.input("x", (1 << 22, 1 << 20)) * 2
    with pytest.raises(TooLargeError, match="take 32 TiB"):
        tg.optimize(huge, **QUICK)

    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr("tensor_graphs.backends.verification.inputs.inputs", full)
    with pytest.raises(TooLargeError, match=r"Unable to allocate; the largest value, float32\[3, 4\], takes 48 bytes"):
        tg.optimize(tg.sum(tg.input("x", (3, 4))), **QUICK)


def test_what_is_no_e_graph_and_no_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="an int is no e-graph"):
        tg.extract(3)
    x = tg.input("x", (2, 2))
    with pytest.raises(UsageError, match="a Tensor is no graph"):
        tg.save_graph(x + 1.0, tmp_path / "g.safetensors")
    with pytest.raises(UsageError, match="b='x'"):
        tg.explain_equality(x, "x")
    for wrong in ({"diversity": 3}, {"count": 0}):
        with pytest.raises(UsageError, match=f"invalid argument {next(iter(wrong))}="):
            next(iter(tg.paths(x + 1.0, **wrong)))
    wrong = {"foo": 1, "threads": -1, "workers": 1.5, "max_nodes": "2", "costdb": 3, "home": None}
    for name, value in wrong.items():
        with pytest.raises(UsageError, match=name), tg.settings.override(**{name: value}):
            pass
    with tg.settings.override(home=Path("folder"), threads=np.int64(2)) as changed:
        assert (changed.home, changed.threads) == ("folder", 2)


def with_tangent(function: Callable[[Any], Any], x: Any) -> None:
    """Calls a function of a tensor with a dual tensor."""
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        function(forward_ad.make_dual(x, x))


@pytest.mark.parametrize("backend", ["torch", None])
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "forward_ad"])
def test_programs_under_torch_func_are_named_errors(transform: str, backend: str | None) -> None:
    """C and NumPy have no data to read there, and kernels of PyTorch would drop tangents."""
    torch = pytest.importorskip("torch")
    module, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval(), torch.randn(3, 8)
    program = tg.optimize(module, (x,), backend=backend, budget=1, effort=0, measure=False, allow_caller=False)
    calls: dict[str, Callable[[], Any]] = {
        "vmap": lambda: torch.func.vmap(program)(x[None]),
        "grad": lambda: torch.func.grad(lambda a: program(a).sum())(x),
        "jvp": lambda: torch.func.jvp(program, (x,), (x,)),
        "forward_ad": lambda: with_tangent(program, x),
    }
    for _ in range(3):
        with pytest.raises(UsageError, match="has no array"):
            calls[transform]()
        program(x)
    assert torch.allclose(program(x), module(x), atol=1e-5)


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
def test_programs_on_tensors_of_a_device_take_none_of_torch_func(transform: str) -> None:
    """As programs on a GPU do: the conversion of their arguments, here for the CPU."""
    torch = pytest.importorskip("torch")
    from tensor_graphs.backends.runtime.marshalling import TensorMarshalling

    exchange, spec, x = TensorMarshalling("cpu"), ("x", (3, 8), "float32"), torch.randn(3, 8)
    quick = exchange.quick([spec])
    assert quick is not None and quick([x]) is not None and exchange.accept(x, spec) is not None
    seen = []

    def called(given: Any) -> Any:
        assert quick([given]) is None
        with pytest.raises(UsageError, match="has no array"):
            exchange.accept(given, spec)
        seen.append(given)
        return given.sum()

    {
        "vmap": lambda: torch.func.vmap(called)(x[None]),
        "grad": lambda: torch.func.grad(called)(x),
        "jvp": lambda: torch.func.jvp(called, (x,), (x,)),
    }[transform]()
    assert seen


def test_tensors_that_no_array_holds_are_named() -> None:
    torch = pytest.importorskip("torch")
    program = tg.optimize(tg.exp(tg.input("x", (3,))), **QUICK)
    ones = torch.ones(3)
    for wrong in (ones.to_sparse(), ones.to("meta"), torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8)):
        with pytest.raises(UsageError, match=r"has no (array|data)"):
            program(wrong)
    negated = torch.complex(ones, ones).conj().imag  # its values are negated when they are read
    assert negated.is_neg() and torch.allclose(program(negated), torch.exp(-ones))


def test_whole_numbers_that_rounding_decides_are_those_of_the_function() -> None:
    """49.0 * (1 / 49) is less than 1, whether a simplification or a rule makes the product."""

    def bins(x: Any) -> Any:
        return np.floor(x / 49 * 2), ((x - 3) / 49).astype("i4"), x / 49 >= 1

    program = tg.optimize(bins, (np.linspace(1.0, 90.0, 200),), **QUICK, allow_caller=False)
    x = np.arange(200.0)
    for found, wanted in zip(program(x), bins(x), strict=True):
        np.testing.assert_array_equal(found, wanted)


#: Functions of whole numbers x and y (12 x 7) that are decided where arithmetic is exact or rounds in a known way.
DECIDED: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "root": ("c", lambda x, y: np.floor(x / np.sqrt(y * y))),
    "mean": ("c", lambda x, y: x.mean(1) == np.round(x.mean(1))),
    "sum": ("numpy", lambda x, y: np.cumsum(x / 49, 1) >= 2),
    "product": ("numpy", lambda x, y: (x @ y.T) / 49 == np.round((x @ y.T) / 49)),
    "before a product": ("c", lambda x, y: np.floor((7 * x / 7) @ y.T)),
    "root in a sum": ("c", lambda x, y: np.floor((x * y[:, :1] / np.sqrt(y[:, :1] ** 2)).sum(1))),
    "argmin": ("c", lambda x, y: np.argmin(x * 0.1 - y * 0.1, 1)),
    "argsort": ("torch", lambda x, y: np.argsort(x * 0.3 + y * 0.3, 1, kind="stable")),
    "neighbours": ("c", lambda x, y: np.diff(np.sort(x * 0.1 + y * 0.1, 1)) == 0),
    "hypotenuse": ("c", lambda x, y: np.floor(np.hypot(np.stack([7 * x, 9 * x]), np.stack([24 * x, 40 * x])) / x)),
    "degrees": ("numpy", lambda x, y: np.floor(np.degrees(np.radians(x)))),
    "wider": ("c", lambda x, y: np.floor((x * x.dtype.type(0.1)).astype("f8") * 10)),
    "wider bins": ("c", lambda x, y: np.searchsorted(np.arange(50) * 0.1, (x + y) * 0.1)),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", DECIDED)
def test_rounding_decides_as_in_the_function(name: str, dtype: str) -> None:
    """Quotients of sums, means, roots, order of nearly equal values, and float32 results in float64."""
    backend, function = DECIDED[name]
    if backend == "torch":
        pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    examples = [(50 * rng.random((12, 7)) + 1).astype(dtype) for _ in range(2)]
    program = tg.optimize(function, (*examples,), **{**QUICK, "backend": backend}, allow_caller=False)
    for factor in (1, 7, 49):
        x, y = ((factor * rng.integers(1, high, (12, 7))).astype(dtype) for high in (9, 5))
        np.testing.assert_array_equal(program(x, y), function(x, y))


@pytest.mark.parametrize("backend", ["numpy", "c"])
def test_rounding_to_16_bits_decides_as_in_the_function(backend: str) -> None:
    def decided(x: Any) -> Any:
        return (
            np.floor(x * 1.5),
            (x * x.dtype.type(0.1)).sum(1) == 3,
            np.argsort(x * x.dtype.type(0.3) + 1, 1, kind="stable"),
        )

    rng = np.random.default_rng(3)
    program = tg.optimize(
        decided, ((50 * rng.random((5, 64))).astype("f2"),), **{**QUICK, "backend": backend}, allow_caller=False
    )
    for factor in (0.1, 0.25, 7):
        x = (factor * rng.integers(0, 2000, (5, 64))).astype("f2")
        for found, wanted in zip(program(x), decided(x), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_rounding_to_bfloat16_decides_as_in_the_function() -> None:
    torch = pytest.importorskip("torch")

    def decided(x: Any) -> Any:
        return torch.floor(x * 1.5), x * 0.1 * 10 == x

    x = torch.arange(600).to(torch.bfloat16)
    program = tg.optimize(decided, (torch.rand(600).bfloat16(),), **{**QUICK, "backend": "c"}, allow_caller=False)
    for found, wanted in zip(program(x), decided(x), strict=True):
        assert torch.equal(found, wanted)


def test_divisions_by_zero_stay_in_a_sum() -> None:
    """0 / 0 is NaN in a term of the sum; behind the sum the quotient would be infinite."""

    def function(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return ((x / 0) ** 2).sum(1)

    x = np.arange(12.0).reshape(4, 3)
    program = tg.optimize(function, (x + 1,), **{**QUICK, "backend": "c"}, allow_caller=False)
    np.testing.assert_array_equal(program(x), function(x))


#: Functions of 16-bit floats with numbers that these floats do not hold exactly.
ROUNDED_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "comparisons": lambda x: [x > 0.3, x == 0.1, x <= 0.7],
    "remainders": lambda x: [x % 0.3, x // 0.3],
    "summands": lambda x: [x - 0.3 == 0, 1.3 - x == 0],
    "limits": lambda x: [x.clip(0.3, 0.7) == x],
}


@pytest.mark.parametrize("kind", ["float16", "torch.float16", "torch.bfloat16"])
def test_numbers_are_rounded_to_16_bits_as_in_the_function(kind: str) -> None:
    whole = lambda x: [y for f in ROUNDED_NUMBERS.values() for y in f(x)]
    x = np.concatenate([[0.3, 0.1, 0.7, 1.3], np.arange(0.0, 60.0, 0.5)])
    arrays: list[Any] = [x.astype("f2"), np.linspace(1, 2, len(x)).astype("f2")]
    if kind.startswith("torch"):
        torch = pytest.importorskip("torch")
        arrays = [torch.from_numpy(a).to(getattr(torch, kind[6:])) for a in (x, arrays[1])]
    program = tg.optimize(whole, (arrays[1],), **{**QUICK, "backend": "c"}, effort=0, allow_caller=False)
    for found, wanted in zip(program(arrays[0]), whole(arrays[0]), strict=True):
        assert (found == wanted).all()


def test_padding_wraps_and_truncates_as_numpy_does() -> None:
    whole = lambda x: [np.pad(x, 1, constant_values=v) for v in (-1, 70000, 2.9)]
    x = np.ones(3, "u2")
    program = tg.optimize(whole, (x,), **QUICK, effort=0, allow_caller=False)
    np.testing.assert_array_equal(program(x), whole(x))


def test_a_choice_by_comparison_leaves_nan_out() -> None:
    x = np.array([[1.0, -2.0, np.nan], [np.inf, np.nan, -np.inf]])

    def positive(x: Any) -> Any:
        return np.where(x > 0, x, 0), np.sum(x, axis=1, where=x > 0), np.where(x <= 0, 0, x)

    for found, wanted in zip(tg.optimize(positive, [np.ones((2, 3))], **QUICK)(x), positive(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
