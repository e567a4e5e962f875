"""`overspill explain`: why a request went where it went, from the file in which its router wrote its decisions.

The router writes one when `RouterConfig(explain_file=FILE)` says so. With weights, each decision is made again: what
would have been picked had a term counted more, or nothing. Read `router/record.py` next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from overspill.options import number

if TYPE_CHECKING:
    from router.record import Decision

RECORD_ENV = "OVERSPILL_EXPLAIN_FILE"
WEIGHT_MOST = 1e6
"""A term that counts a million times decides alone."""
TERMS = ("transport", "queue", "unseen", "compute")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill explain`."""
    parser = commands.add_parser("explain", help="tell why a request went where it went")
    parser.add_argument("request_id", metavar="REQUEST_ID", help="as in reply.trace.request_id")
    parser.add_argument("--file", type=Path, metavar="FILE", help=f"the router's explain_file (default: ${RECORD_ENV})")
    parser.add_argument("--json", action="store_true", help="the lines of the file as they are")
    for term in TERMS:
        parser.add_argument(
            f"--{term}",
            type=number(f"--{term}", 0.0, WEIGHT_MOST),
            default=1.0,
            metavar="X",
            help=f"what if {term} counted X times",
        )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the decisions; exit code 1 when there are none. Raises ConfigError, InvalidArgument."""
    from router.record import Weights

    path = args.file or Path(os.environ.get(RECORD_ENV, ""))
    found = _read(path, args.request_id)
    if not found:
        print(f"{path} has no decision about request {args.request_id}")
        return 1
    weights = Weights(**{term: getattr(args, term) for term in TERMS})
    for decision in found:
        if args.json:
            print(decision.as_line())
            continue
        print("\n".join(decision.sentences()))
        if weights != Weights():
            told = " or ".join(decision.again(weights))
            print(f"  with these weights: {told}{' again' if told == decision.picked else ''}")
    return 0


def _read(path: Path, request_id: str) -> list[Decision]:
    from router.record import decision_of

    if not path.name:
        raise ConfigError(f"no file is named; give --file, or set {RECORD_ENV} to the router's explain_file")
    try:
        with path.open(encoding="utf-8") as file:
            # A line is parsed only if it names the request: a file of a day has millions of others.
            return [decision_of(line) for line in file if f'"{request_id}"' in line]
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}); give the router's explain_file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text; give the router's explain_file") from None
