"""What the executors' side tells the node's: what became of tasks, and of models.

These are the contracts of `workers/shell.py`, which sees it, with `workers/reception.py`, which answers callers, and
with `workers/library.py`, which knows the models. Read those next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from workers.handover import Loaded, Spent
    from workers.job import Job
    from workers.page import Answer


class Settlement(Protocol):
    """Who hears what became of tasks."""

    def done(self, job: Job, flags: int, spent: Spent, frame: bytes, holder: tuple[int, int]) -> None:
        """An executor has finished a task; `frame` is its final frame."""

    def lost(self, job: Job, why: str, answer: Answer, *, early: bool = False) -> None:
        """The executor ended while it ran this job; `answer` says whether the tenant has what came of it. `early`: it
        cannot answer any more, is not gone yet, and will be told of once more when it is."""

    def came_back(self, job: Job) -> None:
        """An executor ended before it began this job."""

    def reach(self, reader: int, source: int, *, good: bool) -> None:
        """An executor could, or could not, read what an ensemble's leg has left on the card of executor `source`."""

    def executor_opened(self) -> None:
        """An executor has warm models and takes work."""

    def executors_changed(self) -> None:
        """An executor takes no more work."""


class Shelves(Protocol):
    """Who hears what became of models."""

    def loaded(self, number: int, results: tuple[Loaded, ...]) -> None:
        """Executor `number` has loaded what it should, or could not."""

    def staged(self, number: int, serial: int, loaded: Loaded) -> None:
        """Executor `number` has loaded what was staged beside its models, or could not."""

    def stepped(self, steps: tuple[Loaded, ...]) -> None:
        """An ensemble has run, and this became of its steps."""

    def executor_ended(self, number: int, why: str, loading: str) -> None:
        """A process is gone, and with it what it held; `loading` is the model that it was at, at its start."""
