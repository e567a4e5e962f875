"""Another release of the rdma wire: the same code, whose versions and limits are others, in a process and all of its
children.

`python -m tests.softroce.other_release OLDEST NEWEST DEPTH ROOM MODULE WORDS...` becomes `python -m MODULE WORDS...`.
The numbers are changed where Python starts, before anything else has read them. Read
`tests/softroce/test_releases.py` next.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

START = """
import fabric.rdma.config as config
config.CTL_DEPTH = config.BULK_DEPTH = {depth}
config.FRAME_ROOM = {room}
config.COMPLETIONS_PER_LINK = 2 * {depth} + config.SEND_DEPTH + config.PIECES_DEPTH + config.EXTRA_DEPTH
import fabric.rdma.heads as heads
heads.VERSION_OLDEST, heads.VERSION = {oldest}, {newest}
"""


def main() -> None:
    """Never returns."""
    oldest, newest, depth, room = map(int, sys.argv[1:5])
    folder = Path(tempfile.mkdtemp(prefix="release-"))
    script = START.format(oldest=oldest, newest=newest, depth=depth, room=room)
    (folder / "sitecustomize.py").write_text(script)
    path = os.pathsep.join([str(folder), "/src", *filter(None, [os.environ.get("PYTHONPATH", "")])])
    os.execve(sys.executable, [sys.executable, "-P", "-m", *sys.argv[5:]], {**os.environ, "PYTHONPATH": path})


if __name__ == "__main__":
    main()
