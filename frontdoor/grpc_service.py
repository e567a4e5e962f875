"""The gRPC service of the protocol: infers and streams itself, and hands the other calls to `frontdoor/grpc_facts.py`.

Messages come and go as bytes, so that gRPC keeps out of the tensors. A call that its client gave up is a cancelled
task here, and cancels its request wherever that is. Every error leaves as a status of Triton's, with the request's fate
beside it. This module opens no port. Read `frontdoor/grpc_server.py` next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from fabric.deadline import TIMEOUT_MAX_S, Deadline
from fabric.errors import InvalidArgument, OverspillError
from frontdoor.aside import TEXT_INLINE_BYTES, aside
from frontdoor.door import Caller
from frontdoor.envelope import split
from frontdoor.facts import check_size, told
from frontdoor.failures import Refusal, Status, sentence, status_of
from frontdoor.grpc_infer import (
    read_parts,
    write_response,
    write_stream_end,
    write_stream_error,
    write_stream_response,
)
from frontdoor.trace_context import PARENT, STATE, read_context

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine

    from frontdoor.door import Door
    from frontdoor.grpc_facts import GrpcFacts
    from frontdoor.trace_context import Context as TraceContext
    from frontdoor.values import Asked, Done

if TYPE_CHECKING:
    _Step = tuple[bytes, AsyncGenerator[tuple[bytes, bool], None] | None]

SERVICE = "inference.GRPCInferenceService"
FATE = "overspill-fate"
"""Trailing metadata of an error: `never_ran` may be sent again anywhere, `ran` and `unknown` where that is safe."""
STREAM_AHEAD_MAX = 16
"""Requests of one stream that run at the same time: the answers come in the order of the requests, so later ones wait
in memory."""
STREAMS_ALL_MAX = 2048
"""Open streams of all connections; they are a part of all open calls, so that other calls find room beside them."""
AHEAD_BYTES_MAX = 32 << 20
"""What the requests and answers of one stream may hold before no further request of it is read: its client may have
stopped reading."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Context = Any
"""A grpc.aio.ServicerContext; grpc has no types."""


