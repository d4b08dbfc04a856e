"""Defines the Pallas backend: kernels generated from the kernel IR as functions of jax.experimental.pallas.

Where JAX has only a CPU, kernels are interpreted, which is slow: "auto" never chooses this backend, and its kernels are
measured only on an accelerator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from ...costdb.keys.device import MachineKey, host_key, toolchain_key
from ...egraph.ir.tensor import Tensor
from ...extract.model.kernel import Call
from ...imported import installed
from ..contract import Measuring
from ..device import TargetDevice
from ..generate.backend_lowering import Lowering
from ..generate.generator import KernelGenerator
from ..generate.lowering_requests import LoweringRequest
from ..generate.lowerings import Lowerings
from ..generate.template import GeneratedKernel, template_of
from ..ir.precision import Precision
from .emitter import EMITTER
from .library import TEMPLATES

__all__ = ["BACKEND", "Pallas", "generated"]

JAX = TargetDevice("jax", False, "tensor_graphs.backends.pallas.programs", any_size=False)
HELPERS: Mapping[str, str] = {
    "pallas_interpreted": '''def pallas_interpreted():
    """Whether kernels run in Pallas's interpreter, because JAX has no accelerator."""
    return jax.default_backend() == "cpu"''',
}


class PallasLowering(Lowering):
    """The kernels that one optimization generates with the Pallas backend: one per fusion group, without variants."""

    def _templates(self, asked: LoweringRequest, precision: Precision) -> Iterator[tuple[GeneratedKernel, Call]]:
        """(template, call) of a fusion group; none if the group cannot be emitted."""
        template = self._template(asked.group.terms, ())
        if not template.bases and template.lower(asked.call) is not None:
            yield template, asked.call


class Pallas(KernelGenerator):
    """Backend that generates kernels in Pallas, for JAX devices."""

    device = JAX

    @property
    def measured(self) -> Measuring:  # type: ignore[override]
        """Where kernels are measured: "host", a process of the host, if JAX has an accelerator, else "" for nowhere."""
        import jax

        return "" if jax.default_backend() == "cpu" else "host"

    def lowering(self, lowerings: Lowerings) -> Lowering:
        """A new `PallasLowering` (generated kernels of one optimization), which shares the worker processes of
        `lowerings`."""
        return PallasLowering(self, lowerings)

    def machine(self) -> MachineKey:
        """Key of the machine in stored measurements: the JAX device and JAX's version.

        Without an accelerator the device is the CPU that interprets kernels.
        """
        if not installed("jax"):
            return host_key(f"{toolchain_key()};jax=none")
        import jax

        toolchain = f"{toolchain_key()};jax={metadata.version('jax')}"
        own = host_key(toolchain)
        device = own.device if jax.default_backend() == "cpu" else f"jax:{jax.devices()[0].device_kind}"
        return own._replace(device=device)


def generated(root: Tensor | Sequence[Tensor]) -> GeneratedKernel:
    """Template (a kernel's meaning and code) of the generated Pallas kernel that computes `root`: a term over inputs,
    or several terms."""
    return template_of(EMITTER, root)


BACKEND = Pallas(EMITTER, HELPERS, TEMPLATES)
