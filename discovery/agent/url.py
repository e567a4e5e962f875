"""The registry's URL: `consul:http://HOST:PORT?name=value&…`, read once and checked, so that nothing is guessed later.

Only the URL counts. Consul's own environment variables are not read: a variable that silently wins over a setting has
sent requests to the wrong cluster before (`overspill doctor` tells when one is set). A token never stands in the URL,
where other users of the host could read it, but in a file. This module opens nothing. Read `discovery/consul.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from discovery.catalogue import Guards
from fabric.errors import ConfigError

HTTP_PORT, HTTPS_PORT = 8500, 8501
"""Where agents listen by default; HTTPS is off until an operator gives it a port, by custom this one."""
_FORM = "give consul:http://HOST:PORT, or consul:https://HOST:PORT?ca=FILE"
_SERVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}[A-Za-z0-9])?")
"""Consul takes other names too, but its DNS then hides the service without a word."""


@dataclass(frozen=True, slots=True)
class ConsulTimes:
    """The registry's periods in seconds, each with the reason for its number."""

    heartbeat_s: float = 3.0
    """Five beats fit the time to live: an agent that stalls for some seconds makes nobody flap."""
    ttl_s: float = 15.0
    """Silence after which Consul calls a worker critical. Quick detection is the link's job, not this one's."""
    reap_s: float = 600.0
    """Critical for so long, an entry is removed by its agent; 60 s is the least that Consul takes."""
    refresh_s: float = 60.0
    """A whole registration again, which heals what an agent forgot without a word."""
    wait_s: float = 60.0
    """How long a read may block; Consul allows 600 and adds up to a sixteenth."""
    answer_s: float = 5.0
    """Added to a blocking read's wait, and all that any other call gets."""
    connect_s: float = 2.0
    propagation_s: float = 0.25
    """From maintenance to removal: a change reached all watchers within 14 ms (measured), so they see the drain."""
    backoff_first_s: float = 0.1
    backoff_max_s: float = 3.0
    """Full jitter up to here, one heartbeat: when servers come back, their readers come spread over that time."""
    read_gap_s: float = 0.02
    """The least time between two reads of a list that keeps changing, two aside."""
    read_share: float = 0.03
    """The share of one core that reading may cost: with a long list in motion reads come less often."""
    guards: Guards = field(default_factory=Guards)


@dataclass(frozen=True, slots=True)
class ConsulSettings:
    """Where the agent is, how it is spoken to, and under which name the fabric's nodes are entered."""

    host: str
    port: int
    tls: bool = False
    service: str = "overspill"
    ca: str = ""
    """PEM file of the authority that signed the agent's certificate; empty takes the system's."""
    cert: str = ""
    key: str = ""
    token_file: str = ""
    dc: str = ""
    ns: str = ""
    partition: str = ""
    rack: str = ""
    """Where this reader stands: workers of the same rack get no network estimate, which cannot tell them apart."""
    last_good: str = ""
    """File of the last good list; empty means the usual place, `off` none."""
    times: ConsulTimes = field(default_factory=ConsulTimes)

    @property
    def place(self) -> str:
        """`http://HOST:PORT`, as errors name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"


_TEXTS = {"service", "ca", "cert", "key", "token_file", "dc", "ns", "partition", "rack", "last_good"}
_TIMES = {time.name for time in fields(ConsulTimes)} - {"guards"}


def parse_url(rest: str) -> ConsulSettings:
    """Reads what follows `consul:`. Raises ConfigError for anything that cannot work."""
    try:
        split = urlsplit(rest)
        host, port = split.hostname, split.port
    except ValueError:
        raise ConfigError(f"registry consul:{rest} names no address; {_FORM}") from None
    if split.scheme not in {"http", "https"} or not host or split.path.strip("/") or split.fragment:
        raise ConfigError(f"registry consul:{rest} names no address; {_FORM}")
    if split.username or split.password:
        raise ConfigError("a registry URL holds no user and no password; put the token in a file, ?token_file=FILE")
    tls = split.scheme == "https"
    settings = ConsulSettings(host, port or (HTTPS_PORT if tls else HTTP_PORT), tls)
    texts: dict[str, str] = {}
    times: dict[str, float] = {}
    for name, value in parse_qsl(split.query, keep_blank_values=True):
        if name in _TIMES:
            times[name] = _number(name, value)
        elif name in _TEXTS:
            texts[name] = value
        else:
            raise ConfigError(_unknown(name))
    return _checked(replace(settings, **texts, times=replace(settings.times, **times)))  # type: ignore[arg-type]


def _unknown(name: str) -> str:
    if name == "token":
        return "a registry URL holds no token, since others can read it there; write it to a file, ?token_file=FILE"
    known = sorted(_TEXTS | _TIMES)
    close = get_close_matches(name, known, n=1)
    return f"registry setting {name!r} is unknown; " + (f"did you mean {close[0]}?" if close else ", ".join(known))


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not (isfinite(number) and number > 0):
        raise ConfigError(f"registry setting {name} is {value!r}; give seconds above zero")
    return number


def _check_path(name: str, value: str) -> None:
    try:
        sound = not value or (value.isprintable() and Path(value).expanduser().name != "")
    except RuntimeError:  # the home of somebody who is not there
        sound = False
    if not sound:
        raise ConfigError(f"registry setting {name} is {value!r}, which names no file; give the path of a file")


def _checked(settings: ConsulSettings) -> ConsulSettings:
    times = settings.times
    if not _SERVICE.fullmatch(settings.service):
        raise ConfigError(f"service {settings.service!r} is no DNS name; give letters, digits and hyphens, 64 at most")
    for name in ("last_good", "token_file", "ca", "cert", "key"):
        _check_path(name, getattr(settings, name))
    if bool(settings.cert) != bool(settings.key):
        raise ConfigError("mTLS to Consul needs both cert and key; give the missing file")
    if (settings.ca or settings.cert) and not settings.tls:
        raise ConfigError("ca, cert and key are for https; give consul:https://HOST:PORT, which is a port of its own")
    if times.ttl_s < 3.0 * times.heartbeat_s:
        raise ConfigError(
            f"ttl_s={times.ttl_s:g} leaves no room for a late beat of heartbeat_s={times.heartbeat_s:g}, so workers"
            f" would flap; give ttl_s={5 * times.heartbeat_s:g}"
        )
    if times.reap_s < 60.0:
        raise ConfigError(f"reap_s is {times.reap_s:g}; Consul removes critical entries after 60 s at the earliest")
    if times.wait_s > 600.0:
        raise ConfigError(f"wait_s is {times.wait_s:g}; Consul lets a read block for 600 s at most")
    return settings
