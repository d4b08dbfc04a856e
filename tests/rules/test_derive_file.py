"""Rules in Tensat's language that follow from ours, wrong ones that must not, and what bounds the search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs import rules
from tensor_graphs.cli import app as cli
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import make
from tensor_graphs.egraph.saturate.saturate import Limits
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.saturate.worker import Pool
from tensor_graphs.rules.derive.prove import LIMITS, Prover, for_proofs
from tensor_graphs.rules.files import rule_file
from tensor_graphs.rules.files.derive_file import Derived, claims, derive, derive_all
from tensor_graphs.rules.smt.spelling import array_term, spelled_out

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "tensat"
PROVER, SESSION = Prover(), InProcess()

#: Rules of TASO's kind, one per law: transposition, scalars, pooling, constants, kernels with rims, joined blocks.
RIGHT = """
(transpose (matmul 0 (transpose ?input_1) (smul ?input_2 ?input_20)))=>(smul (matmul 0 (transpose ?input_2) ?input_1) ?input_20)
(transpose (concat 0 2 ?input_1 (relu ?input_2)))=>(concat 1 2 (transpose ?input_1) (relu (transpose ?input_2)))
(ewmul (smul ?input_1 ?input_20) ?input_2)=>(ewmul ?input_1 (smul ?input_2 ?input_20))
(smul (ewadd ?input_1 (smul ?input_2 ?input_20)) ?input_20)=>(ewadd (smul (smul ?input_2 ?input_20) ?input_20) (smul ?input_1 ?input_20))
(concat 0 2 (smul ?input_1 ?input_20) (smul ?input_2 ?input_20))=>(smul (concat 0 2 ?input_1 ?input_2) ?input_20)
(conv2d 1 1 0 0 (smul ?input_7 ?input_20) ?input_10)=>(conv2d 1 1 0 0 ?input_7 (smul ?input_10 ?input_20))
(smul (conv2d 2 2 1 0 ?input_7 ?input_10) ?input_20)=>(conv2d 2 2 1 0 ?input_7 (smul ?input_10 ?input_20))
(conv2d 1 1 0 2 ?input_7 (enlarge 5 5 ?input_10))=>(relu (conv2d 1 1 0 0 ?input_7 ?input_10))
(conv2d 1 1 0 0 ?input_7 (concat 0 4 (enlarge 3 3 ?input_10) (enlarge 3 3 ?input_13)))=>(concat 1 4 (conv2d 1 1 0 0 ?input_7 ?input_10) (conv2d 1 1 0 0 ?input_7 ?input_13))
(enlarge 5 5 (ewadd ?input_10 (enlarge 3 3 ?input_13)))=>(ewadd (enlarge 5 5 ?input_13) (enlarge 5 5 ?input_10))
(conv2d 2 2 0 0 ?input_7 (Cpool 3 3))=>(poolavg 3 3 2 2 0 ?input_7)
(poolavg 3 3 1 1 0 (ewadd ?input_7 (smul ?input_8 ?input_20)))=>(ewadd (conv2d 1 1 0 0 ?input_7 (Cpool 3 3)) (smul (poolavg 3 3 1 1 0 ?input_8) ?input_20))
(poolmax 3 3 1 1 0 (concat 1 4 ?input_7 (relu ?input_8)))=>(concat 1 4 (poolmax 3 3 1 1 0 ?input_7) (relu (poolmax 3 3 1 1 0 ?input_8)))
(concat 0 4 (poolavg 2 2 2 2 1 ?input_7) (poolavg 2 2 2 2 1 ?input_8))=>(poolavg 2 2 2 2 1 (concat 0 4 ?input_7 ?input_8))
(conv2d 1 1 0 2 ?input_7 (Iconv 3 3))=>(relu ?input_7)
(conv2d 1 1 0 0 ?input_7 (ewadd (Iconv 3 3) ?input_10))=>(ewadd ?input_7 (conv2d 1 1 0 0 ?input_7 ?input_10))
(matmul 0 (Imatmul) (ewmul ?input_1 (Iewmul)))=>(matmul 0 ?input_1 (transpose (Imatmul)))
(matmul 0 ?input_1 (ewadd ?input_4 (Imatmul)))=>(ewadd ?input_1 (matmul 0 ?input_1 ?input_4))
(concat 0 2 (concat 1 2 ?input_1 ?input_2) (concat 1 2 ?input_4 ?input_5))=>(concat 1 2 (concat 0 2 ?input_1 ?input_4) (concat 0 2 ?input_2 ?input_5))
(split_1 (split 1 (ewadd (concat 1 2 ?input_1 ?input_2) (concat 1 2 ?input_4 ?input_5))))=>(ewadd ?input_5 ?input_2)
(matmul 0 (concat 1 2 ?input_1 ?input_2) (concat 0 2 (concat 1 2 ?input_4 ?input_5) (concat 1 2 ?input_4 ?input_6)))=>(concat 1 2 (matmul 0 (concat 1 2 ?input_1 ?input_2) (concat 0 2 ?input_4 ?input_4)) (ewadd (matmul 0 ?input_2 ?input_6) (matmul 0 ?input_1 ?input_5)))
matmul(smul(?input_1,?input_20),transpose(?input_2))==smul(transpose(matmul(?input_2,transpose(?input_1))),?input_20)
(conv2d 1 1 0 0 ?input_7 (poolavg 3 3 1 1 0 (Iconv 3 3)))=>(poolavg 3 3 1 1 0 ?input_7)
(smul (poolavg 5 5 1 1 0 ?input_7) ?input_20)=>(smul (conv2d 1 1 0 0 ?input_7 (poolavg 5 5 1 1 0 (Iconv 5 5))) ?input_20)
(smul (ewmul (Cpool 5 5) (poolavg 5 5 1 1 0 (Iconv 5 5))) ?input_21)=>(ewmul (Cpool 5 5) (smul (Cpool 5 5) ?input_21))
(concat 1 4 (conv2d 1 1 0 0 ?input_7 ?input_10) (poolavg 3 3 1 1 0 ?input_8))=>(conv2d 1 1 0 0 (concat 1 4 ?input_7 ?input_8) (concat 0 4 ?input_10 (Cpool 3 3)))
(Cpool 3 3)=>(conv2d 1 1 0 0 (conv2d 1 1 0 0 (Iconv 3 3) (enlarge 5 5 (Iconv 3 3))) (Cpool 3 3))
(matmul 1 ?input_1 (transpose ?input_2))=>(matmul 2 (Imatmul) (matmul 1 ?input_1 (transpose ?input_2)))
(tanh (poolmax 1 2 2 2 0 ?input_7))=>(poolmax 1 2 2 2 0 (tanh ?input_7))
(relu (matmul 0 (sigmoid ?input_1) (matmul 1 ?input_3 ?input_4)))=>(matmul 0 (sigmoid ?input_1) (sigmoid (matmul 0 ?input_3 ?input_4)))
(conv2d 1 1 0 0 (poolavg 3 3 1 1 0 ?input_7) (concat 0 4 ?input_10 ?input_11))=>(concat 1 4 (conv2d 1 1 0 0 (conv2d 1 1 0 0 ?input_7 (Cpool 3 3)) ?input_10) (conv2d 1 1 0 0 (poolavg 3 3 1 1 0 ?input_7) ?input_11))
""".strip().splitlines()

WRONG = """
(matmul 0 ?input_1 ?input_4)=>(matmul 0 ?input_4 ?input_1)
(transpose (matmul 0 ?input_1 ?input_2))=>(matmul 0 (transpose ?input_1) (transpose ?input_2))
(relu (ewadd ?input_1 ?input_2))=>(ewadd (relu ?input_1) (relu ?input_2))
(relu (smul ?input_1 ?input_20))=>(smul (relu ?input_1) ?input_20)
(concat 1 2 ?input_1 ?input_2)=>(concat 1 2 ?input_2 ?input_1)
(concat 0 2 (matmul 0 ?input_1 ?input_4) (matmul 0 ?input_1 ?input_5))=>(matmul 0 ?input_1 (concat 0 2 ?input_4 ?input_5))
(conv2d 1 1 0 2 ?input_7 ?input_10)=>(conv2d 1 1 0 0 ?input_7 ?input_10)
(conv2d 1 1 0 0 ?input_7 ?input_10)=>(conv2d 1 1 0 0 ?input_10 ?input_7)
(poolmax 3 3 1 1 0 (ewadd ?input_7 ?input_8))=>(ewadd (poolmax 3 3 1 1 0 ?input_7) (poolmax 3 3 1 1 0 ?input_8))
(poolavg 3 3 1 1 0 ?input_7)=>(poolmax 3 3 1 1 0 ?input_7)
(conv2d 1 1 1 0 ?input_7 (enlarge 3 3 ?input_13))=>(conv2d 1 1 1 0 ?input_7 ?input_13)
(smul (ewadd ?input_1 ?input_2) ?input_20)=>(ewadd (smul ?input_1 ?input_20) ?input_2)
(split_0 (split 1 (concat 1 2 ?input_1 ?input_2)))=>?input_2
(ewmul ?input_1 (Imatmul))=>?input_1
""".strip().splitlines()


def one(text: str, prover: Prover = PROVER, limits: Limits = LIMITS) -> Derived:
    (line,) = rule_file.read(text)
    return derive(0, line, prover, SESSION, limits)


@pytest.mark.parametrize("text", RIGHT)
def test_right_rules_are_derived_at_several_sizes(text: str) -> None:
    found = one(text)
    assert found.derived and found.instances >= 2, found


@pytest.mark.parametrize("text", WRONG)
def test_wrong_rules_are_not(text: str) -> None:
    assert not one(text, limits=Limits(nodes=3000, iterations=6, seconds=5.0)).derived


@pytest.mark.parametrize(("name", "pairs"), [("converted.txt", False), ("converted_multi.txt", True)])
def test_samples_are_derived(name: str, pairs: bool) -> None:
    if not (SAMPLES / name).exists():
        pytest.skip(f"no samples at {SAMPLES}")
    lines = rule_file.read((SAMPLES / name).read_text(), pairs=pairs)
    some = lines[::2] if pairs else lines[::10]
    pool = Pool(1)
    try:
        found = list(derive_all(some, pool))
    finally:
        pool.close()
    assert [d.index for d in found] == list(range(len(some)))
    assert [d.text for d in found if not d.derived] == []


def test_own_rules_are_derived_both_ways() -> None:
    assert one("x @ (y + z) <=> x @ y + x @ z if shape(y) == shape(z)").derived
    assert one("relu(x) + relu(x) => relu(x) * lit(2.0, x)").derived
    assert not one("exp(x + y) => exp(x) + exp(y)").derived


def test_nothing_follows_from_too_few_rules() -> None:
    """The answer is the e-graph's: without the law that a rule needs, it is not derived."""
    text = "(transpose (matmul 0 ?input_1 ?input_2))=>(matmul 0 (transpose ?input_2) (transpose ?input_1))"
    few = Prover(r for r in rules.EVERY if "transpose" not in r.name and "product" not in r.name)
    assert one(text).derived and not one(text, few).derived


