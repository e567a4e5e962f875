"""`overspill call`: one request from the shell, arrays in and out as .npz files.

The reply's trace goes to standard error as one line, so that scripts can read the output file alone. Wires that are
named are waited for, since one call has no time to come back to a better one. This file never picks a worker:
`router/client.py` does; read that next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from overspill.options import seconds, whole

if TYPE_CHECKING:
    import numpy as np

    from fabric.rpc_fallback.config import RpcConfig
    from router import RouterConfig

WIRES = ("local", "rdma", "rpc")
OPEN_SHARE, OPEN_S_MAX = 3.0, 30.0
"""Wires that are named may each take a third of the call's time to open: there is time for the next one, and to ask."""
LEFT_S_MIN = 0.001
"""A call whose time went by while wires were opened is still asked for, so that it says what kept them closed."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill call`."""
    parser = commands.add_parser("call", help="send one request: arrays from a .npz file, the reply into another")
    parser.add_argument("model", metavar="MODEL", help="name of the model; `overspill models` lists them")
    parser.add_argument(
        "--registry", required=True, metavar="URL", help="dir:PATH, consul:http://HOST:PORT or static:HOST:PORT,…"
    )
    parser.add_argument(
        "--input", required=True, metavar="FILE", type=Path, help="inputs by name, as numpy.savez writes"
    )
    parser.add_argument("--output", required=True, metavar="FILE", type=Path, help="where the outputs go")
    parser.add_argument(
        "--timeout-s", type=seconds("--timeout-s"), default=30.0, metavar="S", help="seconds to wait (default 30)"
    )
    parser.add_argument(
        "--priority",
        type=whole("--priority", 0, 255),
        default=0,
        metavar="N",
        help="1 is the highest; 0 is the model's default",
    )
    parser.add_argument(
        "--wires",
        metavar="LIST",
        help="take only these, and wait for the best of them: rdma, or rdma,rpc (default: what opens within a second)",
    )
    for name, told in (
        ("--tls-ca", "authority (PEM) that signed the nodes' certificates"),
        ("--tls-cert", "our certificate (PEM), where nodes ask for one"),
        ("--tls-key", "its private key (PEM)"),
        ("--token-file", "file that holds the nodes' rpc_token"),
    ):
        parser.add_argument(name, metavar="FILE", type=Path, help=told)
    parser.add_argument("--tls-name", metavar="NAME", default="", help="the name in the certificate, if not HOST")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sends the request and writes the reply. Raises OverspillError."""
    import numpy as np

    from fabric.link.wires import LinkConfig
    from overspill import Router
    from overspill.reach import rpc_config
    from router import RouterConfig
    from router.client import CONNECT_TIMEOUT_S

    inputs = _read(args.input)
    _check_output(args.output)
    began_s = time.monotonic()
    reach = rpc_config("--tls", args.tls_ca, args.tls_cert, args.tls_key, args.token_file, args.tls_name)
    named = args.wires is not None
    config = _config(args.wires, args.timeout_s, reach) if named else RouterConfig(link=LinkConfig(rpc_config=reach))
    connect_s = args.timeout_s if named else CONNECT_TIMEOUT_S
    with Router.connect(args.registry, config=config, timeout_s=connect_s) as router:
        left_s = args.timeout_s
        if named:  # the time that it took to open them counts
            left_s = max(left_s - (time.monotonic() - began_s), LEFT_S_MIN)
        reply = router.infer(args.model, inputs, timeout_s=left_s, priority=args.priority)
        outputs = {name: reply[name] for name in reply}
        try:
            with args.output.open("wb") as file:
                np.savez(file, allow_pickle=False, **outputs)
        except OSError as error:
            raise ConfigError(f"cannot write {args.output} ({error.strerror}); give another --output") from None
        trace = reply.trace
        troubles = router.statistics().wire_troubles
    shapes = ", ".join(f"{name}{list(array.shape)}" for name, array in outputs.items())
    print(
        f"{args.model}: {shapes} from {trace.worker}"
        f" over {trace.wire}, attempts {trace.attempts}, queue {trace.queue_ms:.2f} ms,"
        f" compute {trace.compute_ms:.2f} ms, transport {trace.transport_ms:.2f} ms",
        file=sys.stderr,
    )
    if named and config.link.rdma and trace.wire == "rpc":
        print(f"not over rdma: {'; '.join(troubles) or 'the node offers none'}", file=sys.stderr)
    return 0


def _config(named: str, timeout_s: float, reach: RpcConfig) -> RouterConfig:
    """Settings for the wires that were named. Raises ConfigError; Unavailable or MissingDependency where only rdma is
    left, and this host has none."""
    from fabric.link.config import LinkTimes
    from fabric.link.wires import LinkConfig
    from router import RouterConfig

    wires = {word.strip() for word in named.split(",")}
    if not wires <= set(WIRES):
        raise ConfigError(f"--wires {named!r} names what is no wire; give some of {', '.join(WIRES)}")
    if wires == {"rdma"}:
        _check_rdma()
    usual_s = LinkTimes().connect_s
    times = LinkTimes(connect_s=min(max(timeout_s / OPEN_SHARE, usual_s), OPEN_S_MAX))
    local, rdma, rpc = (name in wires for name in WIRES)
    return RouterConfig(link=LinkConfig(times, rpc_config=reach, local=local, rdma=rdma, rpc=rpc))


def _check_rdma() -> None:
    """Nothing is to be waited for where this host cannot speak rdma at all."""
    from fabric.rdma.choice import choose
    from fabric.rdma.config import RdmaConfig
    from fabric.rdma.facts import read_host
    from fabric.rdma.verbs import load

    choose(read_host(), RdmaConfig())
    load()


def _check_output(path: Path) -> None:
    """What could not be written is told before a model has run for it, as far as that can be seen without writing."""
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"cannot write {path} ({why}); give another --output")


def _read(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    mend = "write it with numpy.savez, without objects"
    try:
        with path.open("rb") as source:
            if not zipfile.is_zipfile(source):  # numpy would take it for something else, and fail in its own words
                raise ConfigError(f"cannot read arrays from {path}, which is no .npz file; {mend}")
            source.seek(0)
            with np.load(source, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
    except OSError as error:
        raise ConfigError(f"cannot read arrays from {path} ({error.strerror}); {mend}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        raise ConfigError(f"cannot read arrays from {path}, which is damaged or holds objects; {mend}") from None
