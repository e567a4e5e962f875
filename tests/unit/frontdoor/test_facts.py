"""What clients may ask and change beside inference; and what is told of bugs."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fabric.control import UNAVAILABLE
from fabric.errors import InvalidArgument, MissingDependency, OverspillError
from frontdoor import libraries
from frontdoor.clients import Owner
from frontdoor.facts import Facts, Permits, told
from frontdoor.failures import Status, status_of
from frontdoor.leases import Leases
from frontdoor.metrics import Family, exposition
from frontdoor.regions import Regions
from tests.unit.frontdoor.engine import ECHO, EchoEngine, door_over

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = {"chain": ("plan", "time", "plan"), "other": ("time",)}


@pytest.fixture
def engine() -> EchoEngine:
    return EchoEngine((ECHO, replace(ECHO, version="3", state=UNAVAILABLE, reason="no such card")))


@pytest.fixture
def facts(engine: EchoEngine, tmp_path: Path) -> Iterator[Facts]:
    door = door_over(engine, tmp_path)
    yield Facts(door, Permits(control=True), "me")
    door.close()


def refused(call: Any) -> Status:
    with pytest.raises(OverspillError) as raised:
        asyncio.run(call) if asyncio.iscoroutine(call) else call()
    return status_of(raised.value)


def test_readiness_of_what_is_there_and_is_not(facts: Facts, engine: EchoEngine) -> None:
    assert facts.ready()
    assert facts.model_ready("echo", "")
    assert not facts.model_ready("echo", "3")
    assert not facts.model_ready("echo", "4")
    assert not facts.model_ready("nobody", "")
    assert refused(lambda: facts.model_ready("echo", "latest")) is Status.INVALID_ARGUMENT
    facts.draining = True
    assert not facts.ready()
    assert not facts.model_ready("echo", "")
    facts.draining, engine.ready = False, False
    assert not facts.model_ready("echo", "")


def test_the_index_tells_all_or_those_that_are_ready(facts: Facts) -> None:
    assert [model.version for model in asyncio.run(facts.index("", ready=False))] == ["2", "3"]
    assert [model.version for model in asyncio.run(facts.index("", ready=True))] == ["2"]
    assert refused(facts.index("other", ready=True)) is Status.NOT_FOUND


def test_the_engine_is_asked_anew_before_a_model_is_told_as_not_ready(facts: Facts, engine: EchoEngine) -> None:
    engine.now, engine.known = engine.known, ()
    assert asyncio.run(facts.model_ready_now("echo", "2"))
    assert engine.looks == 1
    assert asyncio.run(facts.model_ready_now("echo", "2"))
    assert engine.looks == 1
    assert not asyncio.run(facts.model_ready_now("echo", "3"))


def test_models_are_loaded_by_who_may(facts: Facts, engine: EchoEngine, tmp_path: Path) -> None:
    asyncio.run(facts.load("echo", {"config": "{}"}))
    asyncio.run(facts.load("echo", {}))
    asyncio.run(facts.unload("echo", {"unload_dependents": True}))
    assert engine.loaded == [("echo", "{}")]
    assert refused(facts.load("echo", {"file:1/model.py": b""})) is Status.UNIMPLEMENTED
    assert refused(facts.load("echo", {"other": "x"})) is Status.INVALID_ARGUMENT
    assert refused(facts.load("echo", {"config": 3})) is Status.INVALID_ARGUMENT
    assert refused(facts.unload("echo", {"other": True})) is Status.INVALID_ARGUMENT
    door = door_over(engine, tmp_path)
    visitor = Facts(door, Permits(), "me")
    assert refused(visitor.load("echo", {})) is Status.UNAVAILABLE
    assert refused(visitor.unload("echo", {})) is Status.UNAVAILABLE
    assert refused(lambda: visitor.logging({"log_info": False})) is Status.UNAVAILABLE
    assert dict(visitor.logging({}))["log_info"] is True
    door.close()


def test_an_ensembles_steps_go_with_it_but_for_those_of_another(facts: Facts, engine: EchoEngine) -> None:
    chain, other = (replace(ECHO, name=name, steps=steps) for name, steps in STEPS.items())
    engine.known = (chain, other)
    engine.loaded = [(name, "") for name in ("chain", "other", "plan", "time")]
    asyncio.run(facts.unload("chain", {"unload_dependents": True}))
    assert engine.loaded == [("other", ""), ("time", "")]
    asyncio.run(facts.unload("other", {"unload_dependents": False}))
    assert engine.loaded == [("time", "")]


def test_log_settings_are_the_loggers(facts: Facts) -> None:
    logger = logging.getLogger()
    before = logger.level
    try:
        facts.logging({"log_verbose_level": 1})
        assert logger.level == logging.DEBUG
        facts.logging({"log_verbose_level": 0, "log_info": False})
        assert logger.level == logging.WARNING
        for changes in ({"log_info": 1}, {"other": True}):
            assert refused(lambda changes=changes: facts.logging(changes)) is Status.INVALID_ARGUMENT
        with pytest.raises(InvalidArgument, match="'log_verbose_level' is 'x'; give a whole number"):
            facts.logging({"log_verbose_level": "x"})
        assert refused(lambda: facts.logging({"log_file": "/etc/passwd"})) is Status.UNIMPLEMENTED
        assert dict(facts.logging({}))["log_info"] is False
    finally:
        logger.setLevel(before)


def test_a_bug_is_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "frontdoor.facts")
    found = told(ZeroDivisionError("division by zero"))
    assert status_of(found) is Status.INTERNAL
    assert "zero" not in str(found)
    mine = InvalidArgument("x")
    assert told(mine) is mine


def test_metrics_are_text_that_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    labels = (("model", 'a "b"\\\n'), ("version", "1"))
    page = exposition(
        [
            Family("first", "One and two", "counter", ((labels, 3), ((), 1.5))),
            Family("second", "None", "gauge", (((), float("inf")),)),
            Family("third", "Nothing yet", "gauge", ()),
        ]
    )
    found = {family.name: family for family in text_string_to_metric_families(page.decode())}
    assert found["first"].samples[0].labels == dict(labels)
    assert [sample.value for sample in found["first"].samples] == [3, 1.5]
    assert found["second"].samples[0].value == float("inf")
    assert found["first"].type == "counter"


def test_regions_of_who_is_gone_last_as_long_as_their_lease(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(10))
    now = [100.0]
    gone = Owner("uid 1", None, (2**22 + 1, 1), ("127.0.0.1", 1))  # beyond what pids can be
    regions = Regions(folder=tmp_path)

    async def story(leases: Leases) -> None:
        for at_s, left in ((0.0, 1), (2.9, 1), (3.1, 0)):
            now[0] = 100.0 + at_s
            await leases.sweep()
            assert len(regions) == left

    regions.register(gone, "r", "key", 0, 10)
    leases = Leases(regions, lambda: now[0], 3.0)
    asyncio.run(story(leases))
    assert leases.expired == 1
    regions.register(gone, "r", "key", 0, 10)
    asyncio.run(Leases(regions, lambda: now[0], 0.0).sweep())
    assert len(regions) == 1, "0 keeps them for ever"
    regions.close()


@pytest.mark.parametrize("module", ["aiohttp", "google", "google.protobuf"])
def test_a_missing_library_is_told_with_its_mend(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    libraries.check()
    monkeypatch.delitem(sys.modules, "google.protobuf", raising=False)  # other tests have imported it, maybe
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match="pip install"):
        libraries.check()
