"""The quiet lock keeps threads apart, lets its owner in again, and stands where it cannot be left taken."""

from __future__ import annotations

import threading
from types import FunctionType

import pytest

from fabric.quiet_lock import QuietLock, quiet_lock

THREADS, ROUNDS = 4, 2000
END_S = 30.0


def test_threads_take_turns() -> None:
    lock, inside, most = QuietLock(), [0], [0]

    def work() -> None:
        for _ in range(ROUNDS):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0], len(str(inside)) - 2)  # a call: the interpreter may switch here
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(END_S)
    assert (inside, most) == ([0], [1])


def test_its_owner_may_take_it_again_and_others_wait_for_the_last() -> None:
    lock, order = QuietLock(), []
    asked = threading.Event()

    def other() -> None:
        asked.set()
        with lock:
            order.append("other")

    thread = threading.Thread(target=other)
    with lock:
        with lock:
            thread.start()
            assert asked.wait(END_S)
        order.append("owner")
    thread.join(END_S)
    assert order == ["owner", "other"]


def test_it_is_free_behind_an_error() -> None:
    lock = QuietLock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    taken = threading.Thread(target=lock.__enter__)
    taken.start()
    taken.join(END_S)
    assert not taken.is_alive()


def test_where_it_is_interpreted_pythons_own_takes_its_place() -> None:
    interpreted = isinstance(QuietLock.__enter__, FunctionType)
    assert isinstance(quiet_lock(), QuietLock) is not interpreted
