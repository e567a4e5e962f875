"""Builds the package as plain Python, or with its hot modules compiled by mypyc: `OVERSPILL_COMPILE=1 pip wheel .`.

Everything else about the package stands in pyproject.toml. The modules compiled are those that each request passes, on
its way through the client, the node and the executor; they are the same files, so both builds behave alike, and the
contract suite runs over both (`make test-compiled`). Read docs/decisions/0008-compiled-hot-path.md for what it brings.
"""

from __future__ import annotations

import os

from setuptools import setup

HOT = (
    "fabric/deadline.py",
    "fabric/dtypes.py",
    "fabric/frame.py",
    "fabric/frame_values.py",
    "fabric/header.py",
    "fabric/layout.py",
    "fabric/hot_selector.py",
    "fabric/link/link.py",
    "fabric/local/begun.py",
    "fabric/local/exchange.py",
    "fabric/local/later.py",
    "fabric/local/listener.py",
    "fabric/local/mux.py",
    "fabric/local/pool.py",
    "fabric/local/pooled.py",
    "fabric/local/reactor.py",
    "fabric/local/session.py",
    "fabric/local/sockets.py",
    "fabric/local/tenant.py",
    "fabric/local/unclaimed.py",
    "fabric/memory/arena.py",
    "fabric/memory/copying.py",
    "fabric/memory/lease.py",
    "fabric/memory/slots.py",
    "fabric/message.py",
    "fabric/quiet_lock.py",
    "fabric/rdma/asides.py",
    "fabric/rdma/asking.py",
    "fabric/rdma/bell.py",
    "fabric/rdma/calls.py",
    "fabric/rdma/channel.py",
    "fabric/rdma/connection.py",
    "fabric/rdma/credits.py",
    "fabric/rdma/delivery.py",
    "fabric/rdma/device.py",
    "fabric/rdma/flight.py",
    "fabric/rdma/gate.py",
    "fabric/rdma/heads.py",
    "fabric/rdma/intake.py",
    "fabric/rdma/kept.py",
    "fabric/rdma/member.py",
    "fabric/rdma/memory.py",
    "fabric/rdma/outbox.py",
    "fabric/rdma/pace.py",
    "fabric/rdma/pair.py",
    "fabric/rdma/pairs.py",
    "fabric/rdma/posts.py",
    "fabric/rdma/pulse.py",
    "fabric/rdma/regions.py",
    "fabric/rdma/registered.py",
    "fabric/rdma/replies.py",
    "fabric/rdma/rounds.py",
    "fabric/rdma/serving.py",
    "fabric/rdma/settling.py",
    "fabric/rdma/sources.py",
    "fabric/rdma/talk.py",
    "fabric/rdma/window.py",
    "fabric/reply_sizes.py",
    "fabric/transport.py",
    "router/accounting.py",
    "router/attempt.py",
    "router/budget.py",
    "router/core.py",
    "router/dispatch.py",
    "router/inputs.py",
    "router/learned.py",
    "router/load.py",
    "router/pick.py",
    "router/prepared.py",
    "router/price.py",
    "router/reply.py",
    "router/staging.py",
    "router/table.py",
    "router/workers.py",
    "workers/admission.py",
    "workers/backends/base.py",
    "workers/backends/python.py",
    "workers/batch_run.py",
    "workers/batching.py",
    "workers/blame.py",
    "workers/canary.py",
    "workers/child.py",
    "workers/crew.py",
    "workers/dedupe.py",
    "workers/desks.py",
    "workers/execution.py",
    "workers/executor.py",
    "workers/expiry.py",
    "workers/finals.py",
    "workers/handover.py",
    "workers/hearing.py",
    "workers/job.py",
    "workers/keep.py",
    "workers/life.py",
    "workers/page.py",
    "workers/parted.py",
    "workers/pauses.py",
    "workers/placement.py",
    "workers/places.py",
    "workers/plans.py",
    "workers/reception.py",
    "workers/sentinel.py",
    "workers/settlement.py",
    "workers/shell.py",
    "workers/speed.py",
    "workers/standby.py",
    "workers/station.py",
    "workers/vitals.py",
    "workers/statistics.py",
)


def _extensions() -> list[object]:
    if os.environ.get("OVERSPILL_COMPILE", "0") != "1":
        return []
    from mypyc.build import mypycify

    # Only the modules named here are checked and compiled; what they import is read for its types.
    return list(mypycify(["--strict", "--follow-imports=silent", *HOT], opt_level="2", debug_level="0"))


setup(ext_modules=_extensions(), options={"build_ext": {"parallel": os.cpu_count() or 1}})
