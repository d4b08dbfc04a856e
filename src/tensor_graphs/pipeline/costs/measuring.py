"""Creates the backends that one call of `optimize` uses, and starts the processes that measure their kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any

from ...backends.admission.use import admitted
from ...backends.gpu_context import hash_compiler
from ...backends.program.helpers.helper_functions import host_helpers
from ...backends.registry import backend, is_planning_only, on_gpu, select, used_kernels, with_kernels
from ...backends.tuning.measure_cpu import CpuMeasurer
from ...backends.tuning.measure_gpu import GpuMeasurer
from ...backends.user.templates import USER_PREFIX
from ...costdb.keys.device import GPU_KIND, gpu_machine
from ...costdb.store.store import Store
from ...egraph.saturate.worker import default_pool
from ...errors import DeviceUnavailableError, WorkerError, warned
from ...extract.model.backend import Backend
from ...extract.model.pricing import Measurer
from ...extract.search.preload import STORE_MODULES, import_in_background, in_background
from ...options import CommonOptions, Options
from ...report.omissions import Omission, OmittedWork
from ..context.reserves import closing_s
from ..context.session import Session, kept_warnings, store_of

EARLY_S = 30.0  # budget up to which the processes that lower kernels for a GPU start before the model is loaded
# budget below which no process measures kernels of PyTorch: importing it takes as long (1.3 s on an idle machine), so
# that the process would be ended before its first kernel
IMPORTING_S = 1.5
# budget below which PyTorch is not imported for its kernels alone: the process that measures them does so first, then
# this one for their program, mostly after the end of the budget
WITHOUT_TORCH_S = 2.5
SMALL_S = 10.0  # budget up to which nothing is measured that only later searches use, as a GPU's limits (0.7 s)


def backends_of(options: Options) -> list[Backend]:
    """Backends that provide kernels for the options; NumPy alone for tolerance "exact" with backend "auto".

    Raises DeviceUnavailableError if measuring or verifying needs a GPU that is not in this machine (setting `gpu`).
    """
    if is_planning_only(options.backend_name) and (options.measure or options.verify):
        raise DeviceUnavailableError(
            f"plans for {gpu_machine().device} can be made on this machine, but not measured or verified", where="TENSOR_GRAPHS_GPU",
            hint="give measure=False, verify=False (--no-measure --no-verify); prices are those that `tensor-graphs measure` found on that GPU",
        )  # fmt: skip
    return chosen_backends(options, "numpy" if options.exact and options.backend_name == "auto" else "")


def chosen_backends(options: CommonOptions, name: str = "") -> list[Backend]:
    """The backends that `name` stands for (default: the backend name in `options`), with the user kernels registered in
    this process and those in `options`.

    Raises KernelError or KernelRefusedError for user kernels that cannot be used.
    """
    chosen, added = select(name or options.backend_name), admitted(options.kernels)
    names = {b.name for b in chosen}
    if out := sorted({t.kernel.name for t in added} - {t.kernel.name for t in added if t.backend in names}):
        warned(f"user kernels {', '.join(out)}: their backends are not among those of backend={options.backend_name!r}")
    return list(with_kernels(chosen, [*used_kernels(), *added]))


def backends_in_time(session: Session, backends: Sequence[Backend]) -> Sequence[Backend]:
    """The backends to search with. PyTorch's are left out, and the report says so, if the budget is too short to import
    PyTorch (WITHOUT_TORCH_S), backend "auto" took them, C kernels can be compiled, no user kernel needs PyTorch, and
    the caller has not imported it."""
    found = _in_time(session.options, backends)
    if found is not backends:
        session.omitted.append(Omission(OmittedWork.UNUSABLE, "torch, which was not imported yet"))
    return found


def _in_time(options: Options, backends: Sequence[Backend]) -> Sequence[Backend]:
    """`backends_in_time` of the options: `backends` themselves if none are left out."""
    if not does_without_torch(options) or not {"torch", "c"} <= {b.name for b in backends}:
        return backends
    if any(t.name.startswith(USER_PREFIX) for b in backends if b.name == "torch" for t in b.templates):
        return backends
    return chosen_backends(options, "c")


def does_without_torch(options: Options) -> bool:
    """Whether the budget of a search is too small to import PyTorch, which nobody has asked for or imported."""
    small = options.budget < WITHOUT_TORCH_S and not options.deterministic and options.backend_name == "auto"
    return small and sys.modules.get("torch") is None


def measurer_of(options: Options, backends: Sequence[Backend], store: Store) -> Measurer | None:
    """Kernel measurer of the backends, whose processes begin to start; None if nothing is to be measured, or no process
    would be ready in time (`too_late`)."""
    if not measures(options) or too_late(options, backends):
        return None
    where = {backend(b.name).measured for b in backends}
    measurer: Measurer
    if "gpu" in where:
        measurer = GpuMeasurer(store, calibrates=options.budget > SMALL_S)
    elif "host" in where:
        preload = "torch" if _has_torch(backends) else ""
        measurer = CpuMeasurer(store, preload=preload, grace=closing_s(options, on_gpu=False))
    else:
        return None
    if (
        "gpu" in where or options.budget <= SMALL_S
    ):  # larger ones start a CPU process when there is something to measure
        with suppress(WorkerError):  # the error is raised again by the first measurement
            measurer.start()  # takes as long as rewriting
    return measurer


def start_on_host(options: Options, backends: Sequence[Backend], measurer: Measurer) -> None:
    """Start the process that measures CPU kernels, if it has not started with the search, and import PyTorch here, both
    while kernels are matched, which takes as long as these imports on a busy machine."""
    if options.budget > SMALL_S:
        with suppress(WorkerError):  # the error is raised again by the first measurement
            measurer.start()
        if _has_torch(backends):
            import_in_background(["torch"])


def measures(options: Options) -> bool:
    """Whether a search measures kernels."""
    return options.measure and not options.deterministic


def too_late(options: Options, backends: Sequence[Backend]) -> bool:
    """Whether the budget ends before a process that measures kernels is ready."""
    return options.budget < IMPORTING_S and _has_torch(backends)


def _has_torch(backends: Sequence[Backend]) -> bool:
    return any(b.name == "torch" for b in backends)


@contextmanager
def measurer_started(session: Session, *, early: bool = True) -> Iterator[None]:
    """Context manager that starts worker processes before the model is loaded, and ends them.

    Started are a GPU's measuring processes, and for budgets up to SMALL_S a CPU's, the saturation workers, and those
    that lower kernels for a GPU (these for budgets up to EARLY_S), because starting takes seconds, as loading does.
    Without `early`, for models that are loaded already, `start_measurer` starts the first two kinds.
    """
    options = session.options
    with session.stage_clock.running("start workers"):
        backends = _in_time(options, backends_of(options))
        small = options.budget <= SMALL_S
        if early and small and options.saturation_limits.iterations:
            default_pool().begin()
        if early:
            start_measurer(session, backends)
        if early and options.budget <= EARLY_S and on_gpu(backends) and any(b.generates for b in backends):
            session.lowerings.pool.begin()  # kernels would be formed before workers started later are ready
    try:
        yield
    finally:
        if session.started is not None:  # unused: the plan came from the cache, or the search did not start
            session.started[1].close()


def start_measurer(session: Session, backends: Sequence[Backend]) -> None:
    """Start the measuring processes of a search on a GPU, or of a small budget, unless they have started; and, in
    threads, what this process needs after loading the model: the cost store's libraries, on a GPU its context there
    and, from when the model is loaded (which needs the interpreter as well), the store's rows and predictor.
    """
    if session.started is None and (on_gpu(backends) or session.options.budget <= SMALL_S):
        store = store_of(session)
        measurer = measurer_of(session.options, backends, store)
        if measurer is not None:
            session.started = store, measurer
        if measurer is not None or too_late(session.options, backends):
            import_in_background(STORE_MODULES)
            if on_gpu(backends):
                triton = any(b.name == "triton" for b in backends)
                session.when_loaded(partial(in_background, partial(_begin_prices, session, store, triton=triton)))
                Thread(target=_begin_device, args=(sys.modules.get("torch"),), name="device", daemon=True).start()


def _begin_prices(session: Session, store: Store, *, triton: bool) -> None:
    """Prepare what the first prices of kernels on a GPU need: the device would wait a second or more for them; then
    (`triton`) what the program's first run needs of Triton."""
    with kept_warnings(session):
        store.prepare("cold")
    host_helpers()  # keys of kernels are made with these names
    if triton:
        hash_compiler()


def _begin_device(torch: Any) -> None:
    """Make this process's context on the GPU, unless the caller has; it takes half a second or more. `torch`: the
    module, None if it is not imported yet."""
    with suppress(Exception):  # whoever needs the device first reports the error
        if torch is not None and not torch.cuda.is_initialized():
            torch.zeros(1, device=GPU_KIND)


def take_measurer(session: Session, backends: Sequence[Backend]) -> tuple[Store, Measurer | None]:
    """Cost store and measurer of a search: those of `measurer_started`, else new ones. The measurer is None if the
    search measures nothing. The search closes both."""
    started, session.started = session.started, None
    if started is not None:
        return started
    store = store_of(session)
    if measures(session.options) and too_late(session.options, backends):
        session.omitted.append(Omission(OmittedWork.MEASURING))
    return store, measurer_of(session.options, backends, store)


__all__ = [
    "backends_in_time",
    "backends_of",
    "chosen_backends",
    "does_without_torch",
    "measurer_of",
    "measurer_started",
    "start_measurer",
    "start_on_host",
    "take_measurer",
]
