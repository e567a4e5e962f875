"""One request on one model: inputs checked and shown as promised, whatever the model raises told in our words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.dtypes import DType
from fabric.errors import Fate, InvalidArgument, ModelBroken, ModelFailed, ProtocolError, ResourceExhausted
from fabric.layout import EMPTY, TensorSpec, layout_of
from fabric.memory.lease import tensors
from fabric.message import small_body, tensors_of
from workers.execution import LoadedModel
from workers.modelconfig import read_config

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
backend: "python"
input [
  { name: "f" data_type: TYPE_FP32 dims: [ -1, 2 ] },
  { name: "i" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "t" data_type: TYPE_STRING dims: [ -1 ] }
]
output { name: "y" data_type: TYPE_FP64 dims: [ -1 ] }
"""
GOOD = {
    "t": np.array([b"ab", b""], dtype=object),
    "i": np.array([1, 2, 3], np.int32),
    "f": np.ones((2, 2), np.float32),
}
SHOWS = """
class Model:
    def __init__(self, config): self.seen = None
    def execute(self, inputs, outputs):
        self.seen = dict(inputs)
        outputs["y"] = [float(inputs["f"].sum()), float(inputs["i"].sum()), float(len(inputs["t"][0]))]
"""


def load(folder: Path, code: str, more: str = "") -> LoadedModel:
    (folder / "model.py").write_text(code)
    return LoadedModel(read_config(CONFIG + more, "config.pbtxt", "m", "1", str(folder)), threads=1)


def run(model: LoadedModel, inputs: dict[str, object], room: int = 4096) -> tuple[list[float], bytearray]:
    body = small_body(tensors_of(inputs))
    arena = bytearray(64) + bytearray(body.view())
    reply = memoryview(bytearray(room))
    plan = model.plan(body.layout.encoded, body.layout.body_bytes)
    done = model.run(plan, memoryview(arena).toreadonly(), 64, reply)
    (y,) = tensors(memoryview(done.aside) if done.aside is not None else reply, done.layout)
    return y.tolist(), arena


def seen(model: LoadedModel) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = model.backend._model.seen  # type: ignore[attr-defined]
    return found


def test_inputs_in_any_order_reach_the_model_in_its_own(tmp_path: Path) -> None:
    model = load(tmp_path, SHOWS)
    assert run(model, GOOD)[0] == [4.0, 6.0, 2.0]
    assert list(seen(model)) == ["f", "i", "t"]
    assert run(model, GOOD, room=0)[0] == [4.0, 6.0, 2.0]  # kept aside


def test_what_steers_memory_is_private_and_floats_are_views(tmp_path: Path) -> None:
    model = load(tmp_path, SHOWS)
    _, arena = run(model, GOOD)
    before = {name: array.copy() for name, array in seen(model).items()}
    arena[:] = b"\xff" * len(arena)  # the tenant scribbles on its own memory
    assert (seen(model)["i"] == before["i"]).all()
    assert seen(model)["t"].tolist() == before["t"].tolist()
    assert np.isnan(seen(model)["f"]).all()
    assert not any(array.flags.writeable for name, array in seen(model).items() if name != "t")


@pytest.mark.parametrize(("choice", "floats", "integers"), [("all", True, True), ("none", False, False)])
def test_the_model_may_choose_what_is_private(tmp_path: Path, choice: str, floats: bool, integers: bool) -> None:
    model = load(tmp_path, SHOWS, f'parameters {{ key: "inputs_private" value {{ string_value: "{choice}" }} }}')
    _, arena = run(model, GOOD)
    arena[:] = b"\xff" * len(arena)
    assert (seen(model)["f"] == 1).all() == floats
    assert (seen(model)["i"].tolist() == [1, 2, 3]) == integers


def test_nan_is_refused_where_the_model_says_so(tmp_path: Path) -> None:
    bad = {**GOOD, "f": np.array([[1, np.nan]], np.float32)}
    refuses = 'parameters { key: "refuse_nan" value { string_value: "true" } }'
    with pytest.raises(InvalidArgument, match=r"input 'f'.*NaN") as caught:
        run(load(tmp_path, SHOWS, refuses), bad)
    assert caught.value.fate is Fate.NEVER_RAN
    assert np.isnan(run(load(tmp_path, SHOWS), bad)[0][0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"f": np.ones((2, 2))}, "input 'f' of model 'm' came as FP64 [2, 2]; it takes FP32 [-1, 2]"),
        ({"f": np.ones((2, 3), np.float32)}, "came as FP32 [2, 3]"),
        ({"f": np.ones(2, np.float32)}, "came as FP32 [2]"),
        ({"g": np.ones(2)}, "has no input 'g'; it takes 'f', 'i', 't'"),
        ({"f": None}, "needs input 'f' (FP32 [-1, 2])"),
    ],
)
def test_inputs_that_are_not_as_declared(tmp_path: Path, change: dict[str, object], says: str) -> None:
    inputs = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(InvalidArgument) as caught:
        run(load(tmp_path, SHOWS), inputs)
    assert says in str(caught.value)
    assert caught.value.fate is Fate.NEVER_RAN


def test_too_many_rows(tmp_path: Path) -> None:
    model = load(tmp_path, SHOWS, "max_batch_size: 2")
    with pytest.raises(InvalidArgument, match="has 3 rows; at most 2"):
        run(model, {"f": np.ones((3, 1, 2), np.float32), "i": GOOD["i"].reshape(3, 1), "t": GOOD["t"].reshape(2, 1)})


