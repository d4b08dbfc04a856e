"""User kernels: declarations, patterns of references, checks of hostile kernels, emitted programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends import registry
from tensor_graphs.backends.admission import checks, use
from tensor_graphs.backends.admission.cases import cases_of
from tensor_graphs.backends.admission.checks import AdmissionVerdict, Checker
from tensor_graphs.backends.generate.kernel_text import kernel_text
from tensor_graphs.backends.program.helpers.cuda_helpers import cuda_text
from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
from tensor_graphs.backends.tuning.measurement import SinkBase, Timing
from tensor_graphs.backends.user.files import kernel_file
from tensor_graphs.backends.user.templates import UserKernel, templates_of
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.errors import KernelError, KernelMissingError, KernelRefusedError
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.pipeline.stages import match
from tensor_graphs.report.report import Report

HEAD = """
import numpy as np

import tensor_graphs as tg

IN = {"x": "float32[M, N]", "y": "float32[M, N]"}
seen = {}


def declare(language="c", reference=lambda x, y: x * y + 1.0, inputs=IN, **more):
    return tg.kernel(language, reference=reference, inputs=inputs, **more)


def c(name, body, before=""):
    return f"{before}\\nvoid {name}(float *x, const float *y, float *out) {{ {body} }}"
"""
EXAMPLES = Path(__file__).parents[2] / "examples" / "kernels"
File = Callable[[str], Path]


@pytest.fixture
def file(tmp_path: Path) -> File:
    """Writes a file of kernels behind HEAD."""

    def write(text: str, name: str = "own.py") -> Path:
        path = tmp_path / name
        path.write_text(HEAD + text)
        return path

    return write


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    registry.drop_kernels()


def declared(text: str, file: File) -> list[UserKernel]:
    return templates_of(kernel_file(file(text)))


def operand(dtype: str, *shape: int) -> Operand:
    return Operand(Type(shape, dtype), contiguous(shape))


# ---------------------------------------------------------------- declarations and references
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@declare('cobol')\ndef one(): return ''", "no language 'cobol'"),
        ("@declare(inputs={'x': 'float32', 'y': 'float32[N]'})\ndef one(): return ''", "no operand specification"),
        ("@declare()\ndef one(Q): return ''", "a parameter Q"),
        ("@declare('numpy')\ndef one(x, out): pass", "no parameter y"),
        ("@declare(where='K < 3')\ndef one(): return ''", "mentions K"),
        ("@declare(choices={'A': (1.5,)})\ndef one(A): return ''", "not whole numbers"),
        ("@declare(choices={'M': (1,)})\ndef one(): return ''", "used for two things"),
        ("@declare(outputs=2)\ndef one(): return ''", "makes 1 values, not 2"),
        ("@declare(reference=lambda x, y: x)\ndef one(): return ''", "differ in 'y'"),
        ("@declare(reference=lambda x, y: x * 'no')\ndef one(): return ''", "cannot be used"),
        ("@declare(reference='x * y * full(value=c, shape=s, dtype=d)')\ndef one(): return ''", "has no test values"),
        ("@declare(reference=lambda x, y: x * y + np.arange(3.0)[:1])\ndef one(): return ''", "make it an input"),
        ("@declare(reference=3)\ndef one(): return ''", "has the type int"),
        ("@declare(reference='x * y', constants={'c': ()})\ndef one(): return ''", "no test values"),
        ("x = 1", "declares no kernels"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_malformed_declarations_are_named(text: str, words: str, file: File) -> None:
    with pytest.raises(KernelError, match=re.escape(words)):
        declared(text, file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="cannot be read"):
        tg.use_kernels(tmp_path / "none.py")


def test_references_become_patterns(file: File) -> None:
    text = """
