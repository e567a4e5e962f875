"""The `overspill` command: reads the arguments, hands over to one file per subcommand, and ends with an exit code.

Exit codes: 0 done, 1 the work itself came to a bad end (a demo that lost a request, a doctor that found a fault),
2 a wrong argument or setting, 3 the fabric's own error (its sentence is printed), 130 interrupted. No command prints a
traceback for a fault of the world. Nothing is decided here. Read `overspill/commands/node.py` next.
"""

from __future__ import annotations

import argparse
import re
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fabric.errors import ConfigError, OverspillError

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each file of `overspill/commands` adds its own."""
    from overspill.commands import call, demo, doctor, explain, gateway, health, model, models, node, simulate

    parser = argparse.ArgumentParser(
        prog="overspill", description="A compute fabric for GPU work that outgrows one machine."
    )
    parser.add_argument("--version", action="version", version=f"overspill {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (demo, node, gateway, call, models, model, explain, simulate, doctor, health):
        command.add_parser(commands)
    for each in commands.choices.values():
        each.set_defaults(usage=each.format_usage())
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    args, unknown = build_parser().parse_known_args(argv)
    try:
        if unknown:
            raise ConfigError(_unknown(args.command, unknown[0], args.usage))
        code: int = args.run(args)
    except OverspillError as error:
        print(f"overspill: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 3
    except KeyboardInterrupt:
        print("overspill: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `overspill models | head`
        sys.stderr.close()
        return 0
    return code


def _unknown(command: str, word: str, usage: str) -> str:
    close = get_close_matches(word.partition("=")[0], re.findall(r"--[a-z-]+", usage), n=1)
    there = f"did you mean {close[0]}?" if close else f"look at `overspill {command} --help`"
    return f"`overspill {command}` does not know {word}; {there}"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("overspill")
    except PackageNotFoundError:
        return "(not installed)"
