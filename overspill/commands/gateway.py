"""`overspill gateway`: a router for callers in other languages, over the protocol of stock Triton clients.

SIGTERM and SIGINT end it: not ready first, running requests finished, then exit code 0. This file puts router and front
door together and decides nothing. Read `overspill/gateway.py` and `frontdoor/serving.py` next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
import asyncio
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from overspill.options import port as port_of
from overspill.options import seconds, whole

if TYPE_CHECKING:
    from fabric.rpc_fallback.config import TlsFiles
    from frontdoor.config import FrontConfig
    from router import RouterConfig

CONNECT_TIMEOUT_S = 5.0
DRAIN_S = 20.0
"""As a node's `drain_s`: process managers kill after 30 s, mostly."""
MESSAGE_MIB_MOST = 1024
"""gRPC counts a message in 31 bits, its frames included."""
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
    parser.add_argument(
        "--timeout-s", type=seconds("--timeout-s"), default=300.0, metavar="S", help="for requests without a deadline"
    )
    parser.add_argument(
        "--message-mib-max",
        type=whole("--message-mib-max", 1, MESSAGE_MIB_MOST),
        default=64,
        metavar="N",
        help="what one message's tensors may take (default 64)",
    )
    parser.add_argument("--shm", default="copy", metavar="HOW", help="clients' shared memory: copy, trust or off")
    parser.add_argument(
        "--traces", default="", metavar="FILE|URL", help="where traces go: a file, or a collector's http://HOST:PORT"
    )
    for name, told in (
        ("--tls-cert", "certificate chain (PEM) that clients see"),
        ("--tls-key", "its private key (PEM)"),
        ("--tls-ca", "ask clients for certificates of this authority (PEM)"),
        ("--node-ca", "authority (PEM) that signed the nodes' certificates"),
        ("--node-cert", "our certificate (PEM), where nodes ask for one"),
        ("--node-key", "its private key (PEM)"),
        ("--node-token-file", "file that holds the nodes' rpc_token"),
    ):
        parser.add_argument(name, metavar="FILE", type=Path, help=told)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop. Raises OverspillError when it cannot begin."""
    from frontdoor import libraries
    from frontdoor.config import FrontConfig, parse_address

    libraries.check()
    host, port = parse_address(args.listen, "--listen")
    http_port = port_of("--http", args.http)
    config = FrontConfig(
        host, port, http_port, args.timeout_s, args.message_mib_max << 20, args.shm, grace_s=DRAIN_S,
        tls=_tls(args.tls_ca, args.tls_cert, args.tls_key), traces=args.traces,
    )  # fmt: skip
    # Each client is a descriptor; the system's first limit is often 1024, its last one the operator's.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_serve(args.registry, config, _router_config(args)))
    return 0


def _tls(authority: Path | None, certificate: Path | None, key: Path | None) -> TlsFiles | None:
    from fabric.rpc_fallback.config import TlsFiles

    if (certificate is None) != (key is None) or (authority is not None and certificate is None):
        raise ConfigError(
            "TLS needs both --tls-cert and --tls-key, and --tls-ca only beside them; give the missing file"
        )
    return TlsFiles(authority, certificate, key) if certificate is not None else None


def _router_config(args: argparse.Namespace) -> RouterConfig:
    """How nodes are reached. Raises ConfigError for files that are missing or cannot be read."""
    from fabric.link.wires import LinkConfig
    from overspill.reach import rpc_config
    from router import RouterConfig

    reach = rpc_config("--node", args.node_ca, args.node_cert, args.node_key, args.node_token_file)
    return RouterConfig(link=LinkConfig(rpc_config=reach))


async def _serve(registry: str, config: FrontConfig, reach: RouterConfig) -> None:
    from frontdoor.serving import FrontDoor
    from frontdoor.watchdog import Watchdog
    from overspill.gateway import RouterEngine
    from router import AsyncRouter

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncRouter.connect(registry, config=reach, timeout_s=CONNECT_TIMEOUT_S) as router:
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
            with Watchdog(asyncio.get_running_loop()):
                await stop.wait()
            front.drain()
            await asyncio.sleep(LEAVE_S)
        finally:
            await front.stop()
            await engine.close()
