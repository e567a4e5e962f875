"""The executor's end of an ensemble in legs: takes what earlier legs gave, runs its own steps, packs what goes on.

What a step gave on the card is copied into memory that other processes can map, on the same card, so the model's own
memory is free at once; the executor of the next leg copies it to its card, or takes it from the host's memory where it
cannot. It is named only after the context has been waited for. From then on it is held by descriptors alone: whoever
dies, nobody reads memory that was freed. It never decides which way is taken, or when: `workers/onward.py` does. Read
that next.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fabric.errors import Fate, ModelFailed, OverspillError, ProtocolError, ResourceExhausted, Unavailable
from fabric.frame import FRAME_BYTES_MAX
from fabric.layout import layout_of
from fabric.local.sockets import close_all
from workers.backends.ensemble import Ensemble
from workers.backends.on_card import CardArray
from workers.execution import Run
from workers.handover import PASSED, RAN, Control, pack_done
from workers.legs import given_on, taken_by
from workers.legwords import LegOrder, Way, decode_contents, decode_order, encode_contents
from workers.packing import Parcelled, from_card, from_host, on_card, on_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.backends.base import Inputs
    from workers.card_rooms import CardRooms
    from workers.execution import LoadedModel
    from workers.handover import Spent
    from workers.legwords import Contents
    from workers.page import SharedPage

LEG_WORDS: Final = frozenset({"parcel", "leg", "returned"})
DESCRIPTORS_MAX: Final = 2
"""With one message: of a parcel's memory on the card, and in the host's."""
WORDS_BYTES_MAX: Final = FRAME_BYTES_MAX // 4
"""Of what is said of a parcel: it goes to the next executor as a text in a text."""
WORTH_BYTES: Final = 1 << 20
"""Below this a tensor is sooner on the other card by the host's memory: to make, give and map a card's took 1.4 ms on
two H200s, and 1 MiB by the host 1.2 ms."""

Array = np.ndarray[Any, Any] | CardArray


class Leg:  # mutable: packed once, then passed on or dropped
    """One task's leg: what it is to do, and what earlier ones gave, by the number of their executor."""

    __slots__ = ("order", "packed", "parcels")

    def __init__(self, order: LegOrder, parcels: list[tuple[int, Contents, tuple[int, ...]]]) -> None:
        self.order = order
        self.parcels = parcels
        self.packed: Parcelled | None = None

    @property
    def before_us(self) -> int:
        """What earlier legs took."""
        return self.order.before_us

    def close(self) -> None:
        """What it was given, and did not take, is closed."""
        while self.parcels:
            close_all(self.parcels.pop()[2])


