"""Where the public data sets lie on this machine. They are not ours to ship, so the folder is always somebody else's.

Next: sources.py, which says what each set is and where it came from.
"""

import os
from pathlib import Path


def data_folder() -> Path | None:
    """Return $OVERSPILL_DATA, or the folder shared/data beside the checkout, or None where neither is there."""
    named = os.environ.get("OVERSPILL_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[4] / "shared" / "data"
    return folder if folder.is_dir() else None
