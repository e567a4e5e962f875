"""`overspill health`: asks one node whether it is ready, for the health check of a container engine or a supervisor.

Exit code 0 when it serves, 1 when it does not (still loading, degraded or draining), 3 when it does not answer. It asks
the same gRPC health service that Kubernetes asks by itself. Read `fabric/rpc_fallback/health_caller.py` next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
from pathlib import Path

from fabric.errors import ConfigError
from overspill.options import seconds

TIMEOUT_MAX_S = 60.0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill health`."""
    parser = commands.add_parser("health", help="ask one node whether it is ready; exit code 0 if so")
    parser.add_argument("address", metavar="HOST:PORT", help="the node's rpc address")
    parser.add_argument(
        "--timeout-s",
        type=seconds("--timeout-s", TIMEOUT_MAX_S),
        default=3.0,
        metavar="S",
        help="seconds to wait (default 3)",
    )
    parser.add_argument(
        "--tls-ca", metavar="FILE", type=Path, help="authority (PEM) that signed the node's certificate"
    )
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="our certificate, where the node asks for one")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="its private key")
    parser.add_argument("--tls-name", metavar="NAME", default="", help="the name in the certificate, if not HOST")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints one line. Raises OverspillError when the node does not answer."""
    from fabric.rpc_fallback.config import RpcConfig, TlsFiles
    from fabric.rpc_fallback.health import Serving
    from fabric.rpc_fallback.health_caller import ask

    if args.tls_ca is None and (args.tls_cert or args.tls_key or args.tls_name):
        raise ConfigError("--tls-cert, --tls-key and --tls-name need --tls-ca; name the authority's file")
    tls = TlsFiles(args.tls_ca, args.tls_cert, args.tls_key, args.tls_name) if args.tls_ca else None
    state = ask(args.address, RpcConfig(tls=tls), args.timeout_s)
    print(f"{args.address} is {'ready' if state is Serving.SERVING else 'not ready'}")
    return 0 if state is Serving.SERVING else 1
