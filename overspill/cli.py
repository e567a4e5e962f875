"""The `overspill` command: reads the arguments, hands over to one file per subcommand, and ends with an exit code.

Exit codes: 0 done, 1 the work itself came to a bad end (a demo that lost a request, a doctor that found a fault),
2 a wrong argument or setting, 3 the fabric's own error (its sentence is printed), 130 interrupted. No command prints a
traceback for a fault of the world. Nothing is decided here. Read `overspill/commands/node.py` next.
"""

from __future__ import annotations

import argparse
import atexit
import os
import re
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from fabric.errors import ConfigError, OverspillError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SERVES = ("node", "gateway")
"""Commands that stay, and whose log is read by an operator: there gRPC's own lines tell which caller was refused."""


class _WrongWordsError(Exception):
    """What argparse cannot take, before anybody is told."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser


class _Parser(argparse.ArgumentParser):
    """argparse tells that an option is missing before it looks for words that it does not know; but a misspelt option
    is there. So its complaint is looked at first."""

    def error(self, message: str) -> NoReturn:
        raise _WrongWordsError(self, message)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each file of `overspill/commands` adds its own."""
    from overspill.commands import call, demo, doctor, explain, gateway, health, model, models, node, simulate

    parser = _Parser(prog="overspill", description="A compute fabric for GPU work that outgrows one machine.")
    parser.add_argument("--version", action="version", version=f"overspill {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (demo, node, gateway, call, models, model, explain, simulate, doctor, health):
        command.add_parser(commands)
    for each in commands.choices.values():
        each.set_defaults(usage=each.format_usage(), at_once=each.get_default("at_once") or False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    try:
        args = _parsed(sys.argv[1:] if argv is None else argv)
        if argv is None and args.command not in SERVES:
            # We say ourselves why a node could not be reached; gRPC would add lines of its own about it.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        code: int = args.run(args)
        if argv is None and args.at_once:
            leave(code)
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


def leave(code: int) -> NoReturn:
    """Ends the process once all that was to be done at its end is done. To take its libraries down as well would take
    seconds on a busy machine (numba, ONNX Runtime), in which a user wonders what is still going on."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """The arguments. Raises ConfigError for a word that was meant to be another one; argparse ends the process for what
    it can tell better itself."""
    parser = build_parser()
    try:
        args, unknown = parser.parse_known_args(words)
    except _WrongWordsError as wrong:
        if wrong.parser is parser:
            _check_command(words, parser.format_help())
        else:
            command = wrong.parser.prog.rpartition(" ")[2]
            _check_options(command, words[words.index(command) + 1 :], wrong.parser.format_usage())
        argparse.ArgumentParser.error(wrong.parser, str(wrong))
    if unknown:
        raise ConfigError(_unknown(args.command, unknown[0], args.usage))
    return args


def _check_command(words: Sequence[str], told: str) -> None:
    """Raises ConfigError for a misspelt command, or a misspelt option before it."""
    for word in words[:1]:
        if word.startswith("--") and get_close_matches(word, ("--version", "--help"), n=1):
            raise ConfigError(f"`overspill` does not know {word}; did you mean --version or --help?")
    typed = next((word for word in words if not word.startswith("-")), "")
    close = get_close_matches(typed, re.findall(r"^    ([a-z]+)\b", told, re.MULTILINE), n=1)
    if close:
        raise ConfigError(f"`overspill` has no command {typed}; did you mean {close[0]}?")


def _check_options(command: str, words: Iterable[str], usage: str) -> None:
    """Raises ConfigError for a misspelt option. Options may be cut short, as argparse allows."""
    known = re.findall(r"--[a-z-]+", usage)
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and not any(option.startswith(name) for option in (*known, "--help")):
            raise ConfigError(_unknown(command, word, usage))


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
