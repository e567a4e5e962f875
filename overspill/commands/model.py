"""`overspill model load|unload|stats NAME`: changes models of nodes of this host while they serve, or tells of them.

A node with `--model-control explicit` is asked on its control socket, which its own user may use. Without `--node` all
nodes of this host in the registry are asked, one after the other. Nothing is decided here: `workers/library.py` does.
Read `fabric/local/control.py` next.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import ConfigError, OverspillError
from overspill.commands.models import tell_if_old

if TYPE_CHECKING:
    from discovery.instance import Instance
    from fabric.local.control import NodeControl


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill model`."""
    parser = commands.add_parser("model", help="load or unload a model on nodes of this host, or tell its statistics")
    parser.add_argument("action", choices=("load", "unload", "stats"))
    parser.add_argument("model", metavar="NAME")
    parser.add_argument("--registry", required=True, metavar="URL", help="dir:PATH or consul:http://HOST:PORT")
    parser.add_argument("--node", metavar="ID", help="this node only (default: all of this host)")
    parser.add_argument("--config", metavar="FILE", help="with load: a whole configuration as Triton's JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Asks each node; gives 0, or 1 when one refused. Raises ConfigError for what cannot be asked."""
    from fabric.local.control import NodeControl, control_path

    config = _config(args.config) if args.config else ""
    failed = 0
    for instance in _nodes(args.registry, args.node):
        control = NodeControl(control_path(instance.local))
        try:
            told = _ask(control, args.action, args.model, config)
        except OverspillError as error:
            told, failed = str(error), 1
        print(f"{instance.node_id}: {told}")
    return failed


def _ask(control: NodeControl, action: str, model: str, config: str) -> str:
    if action == "load":
        control.load(model, config)
    elif action == "unload":
        control.unload(model)
        return f"{model} is unloaded"
    else:
        return _statistics(control, model)
    return next(f"{each.name} {each.version} is {each.state}" for each in control.index() if each.name == model)


def _statistics(control: NodeControl, model: str) -> str:
    (seen,) = control.statistics(model)
    runs = max(1, seen.execution_count)
    mean = {
        name: part.ns / 1000 / max(1, part.count)
        for name, part in (("queue", seen.queue), ("compute", seen.compute_infer))
    }
    failures = ", ".join(f"{count} {reason.lower()}" for reason, count in seen.failures) or "none"
    return (
        f"{model} {seen.version}: {seen.success.count} requests of {seen.inference_count} items in"
        f" {seen.execution_count} runs ({seen.inference_count / runs:.1f} items a run), {seen.pending} pending;"
        f" queue {mean['queue']:.0f} us, compute {mean['compute']:.0f} us on average; failed: {failures}"
    )


def _nodes(registry: str, node_id: str | None) -> list[Instance]:
    from discovery.registry import open_registry, read_or_recall
    from fabric.host import host_id

    listed = read_or_recall(open_registry(registry))
    tell_if_old(listed)
    here = [each for each in listed.instances if each.host_id == host_id() and each.local]
    found = [each for each in here if node_id in {None, each.node_id}]
    if not found:
        known = ", ".join(sorted(each.node_id for each in here)) or "none"
        raise ConfigError(
            f"no node {node_id or 'of this host'} is in {registry}; there are {known}. Nodes are changed on their own"
            " host, over the local wire's socket"
        )
    return sorted(found, key=lambda each: each.node_id)


def _config(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}); give a file of JSON") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is no text; give a file of JSON") from None
