"""What a node's log says of its state and of its start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from discovery.instance import Instance, ModelFacts, Readiness
from workers.bulletin import NAMES_MAX, state_line, warn_at_start


def model(name: str, refused: str = "") -> ModelFacts:
    return ModelFacts(name, "1", idempotent=True, inputs=(), outputs=(), refused=refused)


NODE = Instance(
    "a", 1, "host", Readiness.READY, "/run/a.sock", "h:1", rpc_tls=False, devices=("cpu:0",),
    models=(model("double"), model("broken", "no code"), model("act")),
)  # fmt: skip


def test_the_ready_line_names_addresses_and_models() -> None:
    assert state_line(NODE) == "node a is ready at /run/a.sock, h:1 and serves double, act"
    assert state_line(replace(NODE, readiness=Readiness.DRAINING)) == "node a is draining at /run/a.sock, h:1"
    early = replace(NODE, readiness=Readiness.STARTING, local="", rpc="")
    assert state_line(early) == "node a is starting at no address yet"


def test_a_large_repository_makes_no_endless_line() -> None:
    many = tuple(model(f"m{number}") for number in range(NAMES_MAX + 7))
    assert state_line(replace(NODE, models=many)).endswith(f"m{NAMES_MAX - 1} and 7 more")


@pytest.mark.parametrize(("registry", "warnings"), [("", 1), ("dir:/tmp/r", 0)])
def test_a_node_without_a_registry_is_warned_about(
    registry: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    warn_at_start((), registry)
    assert len(caplog.records) == warnings
    assert all("no caller can find this node" in record.message for record in caplog.records)
    assert all("--registry dir:PATH" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("registry", "rpc_port", "told"),
    [
        ("static:h:7071,g:7071", 7071, "callers find this node only by a list of their own"),
        ("static:h:7071", 0, "listens on any free port, which no address of it has; say --listen"),
        ("static:h:7071,[::1]:7072", 9000, "listens on port 9000, which no address of it has; say --listen"),
        ("static:h:7071", None, "does not offer; add rpc to --wires"),
    ],
)
def test_a_list_of_addresses_registers_nothing_and_says_so(
    registry: str, rpc_port: int | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_at_start((), registry, "", rpc_port)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"{registry} is a list that no node is entered in" in record.message
    assert told in record.message


def test_an_injection_for_a_model_that_is_not_there_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    warn_at_start((), "dir:/tmp/r", "kill:at=1,kill@dobule:every=2")
    assert [record.message for record in caplog.records] == [
        "inject names model 'dobule', which is not there: nothing breaks; correct the name"
    ]
