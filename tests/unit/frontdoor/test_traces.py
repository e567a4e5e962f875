"""R40: whose requests are traced, by what their callers say and by Triton's settings; and what a trace becomes."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from fabric.control import TracedRun
from fabric.dtypes import DType
from fabric.errors import InvalidArgument, OverspillError, Unavailable
from frontdoor.door import Caller
from frontdoor.facts import Facts, Permits
from frontdoor.failures import Status, status_of
from frontdoor.trace_context import Context
from frontdoor.trace_writer import FILE_BYTES_MAX, WAITING_MAX, TraceWriter, open_sink
from frontdoor.traces import TRACES_PER_S_MAX, Trace, Traces
from frontdoor.values import Asked, Given, Options
from tests.unit.frontdoor.engine import EchoEngine, door_over

if TYPE_CHECKING:
    from pathlib import Path

SAMPLED = Context("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", sampled=True)
SILENT = Context(SAMPLED.trace_id, SAMPLED.parent_id, sampled=False)


class Clock:  # mutable: set by hand
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def traces(clock: Clock, ended: list[Trace] | None = None) -> Traces:
    put = ended.append if ended is not None else lambda _trace: None
    return Traces("/tmp/traces", put, clock, lambda: clock.now_ns + 10**18, random.Random(1).getrandbits)


def began(of: Traces, clock: Clock, context: Context | None, count: int, model: str = "m") -> int:
    """How many of so many requests are traced, so slowly that no limit holds."""
    found = 0
    for _ in range(count):
        clock.now_ns += 10**9
        found += of.begin(model, context) is not None
    return found


def test_whose_caller_records_is_recorded_whatever_the_rate_and_whose_does_not_is_not() -> None:
    clock = Clock()
    of = traces(clock)
    of.change("", {"trace_rate": ("0",)})
    assert began(of, clock, SAMPLED, 10) == 10
    of.change("", {"trace_rate": ("1",)})
    assert began(of, clock, SILENT, 10) == 0
    assert began(of, clock, None, 10) == 10
    of.change("", {"trace_level": ("OFF",)})
    assert began(of, clock, SAMPLED, 10) == 0


def test_every_so_manieth_is_traced_until_the_count_is_over() -> None:
    clock = Clock()
    of = traces(clock)
    assert began(of, clock, None, 2500) == 2
    of.change("", {"trace_rate": ("10",), "trace_count": ("3",)})
    assert began(of, clock, None, 100) == 3
    assert dict(of.told())["trace_count"] == ("0",)
    assert began(of, clock, SAMPLED, 5) == 5
    of.change("", {"trace_count": (), "trace_rate": ()})
    assert dict(of.told()) == dict(traces(clock).told())


def test_a_model_may_have_settings_of_its_own() -> None:
    clock = Clock()
    of = traces(clock)
    of.change("mine", {"trace_rate": ("2",)})
    assert began(of, clock, None, 10, "mine") == 5
    assert began(of, clock, None, 10) == 0
    assert dict(of.told("mine"))["trace_rate"] == ("2",)
    of.change("mine", {"trace_rate": ()})
    assert began(of, clock, None, 10, "mine") == 0
    of.change("", {"trace_level": ("OFF",)})
    assert dict(of.told("mine"))["trace_level"] == ("OFF",), "what a model does not say is that of all"


def test_a_crowd_that_wants_to_be_traced_gets_so_many_a_second() -> None:
    clock = Clock()
    of = traces(clock)
    for second in range(3):
        clock.now_ns = second * 10**9
        assert sum(of.begin("m", SAMPLED) is not None for _ in range(1000)) == TRACES_PER_S_MAX
    assert of.counts == {"taken": 3 * TRACES_PER_S_MAX, "over_limit": 3 * (1000 - TRACES_PER_S_MAX)}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"trace_rate": ("-1",)}, Status.INVALID_ARGUMENT),
        ({"trace_rate": ("x",)}, Status.INVALID_ARGUMENT),
        ({"trace_rate": ("1", "2")}, Status.INVALID_ARGUMENT),
        ({"trace_rate": ("9" * 5000,)}, Status.INVALID_ARGUMENT),
        ({"trace_count": ("-2",)}, Status.INVALID_ARGUMENT),
        ({"other": ("1",)}, Status.INVALID_ARGUMENT),
        ({"trace_level": ("TENSORS",)}, Status.UNIMPLEMENTED),
        ({"trace_file": ("/etc/passwd",)}, Status.UNIMPLEMENTED),
        ({"trace_mode": ("triton",)}, Status.UNIMPLEMENTED),
        ({"log_frequency": ("5",)}, Status.UNIMPLEMENTED),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, tuple[str, ...]], status: Status) -> None:
    of = traces(Clock())
    before = of.told()
    with pytest.raises(OverspillError) as raised:
        of.change("", changes)
    assert status_of(raised.value) is status
    assert of.told() == before


def test_settings_are_the_operators_to_allow_and_need_a_place(tmp_path: Path) -> None:
    engine = EchoEngine()
    door = door_over(engine, tmp_path, traces=traces(Clock()))
    visitor, master = Facts(door, Permits(), "me"), Facts(door, Permits(control=True), "me")
    with pytest.raises(Unavailable):
        visitor.trace("", {"trace_rate": ("1",)})
    assert dict(master.trace("echo", {"trace_rate": ("7",)}))["trace_rate"] == ("7",)
    assert dict(visitor.trace("", {}))["trace_rate"] == ("1000",)
    with pytest.raises(OverspillError) as raised:
        master.trace("nobody", {})
    assert status_of(raised.value) is Status.NOT_FOUND
    door.close()
    door = door_over(engine, tmp_path)
    with pytest.raises(OverspillError, match="frontdoor_traces") as raised:
        Facts(door, Permits(control=True), "me").trace("", {"trace_level": ("TIMESTAMPS",)})
    assert status_of(raised.value) is Status.UNIMPLEMENTED
    door.close()


ASKED = Asked("echo", "", "", (Given("x", DType.UINT8, (2,), memoryview(b"ab")),), (), Options())


def spans_of(line: bytes) -> list[dict[str, Any]]:
    (resource,) = json.loads(line)["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    found: list[dict[str, Any]] = scope["spans"]
    return found


def run_for(engine: EchoEngine, tmp_path: Path, story: Any) -> list[bytes]:
    """What a writer wrote of the requests of a story."""
    lines: list[bytes] = []
    clock = Clock()

    async def whole() -> None:
        bits = random.Random(2).getrandbits
        writer = TraceWriter(lines.append, engine, "front", "1", bits)
        of = Traces("here", writer.put, clock, lambda: clock.now_ns + 10**18, bits, writer.counts)
        door = door_over(engine, tmp_path, traces=of)
        try:
            await story(door, writer, clock)
        finally:
            door.close()

    asyncio.run(whole())
    return lines


def test_a_request_is_a_span_of_its_callers_trace_with_what_its_node_did_inside(tmp_path: Path) -> None:
    engine = EchoEngine()

    async def story(door: Any, writer: TraceWriter, clock: Clock) -> None:
        clock.now_ns = 5_000_000
        context = Context(SAMPLED.trace_id, SAMPLED.parent_id, sampled=True, state="a=1")
        (await door.infer(ASKED, Caller("p", 1, context), None)).release()
        await writer.write()
        assert writer.counts == {"written": 0, "lost": 0, "taken": 1}, "the node has not said what it took"
        engine.runs = (TracedRun(7, 1, 5_010, 20, 30, 40, 50, 1, 4, 2, 3), TracedRun(8, 1, 0, 0, 0, 0, 0, 1, 1, 0, 1))
        await writer.write()
        assert writer.counts["written"] == 1

    (line,) = run_for(engine, tmp_path, story)
    whole, *parts = spans_of(line)
    assert (whole["traceId"], whole["parentSpanId"], whole["traceState"]) == (
        SAMPLED.trace_id,
        SAMPLED.parent_id,
        "a=1",
    )
    assert (whole["name"], whole["kind"]) == ("infer", 2)
    assert whole["startTimeUnixNano"] == str(10**18 + 5_000_000)
    assert "status" not in whole
    assert [part["name"] for part in parts] == ["queue", "h2d", "compute", "d2h"]
    at_ns = 10**18 + 5_010_000
    for part, took_us in zip(parts, (20, 30, 40, 50), strict=True):
        assert (part["traceId"], part["parentSpanId"]) == (whole["traceId"], whole["spanId"])
        assert part["startTimeUnixNano"] == str(at_ns)
        at_ns += took_us * 1000
        assert part["endTimeUnixNano"] == str(at_ns)
    told = {each["key"]: each["value"] for each in parts[2]["attributes"]}
    assert told["overspill.executor"] == {"intValue": "2"}
    assert told["overspill.batch_rows"] == {"intValue": "4"}
    assert len({span["spanId"] for span in (whole, *parts)}) == 5


def test_a_request_of_which_the_node_says_nothing_is_written_a_turn_later_and_a_failed_one_tells_why(
    tmp_path: Path,
) -> None:
    engine = EchoEngine()

    async def story(door: Any, writer: TraceWriter, clock: Clock) -> None:
        engine.fails = Unavailable("no; go elsewhere")
        with pytest.raises(Unavailable):
            await door.infer(ASKED, Caller("p", 1, SAMPLED), None)
        await writer.write()
        await writer.write()
        engine.fails, engine.waits = None, asyncio.Event()
        running = asyncio.create_task(door.infer(ASKED, Caller("p", 1, SAMPLED), None))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await writer.write(last=True)

    first, second = run_for(engine, tmp_path, story)
    for line, why in ((first, "no; go elsewhere"), (second, "it was given up")):
        (whole,) = spans_of(line)
        assert whole["status"] == {"code": 2, "message": why}


def test_traces_that_find_no_place_are_lost_and_requests_are_not(tmp_path: Path) -> None:
    (tmp_path / "traces").write_bytes(b"")
    sink = open_sink(str(tmp_path / "traces"))

    async def story() -> TraceWriter:
        writer = TraceWriter(sink, EchoEngine(), "front", "1", random.Random(3).getrandbits)
        for _ in range(WAITING_MAX + 5):
            writer.put(Trace("m", "1" * 32, "", "2" * 16, "", 1, 1))
        assert writer.counts["lost"] == 5
        (tmp_path / "traces").unlink()
        (tmp_path / "traces").mkdir()
        await writer.write()
        return writer

    assert asyncio.run(story()).counts == {"written": 0, "lost": WAITING_MAX + 5}


def test_a_file_that_is_long_makes_room(tmp_path: Path) -> None:
    file = tmp_path / "traces"
    sink = open_sink(str(file))
    with file.open("r+b") as out:
        out.truncate(FILE_BYTES_MAX + 1)  # a hole, which takes no room
    sink(b"new\n")
    assert file.read_bytes() == b"new\n"
    assert (tmp_path / "traces.1").stat().st_size == FILE_BYTES_MAX + 1


@pytest.mark.parametrize("where", ["/nowhere/at/all/traces", "http://", "https:///v1/traces"])
def test_a_place_that_cannot_be_is_told_at_the_start(where: str) -> None:
    with pytest.raises(OverspillError, match="give"):
        open_sink(where)


def test_a_trace_id_of_our_own_is_never_none() -> None:
    with pytest.raises(InvalidArgument):
        traces(Clock()).change("", {"trace_rate": ("",)})
    of = Traces("here", lambda _trace: None, lambda: 0, lambda: 0, lambda _n: 0)
    of.change("", {"trace_rate": ("1",)})
    trace = of.begin("m", None)
    assert trace is not None
    assert int(trace.trace_id, 16)
    assert int(trace.span_id, 16)