@declare(inputs={"x": "float32[*B, N]", "y": "float32[*B, N]"})
def flat(): return c("flat", "")
@declare(reference=lambda x, y: tg.softmax(x, axis=-1) * y, inputs={"x": "float32[*B, N]", "y": "float32[*B, N]"})
def ranked(): return c("ranked", "")
@declare(reference=lambda x, *, scale=0.5: (x + scale) * scale, inputs={"x": "T[M]"}, types={"T": ("float16", "float32")})
def constant(): return "constant"
@declare(reference=lambda x: tg.reshape(tg.cast(x, "float32"), (x.shape[0] * x.shape[1],)), inputs={"x": "float16[M, N]"})
def derived(): return "derived"
@declare(reference="x + y; x - y", outputs=2)
def two(): return "two"
"""
    found = {t.name: t for t in declared(text, file)}
    assert found["user.flat"].pattern == "add(mul(x, y), 1.0)"
    assert [t for t in found if "ranked" in t] == [f"user.ranked#{n}" for n in range(1, 6)]  # one for each rank
    assert found["user.ranked#2"].pattern == "mul(softmax(x, axis=1), y)"
    full = "full(value=scale, shape=attr0_, dtype=attr1_)"
    assert found["user.constant"].pattern.startswith(f"mul(add(x, {full}), full(value=scale,")
    assert (
        found["user.derived"].pattern == "reshape(x, shape=attr0_)"
    )  # casts between floats are left to storage dtypes
    assert found["user.derived"].when in (
        ("attr0_ == (size(x, 0)*size(x, 1),)",),
        ("attr0_ == (size(x, 1)*size(x, 0),)",),
    )
    assert len(found["user.two"].terms) == 2


def test_a_template_applies_by_types_sizes_and_conditions(file: File) -> None:
    text = """
@declare(inputs={"x": "T[M, N]", "y": "T[M, N]"}, types={"T": ("float32",)}, sizes={"M": (8, 16)}, where="N % A == 0",
         choices={"A": (4, 6)})
def one(M, N, A): return c("one", f"for (int i = 0; i < {M * N}; ++i) out[i] = x[i] * y[i] + 1;")
"""
    by = {t.variant["A"]: t for t in declared(text, file) if t.variant}

    def applies(a: int, *shape: int, dtype: str = "float32") -> bool:
        call = Call({n: operand(dtype, *shape) for n in "xy"}, operand(dtype, *shape), {})
        return by[a].applies is not None and by[a].applies(call)

    assert applies(4, 8, 12)
    assert applies(6, 16, 12)
    assert not applies(6, 8, 8)
    assert not applies(4, 9, 12)
    assert not applies(4, 8, 12, dtype="float64")
    assert not applies(4, 8, 3, 4)
    assert {c.known["M"] for c in cases_of(by[4])} <= {8, 16}


# ---------------------------------------------------------------- checks
LOOP = "for (long i = 0; i < {M * N}; ++i)"
HOSTILE = {
    "right": (f'return c("right", f"{LOOP} out[i] = x[i] * y[i] + 1;")', "admitted"),
    "wrong": (f'return c("wrong", f"{LOOP} out[i] = x[i] * y[i] + 1.001f;")', "wrong"),
    "beyond": (f'return c("beyond", f"{LOOP.replace("<", "<=")} out[i] = x[i] * y[i] + 1;")', "out-of-bounds"),
    "multiples": (f'return c("multiples", f"{LOOP} if (i < {{M * N // 8 * 8}}) out[i] = x[i] * y[i] + 1;")', "wrong"),
    "large_ones": (f'return c("large_ones", f"{LOOP} out[i] = x[i] * y[i] + (i < 300 ? 1 : 1.001f);")', "wrong"),
    "one_shape": (f'return c("one_shape", f"{LOOP} out[i] = {{int(N == 64)}} ? x[i] * y[i] + 1 : 0;")', "wrong"),
    "changes": (f'return c("changes", f"{LOOP} {{{{ out[i] = x[i] * y[i] + 1; x[i] = 0; }}}}")', "modified-input"),
    "chance": (
        f'return c("chance", f"static int n; ++n; {LOOP} out[i] = (x[i] * y[i] + 1) * (1 + n * 1e-6f);")',
        "nondeterministic",
    ),
    "hangs": ('return c("hangs", "for (volatile long i = 0; ; ++i);")', "timeout"),
    "crashes": ('return c("crashes", "*(volatile int *)8 = 1;")', "crash"),
    "uncompilable": ('return c("uncompilable", "nothing(")', "error"),
    "nameless": ('return "int x;"', "malformed"),
}
SLEEP = f"1000.{os.getpid()}"  # seconds that only this process asks for
IN_PYTHON = {
    "raises": ("raise SystemExit(3)", "error"),
    "remembers": ("seen.setdefault(out.shape, x * y + 1); out[...] = seen[out.shape]", "wrong"),
    "nan_in_large": ("z = x * y + 1; out[...] = z if z.size < 99 else np.nan_to_num(z)", "wrong"),
    "without_nan": ("out[...] = np.nan_to_num(x * y + 1)", "wrong"),
    "starts_another": (
        f"import subprocess; subprocess.Popen(['sleep', '{SLEEP}']); import time; time.sleep(600)",
        "timeout",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AdmissionVerdict]:
    """Verdicts on all hostile kernels, which are in one file."""
    parts = [f"@declare()\ndef {name}(M, N):\n    {body}\n" for name, (body, _) in HOSTILE.items()]
    parts += [f"@declare('numpy')\ndef {name}(x, y, out):\n    {body}\n" for name, (body, _) in IN_PYTHON.items()]
    path = tmp_path_factory.mktemp("kernels") / "hostile.py"
    path.write_text(HEAD + "\n".join(parts))
    late = {name for name, (_, status) in {**HOSTILE, **IN_PYTHON}.items() if status == "timeout"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "CASES", 4)
        limited = lambda name: patch.setattr(checks, "RUN_S", 1.0 if name in late else 60.0)
        return {v.kernel: v for v in Checker(kernel_file(path), say=limited).verdicts()}


@pytest.mark.parametrize("name", [*HOSTILE, *IN_PYTHON])
def test_hostile_kernels_are_refused_by_name(name: str, hostile: dict[str, AdmissionVerdict]) -> None:
    found, expected = hostile[name], {**HOSTILE, **IN_PYTHON}[name][1]
    assert found.status == expected, str(found)
    if expected == "wrong":
        assert found.error is not None
        assert found.error > 0
        assert "M=" in found.case
        assert "first at" in found.message


def test_children_of_a_killed_kernel_die(hostile: dict[str, AdmissionVerdict]) -> None:
    assert hostile["starts_another"].status == "timeout"
    alive = lambda: subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    until = time.monotonic() + 60.0
    while f"sleep {SLEEP}" in alive() and time.monotonic() < until:
        time.sleep(0.05)
    assert f"sleep {SLEEP}" not in alive()


def test_a_file_that_hangs_or_exits_is_refused(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    (exits,) = Checker(kernel_file(file("raise SystemExit(1)"))).verdicts()
    assert exits.status == "malformed"
    monkeypatch.setattr(checks, "LOAD_S", 2.0)
    (hangs,) = Checker(kernel_file(file("import time; time.sleep(600)", "hangs.py"))).verdicts()  # type: ignore[call-arg]
    assert hangs.status == "timeout"


GOOD = """
@declare("numpy", inputs={"x": "float32[*B, N]", "y": "float32[*B, N]"}, sizes={"N": (8, 1000)})
def fused(x, y, out):
    np.multiply(x, y, out=out)
    out += 1.0
