"""A process with both ends of a connection and a call that is out, for tests that kill it: it prints `out`, waits."""

from __future__ import annotations

import sys
import threading
import time

from tests.softroce.echo import EchoWorld, after, make_body

CALL_S = 60.0


def main() -> None:
    """Until it is killed."""
    with EchoWorld() as world:
        channel = world.open()
        world.echoes(channel, 300_000)
        world.pause_s = CALL_S
        call = world.request(make_body(300_000), 300_000)
        threading.Thread(target=channel.call, args=(call, after(CALL_S)), daemon=True).start()
        time.sleep(0.05)
        sys.stdout.write("out\n")
        sys.stdout.flush()
        time.sleep(CALL_S)


if __name__ == "__main__":
    main()
