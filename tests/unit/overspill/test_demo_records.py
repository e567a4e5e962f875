"""The audit of the demo must see each kind of failure, or its clean verdict says nothing."""

import math

import pytest

from fabric.errors import Fate
from overspill.demo.drive import Drive, Job, PlannedFault
from overspill.demo.records import Fault, Record, audit, percentile, recovery_s
from overspill.demo.report import Outcome, as_html, as_text, ticks


def good(**changes) -> Record:
    fields = {
        "stage": "route_plan",
        "began_s": 1.0,
        "ended_s": 1.5,
        "timeout_s": 2.0,
        "idempotent": True,
        "worker": "a",
    }
    return Record(**{**fields, **changes})


def ledger(number, **changes) -> Record:
    return good(stage="ledger", idempotent=False, ledger_no=number, **changes)


def test_a_clean_round_is_clean():
    found = audit([good(), ledger(0), ledger(1)], [1, 0])
    assert found.clean
    assert (found.requests, found.retried, found.unknown) == (3, 0, 0)


@pytest.mark.parametrize(
    ("record", "lines", "kind"),
    [
        (good(ended_s=3.2), [], "lost"),  # answered 0.2 s after its deadline of 3.0 s
        (good(error="no node", fate=Fate.NEVER_RAN), [], "lost"),
        (good(error="executor lost", fate=Fate.UNKNOWN), [], "lost"),  # idempotent: another try was allowed
        (ledger(0, error="queue full", fate=Fate.NEVER_RAN), [], "lost"),
        (good(right=False), [], "wrong"),
        (ledger(0), [], "wrong"),  # answered but never appended
        (ledger(0), [0, 7], "wrong"),  # a number nobody sent
        (ledger(0), [0, 0], "duplicated"),
    ],
)
def test_each_failure_is_seen(record, lines, kind):
    found = audit([record], lines)
    assert not found.clean
    assert getattr(found, kind) == 1
    assert sum((found.lost, found.wrong, found.duplicated)) == 1


def test_unknown_of_the_ledger_is_told_apart():
    failed = ledger(0, error="node lost", fate=Fate.UNKNOWN)
    for lines in ([], [0]):
        found = audit([failed], lines)
        assert found.clean
        assert found.unknown == 1


def test_late_within_the_grace_is_not_lost():
    assert audit([good(ended_s=3.09)], []).clean


def test_percentile_is_the_nearest_rank():
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert math.isnan(percentile([], 0.5))


def test_recovery_counts_only_requests_that_the_fault_hit():
    fault = Fault("node killed", "b", 10.0)
    hit = good(began_s=9.9, ended_s=10.25, attempts=2)
    before, after = good(began_s=8.0, ended_s=9.0, attempts=2), good(began_s=10.1, ended_s=12.0, attempts=2)
    assert recovery_s([hit, before, after], fault) == pytest.approx(0.25)
    assert recovery_s([before, after], fault) == 0.0


def test_both_reports_tell_the_same_and_escape_what_they_show():
    records = [good(attempts=2, wire="local"), ledger(0, error="<b>lost</b>", fate=Fate.UNKNOWN)]
    outcome = Outcome("Title & more", 7, 3.0, 2.0, 9.0, records, [Fault("node killed", "a", 1.2)], audit(records, []))
    text, page = as_text(outcome), as_html(outcome)
    assert "OVER its limit of 2.0 s" in text
    assert "<b>lost</b>" in text
    assert "<b>" not in page
    assert "Title &amp; more" in page
    assert page.count("<circle") >= 2
    assert "Errors callers saw" in text
    assert "<h2>Errors callers saw</h2><ul><li>&lt;b&gt;lost&lt;/b&gt;</li></ul>" in page
    assert ">failed or wrong</text>" in page
    assert "http" not in page.replace("http-equiv", ""), "the page must load nothing"


def test_the_axes_have_round_numbers():
    assert ticks(9.7) == [0, 2, 4, 6, 8, 10]
    assert ticks(1312.4) == [0, 500, 1000, 1500]
    assert ticks(10.0) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.03) == pytest.approx([0, 0.01, 0.02, 0.03])
    for most in (1e-3, 0.7, 1.0, 3.3, 12.0, 49.9, 999.0):
        found = ticks(most)
        assert found[-2] < most <= found[-1] * (1 + 1e-9)
        assert 3 <= len(found) <= 7


def test_a_round_without_errors_lists_none():
    records = [good()]
    outcome = Outcome("t", 7, 3.0, 2.0, 9.0, records, [], audit(records, []))
    assert "Errors callers saw" not in as_text(outcome)
    assert "Errors callers saw" not in as_html(outcome)


def test_faults_are_due_by_the_jobs_too_where_one_job_is_most_of_the_work():
    injected = []
    faults = [PlannedFault(share, str(share), lambda share=share: str(injected.append(share))) for share in (0.3, 0.7)]
    drive = Drive(None, [Job("large", (), 100.0), *(Job("small", (), 1.0) for _ in range(9))], faults, 1.0)
    for done, expected in ((2, []), (3, [0.3]), (9, [0.3, 0.7])):
        drive._done = done
        drive._inject_due()
        assert injected == expected
