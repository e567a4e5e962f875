"""Reads typed fields out of the tree of a configuration; every complaint names file and line.

It knows no field's meaning: `workers/modelconfig.py` and `workers/batchconfig.py` do. Read the first next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from fabric.errors import ModelBroken
from workers.pbtxt import Field, Message, Scalar


class FieldReader:
    """Reads typed fields of one message; every complaint names file and line."""

    def __init__(self, source: str) -> None:
        self.source = source

    def error(self, what: str, line: int) -> ModelBroken:
        """The error for something wrong in a line."""
        return ModelBroken(f"{self.source}:{line}: {what}")

    def scalar(self, message: Message, name: str, default: str, kinds: tuple[str, ...]) -> str:
        """A field that stands there once at most, as written."""
        found = message.all(name)
        if not found:
            return default
        if len(found) > 1:
            raise self.error(f"{name!r} stands there twice; keep one", found[1].line)
        return self.scalar_of(found[0], kinds).text

    def scalar_of(self, field: Field, kinds: tuple[str, ...]) -> Scalar:
        """One value of a field, of one of these kinds."""
        if not isinstance(field.value, Scalar) or field.value.kind not in kinds:
            raise self.error(f"{field.name!r} must be a {' or '.join(kinds)}", field.line)
        return field.value

    def text(self, message: Message, name: str, default: str = "") -> str:
        """A string."""
        return self.scalar(message, name, default, ("string",))

    def number(self, message: Message, name: str, default: int) -> int:
        """A whole number."""
        return self.whole(self.scalar(message, name, str(default), ("number",)), name, message.line)

    def whole(self, text: str, name: str, line: int) -> int:
        """A whole number out of its digits."""
        try:
            return int(text, 0)
        except ValueError:
            raise self.error(f"{name!r} is {text}; give a whole number", line) from None

    def numbers(self, message: Message, name: str) -> tuple[int, ...]:
        """A repeated whole number."""
        return tuple(
            self.whole(self.scalar_of(field, ("number",)).text, name, field.line) for field in message.all(name)
        )

    def messages(self, message: Message, name: str) -> tuple[Message, ...]:
        """Every value of a field that is a message."""
        found = []
        for field in message.all(name):
            if not isinstance(field.value, Message):
                raise self.error(f"{name!r} needs braces", field.line)
            found.append(field.value)
        return tuple(found)

    def word(self, message: Message, name: str, default: str, known: tuple[str, ...]) -> str:
        """A word of an enumeration."""
        found = self.scalar(message, name, default, ("name",))
        if found not in known:
            raise self.error(f"{name!r} is {found}; give one of {', '.join(known)}", message.line)
        return found

    def flag(self, message: Message, name: str) -> bool:
        """True or false, and false where it does not stand."""
        return self.word(message, name, "false", ("true", "false", "True", "False")).lower() == "true"
