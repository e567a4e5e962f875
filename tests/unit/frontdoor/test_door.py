"""One inference through the door: which model, whose time, where outputs go; and everything given back, always."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fabric.control import LOADING, UNAVAILABLE
from fabric.deadline import Deadline
from fabric.dtypes import DType
from fabric.errors import DeadlineExceeded, ExecutorLost, Fate, InvalidArgument, OverspillError, Unavailable
from frontdoor.door import Caller
from frontdoor.engine import Tensor
from frontdoor.failures import Refusal, Status, status_of
from frontdoor.regions import Region
from frontdoor.values import Asked, Given, Options, Place, Wanted
from tests.sim.virtual import VirtualLoop
from tests.unit.frontdoor.engine import ECHO, EchoEngine, OneOwner, door_over

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from frontdoor.door import Door

ME = Caller("ipv4:127.0.0.1:1", 8001)
X = Given("x", DType.UINT8, (3,), memoryview(b"abc"))


def asked(*, data: Given = X, outputs: tuple[Wanted, ...] = (), timeout_us: int = 0, version: str = "") -> Asked:
    return Asked("echo", version, "id", (data,), outputs, Options(timeout_us=timeout_us))


def run(story: Coroutine[Any, Any, None], *, virtual: bool = True) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop if virtual else None) as runner:
        runner.run(story)


async def fails(door: Door, request: Asked, deadline: Deadline | None = None) -> OverspillError:
    with pytest.raises(OverspillError) as raised:
        await door.infer(request, ME, deadline)
    return raised.value


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(bytes(20))
    return tmp_path


def registered(door: Door) -> None:
    door.regions.register(OneOwner.owner_of_all, "r", "/key", 0, 20)


def test_an_answer_is_what_was_asked_for(memory: Path) -> None:
    async def story() -> None:
        engine = EchoEngine()
        door = door_over(engine, memory)
        done = await door.infer(asked(), ME, None)
        assert (done.model, done.version, done.id) == ("echo", "2", "id")
        assert [bytes(output.data or b"") for output in done.outputs] == [b"abc"]
        assert engine.out == 1, "the reply"
        done.release()
        assert (engine.out, door.counters.running) == (0, 0)
        door.close()

    run(story())


def test_bytes_go_through_shared_memory(memory: Path) -> None:
    async def story() -> None:
        engine = EchoEngine()
        door = door_over(engine, memory)
        registered(door)
        (memory / "key").write_bytes(b"0123456789" + bytes(10))
        lies = replace(X, data=Place("r", 2, 3))
        done = await door.infer(asked(data=lies, outputs=(Wanted("y", Place("r", 10, 8)),)), ME, None)
        assert (done.outputs[0].data, done.outputs[0].place) == (None, Place("r", 10, 3))
        assert (memory / "key").read_bytes()[8:14] == b"89234\0"
        done.release()
        small = await fails(door, asked(outputs=(Wanted("y", Place("r", 0, 2)),)))
        assert status_of(small) is Status.INTERNAL
        outside = await fails(door, asked(data=replace(X, data=Place("r", 18, 3))))
        assert isinstance(outside, InvalidArgument)
        assert engine.out == 0
        assert door.counters.bytes_in["shm"] == 3
        door.close()

    run(story())


@pytest.mark.parametrize("why", [ExecutorLost("it died", Fate.UNKNOWN), InvalidArgument("bad")])
def test_whatever_fails_gives_everything_back(memory: Path, why: OverspillError) -> None:
    async def story() -> None:
        engine = EchoEngine(fails=why)
        door = door_over(engine, memory)
        registered(door)
        assert await fails(door, asked(data=replace(X, data=Place("r", 0, 3)))) is why
        region = door.regions.find(OneOwner.owner_of_all, "r")
        assert (engine.out, region._users, door.counters.running) == (0, 0, 0)
        door.close()

    run(story())


def test_a_cancelled_request_gives_everything_back(memory: Path) -> None:
    async def story() -> None:
        engine = EchoEngine(waits=asyncio.Event())
        door = door_over(engine, memory)
        registered(door)
        task = asyncio.create_task(door.infer(asked(data=replace(X, data=Place("r", 0, 3))), ME, None))
        await asyncio.sleep(0.01)
        assert engine.out == 1
        (region,) = door.regions.of_kind(OneOwner.owner_of_all, "r", Region)
        door.regions.unregister(OneOwner.owner_of_all, "r")
        assert region._fd >= 0, "in use"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (engine.out, region._fd, door.counters.running) == (0, -1, 0)
        door.close()

    run(story())


def test_a_large_copy_is_over_before_its_memory_goes_back(memory: Path) -> None:
    """Cancelled while a thread writes to the engine's memory: the memory is given back when the thread has ended."""

    async def story() -> None:
        engine = EchoEngine()
        door = door_over(engine, memory)
        ended: list[str] = []

        def slow() -> None:
            import time

            time.sleep(0.05)
            ended.append("copied")

        task = asyncio.create_task(door.copies.run(2 << 20, slow))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["copied"]
        door.close()

    run(story(), virtual=False)


