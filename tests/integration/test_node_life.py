"""A node from start to end: what it publishes, how it drains, and what makes it not start at all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from discovery.instance import Instance, Readiness
from discovery.registry import open_registry
from fabric.errors import Draining, Fate, OverspillError
from tests.integration.nodes import (
    HANG,
    OK,
    ROOT,
    SLEEP,
    client_of,
    fails,
    rough_models,
    running_node,
    wait_until,
    write_model,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.nodes import Client


def published(url: str) -> Instance | None:
    instances = open_registry(url).read()
    return instances[0] if instances else None


def test_readiness_and_refusals_are_published_and_the_entry_goes_with_the_node(tmp_path: Path) -> None:
    models, url = rough_models(tmp_path), f"dir:{tmp_path}/registry"
    write_model(models, "broken", "1 / 0")
    with running_node(tmp_path, models, "--registry", url, "--node-id", "n1", "--devices", "cpu:2") as node:
        wait_until(lambda: (found := published(url)) is not None and found.readiness is Readiness.READY)
        found = published(url)
        assert found is not None
        assert (found.node_id, found.local, found.rpc) == ("n1", node.path, "")
        assert found.devices == ("cpu:0", "cpu:1")
        facts = {model.name: model for model in found.models}
        assert facts["rough"].idempotent
        assert not facts["ledger"].idempotent
        assert "ZeroDivisionError" in facts["broken"].refused
        for pid in node.children():
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: (now := published(url)) is not None and now.readiness is Readiness.DEGRADED)
        wait_until(lambda: (now := published(url)) is not None and now.readiness is Readiness.READY)
        assert node.stop() == 0
        assert published(url) is None


def test_drain_finishes_what_was_accepted_and_refuses_new_work(tmp_path: Path) -> None:
    url = f"dir:{tmp_path}/registry"
    with running_node(tmp_path, rough_models(tmp_path), "--registry", url) as node, client_of(node) as client:
        answers: list[int] = []

        def ask(number: int) -> None:
            with client_of(node, 100 + number) as other:
                answers.append(other.call("ledger", SLEEP, 200 + number)[1])

        threads = [threading.Thread(target=ask, args=(number,)) for number in (1300, 1, 2, 3)]
        for thread in threads:
            thread.start()
            wait_until(lambda: len(node.ran()) == 1)
        time.sleep(0.8)  # those behind the long one are on their way to the queue
        node.process.send_signal(signal.SIGTERM)
        wait_until(lambda: node.state == "draining")
        error, _ = fails(client, "rough", OK, 1)
        assert isinstance(error, Draining)
        for thread in threads:
            thread.join(20.0)
        assert sorted(answers) == [201, 202, 203, 1500]
        assert node.process.wait(20.0) == 0
        assert published(url) is None


def test_a_drain_ends_when_its_time_is_over(tmp_path: Path) -> None:
    settings = tmp_path / "node.toml"
    settings.write_text("drain_s = 0.3\n")
    with running_node(tmp_path, rough_models(tmp_path), "--config", str(settings)) as node, client_of(node) as client:
        errors: list[OverspillError] = []
        thread = threading.Thread(target=lambda: errors.append(fails(client, "rough", HANG, 1)[0]))
        thread.start()
        wait_until(lambda: node.ran() == [1])
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 15.0, "the drain's own time is over, not the default of 30 s"
        thread.join(10.0)
        assert len(errors) == 1


def test_a_second_signal_is_in_a_hurry_and_says_what_never_ran(tmp_path: Path) -> None:
    """What stands behind the run that is ended, in the executor's hands or before them, may go to another node."""
    errors: dict[int, OverspillError] = {}

    def ask(client: Client, what: int, word: int) -> None:
        try:
            client.call("ledger", what, word)
        except OverspillError as error:
            errors[word] = error.with_traceback(None)

    with running_node(tmp_path, rough_models(tmp_path)) as node, ExitStack() as clients:
        callers = [clients.enter_context(client_of(node, 100 + number)) for number in range(4)]
        for caller in callers:
            caller.call("ledger", OK, 1)  # it is known to be short: several are given out at once
        words = [(HANG, 2), (OK, 3), (OK, 4), (OK, 5)]
        threads = [threading.Thread(target=ask, args=(each, *word)) for each, word in zip(callers, words, strict=True)]
        for thread in threads:
            thread.start()
        wait_until(lambda: 2 in node.ran())
        time.sleep(0.2)  # the others have come by then, or are refused
        node.process.send_signal(signal.SIGINT)
        wait_until(lambda: node.state == "draining")
        node.process.send_signal(signal.SIGINT)
        assert node.process.wait(15.0) == 0
        for thread in threads:
            thread.join(10.0)
        ran = set(node.ran())
    assert "was ended, for its node could not wait for it; send" in str(errors[2])
    never = {3, 4, 5} - ran
    assert {word: (type(errors[word]), errors[word].fate) for word in never} == dict.fromkeys(
        never, (Draining, Fate.NEVER_RAN)
    )


def test_the_port_is_started_again_on_its_old_address_while_local_callers_are_served(tmp_path: Path) -> None:
    url = f"dir:{tmp_path}/registry"
    words = ("--registry", url, "--wires", "local,rpc")
    with running_node(tmp_path, rough_models(tmp_path), *words) as node, client_of(node) as client:
        wait_until(lambda: (found := published(url)) is not None and found.rpc != "")
        before = published(url)
        os.kill(node.children("workers.port")[0], signal.SIGKILL)
        wait_until(lambda: node.state == "degraded")
        log = node.log.read_text()
        assert 0 < log.find("the rpc port ended with code -9") < log.find("is degraded"), "the reason comes first"
        assert client.call("rough", OK, 1) == [0, 1]
        wait_until(lambda: node.state == "ready")
        wait_until(lambda: (found := published(url)) is not None and found.readiness is Readiness.READY)
        after = published(url)
        assert before is not None
        assert after is not None
        assert after.rpc == before.rpc


@pytest.mark.parametrize("case", ["port in use", "no repository", "same name twice", "no registry"])
def test_a_node_that_cannot_be_as_asked_says_so_in_one_sentence_and_ends_with_2(tmp_path: Path, case: str) -> None:
    models = rough_models(tmp_path)
    words = ["--models", str(models), "--node-id", "twin"]
    with socket.create_server(("127.0.0.1", 0)) as taken, running_node(tmp_path, models, "--node-id", "twin"):
        if case == "port in use":
            words += ["--node-id", "other", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]
        elif case == "no repository":
            words += ["--models", str(tmp_path / "none")]
        elif case == "no registry":
            words += ["--node-id", "other", "--registry", "consul:"]
        done = subprocess.run(
            [sys.executable, "-m", "overspill", "node", *words],
            cwd=ROOT,
            env={**os.environ, "NODE_TEST_LOG": str(tmp_path / "runs.log")},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("overspill: ")
