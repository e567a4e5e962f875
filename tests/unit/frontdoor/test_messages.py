"""The messages are the protocol's: field by field those of the stock client, and the compiled file is up to date."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from frontdoor import messages

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = messages.FILE.parent
OWN = {"HealthCheckRequest", "HealthCheckResponse"}


def stock(name: str) -> Any:
    from tritonclient.grpc import model_config_pb2, service_pb2

    return getattr(service_pb2, name, None) or getattr(model_config_pb2, name)


def compare(ours: Any, theirs: Any) -> None:
    fields = theirs.fields_by_name
    for field in ours.fields:
        other = fields[field.name]
        where = f"{ours.name}.{field.name}"
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated), where
        assert (field.containing_oneof is None) == (other.containing_oneof is None), where
        if field.enum_type is not None:
            known = {value.name: value.number for value in other.enum_type.values}
            assert {value.name: value.number for value in field.enum_type.values}.items() <= known.items(), where
        if field.message_type is not None and field.message_type.containing_type is not None:
            compare(field.message_type, other.message_type)


@pytest.mark.parametrize("name", sorted(set(messages.names()) - OWN))
def test_a_message_is_the_protocols(name: str) -> None:
    compare(messages.message(name).DESCRIPTOR, stock(name).DESCRIPTOR)


def test_what_is_asked_and_answered_is_whole() -> None:
    """Every field of what a client reads and sends, but for what no model here has."""
    for name in ("ModelInferRequest", "ModelInferResponse", "InferTensorContents", "ServerMetadataResponse"):
        ours, theirs = messages.message(name).DESCRIPTOR, stock(name).DESCRIPTOR
        assert {field.name for field in ours.fields} == {field.name for field in theirs.fields}


def test_the_compiled_file_is_made_of_the_source(tmp_path: Path) -> None:
    made = tmp_path / "oip.binpb"
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        str(FOLDER),
        f"--descriptor_set_out={made}",
        "oip.proto",
    ]
    subprocess.run(command, check=True, timeout=60)
    assert made.read_bytes() == messages.FILE.read_bytes(), "compile it again, as the head of oip.proto says"


@pytest.mark.parametrize(
    "order", [("frontdoor.messages", "tritonclient.grpc"), ("tritonclient.grpc", "frontdoor.messages")]
)
def test_a_program_may_import_it_beside_a_stock_client(order: tuple[str, str]) -> None:
    code = f"import {order[0]}, {order[1]}"
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True, timeout=60)
