"""Decides when a device process measures the limits of a GPU (the rates of its roofline), and stores them."""

from __future__ import annotations

from concurrent.futures import Future

from ...costdb.keys.device import gpu_machine
from ...costdb.store.calibrate import calibration_rows
from ...costdb.store.schema import Row
from ...errors import WorkerError
from .compile_pool import Reply
from .gpu_process import START_S, GpuProcess
from .measurement import CUT, Sink

CALIBRATE_S = 0.7


class DeviceCalibration:
    """Calibration of a device's roofline while kernels are measured: at most once, and only if the sink (the cost
    store) has no rows of the device's limits (bandwidths, peak rates, launch gap). With `wanted` False, `begin` never
    calibrates.
    """

    def __init__(self, sink: Sink, *, wanted: bool) -> None:
        self.sink = sink
        self.running: Future[Reply] | None = None  # the measurement in flight
        self._considered = not wanted

    def begin(self, process: GpuProcess) -> None:
        """Start measuring the limits in a device process on the first call, unless the sink has the limits."""
        if self._considered:
            return
        self._considered = True
        if not self.sink.calibrated(gpu_machine().device):
            self.running = process.ask_later({"job": "calibrate", "seconds": CALIBRATE_S}, START_S)

    def take(self) -> None:
        """Store the limits of the device if their measurement has ended; does not wait. Raises WorkerError if it
        failed."""
        if self.running is None or not self.running.done():
            return
        reply, self.running = self.running.result(), None
        if reply["ok"] or reply["status"] != CUT:
            self._store(reply)

    def measured(self, process: GpuProcess, seconds: float) -> list[Row]:
        """Measure the device's roofline limits now, for about `seconds`, and store them; returns their rows. Raises
        WorkerError on failure."""
        return self._store(process.ask({"job": "calibrate", "seconds": seconds}, START_S))

    def _store(self, reply: Reply) -> list[Row]:
        if not reply["ok"]:
            raise WorkerError(f"the GPU cannot be calibrated: {reply['message']}", where=reply["status"])
        rows = calibration_rows(reply["probes"])
        self.sink.add(rows)
        return rows


__all__ = ["DeviceCalibration"]
