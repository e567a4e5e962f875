"""The resident tensors that an executor can reach: mapped read-only, found by the hash of their content.

What its node tells it to fill is copied out of the tenant's arena first and hashed then, since the tenant may write
there meanwhile; what is not what its name says is refused, and never found. A backend that wants a copy of its own on a
device keeps it under the same name (`Inputs.resident`), for as long as the name is asked for. This module decides
nothing about room: `workers/resident.py` does. Read `workers/execution.py` next.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from typing import TYPE_CHECKING, Final, Protocol

from fabric.card_place import place_in
from fabric.errors import InvalidArgument

if TYPE_CHECKING:
    from workers.card_regions import CardRegions
    from workers.handover import Control

PIECE_BYTES: Final = 4 << 20
"""To copy so much holds the interpreter's lock for about a millisecond; the thread that shows our life waits for it."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Carried(Protocol):
    """Where one content lies in the body of a request."""

    @property
    def resident(self) -> bytes:
        """Its name."""

    @property
    def offset(self) -> int:
        """Where it begins."""

    @property
    def nbytes(self) -> int:
        """How long it is."""


class HeldResidents:  # mutable: maps memory
    """The residents of one executor."""

    def __init__(self, regions: CardRegions | None = None) -> None:
        self.regions = regions
        """The memory on this executor's card that clients made; None where nobody lends any."""
        self._whole: dict[bytes, mmap.mmap] = {}
        self._empty: dict[bytes, tuple[int, int, int]] = {}  # number, descriptor and bytes of what is to be filled
        self._digests: dict[int, bytes] = {}

    def give(self, number: int, digest: bytes, nbytes: int, fd: int, *, whole: bool) -> None:
        """The node lends the memory of a resident, by a descriptor that is ours from now on. What is not `whole` is for
        us to fill; what is named as a place on a card is a handle."""
        self.forget(number)
        if self.regions is not None and place_in(digest) is not None:
            self.regions.give(number, fd)
            return
        self._digests[number] = digest
        if whole:
            self._map(digest, nbytes, fd)
        else:
            self._empty[digest] = (number, fd, nbytes)

    def take(self, control: Control, descriptors: tuple[int, ...]) -> bool:
        """Carries out a word of the node about residents; False for any other."""
        if control.word in {"resident", "fill"}:
            digest, whole = bytes.fromhex(control.digest), control.word == "resident"
            self.give(control.number, digest, control.nbytes, descriptors[0], whole=whole)
        elif control.word == "let_go":
            self.forget(control.number)
        else:
            return False
        return True

    def forget(self, number: int) -> None:
        """The node keeps it no more. Its memory goes when the last array over it does."""
        if self.regions is not None:
            self.regions.forget(number)
        digest = self._digests.pop(number, None)
        if digest is not None:
            self._whole.pop(digest, None)
            _, fd, _ = self._empty.pop(digest, (0, -1, 0))
            if fd >= 0:
                os.close(fd)

    def find(self, digest: bytes) -> mmap.mmap | None:
        """The content of a resident, read-only; None for one that is not here."""
        return self._whole.get(digest)

    def fill_all(self, carried: tuple[Carried, ...], memory: memoryview, body_at: int) -> list[int]:
        """Takes in what a request brings in its body and the node waits for; gives the numbers of what is whole now.
        Copies to the body what lies on a card. Raises InvalidArgument when a content is not what its name says, or the
        place on the card is none."""
        if self.regions is not None:
            self.regions.fetch_all(carried, memory, body_at)
        awaited = {each.resident: each for each in carried if each.resident in self._empty}
        return [
            number
            for digest, each in awaited.items()
            if (number := self.fill(digest, memory[body_at + each.offset : body_at + each.offset + each.nbytes]))
        ]

    def fill(self, digest: bytes, content: memoryview) -> int:
        """Takes in one content, if the node waits for it, and gives its number; 0 where it does not, or there is no
        memory. Raises InvalidArgument when it is not what its name says."""
        number, fd, nbytes = self._empty.pop(digest, (0, -1, 0))
        if fd < 0 or nbytes != len(content):
            return 0
        try:
            found = _copied(fd, nbytes, content)
        except OSError:  # no memory to map: the request reads its own body
            os.close(fd)
            return 0
        if found != digest:
            os.close(fd)
            raise InvalidArgument(
                f"what came as resident {digest.hex()[:16]} has another content; send the bytes that it names"
            )
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        self._map(digest, nbytes, fd)
        return number

    def _map(self, digest: bytes, nbytes: int, fd: int) -> None:
        self._whole[digest] = mmap.mmap(fd, nbytes, prot=mmap.PROT_READ)
        os.close(fd)

    def __repr__(self) -> str:
        return f"<HeldResidents: {len(self._whole)} whole, {len(self._empty)} to be filled>"


def _copied(fd: int, nbytes: int, content: memoryview) -> bytes:
    """Copies the content, and gives the hash of the copy."""
    hashed = hashlib.sha256()
    with mmap.mmap(fd, nbytes) as memory:
        for at in range(0, nbytes, PIECE_BYTES):
            memory[at : at + PIECE_BYTES] = content[at : at + PIECE_BYTES]
            with memoryview(memory) as whole, whole[at : at + PIECE_BYTES] as piece:
                hashed.update(piece)
    return hashed.digest()
