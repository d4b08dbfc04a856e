"""The interval of Python's thread switches during a search on a GPU."""

from __future__ import annotations

import os
import sys
from threading import Event, Thread

from tensor_graphs.processes.switch_interval import SWITCH_S, threads_alternate


def test_the_interval_is_shorter_until_the_last_block_ends() -> None:
    before, entered, leave = sys.getswitchinterval(), Event(), Event()

    def other() -> None:
        with threads_alternate():
            entered.set()
            leave.wait(60)

    thread = Thread(target=other)
    with threads_alternate():
        assert abs(sys.getswitchinterval() - SWITCH_S) < 1e-6
        thread.start()
        assert entered.wait(60)
    assert sys.getswitchinterval() < before, "the other thread's block goes on"
    leave.set()
    thread.join()
    assert sys.getswitchinterval() == before


def test_a_shorter_interval_of_the_program_stays() -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-4)
        with threads_alternate():
            assert abs(sys.getswitchinterval() - 1e-4) < 1e-6
    finally:
        sys.setswitchinterval(before)


def test_a_forked_child_has_the_interval_of_the_program() -> None:
    before = sys.getswitchinterval()
    with threads_alternate():
        child = os.fork()
        if child == 0:
            os._exit(sys.getswitchinterval() != before)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
