"""What two ends say on their pairs: each message is understood by the other end, in turn, and greetings prove both."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from fabric.errors import MissingDependency, ProtocolError
from fabric.rdma.heads import HeadKind, RegionNote, read_place
from fabric.rdma.posts import Posts
from fabric.rdma.talk import Message, Talk
from fabric.rdma.terms import Agreed
from fabric.rdma.verbs import Verbs, load

AGREED = Agreed(1, 3, 1, 32, 32, 4096)


def _ends() -> tuple[Talk, Talk]:
    ends = Talk(5), Talk(5)
    for end in ends:
        end.agree(AGREED, 0x1_2345_6789)
    return ends


def test_messages_are_understood_in_turn_on_each_pair() -> None:
    caller, node = _ends()
    for number in range(3):
        raw = caller.headed(Message(HeadKind.FRAME, b"body", flags=1, region=2, note=number), bulk=number == 1)
        head, payload = node.heard(raw, bulk=number == 1)
        assert (head.note, head.flags, head.region, payload) == (number, 1, 2, b"body")


def test_a_message_that_is_repeated_or_missing_is_seen() -> None:
    caller, node = _ends()
    first, second = (caller.headed(Message(HeadKind.FRAME), bulk=False) for _ in range(2))
    with pytest.raises(ProtocolError, match="out of turn"):
        node.heard(second, bulk=False)
    node.heard(first, bulk=False)
    with pytest.raises(ProtocolError, match="out of turn"):
        node.heard(first, bulk=False)


def test_credit_travels_in_every_head() -> None:
    caller, node = _ends()
    caller.ctl.sent()
    node.ctl.arrived()
    caller.heard(node.headed(Message(HeadKind.FRAME), bulk=False), bulk=False)
    assert caller.ctl.out == 0


def test_credit_is_given_alone_only_when_it_is_due() -> None:
    _, node = _ends()
    for _ in range(15):
        node.bulk.arrived()
    assert node.credit_due() is None
    node.bulk.arrived()
    message = node.credit_due()
    assert message is not None
    assert message.kind is HeadKind.CREDIT


def test_both_pairs_must_be_greeted_with_the_right_nonce() -> None:
    caller, node = _ends()
    head, _ = node.heard(caller.headed(caller.greeting(HeadKind.HELLO), bulk=False), bulk=False)
    node.greeted(head)
    proofs = [node.proved]
    node.greeted_on_bulk()
    assert [*proofs, node.proved] == [False, True]
    other = Talk(5)
    other.agree(AGREED, 99)
    with pytest.raises(ProtocolError, match="nonce"):
        other.greeted(head)


def test_ends_talk_in_the_version_that_they_agreed_on() -> None:
    caller, node = _ends()
    caller.agree(replace(AGREED, version=2), 1)
    with pytest.raises(ProtocolError, match="version 2"):
        node.heard(caller.headed(Message(HeadKind.FRAME), bulk=False), bulk=False)
    node.agree(replace(AGREED, version=2), 1)
    caller, _ = _ends()
    caller.agree(replace(AGREED, version=2), 1)
    assert node.heard(caller.headed(Message(HeadKind.FRAME), bulk=False), bulk=False)[0].kind is HeadKind.FRAME


@pytest.mark.parametrize(("depth", "room"), [(32, 4096), (8, 1024)])
def test_frames_behind_bodies_go_where_the_peer_has_places_for_them(depth: int, room: int) -> None:
    """The peer may have fewer and smaller places than this end; a longer frame lies behind its body."""
    talk, pairs = Talk(5), _Ring()
    talk.agree(replace(AGREED, bulk_depth=depth, frame_room=room), 1)
    posts = Posts(pairs, talk, 1 << 18)  # type: ignore[arg-type]
    note = RegionNote(3, 1 << 40, 4 << 20, 77, 0, 2 << 20, 2 << 20)
    told = []
    for number in range(2 * depth):
        long = number % 3 == 2
        message = Message(HeadKind.FRAME, bytes(room if long else 100), region=3)
        write = posts.put_write((0, 64, 0), note, 0, 8192, message, lambda: None)
        *_, remote, imm = write.message()
        assert remote - note.base == read_place(imm)[1]
        told.append(remote - note.base)
    places = [note.frames_at + number % depth * room for number in range(2 * depth)]
    assert told == [8192 if number % 3 == 2 else place for number, place in enumerate(places)]


class _Ring:
    """Where messages are staged."""

    def stage(self, message: bytes) -> tuple[int, int, int]:
        return 0, len(message), 0


def test_a_message_is_marked_as_posted_when_it_is_packed() -> None:
    caller, _ = _ends()
    message = Message(HeadKind.FRAME)
    before = message.posted
    caller.headed(message, bulk=False)
    assert (before, message.posted) == (False, True)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ("No module named 'pyverbs'", "apt install python3-pyverbs"),
        ("/lib/libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found", "another rdma-core"),
        ("libibverbs.so.1: cannot open shared object file", "libibverbs is not installed"),
    ],
)
def test_a_missing_pyverbs_is_one_sentence_of_ours(monkeypatch: pytest.MonkeyPatch, told: str, word: str) -> None:
    def broken(_: object) -> None:
        raise ImportError(told)

    monkeypatch.setattr(Verbs, "__init__", broken)
    with pytest.raises(MissingDependency, match=word):
        load()


@pytest.mark.parametrize("flat", [True, False])
def test_both_spellings_of_the_constants_are_understood(flat: bool) -> None:
    name = "pyverbs.enums" if flat else "pyverbs.libibverbs_enums"
    module = ModuleType(name)
    holder: object = module if flat else type("ibv_wr_opcode", (), {})
    setattr(holder, "IBV_WR_SEND", 2)  # noqa: B010 - of a module or a class
    if not flat:
        module.ibv_wr_opcode = holder  # type: ignore[attr-defined]
    verbs = Verbs.__new__(Verbs)
    verbs._enums = [module]
    assert verbs.number("IBV_WR_SEND") == 2
    with pytest.raises(MissingDependency, match="IBV_WR_RECV"):
        verbs.number("IBV_WR_RECV")
    assert name not in sys.modules
