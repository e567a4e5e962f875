"""What Consul costs a caller and a node: a read of a long list, and one heartbeat, at a real agent on loopback.

    python -m tests.benchmarks.consul [--workers N] [--count N]

Each figure is processor time of one thread, the median of the rounds. A `first` read parses every entry; an `again`
read, as a watch makes them, only those that changed. `json` and `entries` are parts of `again`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from discovery.agent.meta import ListingReader, check_id, registration
from discovery.agent.watch import read_listing
from discovery.consul import ConsulClient
from tests.consul_agents import Agent
from tests.consul_binary import find
from tests.integration.consul_flapper import Catalogue
from tests.unit.discovery.sample import instance

Rows = dict[str, list[float]]


def reads_ms(client: ConsulClient, agent: Agent, count: int, rows: Rows) -> int:
    """Reads the list so often; returns the bytes of one answer."""
    settings, reader = agent.settings(), ListingReader()
    path = f"/v1/health/service/{settings.service}"
    nbytes = 0
    for _ in range(count):
        began = time.thread_time()
        answer = client.get(path)
        read_listing(ListingReader(), answer, settings)
        rows.setdefault("first", []).append(time.thread_time() - began)
        began = time.thread_time()
        answer = client.get(path)
        read_listing(reader, answer, settings)
        rows.setdefault("again", []).append(time.thread_time() - began)
        began = time.thread_time()
        parsed = json.loads(answer.text)
        rows.setdefault("json", []).append(time.thread_time() - began)
        began = time.thread_time()
        reader.read(parsed)
        rows.setdefault("entries", []).append(time.thread_time() - began)
        nbytes = len(answer.text)
    del rows["again"][0]  # it parsed them all
    return nbytes


def beats_ms(client: ConsulClient, agent: Agent, count: int, rows: Rows) -> None:
    """Beats so often for an entry of its own."""
    settings, one = agent.settings("beating"), instance("beating")
    client.put("/v1/agent/service/register", (), registration(one, settings))
    for _ in range(count):
        began, wall = time.thread_time(), time.monotonic()
        client.put(f"/v1/agent/check/pass/{check_id(one)}")
        rows.setdefault("heartbeat", []).append(time.thread_time() - began)
        rows.setdefault("heartbeat, as a clock sees it", []).append(time.monotonic() - wall)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    path, reason = find()
    if not path:
        print(reason)
        return 1
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder, Agent(Path(folder), "alone") as agent:
        agent.wait_leader()
        with closing(Catalogue(agent.http)) as catalogue:
            for number in range(args.workers):
                catalogue.enter(number)
        with closing(ConsulClient(agent.settings())) as client:
            nbytes = reads_ms(client, agent, args.count, rows)
            beats_ms(client, agent, args.count * 10, rows)
    print(f"{args.workers} workers, an answer of {nbytes / 2**20:.1f} MiB; milliseconds")
    for name, took in rows.items():
        print(f"{name:30} p50 {median(took) * 1e3:6.2f}  max {max(took) * 1e3:6.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
