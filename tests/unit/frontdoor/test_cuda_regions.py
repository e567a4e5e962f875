"""Memory on cards through the door: it names places, copies nothing, and lets go of what nobody uses any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fabric.card_place import CardPlace, place_in
from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from fabric.layout import layout_of, parse_layout
from frontdoor.door import Caller
from frontdoor.engine import Tensor
from frontdoor.facts import HANDLE_BYTES, Facts, Permits
from frontdoor.failures import Refusal, Status, status_of
from frontdoor.values import Asked, Given, Options, Place, Wanted
from tests.unit.frontdoor.engine import ECHO, EchoEngine, OneOwner, door_over
from workers.plans import targets_of

if TYPE_CHECKING:
    from pathlib import Path

    from frontdoor.door import Door

ME = Caller("ipv4:127.0.0.1:1", 8001)
HANDLE = bytes(HANDLE_BYTES)


async def registered(engine: EchoEngine, folder: Path, nbytes: int = 64) -> tuple[Door, Facts]:
    door = door_over(engine, folder)
    facts = Facts(door, Permits(), "test")
    await facts.register_cuda(ME, "r", HANDLE, 0, nbytes)
    return door, facts


def lying(dtype: DType = DType.UINT8, *, wanted: Wanted | None = None, offset: int = 0) -> Asked:
    given = Given("x", dtype, (8,), Place("r", offset, 8))
    return Asked("echo", "", "id", (given,), (wanted,) if wanted is not None else (), Options())


def test_a_request_names_places_and_nothing_is_copied(tmp_path: Path) -> None:
    async def story() -> None:
        engine = EchoEngine()
        door, facts = await registered(engine, tmp_path)
        done = await door.infer(lying(wanted=Wanted("y", Place("r", 16, 9)), offset=40), ME, None)
        (output,) = done.outputs
        assert (output.data, output.place) == (None, Place("r", 16, 8))
        x, target = engine.specs
        assert (place_in(x.resident), x.referred, x.nbytes) == (CardPlace(1, 40), False, 8)
        assert (target.name, target.nbytes, target.referred) == (">y", 9, True)
        # What the executor reads of it.
        parsed = parse_layout(layout_of(engine.specs).encoded)
        assert [each.output for each in targets_of(parsed)] == ["y"]
        assert (door.counters.bytes_in["cuda"], door.counters.bytes_out["cuda"]) == (8, 8)
        done.release()
        assert [(each.name, each.device_id, each.nbytes) for each in await facts.cuda_regions(ME, "")] == [("r", 0, 64)]
        await facts.unregister_cuda(ME, "")
        assert (engine.memory, await facts.cuda_regions(ME, "")) == ([], ())
        door.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (lying(offset=60), Status.INVALID_ARGUMENT),
        (lying(wanted=Wanted("y", Place("r", 60, 5))), Status.INVALID_ARGUMENT),
        (lying(wanted=Wanted("y", Place("r", 0, 8), classes=2)), Status.INVALID_ARGUMENT),
        (lying(wanted=Wanted("y", Place("r", 0, 7))), Status.INTERNAL),
        (replace(lying(), inputs=(Given("x", DType.BYTES, (1,), Place("r", 0, 8)),)), Status.INVALID_ARGUMENT),
        (lying(wanted=Wanted("texts", Place("r", 0, 8))), Status.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_be_there_is_refused(tmp_path: Path, asked: Asked, status: Status) -> None:
    async def story() -> None:
        model = replace(ECHO, outputs=(*ECHO.outputs, Tensor("texts", "BYTES", (-1,))))
        door, _ = await registered(EchoEngine(known=(model,)), tmp_path)
        with pytest.raises((InvalidArgument, Refusal)) as raised:
            await door.infer(asked, ME, None)
        assert status_of(raised.value) is status
        door.close()

    asyncio.run(story())


def test_a_stream_answers_nowhere_on_a_card(tmp_path: Path) -> None:
    async def story() -> None:
        door, _ = await registered(EchoEngine(known=(replace(ECHO, decoupled=True),)), tmp_path)
        with pytest.raises(Refusal, match="in a stream"):
            await anext(door.stream(lying(wanted=Wanted("y", Place("r", 0, 8))), ME, None))
        door.close()

    asyncio.run(story())


def test_registrations_are_checked_before_anything_is_opened(tmp_path: Path) -> None:
    async def story() -> None:
        engine = EchoEngine()
        _, facts = await registered(engine, tmp_path)
        bad: list[tuple[str, bytes, int, int]] = [
            ("r", HANDLE, 0, 64),
            ("s", HANDLE[1:], 0, 64),
            ("s", HANDLE, -1, 64),
            ("s", HANDLE, 0, 0),
            ("", HANDLE, 0, 64),
        ]
        for words in bad:
            with pytest.raises((InvalidArgument, Refusal)):
                await facts.register_cuda(ME, *words)
        engine.fails = InvalidArgument("it cannot be opened")
        with pytest.raises(InvalidArgument, match="cannot be opened"):
            await facts.register_cuda(ME, "s", HANDLE, 0, 64)
        assert engine.memory == [1]

    asyncio.run(story())


def test_a_region_goes_when_its_last_request_has_and_with_its_client(tmp_path: Path) -> None:
    async def story() -> None:
        engine = EchoEngine(waits=asyncio.Event())
        door, facts = await registered(engine, tmp_path)
        running = asyncio.create_task(door.infer(lying(), ME, None))
        await asyncio.sleep(0.01)
        await facts.unregister_cuda(ME, "r")
        assert engine.memory == [1], "in use"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert engine.memory == []
        await facts.register_cuda(ME, "r", HANDLE, 0, 64)
        assert door.regions.reap(OneOwner.owner_of_all) == 1
        assert engine.memory == []
        door.close()

    asyncio.run(story())
