"""What an executor does with memory on its card: opened once, read and written in its bounds, closed; and refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from fabric.card_place import TARGET, CardPlace
from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from fabric.layout import TensorSpec, layout_of
from workers.card_memory import CONTENT
from workers.card_regions import CardRegions
from workers.cuda.fake import FakeDevice, make_cards
from workers.cuda.fake_memory import FakeExport
from workers.execution import LoadedModel
from workers.held import HeldResidents
from workers.modelconfig import read_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workers.device import DeviceError
    from workers.handover import Control
    from workers.station import Station

NBYTES = 4096
CONFIG = """
backend: "python"
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }}, {{ name: "n" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
parameters {{ key: "card_memory" value {{ string_value: "{card_memory}" }} }}
"""
MODEL = """
import ctypes, numpy as np
def there(array):
    return np.frombuffer((ctypes.c_char * array.nbytes).from_address(array.address), array.dtype)
class Model:
    def __init__(self, config): self.ways = []
    def execute(self, inputs, outputs):
        x, y = inputs.on_card("x"), outputs.on_card("y", "FP32", inputs["n"].shape)
        self.ways.append((x is not None, y is not None))
        found = there(x) if x is not None else inputs["x"]
        target = there(y) if y is not None else outputs.allocate("y", "FP32", inputs["n"].shape)
        target[:] = found + inputs["n"]
        assert not inputs.resident("x"), "its bytes may change: nothing may be kept under a name"
"""


class Desk:
    """A station with a fake card, and the node behind it."""

    def __init__(self, folder: Path) -> None:
        make_cards(str(folder), 1)
        self.device = FakeDevice(str(folder), 0)
        self.told: list[tuple[int, tuple[str, ...]]] = []
        self.regions = CardRegions(cast("Station", self), self.tell)
        self.held = HeldResidents(self.regions)

    def tell(self, control: Control) -> None:
        assert control.word == "opened"
        self.told.append((control.number, control.models))

    def look(self) -> None:
        self.device.settle()

    def judge(self, error: DeviceError) -> Exception:
        return AssertionError(str(error))

    def lend(self, number: int, handle: bytes, nbytes: int = NBYTES) -> None:
        fd = os.memfd_create("lent", os.MFD_CLOEXEC)
        os.write(fd, CONTENT.pack(handle, nbytes))
        self.held.give(number, CardPlace(number, 0).name, 0, fd, whole=True)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for address in tuple(made.device._memory._opened):
        made.device.close_handle(address)


@pytest.fixture
def export() -> Iterator[FakeExport]:
    made = FakeExport.of(0, NBYTES)
    yield made
    made.close()


def model(folder: Path, *, card_memory: bool) -> LoadedModel:
    (folder / "model.py").write_text(MODEL)
    config = read_config(CONFIG.format(card_memory=str(card_memory).lower()), "config.pbtxt", "m", "1", str(folder))
    return LoadedModel(config, 1)


def request(count: int, x: CardPlace, n: CardPlace, y: CardPlace | None, room: int = 0) -> bytes:
    specs = [
        TensorSpec("x", DType.FP32, (count,), 4 * count, x.name),
        TensorSpec("n", DType.INT32, (count,), 4 * count, n.name),
    ]
    if y is not None:
        nbytes = room or 4 * count
        specs.append(TensorSpec(TARGET + "y", DType.UINT8, (nbytes,), nbytes, y.name, referred=True))
    return layout_of(tuple(specs)).encoded


def run(loaded: LoadedModel, desk: Desk, descriptors: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """As an executor does: from a body into a slot; what lies in the slot."""
    body, reply = bytearray(NBYTES), bytearray(NBYTES)
    plan = loaded.plan(descriptors, len(body))
    memory = memoryview(body).toreadonly()
    desk.held.fill_all(plan.carried, memory, 64)
    result = loaded.run(plan, memory, 64, memoryview(reply), desk.held)
    (spec,) = result.layout.specs
    return np.frombuffer(reply[: spec.nbytes], np.float32)


@pytest.mark.parametrize("card_memory", [False, True])
def test_a_run_reads_and_writes_there(tmp_path: Path, desk: Desk, export: FakeExport, card_memory: bool) -> None:
    desk.lend(5, export.handle)
    x, n = np.arange(8, dtype=np.float32), np.arange(8, 0, -1).astype(np.int32)
    export.memory[100:132] = x.tobytes()
    export.memory[200:232] = n.tobytes()
    loaded = model(tmp_path, card_memory=card_memory)
    descriptors = request(8, CardPlace(5, 100), CardPlace(5, 200), CardPlace(5, 304))
    in_slot = run(loaded, desk, descriptors)
    assert np.frombuffer(export.memory[304:336], np.float32).tolist() == [8.0] * 8
    assert not any(export.memory[336:])
    assert in_slot.any() != card_memory, "the model wrote it where it was wanted"
    assert loaded.backend._model.ways == [(card_memory, card_memory)]  # type: ignore[attr-defined]
    assert run(loaded, desk, request(8, CardPlace(5, 100), CardPlace(5, 200), None)).tolist() == [8.0] * 8
    assert desk.told == [(5, ())]


def test_an_output_that_does_not_fit_its_place_stays_out_of_it(tmp_path: Path, desk: Desk, export: FakeExport) -> None:
    desk.lend(5, export.handle)
    for card_memory in (False, True):
        loaded = model(tmp_path, card_memory=card_memory)
        run(loaded, desk, request(8, CardPlace(5, 0), CardPlace(5, 0), CardPlace(5, 512), room=31))
        assert not any(export.memory[512:])


def test_what_is_not_open_is_refused_with_its_reason(tmp_path: Path, desk: Desk, export: FakeExport) -> None:
    loaded = model(tmp_path, card_memory=False)
    ask = request(8, CardPlace(5, 0), CardPlace(5, 0), CardPlace(5, 0))
    with pytest.raises(InvalidArgument, match="not registered"):
        run(loaded, desk, ask)
    desk.lend(5, bytes(64))
    assert "CUDA error 1" in desk.told[-1][1][0]
    with pytest.raises(InvalidArgument, match=r"CUDA error 1 .*register it again"):
        run(loaded, desk, ask)
    desk.lend(5, export.handle, NBYTES + 1)
    assert desk.told[-1] == (5, ("it has 4096 bytes, and 4097 were registered",))
    assert not desk.device._memory._opened
    desk.lend(5, export.handle)
    run(loaded, desk, ask)
    for place in (CardPlace(5, NBYTES - 31), CardPlace(5, 2**63)):
        with pytest.raises(InvalidArgument):
            run(loaded, desk, request(8, place, CardPlace(5, 0), None))
    desk.held.forget(5)
    assert not desk.device._memory._opened
    with pytest.raises(InvalidArgument, match="not registered"):
        run(loaded, desk, ask)
    desk.held.forget(5)


def test_one_that_is_lent_again_is_opened_once(desk: Desk, export: FakeExport) -> None:
    for _ in range(3):
        desk.lend(5, export.handle)
    assert len(desk.device._memory._opened) == 1
    assert desk.told == [(5, ())] * 3


def test_places_for_outputs_come_last(tmp_path: Path, desk: Desk) -> None:
    loaded = model(tmp_path, card_memory=False)
    target = TensorSpec(TARGET + "y", DType.UINT8, (32,), 32, CardPlace(5, 0).name, referred=True)
    inputs = [TensorSpec(name, kind, (8,), 32) for name, kind in (("x", DType.FP32), ("n", DType.INT32))]
    with pytest.raises(InvalidArgument, match="after all inputs"):
        loaded.plan(layout_of((target, *inputs)).encoded, NBYTES)


def test_an_executor_without_a_card_refuses_places(tmp_path: Path, desk: Desk) -> None:
    loaded = model(tmp_path, card_memory=False)
    plan = loaded.plan(request(8, CardPlace(5, 0), CardPlace(5, 0), CardPlace(5, 0)), NBYTES)
    memory = memoryview(bytes(NBYTES))
    with pytest.raises(InvalidArgument, match="cannot be used here"):
        loaded.run(plan, memory, 0, memoryview(bytearray(NBYTES)), HeldResidents())
