"""One attempt on the asynchronous half of the channel that nobody awaits: a function is called with its outcome.

A port passes each request of a remote caller on in this way, since a task and two futures would cost it more than all
else that it does. What is unusual (a reply that needs more room, an earlier attempt of the same id that is not settled)
is left to `call_async`. This module never retries. Read `fabric/local/channel.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import OverspillError, ProtocolError, ReplyTooLarge
from fabric.local.exchange import Places, read_final, request_frame, small_reply_bytes, take_leased_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.local.mux import MuxSocket
    from fabric.memory.arena import Arena
    from fabric.reply_sizes import ReplySizes
    from fabric.transport import Answer, Call


def begin(
    mux: MuxSocket, arena: Arena, node_epoch: int, sizes: ReplySizes, call: Call, budget_us: int,
    done: Callable[[Answer | OverspillError], None], broken: Callable[[str], None],
) -> bool:  # fmt: skip
    """Sends a call; `done` gets the answer or the error, in the loop's thread, never before this returns. False where
    nothing was sent, and nothing will be told. `broken` is called when the node talks garbage."""
    if not budget_us or mux.settling(call.id):
        return False
    places = Places(arena)

    def then(final: bytes | BaseException) -> None:
        try:
            outcome = _outcome(final, call, places, sizes)
        except ProtocolError as error:
            outcome = error
            broken(str(error))
            places.give_up()
        done(outcome)

    try:
        with arena.lock:
            places.put_input(call)
            places.put_reply(max(sizes.guess(call), small_reply_bytes(arena)))
            places.lend()
        mux.begin(call.id, request_frame(call, node_epoch, budget_us, places), places, budget_us, then)
    except OverspillError:  # whoever awaits it is told
        places.settle()
        places.give_up()
        return False
    except BaseException:  # whatever it was, nothing may stay behind it
        places.settle()
        places.give_up()
        raise
    return True


def _outcome(final: bytes | BaseException, call: Call, places: Places, sizes: ReplySizes) -> Answer | OverspillError:
    if not isinstance(final, bytes):
        places.give_up()
        assert isinstance(final, OverspillError), "what ends a session is told in our own words"
        return final
    outcome = read_final(final, call.id, places)
    if isinstance(outcome, OverspillError):
        places.settle()
        places.let_go()
        if isinstance(outcome, ReplyTooLarge):
            sizes.learn(call, outcome.needed_bytes)
        return outcome
    return take_leased_reply(*outcome, places)
