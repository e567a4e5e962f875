"""The memory on cards that clients registered: held, checked and let go of as shared memory is, and never touched here.

The engine has opened it where its card is; here it has a number, under the name that its client gave. A request names
places of it and the bytes go between the card and the model, with no copy by the front door. Read
`frontdoor/regions.py` for the table that it stands in, `fabric/card_place.py` for how a request names a place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fabric.card_place import TARGET, CardPlace
from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from fabric.layout import TensorSpec
from frontdoor.failures import Refusal, Status
from frontdoor.held import Held

if TYPE_CHECKING:
    from collections.abc import Callable

    from frontdoor.clients import Owner
    from frontdoor.engine import Model
    from frontdoor.values import Asked, Given


@dataclass(frozen=True, slots=True)
class CudaStatus:
    """What a client is told of a region."""

    name: str
    device_id: int
    nbytes: int


class CudaRegion(Held):
    """One region on a card. `number` is the engine's; `close` is called once, when nobody uses it any more."""

    __slots__ = ("_close", "device_id", "number")
    way = "cuda"
    is_copied = False

    def __init__(
        self, name: str, owner: Owner, nbytes: int, device_id: int, number: int, close: Callable[[int], None]
    ) -> None:
        super().__init__(name, owner, nbytes)
        self.device_id = device_id
        self.number = number
        self._close = close

    @property
    def status(self) -> CudaStatus:
        """What a client is told of it."""
        return CudaStatus(self.name, self.device_id, self.nbytes)

    def close(self) -> None:
        """Has the engine let go of it."""
        self._close(self.number)

    def lends(self, spec: TensorSpec, offset: int) -> TensorSpec:
        """An input that lies here. Raises InvalidArgument for texts, which no card reads."""
        if spec.dtype is DType.BYTES:
            raise InvalidArgument(f"input {spec.name[:80]!r} is BYTES, which do not go by CUDA memory; send them raw")
        return replace(spec, resident=CardPlace(self.number, offset).name) if spec.nbytes else spec


def specs_on_cards(asked: Asked, specs: tuple[TensorSpec, ...], regions: dict[str, Held]) -> tuple[TensorSpec, ...]:
    """The specs of a request's inputs, with those that lie on cards naming their places, and the places for outputs."""
    inputs = tuple(_spec(given, spec, regions) for given, spec in zip(asked.inputs, specs, strict=True))
    targets = []
    for wanted in asked.outputs:
        region = regions[wanted.place.region] if wanted.place is not None else None
        if wanted.place is not None and isinstance(region, CudaRegion) and wanted.place.nbytes:
            if wanted.classes:
                raise InvalidArgument(f"classes of output {wanted.name!r} are texts; ask for them outside CUDA memory")
            nbytes, name = wanted.place.nbytes, CardPlace(region.number, wanted.place.offset).name
            targets.append(TensorSpec(TARGET + wanted.name, DType.UINT8, (nbytes,), nbytes, name, referred=True))
    return (*inputs, *targets)


def _spec(given: Given, spec: TensorSpec, regions: dict[str, Held]) -> TensorSpec:
    if isinstance(given.data, memoryview):
        return spec
    region = regions[given.data.region]
    return region.lends(spec, given.data.offset) if isinstance(region, CudaRegion) else spec


def check_outputs(model: Model, asked: Asked, regions: dict[str, Held]) -> None:
    """Raises UNIMPLEMENTED for outputs of a stream, and INVALID_ARGUMENT for texts, that are wanted on a card."""
    dtypes = {tensor.name: tensor.dtype for tensor in model.outputs}
    for wanted in asked.outputs:
        if wanted.place is None or not isinstance(regions[wanted.place.region], CudaRegion):
            continue
        if model.decoupled:
            told = f"model {model.name!r} answers in a stream, whose outputs do not go by CUDA memory; ask for them raw"
            raise Refusal(Status.UNIMPLEMENTED, told)
        if dtypes.get(wanted.name) == DType.BYTES.name:
            raise InvalidArgument(f"output {wanted.name!r} is BYTES, which do not go by CUDA memory; ask for it raw")
