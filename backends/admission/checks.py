"""Checks user kernels against their references.

The kernels run in a child process that can be killed; this process draws the operands, computes the references and
judges the results.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.graph import Graph
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import KernelError, TensorGraphsError
from ...extract.model.kernel import Call, output_names
from ...extract.model.meaning import output_terms
from ..generate.kernel_text import call_json
from ..tuning.worker_process import CpuWorkerProcess
from ..user.declare import Kernel
from ..user.files import KernelFile
from ..user.operand_specs import operand_spec
from ..user.reference import ReferenceForm
from ..user.templates import UserKernel, template_of_form
from ..verification import compare
from ..verification.rounding_noise import RoundingSensitivity, kernel_fault
from .cases import CASES, Array, Case, cases_of, kinds_of, values_of
from .memory import OTHER_POISON, SharedMemory, places_of

#: Failures after which the child process can go on: it has neither ended nor written where it must not.
HARMLESS = ("wrong", "modified-input", "nondeterministic", "error", "malformed")
LOAD_S, BIND_S, RUN_S = 60.0, 120.0, 10.0  # seconds for executing a file, for compiling a kernel, for one run

INTERPRET = "TRITON_INTERPRET"  # environment variable with which Triton kernels run in its interpreter


@dataclass(frozen=True)
class AdmissionVerdict:
    """The outcome of a kernel's checks, with its language.

    `status`: admitted, unavailable (its backend does not work here), or the check that failed: malformed, wrong,
    out-of-bounds, modified-input, nondeterministic, timeout, crash, memory, error; `message`: what went wrong. `case`:
    sizes and values at which the check failed. `error`, `index`: largest error there, and index of the first wrong
    element.
    """

    kernel: str
    language: str
    status: str
    message: str = ""
    case: str = ""
    error: float | None = None
    index: tuple[int, ...] = ()
    cases: int = 0  # pairs of sizes and values that passed

    @property
    def admitted(self) -> bool:
        """Whether all checks passed."""
        return self.status == "admitted"

    def __str__(self) -> str:
        if self.admitted:
            return f"{self.kernel} ({self.language}): admitted, {self.cases} cases"
        return f"{self.kernel} ({self.language}): {self.status}: {self.message}" + (
            f"; at {self.case}" if self.case else ""
        )

    def to_json(self) -> dict[str, Any]:
        """All fields as plain JSON values."""
        return asdict(self)


class Refused(Exception):
    """Raised by a failed check of a user kernel. `status`: name of the check; `error`: largest error; `index`: index of
    the first wrong element."""

    def __init__(self, status: str, message: str, error: float | None = None, index: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.error, self.index = status, message, error, index


class RunnerProcess(CpuWorkerProcess):
    """The child process that runs kernels. `close` kills the child and all processes that it started."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        super().__init__("tensor_graphs.backends.admission.runner", RUN_S, environment)

    def close(self) -> None:
        """Kill the process and all processes that it started."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        super().close()

    def reply(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a job and wait at most `seconds`; returns the reply. Raises Refused if it is a failure."""
        reply = self.ask(job, seconds)
        if not reply.get("ok"):
            raise Refused(str(reply.get("status", "error")), str(reply.get("message", ""))[:1000])
        return reply


