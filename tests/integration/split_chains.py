"""An ensemble whose steps lie on two cards of one node, for tests: what it computes, and a node that serves it.

The first step doubles, the second adds one, on whatever the executor has: fake cards, and real ones by CuPy in
`tests/hw/test_gpu_peers.py`. Read `tests/integration/test_gpu_legs.py`
next.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fabric.local.control import NodeControl, control_path
from overspill import Router
from tests.integration.bad_node import NodeProcess, wait_until
from tests.integration.nodes import IDEMPOTENT, write_model

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from fabric.control import ExecutorFacts

SHOWN = """
import ctypes, os, time
import numpy as np
if os.environ.get("CUDA_VISIBLE_DEVICES", "FAKE").startswith("FAKE"):
    def shown(array):  # memory of a fake card is the process's own
        memory = (ctypes.c_char * array.nbytes).from_address(array.address)
        return np.frombuffer(memory, array.dtype).reshape(array.shape)
else:
    from cupy import asarray as shown
"""
FIRST = (
    SHOWN
    + """
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        x = inputs["x"]
        if x[0] < 0: raise ValueError("it begins with a negative number")
        outputs["n"] = np.array([len(x)], np.int64)
        outputs["who"] = np.array([b"first", str(os.getpid()).encode()], object)
        y = outputs.on_card("y", "FP32", x.shape)
        if y is None:
            outputs["y"] = x * np.float32(2)
        else:
            there = shown(y)
            there.set(x) if hasattr(there, "set") else np.copyto(there, x)
            there *= np.float32(2)
"""
)
SECOND = (
    SHOWN
    + """
class Model:
    def __init__(self, config):
        self.begun = os.path.join(config.path, "begun")
    def execute(self, inputs, outputs):
        y = inputs.on_card("y")
        there = inputs["y"] if y is None else shown(y)
        assert inputs["n"][0] == there.size
        outputs["on_card"] = np.array([y is not None])
        outputs["pids"] = np.array([inputs["who"][1], str(os.getpid()).encode()], object)
        if inputs["wait"][0] > 1.0: open(self.begun, "w").close()
        time.sleep(float(inputs["wait"][0]))
        z = there + np.float32(1)
        outputs["z"] = z.get() if hasattr(z, "get") else z
"""
)
FIRST_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output [
  { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "n" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "who" data_type: TYPE_STRING dims: [ 2 ] }
]
"""
SECOND_CONFIG = """
backend: "python"
input [
  { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "n" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "who" data_type: TYPE_STRING dims: [ 2 ] }, { name: "wait" data_type: TYPE_FP32 dims: [ 1 ] }
]
output [
  { name: "z" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "on_card" data_type: TYPE_BOOL dims: [ 1 ] },
  { name: "pids" data_type: TYPE_STRING dims: [ 2 ] }
]
"""
CHAIN = """
platform: "ensemble"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "wait" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [
  { name: "n" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "z" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "on_card" data_type: TYPE_BOOL dims: [ 1 ] }, { name: "pids" data_type: TYPE_STRING dims: [ 2 ] }
]
ensemble_scheduling { step [
  { model_name: "first" input_map { key: "x" value: "x" }
    output_map { key: "y" value: "y" } output_map { key: "n" value: "n" } output_map { key: "who" value: "who" } },
  { model_name: "second" input_map { key: "y" value: "y" } input_map { key: "n" value: "n" }
    input_map { key: "who" value: "who" } input_map { key: "wait" value: "wait" }
    output_map { key: "z" value: "z" } output_map { key: "on_card" value: "on_card" }
    output_map { key: "pids" value: "pids" } }
] }
"""
READS_CARDS = 'parameters { key: "card_memory" value { string_value: "true" } }\n'
LARGE = (3 << 20) // 4 + 5
"""Floats that are worth a card's memory."""


def on_cards(*gpus: int) -> str:
    """An instance group on these cards."""
    return f"instance_group {{ gpus: {list(gpus)} }}\n"


