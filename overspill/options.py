"""Numbers on a command line: each with its bounds, so that a senseless one is told by its option before anything runs.

argparse would say "invalid float value", and take a NaN for a number. This module reads no file and runs nothing.
Read `overspill/cli.py` for who tells what is raised here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from fabric.settings import DAY_S, check_number, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_LEAST = 0.001
"""Less than a millisecond reaches no node and brings no answer back."""


def number(option: str, least: float, most: float) -> Callable[[str], float]:
    """A number from `least` to `most`, as argparse's `type`. Raises ConfigError for anything else."""

    def read(text: str) -> float:
        try:
            value: float | str = float(text)
        except ValueError:
            value = text
        check_number(option, value, least, most)
        return float(value)

    return read


def seconds(option: str, most: float = DAY_S) -> Callable[[str], float]:
    """A time that can be waited for, as argparse's `type`. Raises ConfigError for anything else."""
    return number(option, SECONDS_LEAST, most)


def whole(option: str, least: int, most: int) -> Callable[[str], int]:
    """A whole number from `least` to `most`, as argparse's `type`. Raises ConfigError for anything else."""

    def read(text: str) -> int:
        try:
            value: int | str = int(text)
        except ValueError:
            value = text
        check_whole(option, value, least, most)
        return int(value)

    return read


def port(option: str, text: str) -> int:
    """A TCP port, 0 for any free one. Raises ConfigError for anything else."""
    if not (text.isascii() and text.isdecimal() and int(text) < 65_536):
        raise ConfigError(f"{option} is {text!r}; give a port from 0 to 65535")
    return int(text)
