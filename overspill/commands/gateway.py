"""`overspill gateway`: a router for callers in other languages, over the protocol of stock Triton clients.

SIGTERM and SIGINT end it: not ready first, running requests finished, then exit code 0. This file puts router and front
door together and decides nothing. Read `overspill/gateway.py` and `frontdoor/serving.py` next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
import asyncio
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frontdoor.config import FrontConfig

CONNECT_TIMEOUT_S = 5.0
DRAIN_S = 20.0
"""As a node's `drain_s`: process managers kill after 30 s, mostly."""
LEAVE_S = 0.5
"""Between not being ready and taking no call: load balancers look a few times a second."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill gateway`."""
    parser = commands.add_parser("gateway", help="serve a router to stock Triton clients, in any language")
    parser.add_argument(
        "--registry", required=True, metavar="URL", help="dir:PATH, consul:http://HOST:PORT or static:HOST:PORT,…"
    )
    parser.add_argument(
        "--listen", required=True, metavar="[HOST:]PORT", help="gRPC there, HTTP and metrics on the next port"
    )
    parser.add_argument("--http", metavar="PORT", default="0", help="another port for HTTP and metrics")
    parser.add_argument("--timeout-s", type=float, default=300.0, metavar="S", help="for requests without a deadline")
    parser.add_argument(
        "--message-mib-max", type=int, default=64, metavar="N", help="what one message's tensors may take (default 64)"
    )
    parser.add_argument("--shm", default="copy", metavar="HOW", help="clients' shared memory: copy, trust or off")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop. Raises OverspillError when it cannot begin."""
    from frontdoor import libraries
    from frontdoor.config import FrontConfig, parse_address

    libraries.check()
    host, port = parse_address(args.listen, "--listen")
    _, http_port = parse_address(args.http, "--http")
    config = FrontConfig(
        host, port, http_port, args.timeout_s, args.message_mib_max << 20, args.shm, grace_s=DRAIN_S
    )  # fmt: skip
    asyncio.run(_serve(args.registry, config))
    return 0


async def _serve(registry: str, config: FrontConfig) -> None:
    from frontdoor.serving import FrontDoor
    from overspill.gateway import RouterEngine
    from router import AsyncRouter

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncRouter.connect(registry, timeout_s=CONNECT_TIMEOUT_S) as router:
        engine = RouterEngine(router, registry)
        front = FrontDoor(engine, config, "overspill-gateway")
        try:
            await front.start()
            names = ", ".join(model.name for model in engine.models() if model.ready) or "no model yet"
            print(
                f"gateway is ready: gRPC on {config.host}:{front.port}, HTTP and metrics on port {front.http_port},"
                f" over {registry}: {names}",
                flush=True,
            )
            await stop.wait()
            front.drain()
            await asyncio.sleep(LEAVE_S)
        finally:
            await front.stop()
            await engine.close()
