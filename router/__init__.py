"""Decides who gets a request: candidates, price, retries, and the reply with the story of how it came to be.

`Router` (blocking) and `AsyncRouter` are the public face; both drive one core. The room opens links to the nodes that
discovery names and never moves bytes itself: `fabric` does. Read `client`, then `core`, `attempt`, `price` and `pick`.
"""

from router.aio import AsyncRouter
from router.client import Router
from router.config import RouterConfig
from router.prepared import AsyncPrepared, Prepared
from router.price import Price
from router.reply import Reply, Trace

__all__ = ["AsyncPrepared", "AsyncRouter", "Prepared", "Price", "Reply", "Router", "RouterConfig", "Trace"]
