"""What node and executor say to each other survives the way."""

from __future__ import annotations

from fabric.frame import Load
from workers.handover import (
    DELIVERED,
    KEPT,
    RESEND,
    TASK_BYTES,
    TASK_MAGIC,
    Control,
    Loaded,
    Spent,
    Task,
    decode_control,
    encode_control,
    pack_done,
    pack_task,
    unpack_done,
    unpack_task,
)


def test_task() -> None:
    task = Task(RESEND, 1 << 40, 5, 6, 1 << 60, 1 << 61, Load(8, 9, 10, 3))
    message = pack_task(task)
    assert len(message) == TASK_BYTES
    assert message.startswith(TASK_MAGIC)
    assert unpack_task(message + b"frame") == task


def test_done() -> None:
    spent = Spent(123, 1 << 40, 5, 6, 7, 8)
    flags, task_no, found = unpack_done(pack_done(DELIVERED | KEPT, 7, spent) + b"frame")
    assert (flags, task_no) == (DELIVERED | KEPT, 7)
    spent.queue_us = (1 << 32) - 1  # longer than an hour is told as an hour
    assert found == spent


def test_control() -> None:
    control = Control("ready", 4, ("a", "b"), (Loaded("a", (1, 2)), Loaded("b", refused="why “so”")))
    assert decode_control(encode_control(control)) == control
