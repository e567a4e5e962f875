"""The front door as services in other languages see it: the stock gRPC of Node.js (from npm) and of Java (from Debian).

Both make their stubs from the descriptors that the stock Python client ships, so nothing of ours is on their side. They
are skipped, with what is missing, where a machine has no Node.js, no JDK, or no way to those packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.debian import DebianError, cache_folder, fetch, locked, run, unpack

if TYPE_CHECKING:
    from tests.integration.frontdoors import Front

HERE = Path(__file__).parent / "stock_clients"
MODEL = "echo_FP32"
BUILD_S, RUN_S = 180.0, 120.0
JAVA_PACKAGES = (
    "libgeronimo-annotation-1.3-spec-java", "libgoogle-gson-java", "libgrpc-java", "libguava-java", "libjsr305-java",
    "libnetty-java", "libopencensus-java", "libperfmark-java", "libprotobuf-java", "libprotobuf32", "libprotoc32",
    "protobuf-compiler", "protobuf-compiler-grpc-java-plugin",
)  # fmt: skip
PROTOS = ("grpc_service.proto", "model_config.proto")


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The service as the stock Python client has it, as a FileDescriptorSet."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from tritonclient.grpc import model_config_pb2, service_pb2

    found = FileDescriptorSet()
    for one in (model_config_pb2, service_pb2):
        one.DESCRIPTOR.CopyToProto(found.file.add())
    path = tmp_path_factory.mktemp("descriptors") / "service.binpb"
    path.write_bytes(found.SerializeToString())
    return path


def _needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _node_modules() -> Path:
    """The stock packages, in the versions of package-lock.json, kept between runs. Raises DebianError."""
    folder = cache_folder("stock-node")
    with locked(folder / "lock"):
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, folder)
        if not (folder / "node_modules" / "@grpc" / "grpc-js").is_dir():
            run(["npm", "ci", "--silent", "--no-fund", "--no-audit", "--ignore-scripts"], BUILD_S, cwd=folder)
    return folder / "node_modules"


def _java_classes(descriptors: Path) -> str:
    """The class path of the compiled client, kept between runs of the same client. Raises DebianError."""
    packages = fetch(JAVA_PACKAGES, "bookworm")
    key = hashlib.sha256()
    for part in (descriptors, HERE / "Client.java", *packages.values()):
        key.update(part.name.encode() if part.suffix == ".deb" else part.read_bytes())
    folder = cache_folder("stock-java", key.hexdigest()[:16])
    jars, classes, done = f"{folder}/root/usr/share/java/*", folder / "classes", folder / "done"
    with locked(folder / "lock"):
        if not done.exists():
            _compile(descriptors, tuple(packages.values()), folder / "root", classes)
            done.touch()
    return f"{classes}:{jars}"


def _compile(descriptors: Path, packages: tuple[Path, ...], root: Path, classes: Path) -> None:
    unpack(packages, root)
    (library,) = root.rglob("libprotoc.so.32")
    stubs = classes.with_name("stubs")
    stubs.mkdir(exist_ok=True)
    words = [
        "env", f"LD_LIBRARY_PATH={library.parent}", str(root / "usr/bin/protoc"), f"--descriptor_set_in={descriptors}",
        f"--plugin=protoc-gen-grpc-java={root / 'usr/bin/grpc_java_plugin'}", f"--java_out={stubs}",
        f"--grpc-java_out={stubs}", *PROTOS,
    ]  # fmt: skip
    run(words, BUILD_S)
    sources = [str(path) for path in sorted(stubs.rglob("*.java"))]
    words = ["javac", "-nowarn", "-cp", f"{root}/usr/share/java/*", "-d", str(classes), *sources]
    run([*words, str(HERE / "Client.java")], BUILD_S)


def test_the_stock_grpc_of_node(front: Front, descriptors: Path) -> None:
    _needs("node", "npm")
    try:
        modules = _node_modules()
    except DebianError as error:
        pytest.skip(f"the stock packages of Node.js cannot be had: {error}")
    words = ["node", str(HERE / "client.cjs"), front.grpc, str(descriptors), MODEL]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=RUN_S, check=False, env={**os.environ, "NODE_PATH": str(modules)}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert "system_shared_memory" in found.pop("extensions")
    assert found.pop("counted") >= 66
    assert found == {
        "live": True,
        "ready": True,
        "inputs": [["x", "FP32"]],
        "configured": MODEL,
        "id": "from-node",
        "raw": [1, 2, 3],
        "typed": [4, 5],
        "many": list(range(64)),
        "stream": [[7], [8], [9]],
        "shared": {
            "again": "ALREADY_EXISTS",
            "regions": True,
            "left": False,
            "raw": [0],
            "values": [1.5, -2.5, 3.5, 0],
        },
        "unknown_model": "NOT_FOUND",
        "wrong_type": "INVALID_ARGUMENT",
        "too_few_bytes": "INVALID_ARGUMENT",
    }


def test_the_stock_grpc_of_java(front: Front, descriptors: Path) -> None:
    _needs("java", "javac")
    try:
        classes = _java_classes(descriptors)
    except DebianError as error:
        pytest.skip(f"the stock packages of Java cannot be had: {error}")
    words = ["java", "-Xmx256m", "-cp", classes, "Client", front.grpc, MODEL]
    done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert found == {
        "live": "true",
        "ready": "true",
        "input": "x FP32",
        "raw": "[1.0, 2.0, 3.0]",
        "typed": "[4.0, 5.0]",
        "many": str([float(number) for number in range(64)]),
        "stream": "[7.0, 8.0, 9.0]",
        "shared_raw_bytes": "0",
        "shared": "[1.5, -2.5, 3.5, 0.0]",
        "region_left": "false",
        "unknown_model": "NOT_FOUND",
        "wrong_type": "INVALID_ARGUMENT",
        "too_few_bytes": "INVALID_ARGUMENT",
    }
