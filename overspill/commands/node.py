"""`overspill node`: runs one node until it is told to stop.

SIGTERM and SIGINT drain: no new work, old work finished, then exit code 0. Arguments win over the file of `--config`.
This file starts nothing itself: `workers/node.py` does; read that next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill node`."""
    parser = commands.add_parser("node", help="run a node: models, executors, and the wires to them")
    parser.add_argument("--registry", metavar="URL", help="where to register: dir:PATH or consul:http://HOST:PORT")
    parser.add_argument("--models", metavar="DIR", help="model repository: NAME/config.pbtxt, NAME/1/…")
    parser.add_argument("--listen", metavar="HOST:PORT", help="address of the rpc wire (port 0: any free one)")
    parser.add_argument("--devices", metavar="LIST", help="one executor each: cpu:N, cuda:all, cuda:INDEX, fake:N")
    parser.add_argument("--standby", metavar="KIND", help="what stands beside each executor: off, context or full")
    parser.add_argument(
        "--inject", metavar="LIST", help="break things on purpose: FAULT[@MODEL]:at=N|every=N|flag=FILE"
    )
    parser.add_argument("--wires", metavar="LIST", help="wires to offer: local,rdma,rpc (default: local,rpc)")
    parser.add_argument("--model-control", metavar="MODE", help="none: all models, fixed (default); explicit: as asked")
    parser.add_argument("--load-model", metavar="NAME", action="append", help="with explicit: load it at the start")
    parser.add_argument("--node-id", metavar="NAME", help="name in the registry (default: host name and a random tail)")
    parser.add_argument(
        "--frontdoor", metavar="[HOST:]PORT", help="serve stock Triton clients: gRPC there, HTTP on the next port"
    )
    parser.add_argument("--frontdoor-http", metavar="PORT", help="another port for its HTTP and metrics")
    parser.add_argument(
        "--trust-client-shm", action="store_true", help="map clients' shared memory instead of copying it safely"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM) of the rpc wire and front door")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    parser.add_argument("--tls-ca", metavar="FILE", help="ask callers for certificates of this authority (PEM)")
    parser.add_argument("--config", metavar="FILE", help="node.toml: the same settings, and the limits")
    parser.add_argument("--exit-with-parent", action="store_true", help="stop when the process that started it ends")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the node; gives its exit code. Raises ConfigError for a setting that cannot work."""
    from workers.config import NodeConfig
    from workers.node import run_node

    config = NodeConfig.load(
        args.config,
        registry=args.registry,
        models=args.models,
        listen=args.listen,
        devices=args.devices,
        standby=args.standby,
        inject=args.inject,
        wires=args.wires,
        node_id=args.node_id,
        model_control=args.model_control,
        load_models=args.load_model,
        frontdoor=args.frontdoor,
        frontdoor_http=args.frontdoor_http,
        frontdoor_shm="trust" if args.trust_client_shm else None,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_ca=args.tls_ca,
        exit_with_parent=args.exit_with_parent,
    )
    return run_node(config)