class GrpcService:
    """All 20 calls over one door. `port` is where they come in."""

    def __init__(self, door: Door, facts: GrpcFacts, port: int) -> None:
        self._door = door
        self._facts = facts
        self._port = port
        self._streams = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """The service, for a gRPC server."""
        methods = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(name, kind, act))
            for name, (kind, act) in self._facts.acts.items()
        }
        methods["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self._infer)
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _unary(self, name: str, kind: Any, act: Any) -> Any:
        async def call(raw: bytes, context: Context) -> bytes:
            try:
                check_size(len(raw))
                request = _parsed(kind, raw, name)
                answer: bytes = (await act(request, self._caller(context))).SerializeToString()
            except Exception as error:  # noqa: BLE001 - a bug is answered as one, and not with its own words
                await _refuse(context, told(error))
            return answer

        return call

    async def _infer(self, raw: bytes, context: Context) -> bytes:
        try:
            answer = await self._answer(raw, context)
        except asyncio.CancelledError:
            self._door.counters.requests["grpc", "CANCELLED"] += 1
            raise
        except Exception as error:  # noqa: BLE001 - a bug is answered as one, and not with its own words
            known = told(error)
            self._door.counters.requests["grpc", status_of(known).name] += 1
            await _refuse(context, known)
        self._door.counters.requests["grpc", "OK"] += 1
        return answer

    async def _answer(self, raw: bytes, context: Context) -> bytes:
        asked = await _asked(raw)
        done = await self._door.infer(asked, self._caller(context), _deadline(context))
        try:
            return write_response(done)
        finally:
            done.release()

    async def _stream(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Answers in the order of the requests, some of which run ahead. A failed request is one answer of the stream,
        which goes on."""
        if self._streams >= STREAMS_ALL_MAX:
            told_max = f"{self._streams} streams are open here; close some, or send requests by themselves"
            await _refuse(context, Refusal(Status.RESOURCE_EXHAUSTED, told_max))
        running: deque[_Ahead] = deque()
        caller = self._caller(context)
        came: asyncio.Task[bytes | None] | None = None
        self._streams += 1
        try:
            over = False
            while not over or running:
                if came is None and not over and len(running) < STREAM_AHEAD_MAX and _held(running) < AHEAD_BYTES_MAX:
                    came = asyncio.create_task(_next(requests))
                waited: set[asyncio.Task[Any]] = {each.answer for each in list(running)[:1]}
                waited |= {came} if came is not None else set()
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if came is not None and came.done():
                    raw, came = came.result(), None
                    if raw is None:
                        over = True
                    else:
                        running.append(_Ahead(self._stream_answer(raw, caller, _deadline(context)), len(raw)))
                while running and running[0].answer.done():
                    answer, further = running[0].answer.result()
                    if answer:
                        yield answer
                    if further is None:
                        running.popleft()
                    else:
                        running[0].go_on(further)
        finally:
            self._streams -= 1
            if came is not None:
                came.cancel()
            for each in running:
                await each.end()

    async def _stream_answer(self, raw: bytes, caller: Caller, deadline: Deadline | None) -> _Step:
        """The response to a request; of a decoupled model the first one."""
        request_id = ""
        try:
            asked = await _asked(raw)
            request_id = asked.id
            if await self._door.is_decoupled(asked):
                return await _step(self._decoupled(asked, caller, deadline))
            done = await self._door.infer(asked, caller, deadline)
            answer = _written(done, final=True)
        except Exception as error:  # noqa: BLE001 - a bug is answered as one, and not with its own words
            return self._stream_error(request_id, error), None
        self._door.counters.requests["grpc", "OK"] += 1
        return answer, None

    async def _decoupled(
        self, asked: Asked, caller: Caller, deadline: Deadline | None
    ) -> AsyncGenerator[tuple[bytes, bool], None]:
        """The responses of a decoupled model, each with whether it is the last; an empty one is not sent."""
        try:
            async with aclosing(self._door.stream(asked, caller, deadline)) as answers:
                async for done in answers:
                    yield _written(done, final=False), False
        except Exception as error:  # noqa: BLE001 - a bug is answered as one, and not with its own words
            yield self._stream_error(asked.id, error), True
            return
        self._door.counters.requests["grpc", "OK"] += 1
        yield write_stream_end(asked) if asked.options.empty_final else b"", True

    def _stream_error(self, request_id: str, error: Exception) -> bytes:
        known = told(error)
        self._door.counters.requests["grpc", status_of(known).name] += 1
        return write_stream_error(request_id, sentence(known))

    def _caller(self, context: Context) -> Caller:
        return Caller(context.peer(), self._port, _context_of(context) if self._door.traces.taken else None)


class _Ahead:  # mutable: its next answer
    """A request of a stream that runs, the bytes that it came in, and its next answer."""

    __slots__ = ("_further", "answer", "nbytes")

    def __init__(self, first: Coroutine[Any, Any, _Step], nbytes: int) -> None:
        self.nbytes = nbytes
        self.answer = asyncio.create_task(first)
        self._further: AsyncGenerator[tuple[bytes, bool], None] | None = None

    def go_on(self, further: AsyncGenerator[tuple[bytes, bool], None]) -> None:
        """Has it go on to the next answer, one ahead of what its client was sent."""
        self._further = further
        self.answer = asyncio.create_task(_step(further))

    async def end(self) -> None:
        """Gives it up."""
        self.answer.cancel()
        await asyncio.wait({self.answer})
        if self._further is not None:
            await self._further.aclose()


async def _step(answers: AsyncGenerator[tuple[bytes, bool], None]) -> _Step:
    answer, last = await anext(answers)
    if last:
        await answers.aclose()
    return answer, None if last else answers


def _written(done: Done, *, final: bool) -> bytes:
    try:
        return write_stream_response(done, final=final)
    finally:
        done.release()


def _held(running: deque[_Ahead]) -> int:
    """Bytes of the requests that run, and of the answers that wait for their turn."""
    return sum(len(each.answer.result()[0]) if each.answer.done() else each.nbytes for each in running)


async def _asked(raw: bytes) -> Asked:
    """The request in a message; much text is read in a thread."""
    head, contents = split(raw)
    if len(head) <= TEXT_INLINE_BYTES:
        return read_parts(head, contents)
    return await aside(partial(read_parts, head, contents))


async def _next(requests: AsyncIterator[bytes]) -> bytes | None:
    return await anext(requests, None)


def _parsed(kind: Any, raw: bytes, name: str) -> Any:
    request = kind()
    try:
        request.ParseFromString(raw)
    except Exception:  # noqa: BLE001 - each of protobuf's implementations has an error of its own
        raise InvalidArgument(f"the message is no {name}Request; send one") from None
    return request


def _context_of(context: Context) -> TraceContext | None:
    metadata = dict(context.invocation_metadata() or ())
    return read_context(metadata.get(PARENT, ""), metadata.get(STATE, ""))


def _deadline(context: Context) -> Deadline | None:
    """What the client grants, a day at most; None where it says nothing."""
    remaining_s = context.time_remaining()
    if remaining_s is None:
        return None
    return Deadline(time.monotonic() + min(max(0.0, remaining_s), TIMEOUT_MAX_S))


async def _refuse(context: Context, error: OverspillError) -> NoReturn:
    fate = ((FATE, str(error.fate)),)
    try:
        await context.abort(_CODES[status_of(error).grpc], sentence(error), fate)
    except grpc.aio.AbortError:  # the way gRPC ends a call
        raise
    except grpc.aio.BaseError:  # its client left meanwhile: there is nobody to refuse, and nothing for a log
        raise asyncio.CancelledError from None
    raise AssertionError("abort ends the call")
