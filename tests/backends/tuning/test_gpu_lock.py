"""The GPU lock: which process has the device, and for how long."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

import pytest
from filelock import FileLock, Timeout

from tensor_graphs.backends.tuning import gpu_lock as module
from tensor_graphs.backends.tuning.gpu_lock import GpuLock, gpu_alone
from tensor_graphs.backends.tuning.gpu_process import LOCK

from ...only_in import only_in

WAIT_S = 60.0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file by which processes have the device."""
    pytest.importorskip("torch")
    found = str(tmp_path / "device.lock")
    monkeypatch.setenv(LOCK, found)
    return found


def taken(path: str) -> bool:
    try:
        with FileLock(path).acquire(blocking=False):
            return False
    except Timeout:
        return True


def test_others_have_the_device_between_turns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Event()

    def wait() -> None:
        with FileLock(path).acquire(poll_interval=0.0005):
            other.set()

    assert not taken(path)
    monkeypatch.setattr(module, "HOLD_S", 600.0)
    with GpuLock() as lock:
        thread = Thread(target=wait)
        thread.start()
        lock()
        assert taken(path) and not other.wait(0.02), "a turn is not over at once"
        monkeypatch.setattr(module, "HOLD_S", 0.0)
        for _ in range(int(WAIT_S / module.PAUSE_S)):
            lock()
            if other.is_set():
                break
        assert other.is_set() and taken(path)
        thread.join()
    assert not taken(path)


def test_whoever_is_hurried_keeps_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.0)
    only_in(monkeypatch, module, "time", sleep=lambda seconds: pytest.fail("the device was left alone"))
    with GpuLock() as lock:
        lock.uncontended = True
        lock()
        assert taken(path)


def test_what_fails_leaves_the_device(path: str) -> None:
    with pytest.raises(KeyError), GpuLock():
        raise KeyError
    assert not taken(path)


def test_whole_calls_are_timed_alone_where_that_takes_no_longer_than_they_do(path: str) -> None:
    with gpu_alone():
        assert taken(path)
        with gpu_alone():
            assert taken(path)
        assert taken(path), "a thread may take it again"
    assert not taken(path)
    with FileLock(path), gpu_alone(0.01):
        assert taken(path), "who cannot have it goes on without"
    assert not taken(path)


def test_a_thread_that_has_the_device_takes_it_again_in_any_way(path: str) -> None:
    with gpu_alone():
        with GpuLock(), gpu_alone():
            assert taken(path)
        assert taken(path)
    assert not taken(path)


def test_whole_calls_are_timed_also_where_no_lock_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "file").touch()
    monkeypatch.setenv(LOCK, str(file / "device.lock"))
    with gpu_alone():
        pass
    with pytest.raises(FileNotFoundError), gpu_alone():
        raise FileNotFoundError