def test_rules_for_proofs_ask_nothing_about_cost() -> None:
    asked = {text.split("(")[0] for rule in for_proofs(rules.EVERY) for text in rule.when}
    assert not asked & {"weight", "active", "ordered", "chained", "original"}


@pytest.mark.parametrize(("limits", "stopped"), [
    (Limits(seconds=0.0), "seconds"), (Limits(iterations=0), "iterations"), (Limits(nodes=1), "nodes"),
])  # fmt: skip
def test_limits_are_kept_and_named(limits: Limits, stopped: str) -> None:
    x, y, z = (t.input(n, (2, 3)) for n in "xyz")
    found = PROVER.prove([[((x + y) * z, z * y + (x * z) * 1.0)]], SESSION, limits)
    assert not found and found.stopped == stopped


def test_pairs_must_all_meet() -> None:
    x, y = t.input("x", (2, 3)), t.input("y", (2, 3))
    assert PROVER.prove([[(x + y, y + x), (x * y, y * x)]], SESSION)
    assert not PROVER.prove([[(x + y, y + x), (x * y, y - x)]], SESSION)
    assert not PROVER.prove([[(x + y, y + x)], [(x, y)]], SESSION)
    assert PROVER.prove([[(x, x)]], SESSION).stopped == "one term"
    assert not PROVER.prove([[(x, t.input("x", (3, 2)))]], SESSION)