"""


MASKED = """
@declare("numpy", reference=lambda x, y, *, c=1.0: tg.where(x < y, x, c), constants={"c": (float("-inf"), 2.0)})
def one(x, y, c, out): out[...] = np.where(x < y, x, c)


@declare("numpy", reference=lambda x, y, *, c=1.0: x * y + c, constants={"c": ("three",)})
def two(x, y, c, out): out[...] = x * y + c
"""


def test_constants_may_be_infinite_and_must_be_numbers_of_the_reference(file: File) -> None:
    one, two = Checker(kernel_file(file(MASKED))).verdicts()
    assert one.admitted, str(one)
    assert two.status == "malformed" and "cannot be computed" in two.message


def test_cases_have_small_and_large_sizes(file: File) -> None:
    sizes = [c.known["N"] for c in cases_of(declared(GOOD.replace(', sizes={"N": (8, 1000)}', ""), file)[0])]
    assert min(sizes) == 1 and max(sizes) >= 500 and len(sizes) == 8


def test_verdicts_are_kept_by_content(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(GOOD)
    (first,) = tg.use_kernels(path)
    assert first.admitted
    monkeypatch.setattr(
        Checker, "verdicts", lambda self: [AdmissionVerdict("fused", "numpy", "wrong", "checked again")]
    )
    assert use.verdicts_of(kernel_file(path)) == [first]
    path.write_text(path.read_text() + "\n# changed\n")
    with pytest.raises(KernelRefusedError, match="checked again"):
        tg.use_kernels(path)


# ---------------------------------------------------------------- in programs
def test_a_kernel_is_chosen_and_a_saved_program_needs_its_file(file: File, tmp_path: Path) -> None:
    path = file(GOOD)
    x, y = tg.input("x", (50, 1000)), tg.input("y", (50, 1000))
    options = {"backend": "numpy", "deterministic": True, "costdb": tmp_path / "store"}
    program = tg.optimize(y * x + 1.0, kernels=[path], **options)  # swapped: after a rewrite
    assert program.report is not None
    assert [s.name for s in program.report.steps] == ["user.fused"]
    a = np.arange(50_000, dtype=np.float32).reshape(50, 1000)
    assert np.array_equal(program(a, a), a * a + 1)
    program.save(tmp_path / "out")
    code = (
        "import sys, numpy as np, tensor_graphs as tg\n"
        "try: program = tg.load_program(sys.argv[1])\n"
        "except tg.errors.KernelMissingError as error: print(error.message)\n"
        "else: print(float(program(*2 * [np.full((50, 1000), 2, np.float32)]).max()))\n"
    )

    def loaded() -> str:
        command = [sys.executable, "-c", code, str(tmp_path / "out")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert loaded() == "5.0"
    path.rename(tmp_path / "away.py")
    assert "cannot be read" in loaded()
    path.write_text("# another\n")
    assert "has changed" in loaded()
    assert tg.load_program(tmp_path / "out") is not None  # executed in this process already
    assert issubclass(KernelMissingError, tg.errors.BadModelError)


def test_a_program_carries_the_source_of_a_c_kernel(file: File, tmp_path: Path) -> None:
    helper = "static float helper(float v) { return v + 1; }"
    text = f"""
