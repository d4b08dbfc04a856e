"""Emits and runs programs on JAX arrays. The source runs without this package.

    def bind(weights, states=None):
        with jax.enable_x64(True):
            bound = (jnp.asarray(weights["w"]), ...)
        @jax.jit
        def step(bound, states, x):
            w, = bound
            v3 = linear_1f(x, w)
            return (v3,), ()
        def run(x): ...
        return run

Values are immutable arrays: JAX owns their memory, so there is no workspace. States are NumPy arrays that a call reads
and overwrites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...egraph.ir.tensor import Tensor, structural_digest
from ...egraph.ops.ops import Type
from ...extract.model.kernel import output_names
from ...extract.model.plan import Plan
from ..ir.source_text import identifier, indented, one_line, signature, title
from ..program.emit import memory_plan
from ..program.emit.emitted_program import EmittedProgram
from ..program.helpers.helper_functions import helper_source
from ..program.launch.device_programs import DevicePrograms
from ..runtime.marshalling import Marshalling, NumpyMarshalling, is_torch, tensor_of
from .spelling import node_text

__all__ = ["PROGRAMS", "JaxMarshalling", "JaxPrograms"]

IMPORTS = ("import jax", "import jax.numpy as jnp", "import numpy as np", "from jax.experimental import pallas as pl")


class JaxMarshalling(NumpyMarshalling):
    """Conversion of arguments and results of programs on JAX arrays: callers may pass arrays of NumPy, Torch or JAX.

    Results are JAX arrays if any input is one.
    """

    def accept(self, x: Any, spec: Any) -> Any:
        """The input `x`, whose declared type is `spec`, as an array that JAX takes (`Marshalling.accept`)."""
        return super().accept(np.asarray(x) if is_jax(x) else x, spec)

    def hand_out(self, results: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        """The results as JAX arrays, Torch tensors or NumPy arrays, after the kinds of the inputs `given`
        (`Marshalling.hand_out`)."""
        if any(map(is_jax, given)):
            return results
        arrays = [np.array(r) for r in results]
        return [tensor_of(a) for a in arrays] if any(map(is_torch, given)) else arrays


def is_jax(x: Any) -> bool:
    """Whether `x` is a JAX array."""
    return type(x).__module__.partition(".")[0] in ("jax", "jaxlib")


class JaxPrograms(DevicePrograms):
    """Emits programs that work on JAX arrays, and calls them."""

    def emit(self, plan: Plan, *, reuse_outputs: bool = False) -> EmittedProgram:
        """Emit the source of the program that runs `plan` (`DevicePrograms.emit`). Outputs are always fresh arrays,
        also with `reuse_outputs`."""
        return _Emitter(plan).emit()

    def exchange(self, place: str) -> Marshalling:
        """The object that converts arguments and results between the caller's arrays and JAX's
        (`DevicePrograms.exchange`)."""
        return JaxMarshalling()


class _Emitter:
    """Emits one plan as straight-line functional code."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.taken = {"jax", "jnp", "np", "pl", "bound", "step", "results", "updates", "made"}
        self.weights: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        self.lines: list[str] = []

    def emit(self) -> EmittedProgram:
        plan = self.plan
        definitions: dict[str, str] = {}
        for step in plan.steps:
            definitions |= step.template.source(step.call) if step.template.source is not None else {}
        self.taken |= definitions.keys()
        inputs = {str(n.attr("name")): identifier(str(n.attr("name")), self.taken) for n in plan.graph.inputs}
        states = {name: identifier(name, self.taken) for name in self._state_types()}
        self.names |= {v.id: inputs[v.name] for v in plan.values if v.origin == "input"}
        self.names |= {v.id: states[v.name] for v in plan.values if v.origin == "state"}
        keys = self._weight_names()
        self._steps()
        setups = {(s.template.backend, name) for s in plan.steps for name in s.template.setup}
        text = [
            f'"""{title(plan)}"""', "", "from __future__ import annotations", "", *IMPORTS, "",
            *(f"\n{d.strip()}\n" for d in (*helper_source((), setups), *definitions.values())), "",
            *self._function(inputs, states, keys), "",
        ]  # fmt: skip
        made = {v for s in plan.steps for v in s.outputs}
        fresh = sum(memory_plan.nbytes(plan.values[v].type) for v in made)
        layout = replace(memory_plan.layout(plan, made), size=0)
        return EmittedProgram(
            "\n".join(text), self.weights, self._state_types(), layout, fresh, frozenset(self.weights)
        )

    def _state_types(self) -> dict[str, Type]:
        written = {name: self.plan.values[v].type for name, v in self.plan.updates.items()}
        return {**{v.name: v.type for v in self.plan.values if v.origin == "state"}, **written}

    def _weight_names(self) -> dict[str, str]:
        """Weight key -> variable; constants are written into the source."""
        known: dict[bytes, str] = {}
        keys: dict[str, str] = {}
        for value, term in self.plan.weights.items():
            if term.op == "full":
                self.names[value] = identifier(f"w{value}", self.taken)
                self.lines.append(f"{self.names[value]} = {node_text(term, ())}")
                continue
            digest = structural_digest(term)
            if digest not in known:
                known[digest] = identifier(str(term.attr("name")) if term.op == "param" else f"w{value}", self.taken)
                self.weights[known[digest]] = term
                keys[known[digest]] = known[digest]
            self.names[value] = known[digest]
        return keys

    def _steps(self) -> None:
        for step in self.plan.steps:
            names = {o: self.names[v] for o, v in step.inputs}
            names |= dict.fromkeys(output_names(len(step.outputs)), "")  # results are new arrays
            self.names[step.output] = identifier(f"v{step.output}", self.taken)
            if step.doc:
                self.lines.append(f"# {one_line(step.doc)}")
            self.lines.append(f"{self.names[step.output]} = {step.template.write(replace(step.call, names=names))}")

    def _function(self, inputs: Mapping[str, str], states: Mapping[str, str], keys: Mapping[str, str]) -> list[str]:
        def listed(names: Any) -> str:
            return "(" + "".join(f"{n}, " for n in names).strip() + ")"

        plan = self.plan
        results = listed(self.names[v] for v in plan.outputs)
        updates = listed(self.names[v] for v in plan.updates.values())
        arguments = ", ".join(inputs.values())
        before = listed(f"states[{name!r}]" for name in states)
        body = [
            *([f"{listed(keys.values())} = bound"] if keys else []),
            *([f"{listed(states.values())} = states"] if states else []),
            *self.lines, f"return {results}, {updates}",
        ]  # fmt: skip
        return [
            "def bind(weights, states=None):",
            f'    """Makes the program for given weights{" and states, which run() updates" if states else ""}."""',
            "    with jax.enable_x64(True):",
            f"        bound = {listed(f'jnp.asarray(weights[{k!r}])' for k in keys)}", "",
            "    @jax.jit", f"    def step(bound, states{', ' if arguments else ''}{arguments}):",
            f'        """{signature(plan)}"""', *indented(body, 8), "",
            f"    def run({arguments}):",
            "        with jax.enable_x64(True):",
            f"            results, updates = step(bound, {before}{', ' if arguments else ''}{arguments})",
            *(f"        np.copyto(states[{name!r}], updates[{n}])" for n, name in enumerate(plan.updates)),
            "        return results", "", "    return run",
        ]  # fmt: skip


PROGRAMS = JaxPrograms()
