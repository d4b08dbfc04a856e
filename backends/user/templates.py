"""Makes the templates (kernels' patterns and code) of user kernels: one for each pattern of the reference
(`ReferenceForm`) and each backend; in backends without a tuner, one for each combination of choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...egraph.patterns.pattern import PatternCall, Term, shared
from ...egraph.patterns.pattern_attrs import Fact
from ...errors import ShapeError, TensorGraphsError
from ...extract.model.kernel import Call, Template
from ...extract.model.library_kernel import LibraryKernel, identify
from ...extract.model.meaning import output_terms
from .bodies import SETUP, Body
from .declare import BACKENDS, PYTHON, Kernel
from .files import KernelFile, kernels_of
from .reference import ReferenceForm, forms

TUNED = ("triton", "nvrtc")  # backends whose measuring tries schedules
USER_PREFIX = "user."  # of the names of all user kernels
UNTUNED = {"choice": 0}  # the only schedule of a kernel without choices


@dataclass(frozen=True, eq=False)
class UserKernel(LibraryKernel):
    """Template (a kernel's pattern and code) of a kernel that a user's file declares, for `form`, one pattern of its
    reference."""

    file: KernelFile = field(kw_only=True)
    kernel: Kernel = field(kw_only=True)
    form: ReferenceForm = field(kw_only=True)
    variant: Mapping[str, int] | None = field(kw_only=True)  # choices; None: schedules of a tuner choose

    def job_fields(self) -> dict[str, Any]:
        """JSON fields of a tuning job: path and digest of the file that declares the kernel (`Template.job_fields`)."""
        return {"kernel_file": [str(self.file.path), self.file.digest]}


def templates_of(file: KernelFile) -> list[UserKernel]:
    """All templates (kernels' patterns and code) of a file of kernels, which is executed.

    Raises KernelError if the file or a declaration is malformed.
    """
    return [t for kernel in kernels_of(file) for t in kernel_templates(kernel, file)]


def kernel_templates(kernel: Kernel, file: KernelFile) -> Iterator[UserKernel]:
    """Yields the templates (kernels' patterns and code) of one kernel: for each pattern of its reference and each
    backend a single one if the backend has a tuner, else one for each combination of choices."""
    found = forms(kernel)
    for backend in BACKENDS[kernel.language]:
        for number, form in enumerate(found):
            suffix = f"#{number + 1}" if len(found) > 1 else ""
            for choices in [None] if backend in TUNED else kernel.variants():
                yield template_of_form(kernel, file, backend, form, suffix, choices)


def template_of_form(
    kernel: Kernel, file: KernelFile, backend: str, form: ReferenceForm, suffix: str, choices: Mapping[str, int] | None
) -> UserKernel:
    """The template (a kernel's pattern and code) of one pattern of a kernel's reference (`form`) in one backend.

    `suffix`: ending of the template's name. `choices`: fixed choices, or None if a tuner chooses.
    """
    body = Body(kernel, file, choices)
    name = f"{USER_PREFIX}{kernel.name}{suffix}"
    name += f"[{', '.join(f'{n}={v}' for n, v in choices.items())}]" if choices else ""
    generates = "user_kernel" not in SETUP[kernel.language]

    def code(call: Call) -> str:
        return body.statement(call)

    def applies(call: Call) -> bool:
        return _applies(kernel, form, template, choices, call)

    def space(call: Call) -> Sequence[Mapping[str, int]]:
        known = kernel.known(call) or {}
        return [v or UNTUNED for v in kernel.variants() if kernel.allows({**known, **v})]

    template = UserKernel(
        name, backend, form.pattern, identify(code, body.identity), when=form.when,
        family=_family(form.pattern), setup=SETUP[kernel.language], applies=applies,
        dense=tuple(n for n in kernel.inputs if n not in kernel.strided),
        source=body.definitions if generates else None, space=space if choices is None else None,
        file=file, kernel=kernel, form=form, variant=choices,
    )  # fmt: skip
    return template


def _applies(
    kernel: Kernel, form: ReferenceForm, template: UserKernel, choices: Mapping[str, int] | None, call: Call
) -> bool:
    """Whether a kernel can compute a call: its sizes, types and conditions match, and the outputs are row-major and
    have the reference's dtype."""
    known = kernel.known(call)
    if known is None or not all(o.dense for o in call.outputs):
        return False
    if any(len(known[star]) != rank for star, rank in form.ranks):
        return False
    if not any(kernel.allows({**known, **v}) for v in ([choices] if choices is not None else kernel.variants())):
        return False
    try:
        facts = {n: Fact(o.type, False) for n, o in call.operands.items()}
        made = output_terms(template, replace(call, attrs={**call.attrs, **form.attributes(facts)}))
    except (ShapeError, TensorGraphsError):
        return False
    return all(t.type == o.type for t, o in zip(made, call.outputs, strict=True))


def executed_file(template: Template) -> KernelFile | None:
    """The user's file that programs with this kernel execute when they are loaded; None unless the template (a kernel's
    pattern and code) is a user kernel in Python."""
    return template.file if isinstance(template, UserKernel) and template.kernel.language in PYTHON else None


def _family(pattern: str) -> str:
    """Family of a kernel in reports and cost models, from the operations in its pattern."""
    from ...egraph.ops.ops import OPS
    from ...egraph.patterns.pattern_parser import parse_terms

    ops = {t.op for term in parse_terms(pattern) for t in _calls(term)}
    if any(OPS[op].law == "attention" for op in ops):
        return "attention"
    for family, members in (("conv", {"conv"}), ("contraction", {"matmul", "linear"})):
        if ops & members:
            return family
    plain = all(OPS[op].pointwise or OPS[op].kind == "view" or op == "full" for op in ops)
    return "pointwise" if plain else "reduction"


def _calls(term: Term) -> Iterator[PatternCall]:
    return (t for t in shared(term) if isinstance(t, PatternCall))


__all__ = ["USER_PREFIX", "UserKernel", "executed_file", "kernel_templates", "template_of_form", "templates_of"]