@declare(inputs={{"x": "float32[M, N]", "y": "float32[M, N]"}}, sizes={{"N": (8, 1000)}})
def carried(M, N): return c("carried", f"{LOOP} out[i] = helper(x[i] * y[i]);", "{helper}")
@declare(reference=lambda x, y: tg.exp(x) - y, sizes={{"N": (8, 1000)}})
def other(M, N): return c("other", f"{LOOP} out[i] = expf(x[i]) - helper(y[i]) + 1;", "#include <math.h>\\n{helper}")
"""
    path = file(text)
    with pytest.raises(KernelError, match="is one text"):
        use.admitted(str(path))  # type: ignore[arg-type]
    templates = templates_of(kernel_file(path))
    plain = registry.with_kernels([registry.backend("numpy")], templates)
    assert not any(t.name.startswith("user.") for t in plain[0].templates)  # C is not among NumPy's kernels
    from tensor_graphs.backends.program.program import Program
    from tensor_graphs.backends.tuning.single_kernel import kernel_plan

    call = Call({n: operand("float32", 50, 1000) for n in "xy"}, operand("float32", 50, 1000), {})
    values = {n: np.full((50, 1000), 2.0, np.float32) for n in "xy"}
    for template, expected in zip(templates, (5.0, np.exp(2.0) - 2.0), strict=True):
        made = Program(kernel_plan(template, call), params=values)
        made.save(tmp_path / template.kernel.name)
        again = tg.load_program(tmp_path / template.kernel.name)
        assert template.kernel.name in (tmp_path / template.kernel.name / "program.py").read_text()
        assert np.allclose(again(), expected)


def test_several_outputs_and_choices_are_measured(file: File) -> None:
    text = """
@declare("numpy", reference=lambda x, y: (x + y, x - y), outputs=2, choices={"STEP": (1, 7)})
def both(x, y, out, out1, STEP):
    for i in range(0, len(x), STEP):
        np.add(x[i : i + STEP], y[i : i + STEP], out=out[i : i + STEP])
        np.subtract(x[i : i + STEP], y[i : i + STEP], out=out1[i : i + STEP])
"""
    path = file(text)
    assert [v.status for v in use.verdicts_of(kernel_file(path))] == ["admitted"]
    call = Call(
        {n: operand("float32", 20, 30) for n in "xy"},
        operand("float32", 20, 30),
        {},
        more=(operand("float32", 20, 30),),
    )
    templates = templates_of(kernel_file(path))
    assert [t.name for t in templates] == ["user.both[STEP=1]", "user.both[STEP=7]"]
    with CpuMeasurer(SinkBase()) as measurer:  # type: ignore[arg-type]
        for t in templates:
            assert isinstance(measurer.time(t, call), Timing)


def test_a_kernel_is_matched_after_rewriting(file: File) -> None:
    text = """
