"""Reads the text form of protocol buffers, as far as `config.pbtxt` files use it, into a tree that knows its lines.

It knows the grammar only: which fields mean something is decided in `workers/modelconfig.py`. It never reads a file and
never guesses: what it cannot read is an error with its line. Read `workers/modelconfig.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.errors import ModelBroken

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPTH_MAX = 16
"""Nested messages; Triton's own configurations go five deep."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)f?)
      | (?P<name>[A-Za-z_][\w.]*)
      | (?P<mark>[{}\[\]<>:,;])""",
    re.VERBOSE,
)

_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written: `text` is a string's content, a number's digits or a name; `kind` says which."""

    text: str
    kind: str
    line: int


@dataclass(frozen=True, slots=True)
class Message:
    """The fields between two braces, in order; a repeated field stands there once for each value."""

    fields: tuple[Field, ...]
    line: int

    def all(self, name: str) -> tuple[Field, ...]:
        """Every value of a field, in order."""
        return tuple(field for field in self.fields if field.name == name)


@dataclass(frozen=True, slots=True)
class Field:
    """A name with one value."""

    name: str
    value: Scalar | Message
    line: int


class _Tokens:  # mutable: a cursor over the tokens of one text
    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self._tokens = list(self._split(text))
        self._at = 0

    def _split(self, text: str) -> Iterator[Scalar]:
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.error(f"{text[at]!r} cannot stand here; check for a missing quote", line)
            kind, written = str(match.lastgroup), match.group()
            if kind == "string":
                yield Scalar(self._unquote(written, line), kind, line)
            elif kind != "space":
                yield Scalar(written, kind, line)
            line += written.count("\n")
            at = match.end()
        yield Scalar("end of file", "end", line)

    def _unquote(self, written: str, line: int) -> str:
        def character(match: re.Match[str]) -> str:
            code = match.group(1)
            if code in _ESCAPES:
                return _ESCAPES[code]
            if code[0] == "x" and len(code) > 1:
                return chr(int(code[1:], 16))
            if code[0] in "01234567":
                return chr(int(code, 8))
            raise self.error(f"the string {written[:40]} has the escape \\{code}, which is unknown", line)

        return _ESCAPED.sub(character, written[1:-1])

    def error(self, what: str, line: int) -> ModelBroken:
        return ModelBroken(f"{self.source}:{line}: {what}")

    @property
    def next(self) -> Scalar:
        return self._tokens[self._at]

    def take(self) -> Scalar:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def take_mark(self, marks: str) -> bool:
        if self.next.kind == "mark" and self.next.text in marks:
            self._at += 1
            return True
        return False


def parse_pbtxt(text: str, source: str) -> Message:
    """Reads a whole text; `source` names it in errors. Raises ModelBroken with the line where it cannot be read."""
    tokens = _Tokens(text, source)
    message = _message(tokens, "", 0)
    if tokens.next.kind != "end":
        raise tokens.error(f"{tokens.next.text!r} closes nothing; remove it", tokens.next.line)
    return message


def _message(tokens: _Tokens, closing: str, depth: int) -> Message:
    if depth > DEPTH_MAX:
        raise tokens.error(f"messages are nested over {DEPTH_MAX} deep; flatten them", tokens.next.line)
    line, fields = tokens.next.line, list[Field]()
    while not (tokens.next.kind == "end" or (tokens.next.kind == "mark" and tokens.next.text in "}>")):
        fields.extend(_field(tokens, depth))
    if closing and not tokens.take_mark(closing):
        raise tokens.error(f"the brace opened here is never closed with {closing!r}", line)
    return Message(tuple(fields), line)


def _field(tokens: _Tokens, depth: int) -> Iterator[Field]:
    name = tokens.take()
    if name.kind == "mark" and name.text in "])":
        raise tokens.error(f"{name.text!r} stands inside an open brace; close that with '}}' before it", name.line)
    if name.kind != "name":
        raise tokens.error(f"a field name must stand where {name.text!r} stands", name.line)
    colon = tokens.take_mark(":")
    if tokens.take_mark("["):
        while not tokens.take_mark("]"):
            yield Field(name.text, _value(tokens, name, depth, colon=True), name.line)
            if not tokens.take_mark(",") and tokens.next.text != "]":
                raise tokens.error(f"the list of {name.text!r} needs a comma before {tokens.next.text!r}", name.line)
    else:
        yield Field(name.text, _value(tokens, name, depth, colon=colon), name.line)
    tokens.take_mark(",;")


def _value(tokens: _Tokens, name: Scalar, depth: int, *, colon: bool) -> Scalar | Message:
    if tokens.take_mark("{"):
        return _message(tokens, "}", depth + 1)
    if tokens.take_mark("<"):
        return _message(tokens, ">", depth + 1)
    value = tokens.take()
    if not colon or value.kind not in {"string", "number", "name"}:
        raise tokens.error(
            f"{name.text!r} needs a colon and a value, or braces; {value.text!r} stands there", name.line
        )
    if value.kind == "string":  # neighbouring strings are one, as in C
        while tokens.next.kind == "string":
            value = Scalar(value.text + tokens.take().text, "string", value.line)
    return value
