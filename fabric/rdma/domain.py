"""A protection domain and the memory registered in it: what one peer's queue pairs may touch, and nothing else.

One domain for each connection: a key of another domain is refused by the NIC, while one of the same domain, however it
was guessed, would not be. Whoever registers memory keeps it mapped until `close`. This module never posts. Read
`fabric/rdma/pair.py` next.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from fabric.errors import ConfigError, ResourceExhausted, Unavailable

if TYPE_CHECKING:
    from fabric.rdma.device import Device
    from fabric.rdma.verbs import Verbs

_ENOMEM = 12


class Use(Enum):
    """What may be done to registered memory."""

    SENT = ""
    """Our NIC reads it."""
    RECEIVED = "LOCAL_WRITE"
    """Our NIC writes what comes: receives, and what we read of the peer."""
    WRITTEN = "LOCAL_WRITE REMOTE_WRITE"
    """The peer writes there."""
    READ = "REMOTE_READ"
    """The peer reads it, and can write nothing."""


class Domain:  # mutable: open, then closed
    """A protection domain: what one peer's pairs may touch."""

    def __init__(self, device: Device) -> None:
        self.device, self.verbs = device, device.verbs
        try:
            self.pd = self.verbs.pd.PD(device.context)
        except self.verbs.error as error:
            raise ResourceExhausted(f"{device.name} gave no protection domain ({error}); serve fewer peers") from None

    def register(self, address: int, nbytes: int, use: Use) -> Memory:
        """Registers mapped memory, which the caller keeps mapped until `close`.

        Raises ResourceExhausted when the system does not let us pin so much, ConfigError for memory that cannot be.
        """
        verbs = self.verbs
        access = 0
        for name in use.value.split():
            access |= verbs.number(f"IBV_ACCESS_{name}")
        try:
            return Memory(verbs, verbs.mr.MR(self.pd, nbytes, access, address=address), address, nbytes)
        except verbs.error as error:
            if getattr(error, "error_code", 0) == _ENOMEM or "12" in str(error):
                raise ResourceExhausted(
                    f"{nbytes} bytes cannot be pinned for RDMA; raise the memlock limit (ulimit -l, LimitMEMLOCK=)"
                ) from None
            raise ConfigError(f"{nbytes} bytes cannot be registered for RDMA ({error}); report this") from None

    def register_gpu(self, dmabuf_fd: int, offset: int, nbytes: int) -> Memory:
        """Registers memory of a GPU that its driver exported as a DMA-BUF, so that the NIC reaches it directly."""
        verbs = self.verbs
        access = verbs.number("IBV_ACCESS_LOCAL_WRITE") | verbs.number("IBV_ACCESS_REMOTE_WRITE")
        try:
            return Memory(
                verbs, verbs.mr.DmaBufMR(self.pd, nbytes, access, dmabuf=dmabuf_fd, offset=offset), offset, nbytes
            )
        except verbs.error as error:
            raise Unavailable(
                f"{self.device.name} cannot reach the GPU's memory ({error}); copy through host memory"
            ) from None

    def close(self) -> None:
        """Closes the domain; its pairs and memory must be closed before."""
        with suppress(self.verbs.error):
            self.pd.close()


class Memory:  # mutable: registered, then closed
    """Registered memory."""

    def __init__(self, verbs: Verbs, region: Any, address: int, nbytes: int) -> None:
        self._verbs, self._region = verbs, region
        self.address, self.nbytes = address, nbytes
        self.lkey, self.rkey = int(region.lkey), int(region.rkey)

    def close(self) -> None:
        """Takes the right to touch it from the NIC, and from whoever knows the key."""
        region, self._region = self._region, None
        if region is not None:
            with suppress(self._verbs.error):
                region.close()
