"""The choice of device, port and address: which one, why, and what is said where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fabric.errors import ConfigError, Unavailable
from fabric.rdma.choice import choose, gid_text, ip_of, missing
from fabric.rdma.config import RdmaConfig
from fabric.rdma.facts import DeviceFacts, GidFacts, Host, PortFacts, read_host

if TYPE_CHECKING:
    from pathlib import Path

V2, V1 = "RoCE v2", "IB/RoCE v1"
MAPPED, GLOBAL, LINK_LOCAL = "::ffff:10.0.0.7", "2001:db8::7", "fe80::7"


def _port(*gids: GidFacts, state: str = "ACTIVE", layer: str = "Ethernet", number: int = 1) -> PortFacts:
    return PortFacts(number, state, layer, 0 if layer == "Ethernet" else 4, gids)


def _host(*devices: DeviceFacts, nodes: bool = True, usable: bool = True, module: bool = True) -> Host:
    return Host(devices, nodes, usable, module)


def _device(*ports: PortFacts, name: str = "rxe0", numa: int = -1) -> DeviceFacts:
    return DeviceFacts(name, numa, ports)


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        ((GidFacts(0, LINK_LOCAL, V2), GidFacts(1, MAPPED, V2)), 1),
        ((GidFacts(0, MAPPED, V1), GidFacts(1, MAPPED, V2)), 1),  # the v1 entry stands first in real tables
        ((GidFacts(0, LINK_LOCAL, V2), GidFacts(3, GLOBAL, V2)), 3),
        ((GidFacts(2, GLOBAL, V2), GidFacts(5, MAPPED, V2)), 5),
        ((GidFacts(0, LINK_LOCAL, V2),), 0),  # better than nothing: one switch apart it works
    ],
)
def test_the_best_address_is_chosen(gids: tuple[GidFacts, ...], index: int) -> None:
    assert choose(_host(_device(_port(*gids))), RdmaConfig()).gid_index == index


def test_an_active_port_goes_before_a_better_address() -> None:
    down = _device(_port(GidFacts(1, MAPPED, V2), state="DOWN"), name="mlx5_0")
    up = _device(_port(GidFacts(0, GLOBAL, V2)), name="mlx5_1")
    assert choose(_host(down, up), RdmaConfig()).device == "mlx5_1"


def test_the_near_device_is_chosen_and_the_operator_wins() -> None:
    far = _device(_port(GidFacts(1, MAPPED, V2)), name="mlx5_0", numa=0)
    near = _device(_port(GidFacts(1, MAPPED, V2)), name="mlx5_1", numa=1)
    assert choose(_host(far, near), RdmaConfig(), numa_node=1).device == "mlx5_1"
    assert choose(_host(far, near), RdmaConfig(device="mlx5_0"), numa_node=1).device == "mlx5_0"


def test_an_index_that_the_operator_names_is_taken_whatever_its_kind() -> None:
    port = _port(GidFacts(0, MAPPED, V1), GidFacts(1, MAPPED, V2))
    assert choose(_host(_device(port)), RdmaConfig(gid_index=0)).gid_index == 0


def test_a_link_local_address_is_named_with_its_network_device() -> None:
    chosen = choose(_host(_device(_port(GidFacts(0, LINK_LOCAL, V2, "eth1")))), RdmaConfig())
    assert chosen.address == f"{LINK_LOCAL}%eth1"
    assert chosen.address_of("fe80:0000:0000:0000:0000:0000:0000:0009") == "fe80::9%eth1"
    assert chosen.address_of(GLOBAL) == GLOBAL
    mapped = choose(_host(_device(_port(GidFacts(1, MAPPED, V2, "eth1")))), RdmaConfig())
    assert (mapped.address, mapped.address_of("::ffff:10.0.0.8")) == ("10.0.0.7", "10.0.0.8")


def test_infiniband_needs_no_ip_address() -> None:
    chosen = choose(_host(_device(_port(GidFacts(0, LINK_LOCAL, ""), layer="InfiniBand"))), RdmaConfig())
    assert (chosen.address, chosen.lid, chosen.address_of(GLOBAL)) == ("", 4, "")


@pytest.mark.parametrize(
    ("host", "config", "word"),
    [
        (_host(nodes=False, module=False), RdmaConfig(), "modprobe rdma_rxe"),
        (_host(nodes=False), RdmaConfig(), "rdma link add"),
        (_host(usable=False), RdmaConfig(), "/dev/infiniband"),
        (_host(), RdmaConfig(), "container"),
        (_host(_device(_port())), RdmaConfig(), "IP address"),
        (_host(_device(_port(GidFacts(0, MAPPED, V1)))), RdmaConfig(), V1),
        (_host(_device(_port(GidFacts(0, MAPPED, V2), state="DOWN"))), RdmaConfig(), "DOWN"),
        (_host(_device(_port(GidFacts(0, MAPPED, V2)))), RdmaConfig(gid_index=7), "GID index 7"),
        (_host(_device(_port(GidFacts(0, MAPPED, V2)))), RdmaConfig(port=3), "no port 3"),
    ],
)
def test_where_there_is_none_one_sentence_says_why(host: Host, config: RdmaConfig, word: str) -> None:
    with pytest.raises(Unavailable, match=word.replace("(", r"\(")):
        choose(host, config)


_NOTHINGS = ((False, False, False), (False, False, True), (True, False, True), (True, True, True))


def test_four_kinds_of_nothing_are_four_sentences() -> None:
    kinds = [_host(nodes=n, usable=u, module=m) for n, u, m in _NOTHINGS]
    assert len({missing(host) for host in kinds}) == 4


def test_a_device_that_is_not_there_is_the_operators_mistake() -> None:
    with pytest.raises(ConfigError, match=r"mlx5_9.*rxe0"):
        choose(_host(_device(_port())), RdmaConfig(device="mlx5_9"))


def test_addresses_are_read_both_ways() -> None:
    assert ip_of("0000:0000:0000:0000:0000:ffff:0a4d:0001") == "10.77.0.1"
    assert ip_of(GLOBAL) == GLOBAL
    assert gid_text("::ffff:10.77.0.1") == "0000:0000:0000:0000:0000:ffff:0a4d:0001"


def test_facts_are_read_from_a_tree_like_the_kernels(tmp_path: Path) -> None:
    root = tmp_path
    port = root / "ib" / "rxe0" / "ports" / "1"
    for place, text in {
        "state": "4: ACTIVE\n",
        "link_layer": "Ethernet\n",
        "lid": "0x0\n",
        "gids/0": "fe80:0000:0000:0000:5054:00ff:fe12:3400\n",
        "gids/1": "0000:0000:0000:0000:0000:ffff:0a4d:0001\n",
        "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000\n",
        "gid_attrs/types/1": "RoCE v2\n",
        "gid_attrs/ndevs/1": "eth0\n",
    }.items():
        path = port / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    host = read_host(root / "ib", root / "no-nodes", root / "no-modules")
    (device,) = host.devices
    assert device.ports[0].state == "ACTIVE"
    assert [gid.index for gid in device.ports[0].gids] == [0, 1]
    assert device.ports[0].gids[1] == GidFacts(1, "0000:0000:0000:0000:0000:ffff:0a4d:0001", "RoCE v2", "eth0")
    assert not host.device_nodes


def test_a_long_empty_table_is_not_read_to_its_end_and_holes_are_passed(tmp_path: Path) -> None:
    gids = tmp_path / "rxe0" / "ports" / "1" / "gids"
    gids.mkdir(parents=True)
    for index in range(0, 40, 13):
        (gids / str(index)).write_text("fe80:0000:0000:0000:5054:00ff:fe12:3400\n")
    for index in range(40, 1024):
        (gids / str(index)).write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    (gids / "1023").write_text("fe80:0000:0000:0000:5054:00ff:fe12:3400\n")  # no kernel would put one there
    (device,) = read_host(tmp_path, tmp_path, tmp_path).devices
    assert [gid.index for gid in device.ports[0].gids] == [0, 13, 26, 39]


@pytest.mark.parametrize("wrong", [{"retry_count": 7}, {"ack_timeout": 0}, {"arena_bytes": 5 << 20}, {"spin_us": -1}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RdmaConfig(**wrong)  # type: ignore[arg-type]
