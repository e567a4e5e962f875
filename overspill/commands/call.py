"""`overspill call`: one request from the shell, arrays in and out as .npz files.

The reply's trace goes to standard error as one line, so that scripts can read the output file alone. This file never
picks a worker: `router/client.py` does; read that next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
import sys
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np


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
    parser.add_argument("--timeout-s", type=float, default=30.0, metavar="S", help="seconds to wait (default 30)")
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="1 is the highest; 0 is the model's default"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sends the request and writes the reply. Raises OverspillError."""
    import numpy as np

    from overspill import Router

    inputs = _read(args.input)
    with Router.connect(args.registry) as router:
        reply = router.infer(args.model, inputs, timeout_s=args.timeout_s, priority=args.priority)
        outputs = {name: reply[name] for name in reply}
        try:
            with args.output.open("wb") as file:
                np.savez(file, allow_pickle=False, **outputs)
        except OSError as error:
            raise ConfigError(f"cannot write {args.output} ({error.strerror}); give another --output") from None
        trace = reply.trace
    shapes = ", ".join(f"{name}{list(array.shape)}" for name, array in outputs.items())
    print(
        f"{args.model}: {shapes} from {trace.worker}"
        f" over {trace.wire}, attempts {trace.attempts}, queue {trace.queue_ms:.2f} ms,"
        f" compute {trace.compute_ms:.2f} ms, transport {trace.transport_ms:.2f} ms",
        file=sys.stderr,
    )
    return 0


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
