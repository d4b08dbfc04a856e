"""Writes the source of a single kernel: a module with its definitions, `run(operands, out, scratch)` and weight
preparations.

Compiling and timing processes execute the same text, so that the timing process hits Triton's cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from types import ModuleType
from typing import Any

from ...egraph.ops.ops import Type
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call, Operand, Template, output_names
from ..program.emit.execute import execute

_PLAIN = "from __future__ import annotations\n\nimport math\nfrom math import inf, nan\n\nimport torch\n"
_TRITON = _PLAIN + "import triton\nimport triton.language as tl\n"
OUT = "out_"  # output argument, a name that kernel code does not use; further outputs are out1_, out2_


def out_argument(name: str) -> str:
    """Name of the argument of `run` for the output `name`: out_ for out, out1_ for out1, and so on."""
    return f"{name}_"


@dataclass(frozen=True)
class KernelText:
    """Source of a Python module with one kernel (`text`), and facts for callers of its function `run`.

    `operands`: arguments of `run` before the outputs and scratch; `prepared`: those of them that `prepare_<name>`
    converts once; `fresh`: whether `run` returns a new tensor instead of writing its output; `scratch`: bytes of
    scratch memory; `generated`: whether the text defines kernels that need compilation.
    """

    text: str
    operands: tuple[str, ...]  # arguments of `run` before the outputs and scratch
    prepared: tuple[str, ...]  # operands that `prepare_<name>` converts once
    fresh: bool  # whether `run` returns a new tensor instead of writing its output
    scratch: int  # bytes of scratch memory
    generated: bool  # whether the text defines kernels that need compilation

    @property
    def digest(self) -> str:
        """Hash (24 hex digits) of the module's text."""
        return blake2b(self.text.encode(), digest_size=12).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The module's text and what is known of it, as JSON values."""
        return asdict(self)

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> KernelText:
        """The kernel text that `to_json` gave as JSON values."""
        return KernelText(**{**data, "operands": tuple(data["operands"]), "prepared": tuple(data["prepared"])})


def kernel_text(template: Template, call: Call) -> KernelText:
    """Source of a Python module with the kernel of `template`, whose code works on Torch tensors, in the layouts and
    schedule of `call`."""
    from ..program.helpers.helper_functions import helper_source

    names = tuple(template.operands)
    outputs = {o: out_argument(o) for o in output_names(len(call.outputs))}
    named = replace(call, names={**{o: o for o in names}, **outputs, "scratch": "scratch"})
    definitions = [*helper_source((), [(template.backend, name) for name in template.setup])]
    own = dict(template.source(named)) if template.source is not None else {}
    definitions += own.values()
    definitions += [
        f"def prepare_{o}({o}):\n    return {template.write_prep(o, o, named)}" for o in sorted(template.prep)
    ]
    code = template.write(named)  # emitted once: emission can take longer than compilation
    fresh = re.search(rf"\b{OUT}\b", code) is None
    body = f"return {code}" if fresh else code
    lines = "\n".join(f"    {line}" if line.strip() else "" for line in body.splitlines())
    definitions.append(f"def run({', '.join((*names, *outputs.values(), 'scratch'))}):\n{lines}")
    header = _TRITON if any("triton" in d for d in definitions) else _PLAIN
    if any("code_folder(" in d for d in definitions):
        header = header.replace("import math\n", "import math\nimport os\nimport warnings\n").replace(
            "import inf, nan\n", "import inf, nan\nfrom pathlib import Path\n"
        )
    scratch = int(template.scratch(call)) if template.scratch is not None else 0
    text = "\n\n\n".join((header.rstrip("\n"), *definitions)) + "\n"
    return KernelText(text, names, tuple(sorted(template.prep)), fresh, scratch, bool(own))


def module_of(found: KernelText) -> ModuleType:
    """Execute a kernel's text as a Python module; returns the module."""
    module = ModuleType(f"kernel_{found.digest}")
    execute(found.text, f"<{module.__name__}>", vars(module))
    return module


# ---------------------------------------------------------------- calls as JSON
def operand_json(o: Operand) -> list[Any]:
    """An operand as the JSON list [shape, dtype, strides in elements]."""
    return [list(concrete(o.type.shape)), o.type.dtype, list(o.strides)]


def operand_of_json(data: list[Any]) -> Operand:
    """The operand that `operand_json` has written as a list."""
    return Operand(Type(tuple(data[0]), data[1]), tuple(data[2]))


def call_json(call: Call) -> dict[str, Any]:
    """A call (one use of a kernel) as JSON values: operands, outputs, attributes, schedule."""
    more = {"more": [operand_json(o) for o in call.more]} if call.more else {}
    return {
        "operands": {name: operand_json(o) for name, o in call.operands.items()},
        "output": operand_json(call.output),
        "attrs": {name: list(v) if isinstance(v, tuple) else v for name, v in call.attrs.items()},
        "schedule": dict(call.schedule),
        **more,
    }


def call_of_json(data: Mapping[str, Any]) -> Call:
    """The call that `call_json` gave as JSON values."""
    return Call(
        {n: operand_of_json(o) for n, o in data["operands"].items()}, operand_of_json(data["output"]),
        {n: tuple(v) if isinstance(v, list) else v for n, v in data["attrs"].items()}, {}, dict(data["schedule"]),
        tuple(map(operand_of_json, data.get("more", ()))),
    )  # fmt: skip
