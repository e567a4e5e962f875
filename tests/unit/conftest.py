"""What drawn examples get: no deadline of their own, since on a busy machine the scheduler takes it, not the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("overspill", deadline=None)
settings.load_profile("overspill")
