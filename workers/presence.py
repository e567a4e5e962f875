"""Keeps a node's entry in the registry, from a thread of its own, so that a slow disk never holds up a request.

Only the newest facts count: while one write is under way, later ones replace each other. A registry that cannot be
written is tried again; the node serves on, since links to it live without the registry. This module decides nothing
about readiness: `workers/node.py` does. Read that next.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from discovery.registry import open_registry
from fabric.errors import OverspillError

if TYPE_CHECKING:
    from discovery.instance import Instance
    from discovery.registry import Registration

_log = logging.getLogger(__name__)
RETRY_S = 1.0
CLOSE_WAIT_S = 3.0


class Presence:  # mutable: owns a thread and the registration
    """The entry of one node. Raises ConfigError for a registry URL that names none."""

    def __init__(self, url: str) -> None:
        self._registry = open_registry(url)
        self._wake = threading.Condition()
        self._newest: Instance | None = None
        self._closing = False
        self._registration: Registration | None = None
        self._thread = threading.Thread(target=self._run, name="overspill-presence", daemon=True)
        self._thread.start()

    def publish(self, instance: Instance) -> None:
        """Has these facts written soon; never blocks."""
        with self._wake:
            self._newest = instance
            self._wake.notify()

    def close(self) -> None:
        """Takes the entry away; waits 3 s at most, after which the entry expires by itself."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        failed = False
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or self._newest is not None)
                instance, self._newest = self._newest, None
                closing = self._closing
            if closing:
                break
            assert instance is not None, "woken for news or for the end"
            try:
                self._write(instance)
                if failed:
                    _log.warning("the node is entered in the registry now")
                failed = False
            except OverspillError as error:
                if not failed:
                    _log.warning("the node cannot be entered in the registry, and goes on trying: %s", error)
                failed = True
                self._keep_for_later(instance)
        if self._registration is not None:
            self._registration.close()

    def _write(self, instance: Instance) -> None:
        if self._registration is None:
            self._registration = self._registry.register(instance)
        else:
            self._registration.update(instance)

    def _keep_for_later(self, instance: Instance) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._closing, RETRY_S)
            if self._newest is None:
                self._newest = instance
