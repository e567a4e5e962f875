"""Resident tensors on the wire: inputs that a node keeps under the hash of their content, so that they travel once.

The descriptors of a request end with one entry for each of its residents. A *referred* one has no bytes in the body:
the node has it, or answers `ResidentMissing` without running anything. A *carried* one lies in the body as any input
does, and the node is asked to keep it. Names are SHA-256 of the bytes alone, and whoever keeps a tensor hashes its own
copy first, so that nobody can put other bytes under a name that another tenant refers to; who knows a name knows the
content, or was told it. The node itself reads these entries, which is why nothing here needs numpy. This module keeps
nothing: `workers/resident.py` does. Read `fabric/layout.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import hashlib
import struct
from typing import Final, NamedTuple

from fabric.errors import InvalidArgument

DIGEST_BYTES: Final = 32
RESIDENTS_MAX: Final = 64
"""Of one request: a quarter of the inputs that it may have."""
COUNT_AT: Final = 2
"""Where descriptors say how many residents they name; zero in nearly all."""
_ENTRY: Final = struct.Struct(f"<HBxxxxxQ{DIGEST_BYTES}s")
ENTRY_BYTES: Final = _ENTRY.size
_REFERRED: Final = 0
_CARRIED: Final = 1


class Ref(NamedTuple):
    """One resident of a request: the place of its tensor, whether the body brings it, its bytes, and its name."""

    place: int
    carried: bool
    nbytes: int
    digest: bytes


def digest_of(content: memoryview) -> bytes:
    """The name of a resident: the hash of its bytes (0.5 to 2 GB/s; the interpreter's lock is free meanwhile)."""
    return hashlib.sha256(content).digest()


def pack_refs(refs: tuple[Ref, ...]) -> bytes:
    """The entries that stand behind the tensors of a request."""
    return b"".join(
        _ENTRY.pack(ref.place, _CARRIED if ref.carried else _REFERRED, ref.nbytes, ref.digest) for ref in refs
    )


def any_refs(descriptors: bytes) -> bool:
    """Whether a request names residents at all: all that most requests pay for them."""
    return len(descriptors) > COUNT_AT and descriptors[COUNT_AT] != 0


def refs_of(descriptors: bytes) -> tuple[Ref, ...]:
    """The residents that a request names. Raises InvalidArgument where the entries are none."""
    count = descriptors[COUNT_AT] if len(descriptors) > COUNT_AT else 0
    begin = len(descriptors) - count * ENTRY_BYTES
    if begin <= COUNT_AT or count > RESIDENTS_MAX:
        raise InvalidArgument(
            f"a request names {count} residents in {len(descriptors)} bytes; name {RESIDENTS_MAX} at most, whole"
        )
    refs: list[Ref] = []
    for place, kind, nbytes, digest in _ENTRY.iter_unpack(descriptors[begin:]):
        if kind not in {_REFERRED, _CARRIED} or not nbytes or (refs and refs[-1].place >= place):
            raise InvalidArgument("a request names residents out of order, empty or of an unknown kind; name each once")
        refs.append(Ref(place, kind == _CARRIED, nbytes, digest))
    return tuple(refs)
