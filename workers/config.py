"""How a node is set up: command line over `node.toml` over defaults; a word that is not known is an error.

Nothing is read from the environment, and nothing is opened here. Read `workers/repository.py` next.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path

from discovery.lease_file import file_name
from fabric.errors import ConfigError, InvalidArgument
from fabric.rpc_fallback.config import check_token
from fabric.settings import (
    ARENA_BYTES_LEAST,
    BYTES_MOST,
    COUNT_MOST,
    DAY_S,
    check_flag,
    check_number,
    check_text,
    check_texts,
    check_whole,
)
from workers.device import CPU, asked_devices
from workers.inject import DEVICE_FAULTS, read_injections
from workers.seat import StandbyKind

WIRES = ("local", "rdma", "rpc")
MODEL_CONTROLS = ("none", "explicit")
WIRES_DEFAULT = ("local", "rpc")
FRONTDOOR_SHM = ("copy", "trust", "off")
_WHOLE = {
    "model_bytes_max": (0, BYTES_MOST),
    "quarantine_faults": (0, 10_000),
    "frontdoor_message_bytes_max": (1, 1 << 30),  # gRPC counts a message in 31 bits, its frames included
    "rdma_gid_index": (-COUNT_MOST, COUNT_MOST),
    "rdma_ack_timeout": (1, 22),  # what fabric/rdma/config.py takes, as of the other two
    "rdma_traffic_class": (0, 255),
    "rdma_service_level": (0, 15),
    "pinned_bytes_max": (0, BYTES_MOST),
    "queue_max": (1, COUNT_MOST),
    "threads_per_executor": (0, 1024),
    "arena_bytes_max": (ARENA_BYTES_LEAST, BYTES_MOST),
    "resident_bytes_max": (0, BYTES_MOST),
    "tenants_max": (1, 500),  # twice the words about one fit an executor's outbox (workers/child.py)
}
_SECONDS = {"drain_s": (0.0, DAY_S), "frontdoor_timeout_s": (0.001, DAY_S), "frontdoor_shm_lease_s": (0.0, DAY_S)}
NAME_CHARS_MAX = 200
"""A registry makes a file's name, or a value of 512 bytes, of it."""
_KINDS = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "tuple": "a list of texts",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """All settings of a node. Durations in seconds, sizes in bytes; paths as the operator wrote them."""

    models: str
    """The model repository: a folder of NAME/config.pbtxt and NAME/<version>/."""
    registry: str = ""
    """Where to register, `dir:PATH` or `consul:http://HOST:PORT`; empty registers nowhere."""
    node_id: str = ""
    """Name in the registry; empty makes one of the host name and a random tail."""
    rack: str = ""
    """What stands one switch away from this host has the same rack; callers elsewhere guess a longer way."""
    model_control: str = "none"
    """`none`: all models of the repository, from start to end; `explicit`: those that are asked for, when they are."""
    model_bytes_max: int = 0
    """Of the host's memory, for all models together; 0 takes four fifths of it."""
    load_models: tuple[str, ...] = ()
    """With `explicit`, the models to load at the start."""
    devices: str = "cpu:1"
    """One executor for each: `cpu:N` is N of them, `cuda:all` one on each GPU, `cuda:0` or `cuda:UUID` one on that GPU,
    `fake:N` N of them on fake cards, for drills."""
    standby: str = "off"
    """What stands beside each executor to follow it: `off`, `context` (a process with a context) or `full` (its models
    loaded as well, which takes their memory twice)."""
    quarantine_faults: int = 5
    """So many deaths of one GPU's executors within a minute put the GPU into quarantine; 0 never does."""
    fault_classes: str = ""
    """A file of fault classes; empty takes the shipped one, which `overspill doctor` names."""
    inject: str = ""
    """What to break on purpose, such as `illegal_address@route_plan:every=500`; empty breaks nothing."""
    wires: tuple[str, ...] = WIRES_DEFAULT
    listen: str = "127.0.0.1:0"
    """Address of the rpc wire; port 0 takes any free one."""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    rpc_token: str = ""
    """A secret that every caller of the rpc wire must show; empty asks for none."""
    frontdoor: str = ""
    """`[HOST:]PORT` of the front door for stock clients (gRPC); empty for none, without a host only this one."""
    frontdoor_http: str = ""
    """Its port for HTTP and metrics; empty takes the next one after gRPC's."""
    frontdoor_timeout_s: float = 300.0
    """For stock clients' requests that bring no time of their own."""
    frontdoor_message_bytes_max: int = 64 << 20
    """What the tensors of one message may take; larger ones are refused before they are read."""
    frontdoor_shm: str = "copy"
    """Stock clients' shared memory: `copy` moves bytes by system calls, `trust` maps it, `off` refuses it."""
    frontdoor_shm_lease_s: float = 3.0
    """How long regions outlive the client that registered them; 0 for ever."""
    frontdoor_traces: str = ""
    """Where traces of stock clients' requests go: a file, or a collector's URL (OTLP over HTTP); empty takes none."""
    rdma_device: str = ""
    """The RDMA device to use, such as mlx5_0; empty takes the best one."""
    rdma_gid_index: int = -1
    """Its entry in the table of addresses; negative takes the best one."""
    rdma_ack_timeout: int = 14
    """4.096 us x 2^14 = 67 ms for one acknowledgement, of which seven are awaited: raise it on a slow or lossy path."""
    rdma_traffic_class: int = 0
    """Marks the packets for the switches' lossless class; 0 is best effort."""
    rdma_service_level: int = 0
    pinned_bytes_max: int = 0
    """Memory that may be pinned for RDMA peers; 0 takes a quarter of the machine's. Who finds no room stays on rpc."""
    runtime_dir: str = ""
    """Folder for the local wire's socket; empty makes a private one, which goes with the node."""
    drain_s: float = 20.0
    """How long accepted requests may take to end after SIGTERM; process managers kill after 30 s, mostly."""
    queue_max: int = 4096
    threads_per_executor: int = 0
    """0 shares the processors among the executors."""
    arena_bytes_max: int = 4 << 30
    """The largest arena that one client gets."""
    resident_bytes_max: int = 1 << 30
    """What resident tensors (inputs that clients send once) may take together; 0 keeps none."""
    tenants_max: int = 256
    exit_with_parent: bool = False
    """Drain when the process that started the node ends."""

    def __post_init__(self) -> None:
        _check_values(self)
        if not self.models:
            raise ConfigError("no model repository is given; say --models DIR")
        if not self.wires or not set(self.wires) <= set(WIRES):
            raise ConfigError(f"wires are {', '.join(self.wires) or 'none'}; give some of {', '.join(WIRES)}")
        if "rdma" in self.wires and "rpc" not in self.wires:
            raise ConfigError("rdma is agreed upon over rpc, and falls back to it; give both, as in --wires rdma,rpc")
        if self.model_control not in MODEL_CONTROLS:
            raise ConfigError(f"model_control is {self.model_control!r}; give {' or '.join(MODEL_CONTROLS)}")
        if self.load_models and self.model_control != "explicit":
            raise ConfigError("load_models names models to load, but all are loaded; say --model-control explicit, too")
        if bool(self.tls_cert) != bool(self.tls_key) or (self.tls_ca and not self.tls_cert):
            raise ConfigError("TLS needs both tls_cert and tls_key, and tls_ca only beside them; give the missing file")
        standbys = [kind.value for kind in StandbyKind]
        if self.standby not in standbys:
            raise ConfigError(f"standby is {self.standby!r}; give one of {', '.join(standbys)}")
        devices, injections = asked_devices(self.devices), read_injections(self.inject)
        if all(each.kind == CPU for each in devices) and any(each.fault in DEVICE_FAULTS for each in injections):
            raise ConfigError(
                f"inject {self.inject!r} breaks a GPU and devices are {self.devices}; give a cuda or fake one"
            )
        _ = (self.rpc_host_port, self.frontdoor_addresses)

    @property
    def rpc_host_port(self) -> tuple[str, int]:
        """The rpc wire's address. Raises ConfigError when it is none."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"listen is {self.listen!r}; give HOST:PORT, with port 0 for any free one")
        return host.removeprefix("[").removesuffix("]"), int(port)

    @property
    def frontdoor_addresses(self) -> tuple[str, int, int]:
        """The front door's host and its ports for gRPC and HTTP. Raises ConfigError for what is none."""
        host, _, port = self.frontdoor.rpartition(":")
        numbers = []
        for setting, text in (("frontdoor", port or "0"), ("frontdoor_http", self.frontdoor_http or "0")):
            if not text.isascii() or not text.isdecimal() or int(text) > 65535:
                what = "[HOST:]PORT" if setting == "frontdoor" else "a port"
                raise ConfigError(f"{setting} is {getattr(self, setting)!r}; give {what}, with ports from 0 to 65535")
            numbers.append(int(text))
        if self.frontdoor_http and not self.frontdoor:
            raise ConfigError("frontdoor_http needs a front door; say --frontdoor PORT too")
        if numbers[0] == numbers[1] != 0:
            raise ConfigError(f"gRPC and HTTP of the front door cannot both have port {numbers[0]}; give another one")
        if numbers == [65535, 0]:
            raise ConfigError("after frontdoor's port 65535 there is none for HTTP; give one by --frontdoor-http PORT")
        if self.frontdoor_shm not in FRONTDOOR_SHM:
            raise ConfigError(f"frontdoor_shm is {self.frontdoor_shm!r}; give one of {', '.join(FRONTDOOR_SHM)}")
        return host.removeprefix("[").removesuffix("]") or "127.0.0.1", numbers[0], numbers[1]

    @classmethod
    def load(
        cls,
        file: str | None = None,
        *,
        registry: str | None = None,
        models: str | None = None,
        listen: str | None = None,
        devices: str | None = None,
        standby: str | None = None,
        inject: str | None = None,
        wires: str | None = None,
        node_id: str | None = None,
        model_control: str | None = None,
        load_models: list[str] | None = None,
        frontdoor: str | None = None,
        frontdoor_http: str | None = None,
        frontdoor_shm: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_ca: str | None = None,
        exit_with_parent: bool | None = None,
    ) -> NodeConfig:
        """The settings of a file with the given ones over them. Raises ConfigError for what cannot work."""
        given: dict[str, object] = {
            "registry": registry, "models": models, "listen": listen, "devices": devices, "wires": wires,
            "standby": standby, "inject": inject,
            "node_id": node_id, "model_control": model_control, "load_models": load_models,
            "frontdoor": frontdoor, "frontdoor_http": frontdoor_http, "frontdoor_shm": frontdoor_shm,
            "tls_cert": tls_cert, "tls_key": tls_key, "tls_ca": tls_ca,
            "exit_with_parent": exit_with_parent or None,
        }  # fmt: skip
        settings = {"models": "", **(_read(file) if file else {})}
        settings.update((name, value) for name, value in given.items() if value is not None)
        if isinstance(settings.get("wires"), str):
            settings["wires"] = [word.strip() for word in str(settings["wires"]).split(",")]
        return _checked(settings)


