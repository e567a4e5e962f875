"""The reader of text protocol buffers: what it takes, and where it says that something is wrong."""

from __future__ import annotations

import pytest

from fabric.errors import ModelBroken
from workers.pbtxt import Message, Scalar, parse_pbtxt


def scalars(text: str) -> list[tuple[str, str]]:
    return [
        (field.name, field.value.text) for field in parse_pbtxt(text, "c").fields if isinstance(field.value, Scalar)
    ]


def test_scalars_comments_and_separators() -> None:
    text = 'name: "a" # why\n# whole line\nsize: -3; kind: KIND_CPU, ratio: 1.5e3'
    assert scalars(text) == [("name", "a"), ("size", "-3"), ("kind", "KIND_CPU"), ("ratio", "1.5e3")]


def test_lists_give_one_field_per_value() -> None:
    assert scalars("dims: [ 1, -1, 3 ]\ndims: 4\ndims: []") == [
        ("dims", "1"),
        ("dims", "-1"),
        ("dims", "3"),
        ("dims", "4"),
    ]


def test_messages_nest_with_and_without_colon_in_braces_or_angles() -> None:
    for text in ("a { b: 1 }", "a: { b: 1 }", "a < b: 1 >", "a [ { b: 1 } ]"):
        value = parse_pbtxt(text, "c").fields[0].value
        assert isinstance(value, Message), text
        assert value.all("b")[0].value == Scalar("1", "number", 1), text


def test_strings_join_and_know_escapes() -> None:
    assert scalars(r"""a: "x\n\x41\101" 'y"\\'""") == [("a", 'x\nAAy"\\')]


def test_lines_are_counted_through_strings_and_comments() -> None:
    fields = parse_pbtxt('a: 1\n# two\n\nb: "x"', "c").fields
    assert [field.line for field in fields] == [1, 4]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('a: 1\nb: "open', "c:2: '\"'"),
        ("a {\n b: 1\n", "c:2: the brace"),
        ("a: 1 }", "c:1: '}'"),
        ("a [ { b: 1 ]", "c:1: ']' stands inside an open brace"),
        ("a: 1\n: 2", "c:2: a field name"),
        ("a 1", "c:1: 'a' needs a colon"),
        ("a:", "c:1: 'a' needs a colon"),
        ("a: [1 2]", "c:1: the list of 'a'"),
        ("a: [1,", "c:1: 'a' needs"),
        ("a: $", "c:1: '$'"),
        (r'a: 1 b: "\q"', "c:1: the string"),
        ("a{" * 20 + "}" * 20, "c:1: messages are nested"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text: str, where: str) -> None:
    with pytest.raises(ModelBroken) as caught:
        parse_pbtxt(text, "c")
    assert str(caught.value).startswith(where)