def test_the_clients_deadline_and_the_requests_own_read_differently(memory: Path) -> None:
    async def story() -> None:
        late = DeadlineExceeded("no answer came in time")
        door = door_over(EchoEngine(fails=late), memory)
        import time

        now = time.monotonic()
        assert status_of(await fails(door, asked(), Deadline(now + 1))) is Status.DEADLINE_EXCEEDED
        assert status_of(await fails(door, asked())) is Status.DEADLINE_EXCEEDED
        own = await fails(door, asked(timeout_us=1000), Deadline(now + 1000))
        assert (status_of(own), own.fate) == (Status.UNAVAILABLE, Fate.UNKNOWN)
        assert status_of(await fails(door, asked(), Deadline(now - 1))) is Status.DEADLINE_EXCEEDED
        door.close()

    run(story())


def test_more_than_can_run_is_refused(memory: Path) -> None:
    async def story() -> None:
        engine = EchoEngine(waits=asyncio.Event())
        door = door_over(engine, memory, running_max=2)
        tasks = [asyncio.create_task(door.infer(asked(), ME, None)) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert isinstance(await fails(door, asked()), Unavailable)
        assert engine.waits is not None
        engine.waits.set()
        for done in await asyncio.gather(*tasks):
            done.release()
        (await door.infer(asked(), ME, None)).release()
        door.close()

    run(story())


def test_a_model_is_chosen_by_version_and_readiness(memory: Path) -> None:
    def version(number: str, state: str = ECHO.state, reason: str = "") -> Any:
        return replace(ECHO, version=number, state=state, reason=reason)

    door = door_over(EchoEngine((version("9"), version("10"), version("11", LOADING))), memory)
    assert door.model("echo").version == "10", "the highest that serves, by number"
    assert door.model("echo", "9").version == "9"
    for name, number, status in (
        ("echo", "12", Status.NOT_FOUND), ("nobody", "", Status.NOT_FOUND), ("echo", "latest", Status.INVALID_ARGUMENT),
        ("echo", "11", Status.UNAVAILABLE),
    ):  # fmt: skip
        with pytest.raises(OverspillError) as raised:
            door.model(name, number)
        assert status_of(raised.value) is status, (name, number)
    broken = door_over(EchoEngine((version("1", UNAVAILABLE, "no such card"),)), memory)
    with pytest.raises(Unavailable, match="no such card"):
        broken.model("echo")
    with pytest.raises(Refusal, match="echo"):
        door.model("ecko")
    door.close()
    broken.close()


def test_outputs_that_came_with_a_reload_are_asked_for_anew(memory: Path) -> None:
    async def story() -> None:
        renamed = replace(ECHO, outputs=(Tensor("z", "UINT8", (-1,)),))
        engine = EchoEngine((renamed,), now=(ECHO,))
        door = door_over(engine, memory)
        done = await door.infer(asked(outputs=(Wanted("y"),)), ME, None)
        done.release()
        gone = await fails(door, asked(outputs=(Wanted("z"),)))
        assert "it has y" in str(gone)
        assert engine.out == 0
        twice = await fails(door, asked(outputs=(Wanted("y"), Wanted("y"))))
        assert "twice" in str(twice)
        door.close()

    run(story())


@pytest.mark.parametrize("shape", [(2,), (4,), (-3,), (3, 0), (2**40, 2**40), (1,) * 33])
def test_shapes_that_do_not_fit_the_bytes_are_refused(memory: Path, shape: tuple[int, ...]) -> None:
    async def story() -> None:
        engine = EchoEngine()
        door = door_over(engine, memory)
        assert isinstance(await fails(door, asked(data=replace(X, shape=shape))), InvalidArgument)
        assert engine.out == 0
        door.close()

    run(story())


def test_what_is_not_there_or_not_ready_is_asked_for_anew_before_it_is_refused(memory: Path) -> None:
    async def story() -> None:
        engine = EchoEngine((replace(ECHO, state=LOADING),), now=(ECHO,))
        door = door_over(engine, memory)
        (await door.infer(asked(), ME, None)).release()
        assert engine.looks == 1
        (await door.infer(asked(), ME, None)).release()
        assert engine.looks == 1, "what is ready is not asked for"
        assert status_of(await fails(door, replace(asked(), model="ecko"))) is Status.NOT_FOUND
        assert engine.looks == 2
        assert isinstance(await fails(door, asked(version="x")), InvalidArgument)
        assert engine.looks == 2, "what no news can mend"
        door.close()

    run(story())
