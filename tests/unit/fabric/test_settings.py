"""Every setting of a router, a link, its rpc wire and a node: nonsense is told by its name, in one sentence."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from fabric.errors import ConfigError
from fabric.link.config import LinkTimes
from fabric.link.wires import LinkConfig
from fabric.rpc_fallback.config import RpcConfig
from router.config import RouterConfig
from workers.config import NodeConfig

if TYPE_CHECKING:
    from collections.abc import Callable


def node(**given: Any) -> NodeConfig:
    return NodeConfig(**{"models": "models", **given})


MAKERS: dict[str, Callable[..., Any]] = {
    "router": RouterConfig, "times": LinkTimes, "link": LinkConfig, "rpc": RpcConfig, "node": node,
}  # fmt: skip
CLASSES = {"router": RouterConfig, "times": LinkTimes, "link": LinkConfig, "rpc": RpcConfig, "node": NodeConfig}
NONSENSE: tuple[Any, ...] = (
    -1,
    0.5,
    math.nan,
    math.inf,
    -math.inf,
    1 << 70,
    "a\nb",
    "x" * 5000,
    None,
    [],
    {},
    b"x",
    object(),
)
SENSIBLE: dict[tuple[str, str], tuple[Any, ...]] = {
    ("router", "seed"): (-1, None),
    ("rpc", "tls"): (None,),
    ("node", "rdma_gid_index"): (-1,),
    ("node", "wires"): (),
}
INSIDE = {("link", "arena"), ("link", "engine"), ("link", "seed")}
"""What a router fills in itself."""
EVERY = [
    (name, field.name, str(field.type))
    for name, cls in CLASSES.items()
    for field in fields(cls)
    if (name, field.name) not in INSIDE
]


@pytest.mark.parametrize(("maker", "name", "kind"), EVERY, ids=[f"{maker}-{name}" for maker, name, _ in EVERY])
def test_nonsense_is_refused_by_name(maker: str, name: str, kind: str) -> None:
    for value in NONSENSE:
        sensible = any(value is one or value == one for one in SENSIBLE.get((maker, name), ()))
        if sensible or (kind == "float" and value == 0.5):
            continue
        with pytest.raises(ConfigError) as caught:
            MAKERS[maker](**{name: value})
        told = str(caught.value)
        assert "; " in told, f"{name}={value!r:.40}: {told} says nothing to do"
        assert name.partition("_")[0] in told.replace("-", "_"), told
        assert "\n" not in told
        assert len(told) < 300


@pytest.mark.parametrize("maker", MAKERS)
def test_the_defaults_are_sensible(maker: str) -> None:
    MAKERS[maker]()


@pytest.mark.parametrize(
    ("maker", "given", "told"),
    [
        ("router", {"arena_bytes": 1}, "arena_bytes is 1; give a whole number from 65536 to"),
        ("router", {"attempts_max": True}, "attempts_max is True; give a whole number from 1 to 100"),
        ("router", {"hedge_ratio": 1.5}, "hedge_ratio is 1.5; give a number from 0 to 1"),
        (
            "router",
            {"dial_first_s": 3.0},
            "dial_first_s is 3 and dial_max_s is 2; give a dial_max_s that is no shorter",
        ),
        ("router", {"close_timeout_s": 0}, "close_timeout_s is 0; give a number above 0, up to 86400"),
        ("router", {"link": LinkTimes()}, "give a LinkConfig"),
        ("link", {"local": False, "rdma": False, "rpc": False}, "allow one of them"),
        ("rpc", {"token": "grün"}, "give such a text, at most 1024 long"),
        ("rpc", {"token": " a"}, "without blanks around it"),
        ("node", {"tenants_max": 100_000}, "tenants_max is 100000; give a whole number from 1 to 500"),
        ("node", {"arena_bytes_max": 1}, "arena_bytes_max is 1; give a whole number from 65536 to"),
        ("node", {"rdma_ack_timeout": 31}, "rdma_ack_timeout is 31; give a whole number from 1 to 22"),
        ("node", {"pinned_bytes_max": -1}, "pinned_bytes_max is -1"),
        ("node", {"drain_s": math.nan}, "drain_s is nan; give a number from 0 to 86400"),
        ("node", {"node_id": "ü" * 150}, "too long"),
    ],
)
def test_the_sentence_says_what_makes_sense(maker: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MAKERS[maker](**given)
    assert told in str(caught.value)
