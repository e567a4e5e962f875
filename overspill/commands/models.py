"""`overspill models`: which models are offered, by which nodes, and what was refused and why.

It reads the registry once and opens no wire. While the registry is away it shows the last good list, as a router that
starts then would have it, and says so on standard error. Read `discovery/registry.py` next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
import json
import sys
from typing import TYPE_CHECKING

from discovery.static import ANY_EPOCH

if TYPE_CHECKING:
    from discovery.instance import Instance, TensorFacts
    from discovery.registry import Recalled


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill models`."""
    parser = commands.add_parser("models", help="list the models on offer, and what was refused")
    parser.add_argument("--registry", required=True, metavar="URL", help="dir:PATH or consul:http://HOST:PORT")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the models. Raises RegistryUnavailable or ConfigError."""
    from discovery.registry import open_registry, read_or_recall

    found = read_or_recall(open_registry(args.registry))
    tell_if_old(found)
    instances = sorted(found.instances, key=lambda instance: instance.node_id)
    if args.json:
        print(json.dumps([_as_json(instance) for instance in instances], indent=2))
        return 0
    if not instances:
        print("no node is registered; start one with `overspill node`")
        return 0
    rows, refused, cards = _offered(instances), _refused(instances), _cards(instances)
    _print_table(rows)
    if len(cards) > 1:
        print()
        _print_table(cards)
    if refused:
        print("\nrefused:")
        _print_table(refused)
    failed = _failed(instances)
    if failed:
        print("\nserves, but:")
        _print_table(failed)
    return 0


def tell_if_old(found: Recalled) -> None:
    """Says on standard error that a list is not of now, and why."""
    if found.trouble:
        print(f"overspill: {found.trouble}; this is the list of {found.age_s:.0f} s ago", file=sys.stderr)


def _offered(instances: list[Instance]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("MODEL", "VERSION", "NODE", "STATE", "IDEMPOTENT", "INPUTS", "OUTPUTS")]
    for instance in instances:
        for model in instance.models:
            state = model.state or ("refused" if model.refused else instance.readiness.value)
            told = (model.name, model.version, instance.node_id, state, "yes" if model.idempotent else "no")
            rows.append((*told, _sign(model.inputs), _sign(model.outputs)))
        if not instance.models:
            # A fixed list tells where nodes are, not how they are.
            told_state = "not asked" if instance.node_epoch == ANY_EPOCH else instance.readiness.value
            rows.append(("-", "-", instance.node_id, told_state, "-", "-", "-"))
    return rows


def _refused(instances: list[Instance]) -> list[tuple[str, ...]]:
    """Reasons are sentences: in the table above they would push every other column off the screen."""
    return [
        (f"  {model.name}", f"on {instance.node_id}:", model.refused)
        for instance in instances
        for model in instance.models
        if model.refused and model.state not in {"unloaded", "unloading"}
    ]


def _failed(instances: list[Instance]) -> list[tuple[str, ...]]:
    return [
        (f"  {model.name}", f"on {instance.node_id}:", model.note)
        for instance in instances
        for model in instance.models
        if model.note
    ]


def _cards(instances: list[Instance]) -> list[tuple[str, ...]]:
    """The GPUs of all nodes, what stands by on each and what that takes."""
    rows: list[tuple[str, ...]] = [("NODE", "GPU", "MEMORY", "UUID", "STANDBY", "STATE")]
    for instance in instances:
        for card in instance.cards:
            standby = f"{card.standby} ({_gib(card.standby_bytes)})" if card.standby_bytes else card.standby
            told = (instance.node_id, card.model, _gib(card.memory_bytes), card.uuid, standby)
            rows.append((*told, card.state or "in use"))
    return rows


def _gib(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB"


def _print_table(rows: list[tuple[str, ...]]) -> None:
    # The last column is not padded: one long reason would make every line as long.
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        print("  ".join([*(text.ljust(width) for text, width in zip(row[:-1], widths, strict=True)), row[-1]]))


def _sign(tensors: tuple[TensorFacts, ...]) -> str:
    return " ".join(f"{tensor.name}:{tensor.dtype}{list(tensor.dims)}".replace(" ", "") for tensor in tensors) or "-"


def _as_json(instance: Instance) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(instance), "readiness": instance.readiness.value}
