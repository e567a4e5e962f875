"""Starts the `overspill` command, and says in one sentence why it cannot.

It stands outside the package `overspill` because it must run before that package is imported: the import fails beside a
foreign `fabric` or `router` (`overspill/_guard.py`), and a user of a command should read the reason, not a traceback.
It never handles any other failure. Read `overspill/cli.py` next.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command line in `sys.argv`; returns the exit code."""
    try:
        import overspill  # noqa: F401 - its import is the check
    except ImportError as error:
        guard = sys.modules.get("overspill._guard")
        if guard is None or error.name not in guard.ROOMS:
            raise  # not the guard's refusal: a damaged installation, whose traceback is the news
        sys.stderr.write(f"overspill: {error}\n")
        return 1
    from overspill.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
