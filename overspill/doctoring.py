"""The checks behind `overspill doctor`: each gives findings, changes nothing, and is bounded in time.

A finding is graded: `ok`, `note` (it works, and should be known), `missing` (an optional part; the sentence says what
would bring it) or `broken` (something that Overspill needs; the sentence says the mend). This module never prints:
`overspill/commands/doctor.py` does.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import OverspillError
from overspill.findings import Finding, Grade
from overspill.gpu_doctoring import gpu_findings
from overspill.rdma_doctoring import look, rdma_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE_TIMEOUT_S = 2.0
FDS_WANTED = 4096
"""Each tenant socket takes one descriptor in the node and one in each executor; 1024 would stop a busy node early."""

_GRADES = {"fine": Grade.OK, "note": Grade.NOTE, "broken": Grade.BROKEN}
AS_ASKED = frozenset({"unloaded", "unloading"})
"""States of a model that takes no requests because somebody wanted it so."""


def machine_findings() -> Iterator[Finding]:
    """Checks this machine: Python, the kernel's features, limits, optional libraries."""
    yield Finding(Grade.OK, "python", ".".join(map(str, sys.version_info[:3])))
    yield _shared_memory()
    yield _unix_sockets()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FDS_WANTED:
        yield Finding(Grade.BROKEN, "open files", f"the limit is {soft} (hard {hard}); run `ulimit -n {FDS_WANTED}`")
    else:
        yield Finding(Grade.OK, "open files", f"limit {soft}")
    yield from _libraries()
    yield from gpu_findings()
    yield from rdma_findings(look())


def _shared_memory() -> Finding:
    from fabric.memory.arena import Arena

    try:
        arena = Arena.create(1 << 20)
    except (OverspillError, OSError) as error:
        return Finding(Grade.BROKEN, "shared memory", f"{error}; the kernel must allow memfd_create with seals")
    arena.close_fd()
    return Finding(Grade.OK, "shared memory", "sealed memfd works")


def _unix_sockets() -> Finding:
    try:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        return Finding(Grade.BROKEN, "unix sockets", f"{error}; the kernel must allow SOCK_SEQPACKET Unix sockets")
    left.close()
    right.close()
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    if not os.access(runtime, os.W_OK):
        return Finding(
            Grade.BROKEN, "unix sockets", f"{runtime} is not writable; set XDG_RUNTIME_DIR to a folder of yours"
        )
    return Finding(Grade.OK, "unix sockets", f"SOCK_SEQPACKET works, sockets go under {runtime}")


def _libraries() -> Iterator[Finding]:
    needed = {"numpy": "numpy", "grpc": "grpcio", "tenacity": "tenacity"}
    # Plain package names, which work beside an installed Overspill and beside a checkout alike.
    optional = {
        "onnxruntime": ("ONNX models need it", "pip install onnxruntime"),
        "consul": ("the consul: registry needs it", "pip install py-consul"),
        "aiohttp": ("the front door for stock Triton clients needs it", "pip install aiohttp protobuf"),
        "numba": ("the dispatch example needs it", "pip install numba"),
        "cupy": ("GPU kernels need it", "pip install cupy-cuda13x"),
        "tensorrt": ("TensorRT engines need it", "pip install tensorrt"),
    }
    for module, package in needed.items():
        if find_spec(module) is None:
            yield Finding(Grade.BROKEN, package, f"it is not installed; run `pip install {package}`")
        else:
            yield Finding(Grade.OK, package, "installed")
    for module, (purpose, mend) in optional.items():
        if find_spec(module) is None:
            yield Finding(Grade.MISSING, module, f"{purpose}; {mend}")
        else:
            yield Finding(Grade.OK, module, "installed")


def registry_findings(url: str) -> list[Finding]:
    """Checks a registry and knocks at each node's addresses."""
    from discovery.registry import diagnose, open_registry

    findings: list[Finding] = []
    try:
        findings += [Finding(_GRADES[one.weight.value], one.subject, one.sentence) for one in diagnose(url)]
        if any(finding.grade is Grade.BROKEN for finding in findings):
            return findings  # a read would say the same again
        instances = open_registry(url).read()
    except OverspillError as error:
        return [*findings, Finding(Grade.BROKEN, "registry", str(error))]
    if not instances:
        nobody = f"{url} answers and has no node; start one with `overspill node`"
        return [*findings, Finding(Grade.BROKEN, "registry", nobody)]
    many = "node" if len(instances) == 1 else "nodes"
    findings.append(Finding(Grade.OK, "registry", f"{url} answers with {len(instances)} {many}"))
    for instance in instances:
        refused = [model for model in instance.models if model.refused and model.state not in AS_ASKED]
        findings += [Finding(Grade.BROKEN, f"{instance.node_id}/{model.name}", model.refused) for model in refused]
        findings.append(_knock(instance.node_id, instance.rpc))
    return findings


def _knock(node_id: str, address: str) -> Finding:
    if not address:
        return Finding(Grade.OK, node_id, "offers no rpc wire")
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_TIMEOUT_S):
            return Finding(Grade.OK, node_id, f"{address} accepts connections")
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        return Finding(Grade.BROKEN, node_id, f"{address} does not answer ({why}); start the node, or open the port")


def repository_findings(folder: str) -> list[Finding]:
    """Reads a model repository as a node would, without loading any model."""
    from workers.repository import read_repository

    try:
        models = read_repository(Path(folder))
    except OverspillError as error:
        return [Finding(Grade.BROKEN, "models", str(error))]
    findings = []
    for model in models:
        told = "; ".join(("readable", *(model.config.warnings if model.config else ())))
        grade, told = (Grade.BROKEN, model.refused) if model.refused else (Grade.OK, told)
        findings.append(Finding(grade, model.name, told))
    return findings
