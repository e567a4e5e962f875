"""What a client does to its own arena, and what it sends, can spoil its own requests only.

A hostile client punches holes in its arena, scribbles on it while the node works there, tries to truncate it, and sends
requests whose places overlap, leave the arena, or do not add up. Two neighbours check each byte of theirs meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.deadline import Deadline
from fabric.frame import NO_SLOT, Kind, RequestFrame, bare_frame, check_header, encode_request
from fabric.hello import Hello
from fabric.local.session import open_session
from tests.contract.local_world import LocalWorld
from tests.contract.world import CALLERS, Bytes, Client, bytes_of, check_flipped, layout_for, wait_until

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from fabric.memory.arena import Arena

ROUNDS = 1_000
PUNCH_HOLE_KEEP_SIZE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE of fallocate(2)
ARENA_BYTES = 4 << 20
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


@pytest.fixture
def victim() -> Iterator[LocalWorld]:
    world = LocalWorld()
    yield world
    world.close()


class Attacker:
    """A raw session with its arena; it keeps to no rule of a channel."""

    def __init__(self, world: LocalWorld, seed: int) -> None:
        self.random = random.Random(seed)
        self.sock: socket.socket
        self.arena: Arena
        self._world = world
        self.connect()

    def connect(self) -> None:
        deadline = Deadline.after(5, time.monotonic())
        self.sock, _, self.arena = open_session(self._world.node.path, Hello(666, ARENA_BYTES), deadline)
        self.sock.settimeout(5)

    def close(self) -> None:
        self.sock.close()
        self.arena.close_fd()

    def frame(self, number: int) -> bytes:
        """A request that is anything from sound to absurd."""
        pick = self.random
        size = pick.choice([0, 64, 4096, 300_000, 1 << 20])
        layout = layout_for(size)
        body_bytes = layout.body_bytes if pick.random() < 0.8 else pick.choice([1, 1 << 39, (1 << 64) - 1])
        sound = pick.random() < 0.6
        places = [0, 64, 4096, ARENA_BYTES // 2, ARENA_BYTES - 64, ARENA_BYTES, 1 << 40, NO_SLOT]
        body_at = pick.choice(places[:4] if sound else places)
        reply_at = pick.choice(places[:4] if sound else places)
        capacity = layout.body_bytes if sound else pick.choice([0, 64, ARENA_BYTES, 1 << 50, NO_SLOT])
        model = pick.choice(["flip", "echo", "run/1/flip", "grow/100000", "touch", "\0", "x" * 300])
        words = layout.encoded if pick.random() < 0.9 else pick.randbytes(pick.randrange(200))
        request = RequestFrame(666, number, 0, 10_000, 0, body_at, body_bytes, reply_at, capacity, 0, 0, model, words)
        return encode_request(request)

    def violate(self) -> None:
        """Scribbles, punches holes, and tries to truncate and to unseal."""
        pick = self.random
        at = pick.randrange(0, ARENA_BYTES - 65_536)
        self.arena.view[at : at + 65_536] = pick.randbytes(65_536)
        hole = pick.randrange(0, ARENA_BYTES // 4096) * 4096
        _fallocate(self.arena.fd, PUNCH_HOLE_KEEP_SIZE, hole, 256 << 10)
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(self.arena.fd, 0)

    def strike(self, number: int) -> None:
        """One round: a request, the arena changed under it, and its final frame or the end of the connection."""
        try:
            self.sock.send(self.frame(number))
            self.violate()
            if not self.sock.recv(70_000):
                raise ConnectionResetError
            if number % 50 == 0:
                noise = self.random.randbytes(self.random.randrange(1, 5000))
                self.sock.send(self.random.choice([noise, bare_frame(Kind.WELCOME), self.frame(number)[:-1]]))
                while self.sock.recv(70_000):
                    pass
                raise ConnectionResetError
        except (ConnectionError, BrokenPipeError):
            self.close()
            self.connect()


def test_a_thousand_attacks_spoil_nobody_else(victim: LocalWorld, pool: Bytes) -> None:
    pid = victim.node.process.pid
    caller = CALLERS["blocking"]()
    stop = threading.Event()
    faults: list[str] = []
    rounds = [0, 0]

    def neighbour(who: int) -> None:
        data = pool[who * 4096 :][: 200_000 + who]
        try:
            with Client(victim, caller, client_id=who + 1) as client:
                held = bytes_of(client.call("flip", data))
                while not stop.is_set():
                    client.flips(data)
                    client.flips(data[:100], place="lease")
                    rounds[who] += 1
                assert np.array_equal(held, np.invert(data)), "a held reply changed"
                del held
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            faults.append(repr(error))

    threads = [threading.Thread(target=neighbour, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    attacker = Attacker(victim, seed=13)
    try:
        for number in range(1, ROUNDS + 1):
            attacker.strike(number)
            assert not faults, faults
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
        attacker.close()
        caller.close()
    assert not faults, faults
    assert min(rounds) > 20
    assert victim.serves()
    assert victim.node.process.pid == pid


def test_a_slow_reader_is_dropped_and_nobody_waits_for_it(victim: LocalWorld, pool: Bytes) -> None:
    """It sends requests whose answers come later, and reads none of them."""
    caller = CALLERS["blocking"]()
    slow = Attacker(victim, seed=1)
    layout = layout_for(64)
    try:
        slow.sock.settimeout(0.05)
        sent = 0
        for number in range(1, 5000):
            request = RequestFrame(666, number, 0, 10**7, 0, 0, 64, 64, 64, 0, 0, "run/300/echo", layout.encoded)
            try:
                slow.sock.send(encode_request(request))
            except OSError:
                break
            sent += 1
        assert sent > 500
        with Client(victim, caller) as client:
            began_s = time.monotonic()
            for number in range(50):
                client.flips(pool[number : number + 10_000], timeout_s=1)
            assert time.monotonic() - began_s < 5
            assert wait_until(lambda: _is_closed(slow.sock), 5), "the node still keeps frames for it"
            client.flips(pool[:100])
    finally:
        slow.close()
        caller.close()


def test_clients_killed_mid_write_spoil_nobody(victim: LocalWorld, pool: Bytes) -> None:
    """Thirty clients vanish while the node writes their replies; those that come after them get their own bytes."""
    caller = CALLERS["blocking"]()
    layout = layout_for(256 << 10)
    size = layout.body_bytes
    try:
        with Client(victim, caller) as client:
            for number in range(30):
                doomed = Attacker(victim, seed=number)
                places = (0, size, size, size)
                request = RequestFrame(666, 1, 0, 10**7, 0, *places, 0, 0, "dribble/10/10", layout.encoded)
                doomed.sock.send(encode_request(request))
                client.flips(pool[number : number + 1000])
                doomed.close()
                with Client(victim, caller) as next_one:
                    held = bytes_of(next_one.call("flip", pool[number : number + size], place="lease"))
                    client.flips(pool[number : number + size])
                    assert np.array_equal(held, np.invert(pool[number : number + size]))
                    del held
    finally:
        caller.close()
    assert victim.serves()


def _is_closed(sock: socket.socket) -> bool:
    try:
        sock.send(bare_frame(Kind.PING, 666, 1))
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "shorter than its header"),
        (b"x" * 100, "magic"),
        (bytes(bare_frame(Kind.PING, 1, 1)), "HELLO was due"),
        (bytes(bare_frame(Kind.HELLO, 1, 0, b"{}")), "versions"),
        (bytes(bare_frame(Kind.HELLO, 1, 0, b'{"versions": [7, 9], "client_id": "1"}')), "versions 7 to 9"),
        (bytes(bare_frame(Kind.HELLO, 1, 0, b'{"versions": [1, 1], "client_id": "-1"}')), "64 bits"),
        (bytes(bare_frame(Kind.HELLO, 1, 0, b"[" * 50_000)), "no JSON"),
        (bytes(bare_frame(Kind.HELLO, 1, 0, b'{"versions": [1, 1], "client_id": "1", "session": "ab"}')), "session"),
        (b"", "no HELLO"),
    ],
)
def test_a_stranger_is_told_what_is_wrong(victim_shared: LocalWorld, first: bytes, says: str) -> None:
    from fabric.frame import decode_error
    from fabric.local.sockets import seqpacket

    with seqpacket() as sock:
        sock.settimeout(20)
        sock.connect(victim_shared.node.path)
        if first:
            sock.send(first)
        answer = sock.recv(70_000)
        header = check_header(answer)
        assert header.kind is Kind.ERROR
        assert says in str(decode_error(answer, header).error)
        assert sock.recv(100) == b""
    assert victim_shared.serves()


@pytest.fixture(scope="module")
def victim_shared() -> Iterator[LocalWorld]:
    world = LocalWorld()
    yield world
    world.close()


def test_descriptors_sent_by_a_client_are_closed(victim_shared: LocalWorld) -> None:
    import socket as sockets

    attacker = Attacker(victim_shared, seed=5)
    folder = Path(f"/proc/{victim_shared.node.process.pid}/fd")
    before = len(list(folder.iterdir()))
    try:
        for number in range(1, 200):
            sockets.send_fds(attacker.sock, [bare_frame(Kind.PING, 666, number)], [0, 1, 2])
            assert check_header(attacker.sock.recv(70_000)).kind is Kind.PONG
        assert len(list(folder.iterdir())) == before
    finally:
        attacker.close()


def test_crowd_of_neighbours_after_a_flood_of_strangers(victim_shared: LocalWorld, pool: Bytes) -> None:
    """Connections that never say a word are closed after the greeting time, and do not keep others out for longer."""
    from fabric.local.sockets import seqpacket

    caller = CALLERS["blocking"]()
    strangers = []
    try:
        for _ in range(100):
            sock = seqpacket()
            sock.settimeout(20)
            sock.connect(victim_shared.node.path)
            strangers.append(sock)
        with Client(victim_shared, caller) as client:
            client.flips(pool[:1000])
        for sock in strangers:
            assert check_header(sock.recv(70_000)).kind is Kind.ERROR
            assert sock.recv(10) == b""
        check_flipped_after = Client(victim_shared, caller)
        check_flipped(check_flipped_after.call("flip", pool[:10]), pool[:10])
        check_flipped_after.close()
    finally:
        for sock in strangers:
            sock.close()
        caller.close()
