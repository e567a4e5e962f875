"""What an operator or a service can set up wrongly: registries, addresses, settings, files, and routers that ended.

Each gives its typed error (or exit code 2 and one line) in one sentence that says what to do. Nodes that cannot start
are real processes; so are the ones that listen where another does.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

from discovery.registry import open_registry
from fabric.errors import (
    AccessDenied,
    ConfigError,
    Fate,
    InvalidArgument,
    OverspillError,
    RegistryUnavailable,
    RouterClosed,
    RouterUsedAfterFork,
    Unavailable,
)
from fabric.link.wires import LinkConfig
from fabric.rpc_fallback.config import RpcConfig, TlsFiles
from overspill import Router
from overspill.cli import main
from router.config import RouterConfig
from tests.integration.bad_node import ROOT, NodeProcess, collect, command, copy_models, wait_until
from tests.integration.bad_ways import check_sentence
from tests.integration.rpc_certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

X = np.arange(3, dtype=np.float32)
SHORT_S = 0.3
"""Long enough to look several times for a node that is not there."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry, and a small repository."""
    folder = tmp_path_factory.mktemp("setup")
    copy_models(folder / "models", "double")
    return folder


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[NodeProcess]:
    with NodeProcess(folder, f"dir:{folder / 'registry'}", folder / "models") as started:
        started.wait_ready()
        yield started


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Routers that were closed are gone before the look for leaks."""
    yield from collect()


def works(router: Router, timeout_s: float = 20.0) -> None:
    with router.infer("double", {"x": X}, timeout_s=timeout_s) as reply:
        assert np.array_equal(reply["y"], 2 * X)


# Registries.

URLS: dict[str, tuple[str, type[OverspillError], tuple[str, ...]]] = {
    "nothing": ("", ConfigError, ("give dir:PATH",)),
    "a path": ("/tmp", ConfigError, ("give dir:PATH",)),
    "unknown scheme": ("etcd:http://localhost", ConfigError, ("etcd", "give dir:PATH")),
    "dir without a path": ("dir:", ConfigError, ("give dir:PATH",)),
    "static without a port": ("static:localhost", ConfigError, ("HOST:PORT",)),
    "static with a word for a port": ("static:localhost:http", ConfigError, ("HOST:PORT",)),
    "static with a huge port": ("static:localhost:70000", ConfigError, ("between 1 and 65535",)),
    "static twice": ("static:h:1,h:1", ConfigError, ("name each node once",)),
    "missing folder": ("dir:{folder}/never", RegistryUnavailable, ("never",)),
    "a file": ("dir:{folder}/file", RegistryUnavailable, ("file",)),
    "loop of links": ("dir:{folder}/loop", RegistryUnavailable, ("loop",)),
}


@pytest.mark.parametrize("name", URLS)
def test_a_registry_that_cannot_be_used(folder: Path, name: str) -> None:
    (folder / "file").write_text("no folder")
    if not (folder / "loop").is_symlink():
        (folder / "loop").symlink_to(folder / "loop")
    url, error, words = URLS[name]
    with pytest.raises(error) as caught:
        Router.connect(url.format(folder=folder), timeout_s=SHORT_S)
    assert type(caught.value) is error
    assert caught.value.fate is Fate.NEVER_RAN
    check_sentence(caught.value, *words)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_registry_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir(mode=0)
    with pytest.raises(RegistryUnavailable) as caught:
        Router.connect(f"dir:{tmp_path / 'registry'}", timeout_s=SHORT_S)
    check_sentence(caught.value, "registry")


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), "soon"])
def test_a_connect_timeout_that_is_no_time(tmp_path: Path, timeout_s: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Router.connect(f"dir:{tmp_path}", timeout_s=timeout_s)
    check_sentence(caught.value, "timeout_s", "give seconds")


def test_an_empty_registry_says_that_no_node_is_there(tmp_path: Path) -> None:
    with Router.connect(f"dir:{tmp_path}", timeout_s=SHORT_S) as router:
        with pytest.raises(Unavailable) as caught:
            router.infer("double", {"x": X}, timeout_s=SHORT_S)
        assert type(caught.value) is Unavailable
        assert caught.value.fate is Fate.NEVER_RAN
        check_sentence(caught.value, "no node", "start one")
        copy_models(tmp_path / "models", "double")
        with NodeProcess(tmp_path, f"dir:{tmp_path}", tmp_path / "models") as late:
            late.wait_ready()
            assert wait_until(lambda: "double" in router.models())
            works(router)


def test_a_static_address_where_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, so that no other test gets it, and refusing, since nobody listens
        # `connect` returns as soon as the address has refused, which a busy machine may need longer for.
        with Router.connect(f"static:127.0.0.1:{taken.getsockname()[1]}", timeout_s=20.0) as router:
            with pytest.raises(Unavailable) as caught:
                router.infer("double", {"x": X}, timeout_s=SHORT_S)
            assert caught.value.fate is Fate.NEVER_RAN
            check_sentence(caught.value, "no node can take", "check its address")


def _spoil(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes(b"\xff{")


def _replace(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


DEATHS: dict[str, Callable[[Path], None]] = {
    "removed": shutil.rmtree,
    "unreadable": lambda folder: folder.chmod(0),
    "a file now": _replace,
    "full of noise": _spoil,
}


@pytest.mark.leaks("the captured log keeps the watcher's error until the test is reported, and that keeps the router")
@pytest.mark.parametrize("name", DEATHS)
def test_a_registry_that_dies_costs_a_running_router_nothing(tmp_path: Path, name: str) -> None:
    registry = tmp_path / "registry"
    copy_models(tmp_path / "models", "double")
    with NodeProcess(tmp_path, f"dir:{registry}", tmp_path / "models") as node:
        node.wait_ready()
        with Router.connect(f"dir:{registry}") as router:
            works(router)
            DEATHS[name](registry)
            for _ in range(6):  # several polls of the folder, 50 ms each
                works(router)
                wait_until(lambda: False, 0.05)
        if registry.is_dir():
            registry.chmod(0o700)


# Routers that ended.


def test_a_closed_router_says_so(node: NodeProcess) -> None:
    router = Router.connect(node.registry)
    works(router)
    router.close()
    for attempt in (
        lambda: router.infer("double", {"x": X}, timeout_s=1.0),
        lambda: router.prepare("double", rows=3),
        router.models,
    ):
        with pytest.raises(RouterClosed) as caught:
            attempt()
        assert caught.value.fate is Fate.NEVER_RAN
        check_sentence(caught.value, "closed", "make another one")
    router.close()


def _ask_in_child(router: Router, answers: object) -> None:
    try:
        router.infer("double", {"x": X}, timeout_s=1.0)
    except OverspillError as error:
        answers.send((type(error).__name__, error.fate, str(error)))  # type: ignore[attr-defined]
    finally:
        router.close()
        os._exit(0)  # a fork of pytest must not run its ends


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_router_of_the_parent_says_so_after_a_fork(node: NodeProcess) -> None:
    with Router.connect(node.registry) as router:
        works(router)
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        child = multiprocessing.get_context("fork").Process(target=_ask_in_child, args=(router, theirs))
        child.start()
        theirs.close()
        assert ours.poll(30), "the child said nothing"
        name, fate, text = ours.recv()
        ours.close()
        child.join(10)
        child.close()
        assert (name, fate) == (RouterUsedAfterFork.__name__, Fate.NEVER_RAN)
        check_sentence(text, "parent process", "call Router.connect again")
        works(router)


# Callers that the node does not let in.


def _to(registry: str, rpc: RpcConfig) -> Router:
    return Router.connect(registry, config=RouterConfig(link=LinkConfig(local=False, rpc_config=rpc)), timeout_s=2.0)


def _not_let_in(registry: str, rpc: RpcConfig, *words: str) -> None:
    # `connect` raises where the node has said no within its wait, and the first request does where it was slower.
    with pytest.raises((AccessDenied, Unavailable)) as caught, _to(registry, rpc) as router:
        works(router, 3 * SHORT_S)
    assert caught.value.fate is Fate.NEVER_RAN
    check_sentence(caught.value, *words)


def test_a_token_that_is_missing_or_wrong(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "node.toml").write_text('rpc_token = "open sesame"')
    registry = f"dir:{tmp_path / 'registry'}"
    with NodeProcess(tmp_path, registry, folder / "models", "--config", str(tmp_path / "node.toml")) as node:
        node.wait_ready()
        for token in ("", "sesame"):
            _not_let_in(registry, RpcConfig(token=token), "set the rpc token")
        with _to(registry, RpcConfig(token="open sesame")) as router:
            works(router)


def test_certificates_that_are_missing_or_of_another_authority(tmp_path: Path, folder: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    files = authority.issue("server")
    words = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key))
    registry = f"dir:{tmp_path / 'registry'}"
    with NodeProcess(tmp_path, registry, folder / "models", *words) as node:
        node.wait_ready()
        _not_let_in(registry, RpcConfig(), "tls needs authority", "name the PEM file")
        _not_let_in(registry, RpcConfig(tls=TlsFiles(stranger.file)), "certificates", "check the authority")
        (instance,) = open_registry(registry).read()
        asked = subprocess.run(
            command("health", instance.rpc, "--tls-ca", str(stranger.file)),
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert asked.returncode == 3
        assert asked.stderr.count("\n") == 1, "gRPC's own lines stand beside ours"
        check_sentence(asked.stderr.strip().removeprefix("overspill: "), "check the authority")
        with _to(registry, RpcConfig(tls=TlsFiles(authority.file))) as router:
            works(router)
        np.savez(tmp_path / "in.npz", x=X)
        words = ["call", "double", "--registry", f"static:{instance.rpc}", "--input", str(tmp_path / "in.npz")]
        words += ["--output", str(tmp_path / "out.npz"), "--tls-ca", str(authority.file)]
        assert main(words) == 0
        with np.load(tmp_path / "out.npz") as outputs:
            assert np.array_equal(outputs["y"], 2 * X)