@declare(reference=lambda x, y: tg.silu(x) * y)
def gated(M, N): return c("gated", f"for (long i = 0; i < {M * N}; ++i) out[i] = x[i] / (1 + expf(-x[i])) * y[i];", "#include <math.h>")
"""
    path = file(text)
    x, y = tg.input("x", (6, 5)), tg.input("y", (6, 5))
    for form in (y * (x / (1.0 + tg.exp(-x))), (y * tg.sigmoid(x)) * x):
        found = tg.saturate(form, kernels=[path]).choice.hypergraph.candidates
        assert any(c.template.name == "user.gated" for c in found)


def test_the_kernel_of_the_tutorial_is_found_in_a_rewritten_form(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "CASES", 2)
    x = tg.input("x", (6, 5))
    found = tg.saturate(tg.cumsum(tg.abs(x) * tg.abs(x), axis=-1), backend="c", kernels=[EXAMPLES / "energy.py"])
    reads = [c.inputs[0][1].cls for c in found.choice.hypergraph.candidates if c.template.name == "user.energy"]
    assert int(found.view.cls[found.view.op.index("input")]) in reads and len(reads) == 2  # x, and abs(x)
    for term, words in ((tg.cumsum(x * x, axis=-1), "in the plan"), (tg.tanh(x), "no match in the e-graph")):
        options: dict[str, Any] = {"measure": False, "verify": False, "costdb": tmp_path}  # no rows of other tests
        made = tg.optimize(term, backend="c", kernels=[EXAMPLES / "energy.py"], **options)
        assert words in str(made.report)
        assert Report.of_json(made.report.fields()).user_kernels == made.report.user_kernels


@pytest.mark.parametrize("stopped", [False, True])
def test_kernels_that_were_not_looked_for_are_not_said_to_match_nothing(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "CASES", 2)
    progress = tg.Progress()
    if stopped:
        progress.say = lambda stage, message: setattr(progress, "stopped", progress.stopped or stage == "candidates")
    else:
        monkeypatch.setattr(match, "matching_limit", lambda *_: lambda: True)
    x = tg.input("x", (6, 7))
    options: dict[str, Any] = {"backend": "c", "kernels": [EXAMPLES / "energy.py"], "measure": False, "verify": False}
    made = tg.optimize(tg.tanh(x) + 1.5, progress=progress, again=True, **options)
    why = "the search was stopped" if stopped else "out of time"
    assert f"user.energy: not looked for in the rewritten graph: {why}" in str(made.report), str(made.report)
    assert f"omitted  {why}: kernels of the rewritten graph" in str(made.report)


# ---------------------------------------------------------------- GPU languages
def test_a_triton_kernel_runs_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("there is a GPU: tests/gpu checks it there")
    monkeypatch.setattr(checks, "CASES", 2)
    (found,) = use.verdicts_of(kernel_file(EXAMPLES / "rms_norm.py"), interpret=True, again=True)
    assert found.admitted, str(found)


def test_two_triton_kernels_do_not_share_names() -> None:
    (template,) = templates_of(kernel_file(EXAMPLES / "rms_norm.py"))
    texts = []
    for rows in (4, 5):
        x = operand("float16", rows, 32)
        attrs = {"eps": 1e-6, "attr0_": (1, 1), "attr1_": "float32"}
        call = Call({"x": x, "w": operand("float16", 1, 32)}, x, attrs, schedule={"ROWS": 2, "WARPS": 4})
        (name,) = template.source(call) if template.source is not None else ()
        texts.append(kernel_text(template, call).text)
        assert f"def {name}(" in texts[-1]
        assert f"{name}[({-(-rows // 2)},)](x, w, out_, M={rows}," in texts[-1]
    assert texts[0] != texts[1]


def test_a_cuda_kernel_runs_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from . import cuda_host

    (template,) = templates_of(kernel_file(EXAMPLES / "swiglu_cuda.py"))
    x = operand("float32", 3, 50)
    call = Call({"x": x, "y": x}, x, {}, schedule={"BLOCK": 128, "EACH": 4})
    (name,) = template.source(call) if template.source is not None else ()
    source = cuda_text(kernel_text(template, call).text).replace("__expf", "expf")
    monkeypatch.setattr(cuda_host, "NAME", re.compile(r'extern "C" __global__ void (\w+)\('))
    kernel: Any = cuda_host.compiled(f"{source}\nusing namespace user_{name};\n", tmp_path)[name]
    a, b, out = np.random.default_rng(0).standard_normal((3, 3, 50)).astype(np.float32)
    kernel([v.ctypes.data for v in (a, b, out)], 1, 128)
    assert np.allclose(out, a / (1 + np.exp(-a)) * b, rtol=1e-5)


def test_constants_do_not_widen_a_kernel_on_16_bit_values() -> None:
    (template,) = templates_of(kernel_file(EXAMPLES / "rms_norm.py"))
    x, w = operand("float16", 8, 32), operand("float16", 1, 32)
    attrs = {"eps": 1e-6, "attr0_": (1, 1), "attr1_": "float32"}  # as matched in a graph that is rewritten in float32
    for dtype, expected in (("float16", True), ("float32", False)):
        call = Call({"x": x, "w": w}, operand(dtype, 8, 32), attrs)
        assert template.applies is not None
        assert template.applies(call) is expected
    assert {c.call.output.type.dtype for c in cases_of(template)} >= {"float16", "bfloat16"}