def write_chain(models: Path, first: str, second: str, extra: str = IDEMPOTENT, name: str = "chain") -> None:
    """A chain, of steps with these lines in their configurations."""
    text = CHAIN
    for step, code, config in (("first", FIRST, FIRST_CONFIG + first), ("second", SECOND, SECOND_CONFIG + second)):
        write_model(models, f"{step}_of_{name}", code, config + IDEMPOTENT + READS_CARDS)
        text = text.replace(f'model_name: "{step}"', f'model_name: "{step}_of_{name}"')
    (models / name / "1").mkdir(parents=True)
    (models / name / "config.pbtxt").write_text(text + extra)


class SplitNode:
    """A node with the chain on it, and a router to that."""

    def __init__(self, folder: Path, *more: str, devices: str = "fake:2", settings: str = "") -> None:
        self.folder = folder
        self.registry = f"dir:{folder / 'registry'}"
        (folder / "node.toml").write_text(f'runtime_dir = "{folder}"\n{settings}')
        words = ("--config", str(folder / "node.toml"), *more)
        self.node = NodeProcess(folder, self.registry, folder / "models", *words, devices=devices, wires="local")
        self.node.wait_ready()
        self.router = Router.connect(self.registry)

    def file(self, name: str, card: int) -> Path:
        """A file of a fake card."""
        return self.folder / "fake-cards" / f"card-{card}" / name

    def executors(self) -> list[ExecutorFacts]:
        """What the node says of its executors."""
        return list(NodeControl(control_path(str(self.folder / "node.sock"))).executors())

    def ask(
        self, x: np.ndarray[Any, Any], wait_s: float = 0.0, timeout_s: float = 30.0, model: str = "chain"
    ) -> Answer:
        """One request, whose answer is compared with the chain's in this process, every byte."""
        inputs = {"x": x, "wait": np.array([wait_s], np.float32)}
        with self.router.infer(model, inputs, timeout_s=timeout_s) as reply:
            assert np.array_equal(reply["z"], x * np.float32(2) + np.float32(1)), "a wrong answer"
            assert reply["n"].tolist() == [len(x)]
            pids = [int(pid) for pid in reply["pids"].tolist()]
            return Answer(bool(reply["on_card"][0]), pids, reply.trace.attempts)

    def close(self) -> None:
        """Ends both."""
        self.router.close()
        self.node.end()


class Answer:
    """What is known of a right answer: whether the tensor between the steps lay on the second card, the processes of
    the two steps, and how often it was tried."""

    def __init__(self, on_card: bool, pids: list[int], attempts: int) -> None:
        self.on_card = on_card
        self.pids = pids
        self.attempts = attempts


class Load:
    """Callers that ask one after the other until the `with` block ends. Every answer is compared; `attempts` are those
    of all, `errors` what went wrong."""

    def __init__(self, node: SplitNode, callers: int, floats: tuple[int, int]) -> None:
        self._node = node
        self._floats = floats
        self._stop = threading.Event()
        self._counts = [0] * callers
        self.attempts: list[int] = []
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(callers)]

    def round(self, timeout_s: float = 60.0) -> bool:
        """Waits until each caller has asked anew and been answered: nothing is on its way that was before."""
        before = list(self._counts)

        def anew() -> bool:
            return all(now >= old + 2 for now, old in zip(self._counts, before, strict=True))

        return wait_until(lambda: bool(self.errors) or anew(), timeout_s, 0.01)

    def _call(self, number: int) -> None:
        draw = np.random.default_rng(number)
        try:
            while not self._stop.is_set():
                x = draw.random(int(draw.integers(*self._floats)), dtype=np.float32)
                self.attempts.append(self._node.ask(x, 0.01, timeout_s=60.0).attempts)
                self._counts[number] += 1
        except BaseException as error:  # noqa: BLE001 - told by whoever waits for it
            self.errors.append(error)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
