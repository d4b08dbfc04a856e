"""Compiles kernels in the background of a measuring process: their code is in the cache when they are measured."""

from __future__ import annotations

from contextlib import suppress
from queue import Queue
from threading import Thread

from ...extract.model.kernel import Call, Template
from ..program.launch.emission import emit_for, executed
from .single_kernel import kernel_plan


class CompilingQueue:
    """Queue of kernels that one thread compiles one after another. The thread starts with the first kernel."""

    def __init__(self) -> None:
        self._sources: Queue[tuple[str, str]] = Queue()  # (emitted source, name of the kernel)
        self._thread: Thread | None = None

    def add(self, template: Template, call: Call) -> None:
        """Compile a kernel (template and call) after those already in the queue.

        Errors of the compiler are ignored: the job that measures the kernel reports them.
        """
        self._sources.put((emit_for(kernel_plan(template, call), reuse_outputs=True).source, template.name))
        if self._thread is None:
            self._thread = Thread(target=self._compile, daemon=True)
            self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all kernels of the queue are compiled, at most `seconds` (None: no limit); returns whether they
        are."""
        with self._sources.all_tasks_done:
            return self._sources.all_tasks_done.wait_for(lambda: not self._sources.unfinished_tasks, seconds)

    def _compile(self) -> None:
        while True:
            source, name = self._sources.get()
            with suppress(Exception):
                executed(source, name)
            self._sources.task_done()
