"""Opens a model's backend by its name, and decides whether it uses the executor's GPU.

A backend's library is imported by its own file, when the first model of that backend is loaded. Read
`workers/backends/base.py` for what they all do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import ModelBroken

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.backends.base import Backend
    from workers.card_rooms import CardRooms
    from workers.execution import LoadedModel
    from workers.modelconfig import ModelConfig

DEVICES = ("auto", "cpu", "gpu")


def nobody(_name: str) -> LoadedModel | None:
    """For a model that needs no other one."""
    return None


def open_backend(
    config: ModelConfig, threads: int, *, on_gpu: bool, find: Callable[[str], LoadedModel | None] = nobody,
    rooms: CardRooms | None = None,
) -> Backend:  # fmt: skip
    """The loaded model. `on_gpu` says that this executor owns a GPU, whose memory is `rooms`; `find` gives another
    model that it has loaded. Raises ModelBroken or MissingDependency."""
    if config.steps:
        from workers.backends.ensemble import Ensemble

        return Ensemble(config, find, rooms)
    if config.backend == "onnxruntime":
        from workers.backends.onnxruntime import OnnxModel

        return OnnxModel(config, threads, on_gpu=on_gpu)
    if config.backend == "torch":
        from workers.backends.torch import TorchModel

        return TorchModel(config, threads, on_gpu=on_gpu)
    if config.backend == "tensorrt":
        from workers.backends.tensorrt import TensorRtModel

        return TensorRtModel(config, on_gpu=on_gpu)
    from workers.backends.python import PythonModel

    model = PythonModel(config)
    if model.launches:
        from workers.backends.launched import LaunchedModel

        return LaunchedModel(config, model, on_gpu=on_gpu)
    return model


def uses_gpu(config: ModelConfig, *, on_gpu: bool, lacks: str) -> bool:
    """Whether a model runs on the GPU, by its parameter `device`: `auto` (if the executor has one and its library can),
    `cpu`, `gpu`. `lacks` says what the library lacks for it, empty for nothing. Raises ModelBroken where `gpu` cannot
    be."""
    device = config.parameter("device", "auto")
    if device not in DEVICES:
        raise ModelBroken(f"model {config.name!r}: parameter 'device' is {device!r}; give {', '.join(DEVICES)}")
    if device == "gpu" and not on_gpu:
        raise ModelBroken(f"model {config.name!r} wants a GPU and this executor has none; start the node with cuda:all")
    if device == "gpu" and lacks:
        raise ModelBroken(f"model {config.name!r} wants a GPU: {lacks}")
    return device != "cpu" and on_gpu and not lacks
