"""Addresses that an operator wrote down."""

from __future__ import annotations

import pytest

from discovery.registry import open_registry
from discovery.static import ANY_EPOCH, StaticRegistry
from fabric.errors import ConfigError


def test_list_in_order() -> None:
    found = StaticRegistry("a:1, [::1]:2,10.0.0.1:65535").read()
    assert [one.rpc for one in found] == ["a:1", "[::1]:2", "10.0.0.1:65535"]
    assert {one.node_epoch for one in found} == {ANY_EPOCH}


@pytest.mark.parametrize(
    "text",
    ["", "a", "a:", ":1", "a:0", "a:65536", "a:x", "::1:2", "a:1,", "a:1,a:1", "a b:1", "http://a:1", "a:\u0661"],
)
def test_bad_addresses_say_what_to_do(text: str) -> None:
    with pytest.raises(ConfigError, match=r"give HOST:PORT|name each node once"):
        StaticRegistry(text)


@pytest.mark.parametrize("url", ["", "dir:", "static:", "zookeeper:x", "/run/overspill"])
def test_unknown_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="give dir:PATH"):
        open_registry(url)
