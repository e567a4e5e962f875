"""The cards of a node: who sits on which, what follows from what they report, and what is told of them.

Fatal errors are seen by executors themselves. What the driver reports beside that is judged here: an Xid of the class
`restart` ends the run that it must be of, or, where that is in doubt, has the executors of that card look at their
contexts (the report does not say whose it was); one of the class `drain`, or a recovery action, takes the card out of
use. A report that names no card has all of them look. Read `workers/shell.py` next.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from discovery.instance import CardFacts
from workers.child import Settings
from workers.cuda.faults import XidClass, read_faults
from workers.cuda.visible import ORDER_VARIABLE, VARIABLE, shown_cards
from workers.cuda.watch import CardWatch
from workers.device import CPU, asked_devices, chosen_cards, device_word
from workers.fitting import Spot
from workers.handover import Control
from workers.seat import Seat, StandbyKind
from workers.sentinel import ExecutorState
from workers.standby import CONTEXT_BYTES

if TYPE_CHECKING:
    from fabric.local.reactor import Reactor
    from workers.config import NodeConfig
    from workers.device import Card
    from workers.shell import ExecutorShell

_log = logging.getLogger(__name__)
LATE_S: Final = 0.25
"""A report that comes so soon after a death is about that: 5 ms were seen on an H200."""
FAKES: Final = "fake-cards"
_ACTIONS: Final = {
    1: "reset the GPU", 2: "reboot the node", 3: "drain peer-to-peer traffic", 4: "drain and reset the GPU",
    5: "recover its fabric", 6: "reset its bus", 7: "reboot the system",
}  # fmt: skip


class NodeCards:  # mutable: owns the watcher
    """The cards that a node's devices ask for. Raises ConfigError when one of them is not there."""

    def __init__(self, reactor: Reactor, config: NodeConfig, folder: Path) -> None:
        asked = asked_devices(config.devices)
        kinds = {each.kind for each in asked} - {CPU}
        self._kind = kinds.pop() if kinds else CPU
        self._config = config
        self._folder = folder / FAKES
        self._book = read_faults(config.fault_classes)
        self._watch: CardWatch | None = None
        self._shells: tuple[ExecutorShell, ...] = ()
        if self._kind == "fake":
            from workers.cuda.fake import make_cards

            make_cards(str(self._folder), sum(int(each.which) for each in asked if each.kind == "fake"))
            _log.info("the fake cards lie in %s", self._folder)
        if self._kind != CPU:
            self._watch = CardWatch(reactor, self._kind, str(self._folder))
        cards = self._watch.cards if self._watch is not None else ()
        chosen = chosen_cards(asked, cards, self._shown(cards))
        self.seats = tuple(
            Seat(
                word=device_word(self._kind, card, str(self._folder)),
                card=card,
                cards=self._watch if card is not None else None,
                standby=StandbyKind(config.standby),
                quarantine_faults=config.quarantine_faults if card is not None else 0,
                book=self._book,
            )
            for card in chosen
        )

    def _shown(self, cards: tuple[Card, ...]) -> tuple[Card, ...]:
        """Those that we may use, by UUID: what a scheduler has hidden is somebody else's."""
        if self._kind == "fake":
            from workers.cuda.fake import visible_cards

            return shown_cards(visible_cards(str(self._folder)), "", cards)
        return shown_cards(os.environ.get(VARIABLE), os.environ.get(ORDER_VARIABLE, ""), cards)

    def settings(self, node_epoch: int) -> Settings:
        """What all executors are told."""
        count = len(self.seats)
        threads = self._config.threads_per_executor or max(1, len(os.sched_getaffinity(0)) // count)
        models = str(Path(self._config.models).resolve())
        pinned = self._config.pinned_bytes_max or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
        return Settings(
            -1, -1, 0, node_epoch, 0, threads, models, pinned_bytes_max=pinned // count,
            faults=self._config.fault_classes, inject=self._config.inject,
        )  # fmt: skip

    def spots(self) -> tuple[Spot, ...]:
        """The executors as places for models. What a standby will hold is not free: with `full` each model is there
        twice."""
        found = []
        for number, (seat, word) in enumerate(zip(self.seats, self.words, strict=True)):
            card = seat.card
            if card is None:
                found.append(Spot(number, word))
            else:
                free = seat.cards.free_bytes(card.uuid) if seat.cards is not None else 0
                name = word if seat.standby is StandbyKind.OFF else f"{word} beside its standby ({seat.standby.value})"
                left = _left_by_standby(free, seat.standby)
                found.append(Spot(number, name, card.model, card.memory_bytes, left, card.index))
        return tuple(found)

    def listen(self, shells: tuple[ExecutorShell, ...]) -> None:
        """The executors, in the order of the seats: from now on what cards report has consequences."""
        self._shells = shells
        if self._watch is not None:
            self._watch.listen(self)

    @property
    def words(self) -> tuple[str, ...]:
        """What discovery says of each executor's device: `cpu:0`, `cuda:0`, `fake:1`."""
        return tuple(
            f"{CPU}:{number}" if seat.card is None else f"{self._kind}:{seat.card.index}"
            for number, seat in enumerate(self.seats)
        )

    @property
    def facts(self) -> tuple[CardFacts, ...]:
        """What discovery says of the cards, each once."""
        found: dict[str, CardFacts] = {}
        for shell in self._shells:
            card, standby = shell.seat.card, shell.standby
            if card is None:
                continue
            kind = "no room" if standby.no_room else (shell.seat.standby.value if standby.ready else "off")
            known = found.get(card.uuid)
            found[card.uuid] = CardFacts(
                model=card.model,
                memory_bytes=card.memory_bytes,
                uuid=card.uuid,
                state=_state(shell) or (known.state if known is not None else ""),
                standby=kind,
                standby_bytes=standby.held_bytes + (known.standby_bytes if known is not None else 0),
            )
        return tuple(found.values())

    def xid(self, uuid: str, xid: int) -> None:
        """See `CardsHeard`."""
        kind, name, shells = self._book.of_xid(xid), self._book.xid_name(xid), self._at(uuid)
        if not shells:
            return  # another node's card
        _log.log(
            logging.WARNING if kind is XidClass.WARN else logging.ERROR,
            "GPU %s reported Xid %d (%s): %s", uuid or "(it did not say which)", xid, name, kind.value,
        )  # fmt: skip
        # Of several cards one that cannot be named must not take the others along: each finds out for itself.
        is_known = bool(uuid) or len({shell.seat.word for shell in shells}) == 1
        suspect = self._suspect(shells) if kind is XidClass.RESTART and is_known else None
        for shell in shells:
            if shell is suspect:
                shell.stuck(f"ran a request while its GPU reported Xid {xid} ({name})")
            elif kind is XidClass.DRAIN and is_known:
                shell.bar_device(f"it reported Xid {xid} ({name})")
            elif kind is not XidClass.WARN:
                for life in shell.lives:  # each asks its own context whether it is broken
                    life.tell(Control("check"))

    def recovery_action(self, uuid: str, action: int) -> None:
        """See `CardsHeard`."""
        if not action:
            _log.info("GPU %s needs nothing any more, by its driver", uuid)
            return
        wanted = _ACTIONS.get(action, f"take recovery action {action}")
        _log.error("GPU %s: the driver asks to %s", uuid, wanted)
        for shell in self._at(uuid):
            shell.bar_device(f"its driver asks to {wanted}")

    def close(self) -> None:
        """Ends the watcher."""
        if self._watch is not None:
            self._watch.close()
        if self._kind == "fake":
            from workers.cuda.fake import remove_cards

            remove_cards(str(self._folder))

    def _suspect(self, shells: tuple[ExecutorShell, ...]) -> ExecutorShell | None:
        """Whose run a report must be of: the only executor of the card that runs something, where no process but ours
        holds memory there. CUDA would say the same, and later: 0.3 s for a trap on an H200. Where it was sooner (an
        assert), the report is about a process that is lost already."""
        if any(monotonic() - shell.machine.died_s < LATE_S for shell in shells):
            return None
        running = [shell for shell in shells if shell.desk.open and shell.desk.in_hand]
        if len(running) != 1 or self._watch is None:
            return None
        (shell,) = running
        ours = {life.child.pid for each in shells for life in each.lives}
        card = shell.seat.card
        known = card is not None and set(self._watch.holder_pids(card.uuid)) <= ours
        return shell if known and not shell.standby.loading else None

    def _at(self, uuid: str) -> tuple[ExecutorShell, ...]:
        return tuple(
            shell
            for shell in self._shells
            if shell.seat.card is not None and uuid in {"", shell.seat.card.uuid, shell.seat.card.parent}
        )


def _left_by_standby(free_bytes: int, standby: StandbyKind) -> int:
    """What models may take of what is free, at least a byte: 0 would mean that it is not known."""
    if standby is StandbyKind.FULL:
        return max(1, free_bytes // 2)
    return max(1, free_bytes - CONTEXT_BYTES) if standby is StandbyKind.CONTEXT else free_bytes


def _state(shell: ExecutorShell) -> str:
    """Why nothing runs on its card; empty where something does, or soon will."""
    if shell.machine.quarantined:
        return f"quarantined for {shell.machine.backoff_s:.0f} s after repeated faults"
    if shell.machine.state in {ExecutorState.BARRED, ExecutorState.BARRING}:
        return f"out of use: {shell.pauses.barred}"
    return ""
