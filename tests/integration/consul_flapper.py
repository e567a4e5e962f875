"""Workers that never were, entered straight into Consul's catalogue, and a share of them that comes and goes.

Run as `python -m tests.integration.consul_flapper PORT COUNT SHARE SECONDS`, in a process of its own, so that a test
can measure what watching them costs. It prints a line when all are entered, and one with the number of changes at the
end.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from random import Random

from discovery.agent.meta import check_id, meta_of, service_id
from tests.unit.discovery.sample import instance

HOSTS = 50


class Catalogue:  # mutable: owns a connection
    """Writes to the catalogue of one agent."""

    def __init__(self, port: int, service: str = "overspill") -> None:
        self._service = service
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def enter(self, number: int, status: str = "passing") -> None:
        """Enters worker `number`, or changes its check."""
        one = instance(f"n{number}")
        host = f"host-{number % HOSTS}"
        check = {"CheckID": check_id(one), "Name": "heartbeat", "Status": status, "ServiceID": service_id(one.node_id)}
        body = {
            "Node": host,
            "Address": "127.0.0.1",
            "Service": {"ID": service_id(one.node_id), "Service": self._service, "Meta": meta_of(one)},
            "Check": {**check, "Node": host},
        }
        self._connection.request("PUT", "/v1/catalog/register", json.dumps(body))
        answer = self._connection.getresponse()
        told = answer.read()
        assert answer.status == 200, told

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def main(port: int, count: int, share: float, seconds: float) -> None:
    """Enters `count` workers, then changes `share` of them each second."""
    rng = Random(7)
    catalogue = Catalogue(port)
    down: set[int] = set()
    for number in range(count):
        catalogue.enter(number)
    _tell("entered")
    sys.stdin.readline()
    began, changes = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        if changes >= (now - began) * count * share:
            time.sleep(0.002)
            continue
        number = rng.randrange(count)
        catalogue.enter(number, "passing" if number in down else "critical")
        down ^= {number}
        changes += 1
    for number in down:
        catalogue.enter(number)
    _tell(str(changes))
    catalogue.close()


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
