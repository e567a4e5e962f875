"""`overspill doctor`: looks at this machine and a registry, and says in one sentence each what is wrong and the mend.

A check gives findings; it changes nothing and never waits longer than two seconds. Exit code 1 when something that is
needed is broken, 0 when only optional things are missing. Read `overspill/doctoring.py` for the checks.
"""

from __future__ import annotations

import argparse  # noqa: TC003 - argparse hands its objects to us at run time


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declares `overspill doctor`."""
    parser = commands.add_parser("doctor", help="check this machine and a registry, and say how to mend what is wrong")
    parser.add_argument("--registry", metavar="URL", help="also check this registry and the nodes in it")
    parser.add_argument("--models", metavar="DIR", help="also check this model repository")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints one line for each finding."""
    from overspill.doctoring import machine_findings, registry_findings, repository_findings
    from overspill.findings import Grade

    findings = list(machine_findings())
    if args.registry:
        findings += registry_findings(args.registry)
    if args.models:
        findings += repository_findings(args.models)
    for finding in findings:
        print(f"{finding.grade.value:8} {finding.subject}: {finding.sentence}")
    broken = sum(finding.grade is Grade.BROKEN for finding in findings)
    print(f"{broken} broken, {sum(finding.grade is Grade.MISSING for finding in findings)} optional parts missing")
    return 1 if broken else 0