def test_descriptors_that_are_none_or_claim_more_than_came(tmp_path: Path) -> None:
    model = load(tmp_path, SHOWS)
    with pytest.raises(ProtocolError):
        model.plan(b"nonsense", 100)
    with pytest.raises(InvalidArgument, match="needs input"):
        model.plan(EMPTY.encoded, 0)
    body = small_body(tensors_of(GOOD))
    with pytest.raises(InvalidArgument, match="send all of them"):
        model.plan(body.layout.encoded, body.layout.body_bytes - 1)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "nbytes", "says"),
    [
        ("t", DType.BYTES, (1 << 40,), 64, "claims 1099511627776 elements in 64 bytes"),
        ("f", DType.FP32, (1 << 40, 0, 1 << 40), 0, "which no array can be"),
        ("f", DType.FP32, (1 << 49, 0, 1), 0, "which no array can be"),
    ],
)
def test_sizes_that_only_a_hostile_peer_sends(
    tmp_path: Path, name: str, dtype: DType, shape: tuple[int, ...], nbytes: int, says: str
) -> None:
    (tmp_path / "model.py").write_text(SHOWS)
    text = CONFIG.replace("dims: [ -1, 2 ]", "dims: [ -1, -1, -1 ]")
    model = LoadedModel(read_config(text, "config.pbtxt", "m", "1", str(tmp_path)), threads=1)
    good = {**GOOD, "f": GOOD["f"].reshape(1, 2, 2)}
    specs = tuple(
        TensorSpec(name, dtype, shape, nbytes) if spec.name == name else spec
        for spec in small_body(tensors_of(good)).layout.specs
    )
    layout = layout_of(specs)
    with pytest.raises(InvalidArgument, match=says):
        model.plan(layout.encoded, layout.body_bytes)


@pytest.mark.parametrize(
    ("raises", "error", "says"),
    [
        ('ValueError("odd\\n number")', InvalidArgument, "model 'm' refuses its inputs: odd number"),
        ('KeyError("k")', ModelFailed, "model 'm' failed: KeyError: 'k'"),
        ("MemoryError()", ResourceExhausted, "ran out of memory"),
        ('RuntimeError("x" * 9999)', ModelFailed, "failed: RuntimeError: xxx"),
        ("RuntimeError()", ModelFailed, "failed: RuntimeError in model.py line 3"),
    ],
)
def test_what_a_model_raises(tmp_path: Path, raises: str, error: type[Exception], says: str) -> None:
    code = f"class Model:\n    def __init__(self, config): pass\n    def execute(self, i, o): raise {raises}\n"
    with pytest.raises(error) as caught:
        run(load(tmp_path, code), GOOD)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.fate is Fate.RAN  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        ('i["f"][:] = 1', ModelFailed, "failed: ValueError: assignment destination is read-only in model.py line 4"),
        ("int('x')", ModelFailed, "in model.py line 4"),
        ("import json; json.loads('{')", ModelFailed, "in model.py line 4"),
        ("refuse()", InvalidArgument, "refuses its inputs: no"),
        (
            "    try: int('x')\n        except ValueError as e: raise ValueError('no x') from e",
            InvalidArgument,
            ": no x",
        ),
        ("with open('/dev/null'): raise ValueError('in with')", InvalidArgument, ": in with"),
        ("    try: int('x')\n        except ValueError: raise", ModelFailed, "in model.py line 4"),
    ],
)
def test_only_what_the_model_raises_itself_blames_the_caller(
    tmp_path: Path, body: str, error: type[Exception], says: str
) -> None:
    code = (
        f"class Model:\n    def __init__(self, config): pass\n    def execute(self, i, o):\n        {body.lstrip()}\n"
    )
    with pytest.raises(error) as caught:
        run(load(tmp_path, code + "def refuse(): raise ValueError('no')\n"), GOOD)
    assert says in str(caught.value)
    assert (caught.value.__cause__ is None) is (error is InvalidArgument)


def test_warm_up_is_optional_and_timed(tmp_path: Path) -> None:
    assert load(tmp_path, SHOWS).warm_up() == ()
    slow = SHOWS + "    def warm_up(self):\n        import time; time.sleep(0.001)\n"
    (run_us,) = load(tmp_path, slow).warm_up()
    assert run_us >= 1000
    with pytest.raises(ModelBroken, match="fails in its warm-up: ZeroDivisionError"):
        load(tmp_path, SHOWS + "    def warm_up(self): 1 / 0\n").warm_up()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("def f(:", "SyntaxError"),
        ("Model = 3", "TypeError"),
        ("x = 1", "define class Model in "),
        ("class Model:\n    def __init__(self, config): raise OSError('no device')", "no device"),
        ("class Model:\n    execute = 3\n    def __init__(self, config): pass", "has no function execute"),
    ],
)
def test_a_model_that_cannot_be_made(tmp_path: Path, code: str, says: str) -> None:
    with pytest.raises(ModelBroken) as caught:
        load(tmp_path, code)
    assert says in str(caught.value)
    assert "'m'" in str(caught.value)


def test_no_model_file(tmp_path: Path) -> None:
    config = read_config(CONFIG, "config.pbtxt", "m", "1", str(tmp_path / "none"))
    with pytest.raises(ModelBroken, match="put its class Model there"):
        LoadedModel(config, threads=1)
