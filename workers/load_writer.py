"""Writes a node's load page, soon after something changed and not at every change: a report costs more than a request.

The page is a file beside the node's socket, mapped by the node, by its rdma port (whose NIC lets routers read it), by
its rpc port and by readers on the host. First the page is written, then the lines of those whose requests it counts: a
reader that finds its line finds a page that has them. This module decides nothing. Read `fabric/load_page.py` for what
is written.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from fabric.load_page import FILE, PAGE_BYTES, LoadPage, ModelLoad, model_key

if TYPE_CHECKING:
    from pathlib import Path

    from fabric.local.reactor import Reactor
    from workers.admission import Admission
    from workers.reception import Reception

WRITE_S = 0.002
"""How old the page may be: a report takes about 20 us, so that a busy node spends a hundredth of its time on it."""
SWEEP_S = 1.0
"""How often lines of clients that the node has forgotten are given to others."""


class LoadWriter:  # mutable: owns the page's mapping
    """The page of one life of a node, about what `admission` and `reception` have in hand."""

    def __init__(
        self, reactor: Reactor, folder: Path, epoch: int, admission: Admission, reception: Reception
    ) -> None:  # fmt: skip
        self._reactor, self._admission, self._reception = reactor, admission, reception
        self._path = folder / FILE
        self._map = make_page(self._path)
        self._page = LoadPage(memoryview(self._map), epoch)
        self._keys: dict[str, int] = {}  # of all models that were ever loaded
        self._changed: set[int] = set()
        self._armed = False
        self._closed = False
        admission.on_change = self.changed
        self._sweep()

    def changed(self, client_id: int) -> None:
        """A request of this client came, or is over."""
        self._changed.add(client_id)
        if not self._armed:
            self._armed = True
            self._reactor.call_later(WRITE_S, self._due)

    def refresh(self) -> None:
        """Something else changed: executors came, or went."""
        if not self._closed:
            self._write()

    def close(self) -> None:
        """Nothing is written any more; a reader that still has the page finds another epoch in the next life's."""
        self._closed = True
        self._admission.on_change = None
        self._page.close()
        self._map.close()
        self._path.unlink(missing_ok=True)

    def _due(self) -> None:
        self._armed = False
        self.refresh()

    def _write(self) -> None:
        admission, reception = self._admission, self._reception
        models = tuple(
            ModelLoad(self._key(name), min(model.speed.estimate_us(0), _U32), min(model.waiting, _U32))
            for name, model in admission.models.items()
        )
        reception.sequence += 1  # in one row with the reports of answers
        self._page.publish(max(0, admission.outstanding_us), reception.executors, models, reception.sequence)
        changed, self._changed = self._changed, set()
        for client_id in changed:
            client = reception.dedupe.clients.get(client_id)
            if client is not None:
                self._page.accept(client_id, client.accepted, len(client.running))

    def _key(self, name: str) -> int:
        key = self._keys.get(name)
        if key is None:  # it was loaded since
            key = self._keys[name] = model_key(name)
        return key

    def _sweep(self) -> None:
        """What changes without anybody saying so: clients that are forgotten."""
        if not self._closed:
            self._page.forget_but(self._reception.dedupe.clients)
            self._write()
            self._reactor.call_later(SWEEP_S, self._sweep)


_U32 = 0xFFFF_FFFF


def make_page(path: Path) -> mmap.mmap:
    """An empty page, for this user to write and for those who may enter its folder to read."""
    path.unlink(missing_ok=True)  # a reader may still have that of an earlier life: it must not see two writers
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, PAGE_BYTES)
        return mmap.mmap(fd, PAGE_BYTES)
    finally:
        os.close(fd)
