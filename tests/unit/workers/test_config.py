"""A node's settings: file, arguments over it, and one sentence for each that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fabric.errors import ConfigError
from workers.config import NodeConfig

if TYPE_CHECKING:
    from pathlib import Path


def test_defaults() -> None:
    config = NodeConfig.load(models="models")
    assert (config.wires, config.devices, config.rpc_host_port) == (("local", "rpc"), "cpu:1", ("127.0.0.1", 0))


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('models = "a"\ndevices = "cpu:2"\nwires = ["local"]\ndrain_s = 3\n')
    config = NodeConfig.load(str(file), models="b", wires="rpc, local", exit_with_parent=False)
    assert (config.models, config.devices, config.drain_s) == ("b", "cpu:2", 3.0)
    assert config.wires == ("rpc", "local")


def test_ipv6_listen() -> None:
    assert NodeConfig("m", listen="[::1]:70").rpc_host_port == ("::1", 70)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modelz = 'a'", "modelz is unknown"),
        ("models = 3", "models is 3; it must be text"),
        ("models = 'a'\nqueue_max = 1.5", "queue_max is 1.5; it must be a whole number"),
        ("models = 'a'\nqueue_max = true", "queue_max is True"),
        ("models = 'a'\nqueue_max = 0", "queue_max is 0"),
        ("models = 'a'\ndrain_s = -1", "drain_s is -1"),
        ("models = 'a'\nwires = ['local', 3]", "wires is"),
        ("models = 'a'\nwires = []", "wires are none"),
        ("models = 'a'\nwires = ['tcp']", "wires are tcp"),
        ("models = 'a'\ndevices = 'cuda:some'", "device 'cuda:some' is unknown"),
        ("models = 'a'\nstandby = 'warm'", "give one of off, context, full"),
        ("models = 'a'\ninject = 'boom:at=1'", "inject 'boom' is unknown"),
        ("models = 'a'\ninject = 'trap:at=1'", "breaks a GPU and devices are cpu:1"),
        ("models = 'a'\ndevices = 'fake:1'\ninject = 'trap@double:evry=1'", "does not say when"),  # codespell:ignore
        ("modles = 'a'", "setting modles is unknown; did you mean models?"),  # codespell:ignore
        ("models = 'a'\nquarantine_faults = -1", "quarantine_faults is -1"),
        ("models = 'a'\ndevices = 'cpu:0'", "device 'cpu:0' is unknown"),
        ("models = 'a'\ndevices = 'cpu:40,cpu:40'", "80 executors"),
        ("models = 'a'\nlisten = '9000'", "listen is '9000'"),
        ("models = 'a'\nlisten = 'h:70000'", "listen is"),
        ("models = 'a'\nfrontdoor = 'abc'", "frontdoor is 'abc'; give [HOST:]PORT"),
        ("models = 'a'\nfrontdoor = '9'\nfrontdoor_http = '9'", "cannot both have port 9"),
        ("models = 'a'\nfrontdoor = '65535'", "port 65535 there is none for HTTP; give one by --frontdoor-http"),
        ("models = 'a'\ntls_cert = 'c'", "both tls_cert and tls_key"),
        ("models = 'a'\ntls_ca = 'c'", "tls_ca only beside them"),
        ("devices = 'cpu:1'", "no model repository"),
        ("= 3", "is no TOML"),
    ],
)
def test_wrong_settings(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        NodeConfig.load(str(file))
    assert says in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        NodeConfig.load(str(tmp_path / "none.toml"))
