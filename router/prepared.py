"""Inputs that are written where they are sent from: memory on loan, shaped as the model declares, copied by nobody.

A caller fills `x["dense"][:] = ...` and sends as often as it likes. The memory goes back when the `with` block has
ended and no array made from it is left. This module never picks or sends: it hands its body to the router it came from.
Read `router/core.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fabric.errors import InvalidArgument
from fabric.layout import Layout, layout_of
from fabric.message import Body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from discovery.instance import ModelFacts
    from fabric.layout import TensorSpec
    from router.reply import Reply
    from router.resident import Resident
    from router.staging import Staged, Staging


class _Inputs:  # mutable: closed once
    """The leased arrays of one request, by input name."""

    __slots__ = ("_arrays", "_body", "layout", "model")

    def __init__(
        self, model: str, staging: Staging, specs: tuple[TensorSpec, ...], residents: tuple[Resident, ...]
    ) -> None:
        self.model = model
        self.layout: Layout = layout_of(specs)
        lease = staging.lease(self.layout.body_bytes)
        body = Body(self.layout, lease)
        self._body: Staged | None = staging.referring(body, residents) if residents else body
        window = lease.view
        self._arrays: dict[str, np.ndarray[Any, Any]] = {
            spec.name: np.ndarray(spec.shape, spec.dtype.numpy, buffer=window, offset=offset)
            for spec, offset in zip(specs, self.layout.offsets, strict=True)
            if not spec.referred
        }

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        self.body()
        try:
            return self._arrays[name]
        except KeyError:
            raise InvalidArgument(
                f"model {self.model!r} has no input {name!r} to write; it has {', '.join(self._arrays)}"
            ) from None

    def body(self) -> Staged:
        """What is sent. Raises InvalidArgument after the block ended."""
        if self._body is None:
            raise InvalidArgument(f"the prepared inputs of {self.model!r} were given back; prepare new ones")
        return self._body

    def close(self) -> None:
        """Lets go of the memory; a request that is still out keeps it until its node has answered."""
        self._body = None
        self._arrays = {}

    def __repr__(self) -> str:
        tensors = ", ".join(f"{spec.name} {spec.dtype.name}{list(spec.shape)}" for spec in self.layout.specs)
        return f"<Prepared inputs of {self.model}: {tensors}{'' if self._body else ', given back'}>"


class Prepared:
    """Leased inputs of a blocking router: `x["name"]` is a writable array of the declared dtype and the shape given.

    Memory is not cleared: write every input before `infer`.
    """

    __slots__ = ("_inputs", "_send")

    def __init__(self, inputs: _Inputs, send: Callable[[str, Staged, float, int], Reply]) -> None:
        self._inputs = inputs
        self._send = send

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._inputs[name]

    def infer(self, timeout_s: float, *, priority: int = 0) -> Reply:
        """Sends the inputs as they are now, uncopied; raises what `Router.infer` raises. Writing to them while the call
        is out changes what the node reads."""
        return self._send(self._inputs.model, self._inputs.body(), timeout_s, priority)

    def close(self) -> None:
        """Gives the inputs back."""
        self._inputs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inputs)


class AsyncPrepared:
    """The same for an asyncio router; `infer` is awaited, and both `with` and `async with` end it."""

    __slots__ = ("_inputs", "_send")

    def __init__(self, inputs: _Inputs, send: Callable[[str, Staged, float, int], Awaitable[Reply]]) -> None:
        self._inputs = inputs
        self._send = send

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._inputs[name]

    async def infer(self, timeout_s: float, *, priority: int = 0) -> Reply:
        """Sends the inputs as they are now, uncopied; raises what `AsyncRouter.infer` raises."""
        return await self._send(self._inputs.model, self._inputs.body(), timeout_s, priority)

    def close(self) -> None:
        """Gives the inputs back."""
        self._inputs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inputs)


def prepared_inputs(
    model: str, facts: ModelFacts, staging: Staging, specs: tuple[TensorSpec, ...], residents: tuple[Resident, ...] = ()
) -> _Inputs:
    """Leases the inputs of one request; `specs` refer to the residents. Raises ResourceExhausted."""
    assert facts.name == model, "the facts are the model's own"
    return _Inputs(model, staging, specs, residents)
