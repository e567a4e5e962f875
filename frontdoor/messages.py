"""The protocol's messages as protobuf classes, made from the compiled `frontdoor/oip.proto` when this is imported.

They live in a pool of descriptors of their own, so that a program may import this and any stock client beside it in
either order: two files that define the same names clash within one pool. Field by field they are the protocol's, which
a test compares with the stock client's. This module knows nothing of calls. Read `frontdoor/envelope.py` next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FILE = Path(__file__).with_name("oip.binpb")
PACKAGE = "overspill.oip"


def _load() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(FILE.read_bytes())
    for file in files.file:
        pool.Add(file)
    names = [message.name for file in files.file for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


_CLASSES = _load()


def message(name: str) -> Any:
    """The class of a message, by its name in the protocol."""
    return _CLASSES[name]


def names() -> tuple[str, ...]:
    """All top-level messages."""
    return tuple(_CLASSES)
