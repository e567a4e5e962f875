"""Runs a model that is a Python class: `Model` in `NAME/<version>/model.py`.

    class Model:
        def __init__(self, config): ...           # a ModelConfig; config.path is the version's folder
        def execute(self, inputs, outputs): ...   # arrays in by name, outputs[name] = array out
        def warm_up(self): ...                    # optional

One that has `launch` in place of `execute` is run by `workers/backends/launched.py`. Its exceptions are told in one
sentence with the model's name. The module never sees a request's frame. Read `workers/backends/onnxruntime.py` next.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabric.errors import ModelBroken, because
from workers.backends.fresh import FreshLoader
from workers.faults import place, told

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from workers.backends.base import Inputs, Outputs
    from workers.modelconfig import ModelConfig


class PythonModel:
    """The class of one `model.py`, made. Raises ModelBroken when it cannot be imported or made."""

    __slots__ = ("_model", "_module", "reads_cards")

    def __init__(self, config: ModelConfig) -> None:
        self.reads_cards = config.flag("card_memory") and not config.decoupled
        self._module, self._model = _make(config)

    @property
    def model(self) -> Any:
        """The model itself."""
        return self._model

    @property
    def launches(self) -> bool:
        """Whether it only launches kernels: `workers/backends/launched.py` runs it then."""
        return not callable(getattr(self._model, "execute", None))

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Calls the model's own `execute`."""
        self._model.execute(inputs, outputs)

    def stream(self, inputs: Inputs, outputs: Any) -> Iterator[object]:
        """The generator that a decoupled model's `execute` is."""
        answers: Iterator[object] = self._model.execute(inputs, outputs)
        return answers

    def warm_up(self) -> bool:
        """Calls the model's own `warm_up`, if it has one."""
        warm_up = getattr(self._model, "warm_up", None)
        if warm_up is None:
            return False
        warm_up()
        return True

    def close(self) -> None:
        """Lets the module go."""
        sys.modules.pop(self._module.__name__, None)


def _make(config: ModelConfig) -> tuple[ModuleType, Any]:
    path = Path(config.path) / "model.py"
    name = _free_name(config)
    spec = importlib.util.spec_from_file_location(name, path, loader=FreshLoader(name, str(path)))
    if not path.is_file() or spec is None or spec.loader is None:
        raise ModelBroken(f"model {config.name!r} has no {path}; put its class Model there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look modules up by name
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "Model"):
            raise ModelBroken(f"model {config.name!r} has no class of that name; define class Model in {path}")
        model = module.Model(config)
        if callable(getattr(model, "launch", None)) and callable(getattr(model, "sizes", None)):
            return module, model
        if not callable(getattr(model, "execute", None)):
            raise ModelBroken(
                f"model {config.name!r}: class Model has no function execute(self, inputs, outputs); write it in {path}"
            )
        if config.decoupled and not inspect.isgeneratorfunction(model.execute):
            told_how = "have it yield after each answer, or leave model_transaction_policy out"
            raise ModelBroken(f"model {config.name!r} is decoupled and its execute does not yield; {told_how}")
        if inspect.isgeneratorfunction(model.execute) and not config.decoupled:
            told_how = "say model_transaction_policy { decoupled: true }, or return instead"
            raise ModelBroken(f"model {config.name!r} is not decoupled and its execute yields; {told_how}")
    except ModelBroken:
        del sys.modules[name]
        raise
    except BaseException as error:  # a model may raise anything, and must not stop others
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        where = place(error, config.path)
        broken = ModelBroken(f"model {config.name!r} cannot be made: {told(error)}{where}")
        raise because(broken, error) from error
    return module, model


def _free_name(config: ModelConfig) -> str:
    """A module's name: of its own for each load, since an older one may serve until this is warm."""
    first = name = f"overspill_model_{config.name}_{config.version}"
    load = 1
    while name in sys.modules:
        load += 1
        name = f"{first}_{load}"
    return name