class Legs:  # mutable: holds what was told for the next task, and counts
    """The legs that one executor runs. `tell` sends a word to the node."""

    def __init__(
        self, rooms: CardRooms | None, tell: Callable[[Control], None], parcels_fd: int, page: SharedPage
    ) -> None:
        self._rooms = rooms
        self._tell = tell
        self._parcels_out = socket.socket(fileno=parcels_fd)
        self._page = page
        self._order: LegOrder | None = None
        self._parcels: list[tuple[int, Contents, tuple[int, ...]]] = []
        self._reached: set[int] = set()
        self._numbers = 0
        self._out_bytes = 0
        self._counts = [0, 0, 0]
        self._why = ""

    def take(self, control: Control, descriptors: tuple[int, ...]) -> None:
        """A word of the node about legs."""
        if control.word == "leg":
            self._order = decode_order(control.text)
        elif control.word == "parcel":
            self._parcels.append((control.number, decode_contents(control.text), descriptors))
        else:
            self._out_bytes -= control.number

    def begin(self) -> Leg | None:
        """The leg that the task which has come now is; None for a task of any other model."""
        order, self._order = self._order, None
        if order is None:
            return None
        parcels, self._parcels = self._parcels, []
        return Leg(order, parcels)

    def run(self, leg: Leg, model: LoadedModel, inputs: Inputs, reply: memoryview, began_ns: int) -> Run:
        """Runs a leg: the last one as any model's run, with its outputs in `reply`. Any other leaves them packed.
        Raises as a run does."""
        order, ensemble = leg.order, model.backend
        assert isinstance(ensemble, Ensemble), "only an ensemble has legs"
        steps, outputs = model.config.steps, [decl.name for decl in model.config.outputs]
        try:
            before = self._opened(leg, taken_by(steps, order.first, order.upto, outputs))
            if order.upto == len(steps):
                ensemble.goes_on_from(order.first, before)
                return model.run_on(inputs, reply, began_ns)
            given_ns = monotonic_ns()
            wanted = given_on(steps, order.first, order.upto, outputs)
            left = wanted if order.way is not Way.HOST else frozenset[str]()
            there = ensemble.run_steps(order.first, order.upto, inputs, before, left)
            computed_ns = monotonic_ns()
            leg.packed = self._pack(order, {name: there[name] for name in sorted(wanted)})
            if len(encode_contents(leg.packed.contents)) > WORDS_BYTES_MAX:
                raise ModelFailed(f"ensemble {model.config.name!r} hands on more tensors, or longer names, than travel")
        except MemoryError:
            told = f"there is no memory for what goes between two steps of ensemble {model.config.name!r} now"
            raise ResourceExhausted(f"{told}; send less at once, or use another node", Fate.RAN) from None
        except Unavailable:
            raise
        except OverspillError as error:
            error.fate = Fate.RAN
            raise
        ended_ns = monotonic_ns()
        times = (ended_ns - began_ns, given_ns - began_ns, ended_ns - computed_ns)
        return Run(layout_of(()), None, *(each // 1000 for each in times))

    def pass_on(self, leg: Leg | None, task_no: int, spent: Spent, node: socket.socket) -> bool:
        """The context was waited for: what is packed has a name from now on. False where nothing was: the task is to be
        answered."""
        if leg is None or leg.packed is None:
            return False
        packed, leg.packed = leg.packed, None
        contents = packed.contents
        self._out_bytes += contents.card_bytes
        self._counts[0] += contents.card_bytes
        self._counts[1] += contents.host_bytes
        self._page.passed(*self._counts)  # before anybody can have an answer that came of it
        if packed.descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, np.array(packed.descriptors, np.int32).tobytes())
            self._parcels_out.sendmsg([contents.number.to_bytes(8, "little")], [rights])
        node.send(pack_done(RAN | PASSED, task_no, spent) + encode_contents(contents))
        self._let_go(packed)
        return True

    def failed(self, leg: Leg | None, model: LoadedModel | None, error: OverspillError) -> None:
        """A task has failed, which may be a leg: it does not go on, and where earlier legs have run, the request may
        come again only if the model allows that."""
        if leg is None:
            return
        if leg.order.first and not (model is not None and model.config.idempotent):
            error.fate = Fate.RAN
        leg.close()
        packed, leg.packed = leg.packed, None
        if packed is not None:
            self._let_go(packed)

    def _let_go(self, packed: Parcelled) -> None:
        close_all(packed.descriptors)
        if packed.address and self._rooms is not None:
            with suppress(RuntimeError):  # a context that is broken is found by whoever asks next
                self._rooms.detach(packed.address, packed.contents.card_bytes)

    def _opened(self, leg: Leg, wanted: frozenset[str]) -> dict[str, Array]:
        """What this leg takes of what earlier ones gave."""
        found: dict[str, Array] = {}
        try:
            for source, contents, descriptors in leg.parcels:
                if any(part.tensor in wanted for part in contents.parts):
                    found.update(self._taken(source, contents, descriptors, wanted))
        except (OSError, ValueError) as error:
            raise ModelFailed(f"what a step gave cannot be read ({error}); look at the node's log") from None
        finally:
            leg.close()
        return found

    def _taken(
        self, source: int, contents: Contents, descriptors: tuple[int, ...], wanted: frozenset[str]
    ) -> dict[str, Array]:
        if len(descriptors) != contents.descriptors:
            raise ProtocolError("a step's tensors came without their memory; send the request again")
        found: dict[str, Array] = {}
        if contents.card_bytes:
            try:
                if self._rooms is None:
                    raise RuntimeError("this executor has no card")
                found.update(from_card(self._rooms, contents, descriptors[0], wanted))
                if source not in self._reached:
                    self._reached.add(source)
                    self._tell(Control("reached", source))
            except (RuntimeError, MemoryError) as error:
                self._fell_back(f"the memory of executor {source}'s card cannot be read here ({error})")
                self._reached.discard(source)
                self._tell(Control("unreachable", source))
                if not all(part.tensor not in wanted or part.on_host >= 0 for part in contents.parts):
                    told = "what a step gave on another card cannot be read here any more"
                    raise Unavailable(f"{told}; send the request again, it goes another way") from None
                found.clear()
        if contents.host_bytes or not contents.card_bytes:
            fd = descriptors[-1] if contents.host_bytes else -1
            found.update(from_host(contents, fd, wanted - found.keys()))
        return found

    def _pack(self, order: LegOrder, tensors: dict[str, Array]) -> Parcelled:
        self._numbers += 1
        packed = Parcelled(self._numbers)
        try:
            there = {name: each for name, each in tensors.items() if isinstance(each, CardArray) and each.nbytes}
            if order.way is not Way.HOST and sum(each.nbytes for each in there.values()) >= WORTH_BYTES:
                self._pack_on_card(order, packed, there)
            to_host = {
                name: each for name, each in tensors.items() if name not in packed.on_card or order.way is Way.BOTH
            }
            on_host(self._rooms, packed, to_host)
        except (OSError, MemoryError):
            self._let_go(packed)
            raise MemoryError from None
        except RuntimeError as error:
            self._let_go(packed)
            raise ModelFailed(f"what a step gave on the card cannot be fetched: {error}") from None
        return packed

    def _pack_on_card(self, order: LegOrder, packed: Parcelled, there: dict[str, CardArray]) -> None:
        assert self._rooms is not None, "what lies on a card was given by an executor that has one"
        try:
            left_bytes = order.card_bytes_max - self._out_bytes
            if sum(each.nbytes for each in there.values()) > left_bytes:
                told = f"{self._out_bytes} of {order.card_bytes_max} bytes between two steps are on their way"
                raise MemoryError(f"{told}; raise the ensemble's memory_bytes")
            on_card(self._rooms, packed, there)
        except (RuntimeError, MemoryError) as error:
            packed.why_host = str(error)
            self._fell_back(f"a step's tensors go by way of the host's memory ({error})")

    def _fell_back(self, why: str) -> None:
        self._counts[2] += 1
        self._page.passed(*self._counts)
        if why != self._why:
            self._why = why
            sys.stderr.write(f"executor {os.getpid()}: {why}\n")
            sys.stderr.flush()
