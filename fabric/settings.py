"""How a setting is checked: whoever gives a senseless one is told its name, its value and what would make sense.

Settings come from Python, from TOML and from command lines, and each of them can hold a number of the wrong kind, a
NaN, or a text with a line break in it. This module knows no setting and no default, and never reads one from anywhere.
Read `router/config.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

DAY_S = 86_400.0
"""No wait of ours is longer, and a larger number is most likely milliseconds meant as seconds."""
ARENA_BYTES_LEAST = 64 * 1024
"""Sixteen pages: a few small requests and their replies, each in a page of its own. With less nothing could be sent."""
BYTES_MOST = 1 << 40
"""A TiB: more than a machine of this field has memory, so a larger number is most likely a slip."""
COUNT_MOST = 1_000_000
"""More of anything that is counted is most likely a slip, and takes memory for each."""


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raises ConfigError unless `value` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} is {_told(value)}; give a whole number from {least} to {most}")


def check_number(name: str, value: object, least: float, most: float, *, above: bool = False) -> None:
    """Raises ConfigError unless `value` is a number from `least` (or `above` it) to `most`; NaN is none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or (above and value == least):  # type: ignore[operator]  # a number
        limits = f"above {least:g}, up to {most:g}" if above else f"from {least:g} to {most:g}"
        raise ConfigError(f"{name} is {_told(value)}; give a number {limits}")


def check_flag(name: str, value: object) -> None:
    """Raises ConfigError unless `value` is a bool."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {_told(value)}; give True or False")


def check_word(name: str, value: object, words: Collection[str]) -> None:
    """Raises ConfigError unless `value` is one of `words`."""
    if value not in words:
        raise ConfigError(f"{name} is {_told(value)}; give one of {', '.join(words)}")


def check_text(name: str, value: object, chars_max: int = 4096) -> None:
    """Raises ConfigError unless `value` is text of one line that can be printed; 4,096 is the longest path."""
    if not isinstance(value, str) or len(value) > chars_max or not value.isprintable():
        raise ConfigError(f"{name} is {_told(value)}; give a text of one line, {chars_max} characters at most")


def check_texts(name: str, value: object) -> None:
    """Raises ConfigError unless `value` is a tuple of such texts, none of them empty."""
    if not isinstance(value, tuple) or not all(isinstance(one, str) and one and one.isprintable() for one in value):
        raise ConfigError(f"{name} is {_told(value)}; give a tuple of texts of one line")


def check_order(first: str, least: float, last: str, most: float) -> None:
    """Raises ConfigError where a first wait is longer than the longest one."""
    if least > most:
        raise ConfigError(f"{first} is {least:g} and {last} is {most:g}; give a {last} that is no shorter")


def _told(value: object) -> str:
    """The value as its giver knows it, and no more of it than fits a sentence."""
    told = repr(value)
    return told if len(told) <= 80 else f"{told[:77]}…"
