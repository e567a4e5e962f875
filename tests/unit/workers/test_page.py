"""The page that node and executor share keeps its words apart, and once it is shut nothing is begun any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from workers.page import Answer, SharedPage

BEGINS = """
import sys
from workers.page import SharedPage
page = SharedPage(int(sys.argv[1]))
for task_no in range(1, 1 << 60):
    page.began(task_no, 1)
    page.answered(task_no)
    if task_no == 100:
        print(flush=True)
"""
ROUNDS = 3


def test_words() -> None:
    page = SharedPage.create()
    other = SharedPage(os.dup(page.fd))
    try:
        page.beat()
        page.began(7, 1 << 60)
        assert (other.heartbeat, other.running, other.answer_of(7)) == (1, (7, 1 << 60), Answer.NONE)
        page.answering(7)
        assert [other.answer_of(number) for number in (6, 7, 8)] == [Answer.NONE, Answer.PERHAPS, Answer.NONE]
        page.answered(7)
        page.pinned(3, 1 << 30)
        page.ended()
        assert (other.running[0], other.answer_of(7), other.answer_of(8)) == (0, Answer.SENT, Answer.NONE)
        assert (other.registered, other.pinned_bytes) == (3, 1 << 30)
        page.aside(1 << 61)
        assert (other.aside_ns, other.running[0]) == (1 << 61, 0)
        page.aside(0)
        assert other.aside_ns == 0
    finally:
        page.close()
        other.close()


def test_what_has_begun_in_a_batch_stays_begun_while_one_of_it_is_looked_at_by_itself() -> None:
    page = SharedPage.create()
    try:
        page.began(7, 1)
        page.began(5, 2)  # one that could not run with 6 and 7, which have run
        assert (page.running, page.begun_no) == ((5, 2), 7)
    finally:
        page.close()


def test_what_was_not_begun_when_the_page_was_shut_never_is() -> None:
    for _ in range(ROUNDS):
        page = SharedPage.create()
        command = [sys.executable, "-c", BEGINS, str(page.fd)]
        with subprocess.Popen(command, pass_fds=(page.fd,), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            page.shut()
            os.sched_yield()  # a system call, as a kill is
            begun_no = page.begun_no
            assert process.wait(20) == -signal.SIGKILL, "by itself"
        assert page.answer_of(begun_no + 1) is Answer.NONE
        page.close()