@dataclass
class Checker:
    """Checker of all kernels of a file.

    `device`: the Torch device on which kernels on tensors run. `usable`: function from a backend's name to the
    reason why it cannot be used here, "" if it can. `environment`: environment variables of the child process.
    `say` receives the name of each kernel that is checked.
    """

    file: KernelFile
    device: str = "cpu"
    usable: Callable[[str], str] = lambda backend: ""
    environment: Mapping[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = lambda message: None

    def verdicts(self) -> list[AdmissionVerdict]:
        """Check all kernels of `file`; returns one verdict (admitted, or the check that failed) per kernel, or one for
        the whole file if executing it fails."""
        self.runner = RunnerProcess(self.environment)
        try:
            templates = self._loaded()
            names = list(dict.fromkeys(t.kernel.name for t in templates))
            return [self._verdict([(i, t) for i, t in enumerate(templates) if t.kernel.name == n]) for n in names]
        except Refused as refused:
            return [AdmissionVerdict(self.file.path.name, "", refused.status, refused.message)]
        finally:
            self.runner.close()

    def templates(self) -> list[UserKernel]:
        """Templates (kernels' patterns and code) of the kernels of `file`, for matching only: their code is not
        checked. Raises KernelError if the file cannot be executed."""
        self.runner = RunnerProcess(self.environment)
        try:
            return self._loaded()
        except Refused as refused:
            raise KernelError(refused.message, where=str(self.file.path)) from None
        finally:
            self.runner.close()

    def _loaded(self) -> list[UserKernel]:
        """Templates of the file's kernels, made from the child's descriptions; they can be matched but not run.

        Raises Refused if the file or a description is malformed.
        """
        reply = self.runner.reply({"job": "load", "file": [str(self.file.path), self.file.digest]}, LOAD_S)
        try:
            return [_stub(d, self.file) for d in reply["kernels"]]
        except (TensorGraphsError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise Refused("malformed", f"its description: {error}") from None

    def _verdict(self, templates: Sequence[tuple[int, UserKernel]]) -> AdmissionVerdict:
        kernel, passed, where = templates[0][1].kernel, 0, ""
        there = [(i, t) for i, t in templates if not self.usable(t.backend)]
        if not there:
            return AdmissionVerdict(kernel.name, kernel.language, "unavailable", self.usable(templates[0][1].backend))
        self.say(kernel.name)
        try:
            for index, template in there:
                slow = template.backend == "triton" and "1" in (
                    self.environment.get(INTERPRET),
                    os.environ.get(INTERPRET),
                )
                cases = cases_of(template, min(CASES, max(3, 24 // len(there))), interpreted=slow)
                for number, case in enumerate(cases):
                    for schedule in _schedules(template, case):
                        for _ in self._checked(
                            index, template, replace(case, call=replace(case.call, schedule=schedule)), number
                        ):
                            passed += 1
        except Refused as refused:
            if refused.status not in HARMLESS:
                self._reload()
            case_text = refused.args[1] if len(refused.args) > 1 else where
            return AdmissionVerdict(
                kernel.name,
                kernel.language,
                refused.status,
                refused.message,
                case_text,
                refused.error,
                refused.index,
                passed,
            )
        except KernelError as error:
            return AdmissionVerdict(kernel.name, kernel.language, "malformed", error.message)
        except (
            TypeError,
            ValueError,
            ArithmeticError,
            TensorGraphsError,
        ) as error:  # constants that the reference cannot have
            why = f"its reference cannot be computed: {type(error).__name__}: {error}"[:400]
            return AdmissionVerdict(kernel.name, kernel.language, "malformed", why, where)
        return AdmissionVerdict(kernel.name, kernel.language, "admitted", cases=passed)

    def _reload(self) -> None:
        """Restart the child after a failure, for the next kernel."""
        self.runner.close()
        self._loaded()

    def _checked(self, index: int, template: UserKernel, case: Case, number: int) -> Iterator[str]:
        """Run the checks of one case; yields a description of each check that passed.

        Raises Refused for one that failed. `index`: index of the template in the file; `number`: index of the
        case.
        """
        places, size = places_of(case.call)
        memory = SharedMemory(size)
        where = f"{case}"
        try:
            described = {n: [p.start, p.size] for n, p in places.items()}
            self.runner.reply({"job": "bind", "template": index, "call": call_json(case.call), "memory": memory.path,
                              "places": described, "device": self.device}, BIND_S)  # fmt: skip
            for turn, kind in enumerate(kinds_of(number, template.kernel.nan)):
                where = f"{case}, {kind} values"
                self._run(template, case, kind, memory, twice=turn == 0)
                yield where
        except Refused as refused:
            refused.args = (refused.message, where)
            raise
        finally:
            memory.close()

    def _run(self, template: UserKernel, case: Case, kind: str, memory: SharedMemory, *, twice: bool) -> None:
        """Run a kernel on values of one kind and judge the result; with `twice`, run it again and compare the bits.

        Raises Refused.
        """
        call = case.call
        places, _ = places_of(call)
        outputs = {n: places[n] for n in output_names(len(call.outputs))}
        values = values_of(template, case, kind)
        memory.fill(call, places, values)
        before = {n: memory.bytes_of(places[n]) for n in call.operands}
        self.runner.reply({"job": "run"}, RUN_S)
        self._harmless(memory, places, before)
        made = {n: memory.bytes_of(p) for n, p in outputs.items()}
        _judge(template, call, values, made)
        if twice:
            memory.poison(list(outputs.values()), OTHER_POISON)
            self.runner.reply({"job": "run"}, RUN_S)
            self._harmless(memory, places, before)
            for name, place in outputs.items():
                if (again := memory.bytes_of(place)) != made[name]:
                    at = int(np.argmax(np.frombuffer(again, np.uint8) != np.frombuffer(made[name], np.uint8)))
                    item = dtypes.itemsize(call.buffers[name].type.dtype)
                    where = tuple(int(i) for i in np.unravel_index(at // item, concrete(call.buffers[name].type.shape)))
                    raise Refused("nondeterministic", f"two runs differ in {name}, first at {list(where)}", None, where)

    def _harmless(self, memory: SharedMemory, places: Mapping[str, Any], before: Mapping[str, bytes]) -> None:
        """Raise Refused if a run wrote outside of its outputs. `before`: bytes of the inputs before the run."""
        if (at := memory.outside(places)) is not None:
            near = min(places, key=lambda n: min(abs(at - places[n].start), abs(at - places[n].start - places[n].size)))
            start, end = places[near].start, places[near].start + places[near].size
            side = f"{start - at} bytes before" if at < start else f"{at - end + 1} bytes behind"
            raise Refused("out-of-bounds", f"it writes {side} {near}")
        for name, content in before.items():
            if memory.bytes_of(places[name]) != content:
                raise Refused("modified-input", f"it changes its input {name}")


def _schedules(template: UserKernel, case: Case) -> list[Mapping[str, int]]:
    """All schedules of a tuned kernel; one empty schedule for other kernels."""
    return list(template.space(case.call)) if template.space is not None else [{}]


def _judge(template: UserKernel, call: Call, values: Mapping[str, Array], made: Mapping[str, bytes]) -> None:
    """Raise Refused if an output differs from the float64 reference by more than rounding explains.

    An output is not judged if the reference evaluated in its own dtypes has such an error too (an overflow).
    `made`: bytes of the outputs.
    """
    terms = output_terms(template, call)
    with np.errstate(all="ignore"):
        exact = evaluate(terms, {}, params=dict(values), float64=True)
        floats = [o.type.dtype for o in call.buffers.values() if dtypes.is_float(o.type.dtype)]
        allowed = max((compare.KERNEL[d] for d in floats), default=0.0)
        disturbed = RoundingSensitivity(Graph.of(terms, params=dict(values)), {})
        for k, (name, raw) in enumerate(made.items()):
            kind = call.outputs[k].type
            got = np.frombuffer(raw, dtypes.numpy_dtype(kind.dtype)).reshape(concrete(kind.shape))
            want = np.asarray(exact[k])
            if not dtypes.is_float(kind.dtype):
                want = want.astype(got.dtype)
            fault = _fault(got, want, None, k, kind.dtype, allowed, disturbed)
            if not fault:
                continue
            own = np.asarray(evaluate(terms, {}, params=dict(values))[k])
            fault = _fault(got, want, own, k, kind.dtype, allowed, disturbed)
            if fault and not _fault(own, want, own, k, kind.dtype, allowed, disturbed):
                error, index = _located(got, want, allowed)
                at = f", first at {list(index)}: {got[index]} for {want[index]:g}" if index or not got.shape else ""
                raise Refused("wrong", f"{name} is wrong, largest error {error:.3g}{at}; {fault}"[:600], error, index)


def _fault(
    got: Array, want: Array, own: Array | None, k: int, dtype: str, allowed: float, disturbed: RoundingSensitivity
) -> str:  # fmt: skip
    """Description of an output's error; "" if the output is acceptable.

    NaN and infinities are acceptable where the float64 reference (`want`) or the reference in its own dtypes
    (`own`) has them, or where rounding decides.
    """
    if dtypes.is_float(dtype):
        wide = got.astype(np.float64), want.astype(np.float64)
        off = compare.misplaced(np, *wide, wide[1] if own is None else own.astype(np.float64), dtype)
        for moved in disturbed.refined() if off.any() else ():
            off = off & ~np.isinf(moved[k])
            if not off.any():
                break
        if off.any():
            return f"NaN or infinity in {int(off.sum())} unexpected elements, or missing there"
    fault = kernel_fault(got, want, k, dtype, allowed, disturbed)
    return "" if fault is None else fault.message


def _located(got: Array, want: Array, allowed: float) -> tuple[float, tuple[int, ...]]:
    """(largest absolute error, index of the first element that is clearly wrong)."""
    g, w = got.astype(np.float64), want.astype(np.float64)
    gap = np.where((g == w) | (np.isnan(g) & np.isnan(w)), 0.0, abs(g - w))
    gap = np.where(np.isnan(gap), np.inf, gap)
    scale = np.sqrt(np.mean(np.where(np.isfinite(w), w, 0.0) ** 2)) if w.size else 0.0
    off = gap > 10 * allowed * (abs(np.where(np.isfinite(w), w, 0.0)) + scale)
    first = int(np.argmax(off)) if off.any() else int(np.argmax(gap))
    return float(gap.max(initial=0.0)), tuple(int(i) for i in np.unravel_index(first, got.shape))


def _stub(data: Mapping[str, Any], file: KernelFile) -> UserKernel:
    """A template made from a kernel's description, which can be matched but not run."""
    form = data["form"]
    kernel = Kernel(
        str(data["name"]), str(data["language"]), "", {str(n): operand_spec(n, s) for n, s in data["inputs"].items()},
        _no_body, Path(file.path), int(data["outputs"]), _tuples(data["types"]), _tuples(data["sizes"]), tuple(data["where"]),
        _tuples(data["choices"]), _tuples(data["constants"]), tuple(data["strided"]), str(data["nan"]),
    )  # fmt: skip
    derived = tuple((str(n), str(t)) for n, t in form["derived"])
    ranks = tuple((str(n), int(r)) for n, r in form["ranks"])
    made = ReferenceForm(str(form["pattern"]), tuple(map(str, form["when"])), derived, ranks)
    variant = None if data["variant"] is None else {str(n): int(v) for n, v in data["variant"].items()}
    return template_of_form(kernel, file, str(data["backend"]), made, str(data["suffix"]), variant)


def _tuples(data: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    return {str(n): tuple(tuple(v) if isinstance(v, list) else v for v in values) for n, values in data.items()}


def _no_body() -> str:
    raise KernelError(
        "this kernel was described by another process and cannot run here",
        hint="run `tensor-graphs kernels check FILE`, or use the file of kernels",
    )


__all__ = ["AdmissionVerdict", "Checker", "Refused"]