def test_instances_are_of_different_sizes() -> None:
    (line,) = rule_file.read(
        "(matmul 0 (matmul 0 ?input_1 ?input_4) ?input_5)=>(matmul 0 ?input_1 (matmul 0 ?input_4 ?input_5))"
    )
    shapes = {claim[0][0].shape for claim in claims(line)}
    assert len(shapes) == len(claims(line)) >= 3 and {len(s) for s in shapes} == {2, 3}


@given(st.integers(2, 4), st.integers(0, 2), st.integers(0, 2), st.sampled_from([1.0, 0.25, -0.0]), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_constants_are_said_bit_for_bit(n: int, lo: int, hi: int, value: float, kind: int) -> None:
    inner = [np.eye(n), np.full((n, 2), value), np.zeros((n, 3)), np.broadcast_to(np.eye(n)[:, :, None], (n, n, 2))][
        kind
    ]
    array = np.pad(inner, [(lo, hi), *[(0, 0)] * (inner.ndim - 2), (hi, lo)]).astype(np.float32)
    found = array_term(array)
    if found is not None:
        back = evaluate([found], {})[0]
        assert back.dtype == array.dtype and back.shape == array.shape and back.tobytes() == array.tobytes()
    if not lo and not hi:
        assert found is not None


@given(st.integers(1, 3), st.sampled_from([(1, 1), (2, 1), (3, 3)]), st.integers(1, 2), st.integers(0, 2))
@settings(max_examples=20, deadline=None)
def test_a_mean_over_windows_is_a_convolution(channels: int, kernel: tuple[int, int], stride: int, pad: int) -> None:
    x = t.input("x", (2, channels, 5, 4))
    attrs = {"kernel": kernel, "strides": (stride, 1), "pads": (pad, 0, 1, pad), "dilations": (1, 1)}
    pool = make("avg_pool", (x,), attrs)
    (conv,) = spelled_out([pool])
    assert conv.op == "mul" and conv.type == pool.type
    data = {"x": np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)}
    a, b = (evaluate([side], data, float64=True)[0] for side in (pool, conv))
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_arrays_without_structure_stay() -> None:
    assert array_term(np.random.default_rng(0).standard_normal((3, 3))) is None
    assert array_term(np.eye(3, dtype=np.int64)) is None and array_term(np.zeros((0, 3))) is None


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "rules.txt"
    path.write_text("\n".join([RIGHT[0], WRONG[0], "(frobnicate ?input_1)=>?input_1"]) + "\n")
    yield path


