"""Draws the failover table as a page: `python -m fabric.link.draw > docs/state-machines.md`.

The page is made, never written by hand; a test compares the two. This module never changes the table.
"""

from __future__ import annotations

import sys

from fabric.link.table import TABLE, State

_HEAD = """# State machines

Drawn from the tables by `python -m fabric.link.draw > docs/state-machines.md`; do not edit.

## Link

One link holds all wires to one life of a node: a preferred wire (local or rdma) and a fallback (rpc). New requests take
the wire that the state's name tells; requests that wait on a wire move when it is fenced, with their ids, so that the
node can tell that it knows them. An edge that is not here is a bug and raises `IllegalTransition`.

A wire is lost when a request or a ping fails on it. Pings are sent each 80 ms while requests are out, else once a
second, and at once when the channel doubts its peer: its socket, queue pair or line has ended.

```mermaid
stateDiagram-v2
    [*] --> down
"""


def page() -> str:
    """The whole page."""
    lines = [_HEAD.rstrip("\n")]
    for state, edges in TABLE.items():
        targets: dict[State, list[str]] = {}
        for event, (target, _) in edges.items():
            if target is not state and target is not State.CLOSED:
                targets.setdefault(target, []).append(event.value)
        lines += [f"    {_id(state)} --> {_id(target)}: {', '.join(events)}" for target, events in targets.items()]
    lines += ["```", "", "| state | event | next | commands |", "|---|---|---|---|"]
    for state, edges in TABLE.items():
        for event, (target, dos) in edges.items():
            if target is not state or dos:
                commands = ", ".join(do.value for do in dos)
                lines.append(f"| {state.value} | {event.value} | {target.value} | {commands} |")
    lines += [
        "",
        "Timers and fences that come late (`probe due`, `retry due`, `hold-down over`, `fenced`) change nothing.",
    ]
    return "\n".join(lines) + "\n"


def _id(state: State) -> str:
    return state.name.lower()


if __name__ == "__main__":
    sys.stdout.write(page())