def _check_values(config: NodeConfig) -> None:
    """Each value by itself. Raises ConfigError."""
    for field in fields(config):
        if field.type == "str" and field.name != "rpc_token":  # which no message may show
            check_text(field.name, getattr(config, field.name))
    check_text("node_id", config.node_id, NAME_CHARS_MAX)
    check_text("rack", config.rack, NAME_CHARS_MAX)
    check_flag("exit_with_parent", config.exit_with_parent)
    check_token("rpc_token", config.rpc_token)
    check_texts("load_models", config.load_models)
    if not isinstance(config.wires, tuple):
        raise ConfigError(f"wires is {config.wires!r:.80}; give a tuple of {', '.join(WIRES)}")
    if config.node_id:
        _check_node_id(config.node_id)
    for name, (least, most) in _WHOLE.items():
        check_whole(name, getattr(config, name), least, most)
    for name, (least_s, most_s) in _SECONDS.items():
        check_number(name, getattr(config, name), least_s, most_s)


def _check_node_id(node_id: str) -> None:
    """A registry would refuse it later, when nobody looks."""
    try:
        file_name(node_id)
    except InvalidArgument as error:
        raise ConfigError(str(error)) from None


def _read(file: str) -> dict[str, object]:
    try:
        return tomllib.loads(Path(file).read_text())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}); give a file of settings") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no TOML: {error}; mend it there, text needs quotes") from None


def _checked(settings: dict[str, object]) -> NodeConfig:
    """Every value by its field's type: a number where a text belongs is told, not guessed at."""
    types = {field.name: str(field.type) for field in fields(NodeConfig)}
    unknown = sorted(settings.keys() - types.keys())
    if unknown:
        close = get_close_matches(unknown[0], types, n=1)
        there = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(types))}"
        raise ConfigError(f"setting {', '.join(unknown)} is unknown; {there}")
    values: dict[str, object] = {}
    for name, value in settings.items():
        kind = types[name]
        if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)  # noqa: PLW2901 - a whole number of seconds is a number of seconds
        if kind.startswith("tuple"):
            fitting = isinstance(value, list) and all(isinstance(word, str) for word in value)
            values[name] = tuple(value) if isinstance(value, list) else ()
        else:
            fitting = type(value).__name__ == kind
            values[name] = value
        if not fitting:
            raise ConfigError(f"setting {name} is {value!r}; it must be {_KINDS[kind.partition('[')[0]]}")
    return NodeConfig(**values)  # type: ignore[arg-type]  # checked above, field by field
