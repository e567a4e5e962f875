"""`python -m overspill`: the same as the `overspill` command. Read `overspill/cli.py` next."""

from __future__ import annotations

import sys

from overspill.cli import main

if __name__ == "__main__":
    sys.exit(main())