def test_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rules", "derive", str(file), "--json", "--jobs", "1", "--time-limit", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1 and found["ok"] is True
    assert [r["derived"] for r in found["rules"]] == [True, False, False]
    assert [r["index"] for r in found["rules"]] == [0, 1, 2] and found["rules"][0]["text"] == RIGHT[0]
    assert all(r["seconds"] >= 0 for r in found["rules"]) and "frobnicate" in found["rules"][2]["detail"]
    assert found["counts"]["derived"] == 1 and found["counts"]["not_derived"] == 2
    assert found["limits"]["seconds"] == 4


def test_a_stop_keeps_what_was_derived() -> None:
    lines = rule_file.read("\n".join(RIGHT[:4]))
    pool = Pool(1)
    seen: list[Derived] = []
    try:
        for found in derive_all(lines, pool, stop=lambda: bool(seen)):
            seen.append(found)
    finally:
        pool.close()
    assert 1 <= len(seen) < 4 and seen[0].derived and [d.index for d in seen] == list(range(len(seen)))


def test_bad_files_and_options_are_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("(matmul 0 ?input_1\n")
    assert cli.run(["rules", "derive", str(file), "--json"]) != 0
    assert "line 1" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert cli.run(["rules", "derive", str(file), "--jobs", "-1", "--json"]) == 2
    assert cli.run(["rules", "derive", str(file.parent / "none.txt"), "--json"]) == 2
