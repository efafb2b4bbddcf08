"""Configuration: frozen dataclasses filled from defaults, one TOML file, RMGR_* variables and options, in that order.

File: RMGR_CONFIG, else `$XDG_CONFIG_HOME/rmgr/config.toml`, else `/etc/rmgr/config.toml`. If none of them names a cluster, the endpoints
    that a running `rmgr dev` recorded are used (`dev.toml`). An unknown key is an error that names file and line. Variables:
    RMGR_<SECTION>_<KEY> (RMGR_STARTER_CORES), and RMGR_ZK, RMGR_STORE, RMGR_GATEWAY for short.

Credentials: `[security] dir` (RMGR_SECURITY_DIR). If it is not set, the bundle in `$XDG_CONFIG_HOME/rmgr/bundle` is used if there is one
    (`rmgr admin init` puts the first user's there); if it is set to be empty (RMGR_SECURITY_DIR=""), none is. A running `rmgr dev` that is
    found by its record brings its own.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from rmgr.errors import UNREADABLE_TEXT, ConfigError, NotConnected, UsageError, nearest
from rmgr.model.base import checked_resources
from rmgr.model.units import duration_us_of, size_of

DEFAULT_CHROOT = "/rmgr/default"

_QUOTED = '"{}"'
#: A character beyond U+FFFF as JSON escapes it.
_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Ways to a cluster (section [cluster])."""

    zk: str = ""  #: HOSTS[/CHROOT]
    store: str = ""  #: sqlite:PATH, cassandra://host1,host2/keyspace?...
    gateway: str = ""  #: HOST:PORT[,HOST:PORT...] of Submitter gateways, instead of zk and store; calls of servers always go there
    session_timeout_s: float = 10.0  #: T: how long a silent process is assumed to be alive
    connect_timeout_s: float = 10.0
    cluster_id: str = ""  #: if set, any other cluster is refused

    @property
    def uses_gateway(self) -> bool:
        """Whether ZooKeeper and the data store are reached through a gateway."""
        return bool(self.gateway and not self.zk)

    def hosts_and_chroot(self) -> tuple[str, str]:
        """Splits `h1:2181,h2:2181/rmgr/x` into (hosts, chroot). Raises: NotConnected if nothing is configured."""
        if not self.zk and self.gateway:
            raise NotConnected("this needs ZooKeeper itself, and only a gateway is configured", hint="name it: --zk HOSTS or RMGR_ZK")
        if not self.zk:
            if stopped := stopped_dev():
                raise NotConnected(
                    f"no cluster is configured, and ZooKeeper of the one in {stopped} does not run",
                    hint=f"rmgr dev status --dir {stopped} tells what of it runs; rmgr dev --dir {stopped} starts it again",
                )
            raise NotConnected(
                "no cluster is configured and none is running on this machine",
                hint="start one with: rmgr dev   (or name one: --zk HOSTS, RMGR_ZK)",
            )
        hosts, slash, path = self.zk.partition("/")
        return hosts, f"/{path.rstrip('/')}" if slash and path.strip("/") else DEFAULT_CHROOT


#: Most nodes of one Starter: one commit registers their records, inboxes and its entry.
MAX_NODES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterConfig:
    """A Starter (section [starter])."""

    node: str = ""  #: default: the host name
    nodes: int = 1  #: virtual nodes that this process stands for, at most `MAX_NODES`
    cores: int = 0  #: 0 = all of the machine
    call_cores: int = 0  #: of each node's cores: kept for a server of calls beside this Starter; no work is pulled or placed there
    memory_bytes: int = 0  #: 0 = all of the machine
    partition: str = "default"
    site: str = ""
    speed: float = 1.0
    features: tuple[str, ...] = ()
    #: countable things that each node offers, { gpu = 2 }; NVIDIA GPUs of the machine are found if "gpu" is not set
    resources: dict[str, int] = field(default_factory=dict)
    bind_cpus: str = "auto"  #: yes | no | auto: work has processors of its own; auto = if the Starter has all of the machine
    #: auto | v2 | signals: how jobs of a gang are stopped between their turns: by control groups, or by SIGSTOP
    freezer: str = "auto"
    work_dir: str = ""  #: default: a directory of the user's cache
    listen: str = "127.0.0.1:0"
    advertise: str = ""  #: HOST[:PORT] for others; default: where it listens, or the host name if that is everywhere
    #: port for direct lines of clients, on the host of `listen`: news of single tasks comes a fraction of a millisecond earlier; 0 = any,
    #: -1 = none
    line_port: int = 0
    #: HOST:PORT, or an address alone: port 9720, or the first free one of the next ten
    metrics: str = "127.0.0.1"
    stop_grace_s: float = 30.0  #: SIGTERM: time for running work to finish
    log_cap_bytes: int = 64 * 1024 * 1024  #: output kept of one stream of one task
    spool_cap_bytes: int = 1024 * 1024 * 1024  #: finished outputs kept while the store is away
    #: in memory: inputs of keyed tasks that each node reads ahead; and as much again of outputs, for all its nodes together
    values_cap_bytes: int = 64 * 1024 * 1024
    #: on disk, of all nodes of the process: uploads, input files and work directories made from them
    staging_cap_bytes: int = 16 * 1024 * 1024 * 1024
    staging_cap_user_bytes: int = 0  #: of it, for one user; 0 = three quarters if work runs as its user, else all
    #: on disk: what the work of one user writes into its directories, if work runs as its user; 0 = half of the space free at the start
    work_cap_user_bytes: int = 0
    work_cap_bytes: int = 0  #: the same for all users; 0 = nine tenths
    python: str = ""  #: interpreter of workers; default: this one
    checkpoint_max_bytes: int = 1024 * 1024 * 1024  #: of one job on all its nodes; larger checkpoints are not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogConfig:
    """A WatchDog (section [watchdog])."""

    listen: str = "127.0.0.1:0"
    advertise: str = ""  #: as a Starter's
    metrics: str = "127.0.0.1"  #: as a Starter's; 9710
    resync_s: float = 20.0  #: full comparison of memory and znodes


#: Bounds of `[submitter] refresh_s`.
REFRESH_S = 1.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitterConfig:
    """A Submitter gateway (section [submitter])."""

    listen: str = "127.0.0.1:0"
    metrics: str = "127.0.0.1"  #: as a Starter's; 9730
    calls: bool = True  #: passes calls of functions on to servers
    site: str = ""  #: network from which servers are reached
    refresh_s: float = 10.0  #: how often servers are asked for their load, and links measured: `REFRESH_S`


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """A server of calls (section [server])."""

    name: str = ""  #: default: the host name
    site: str = ""  #: network in which it stands
    functions: str = ""  #: TOML of what it offers; empty = the shipped functions
    slots: int = 0  #: calls that run at once; 0 = one for each processor
    dial: str = ""  #: HOST:PORT[,HOST:PORT...] of gateways; empty = `[cluster] gateway`
    speed: float = 0.0  #: million operations a second of one slot; 0 = measured once at the start
    spool: str = ""  #: directory for arguments and answers; default: a directory of the user's cache
    spool_cap_bytes: int = 4 * 1024 * 1024 * 1024  #: arguments and answers there
    max_bytes: int = 1024 * 1024 * 1024  #: arguments, or answer, of one call
    most_waiting: int = 100  #: most calls without a slot
    per_user: int = 50  #: the same for one user
    python: str = ""  #: interpreter of workers; default: this one
    metrics: str = "127.0.0.1"  #: as a Starter's; 9740
    stop_grace_s: float = 30.0  #: SIGTERM: time for its calls to end


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Identity of this process, and rights that daemons grant (section [security])."""

    dir: str = ""  #: the bundle of credentials of this process; empty = an open cluster, on loopback only
    operators: tuple[str, ...] = ()  #: users who may act on everyone's work, besides those whose certificate says so
    run_as: str = "auto"  #: user | self | auto: whose rights work has; auto = the user's if the Starter is root and has a bundle
    min_uid: int = 1000  #: work of accounts below is refused if work runs as its user
    payload_ttl_s: float = 30 * 86400.0  #: how long signed work may wait; then its signature is too old to start it
    work_bundle: str = ""  #: credentials for work on this node that submits work; empty = its user's own, in the home directory
    work_gateway: str = ""  #: HOST:PORT of the gateway for that work; empty = as the Starter reaches the cluster
    zookeeper_tls: bool = False  #: ZooKeeper is reached by TLS, with the bundle's certificates


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Logging of daemons (section [log])."""

    level: str = "info"
    format: str = "auto"  #: auto (pretty on a terminal) | json | pretty


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All sections."""

    cluster: ClusterConfig = ClusterConfig()
    starter: StarterConfig = StarterConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    submitter: SubmitterConfig = SubmitterConfig()
    server: ServerConfig = ServerConfig()
    security: SecurityConfig = SecurityConfig()
    log: LogConfig = LogConfig()
    source: str = ""  #: the file that was read, for `rmgr config show`


SECTIONS: dict[str, type[Any]] = {
    "cluster": ClusterConfig,
    "starter": StarterConfig,
    "watchdog": WatchdogConfig,
    "submitter": SubmitterConfig,
    "server": ServerConfig,
    "security": SecurityConfig,
    "log": LogConfig,
}
_SHOWS = "rmgr config show prints valid ones"
_FINITE = sys.float_info.max
#: Least and most of a number.
_BOUNDS: dict[tuple[type[Any], str], tuple[float, float]] = {
    (StarterConfig, "nodes"): (1, MAX_NODES),
    (StarterConfig, "cores"): (0, 99_999),
    (StarterConfig, "call_cores"): (0, 99_999),
    (StarterConfig, "line_port"): (-1, 65535),
    (StarterConfig, "speed"): (0, _FINITE),
    (ServerConfig, "slots"): (0, 99_999),
    (ServerConfig, "speed"): (0, _FINITE),
    (ServerConfig, "most_waiting"): (1, 99_999),
    (ServerConfig, "per_user"): (1, 99_999),
    (SecurityConfig, "min_uid"): (0, 2**32),
}
#: Words that a text may be.
_WORDS: dict[tuple[type[Any], str], tuple[str, ...]] = {
    (StarterConfig, "bind_cpus"): ("auto", "yes", "no"),
    (StarterConfig, "freezer"): ("auto", "v2", "signals"),
    (SecurityConfig, "run_as"): ("auto", "user", "self"),
    (LogConfig, "level"): ("debug", "info", "warning", "error"),
    (LogConfig, "format"): ("auto", "json", "pretty"),
}
#: Texts that name what others refer to by it.
_NAMES: dict[tuple[type[Any], str], str] = {
    (StarterConfig, "node"): "node",
    (StarterConfig, "partition"): "partition",
    (ServerConfig, "name"): "server",
}
#: Texts that name places, and what to write: `_check_place`.
_PLACES: dict[tuple[type[Any], str], str] = {
    (ClusterConfig, "zk"): "zk1:2181,zk2:2181/rmgr/NAME",
    (ClusterConfig, "store"): "sqlite:PATH (one machine) or cassandra://host1,host2/keyspace (several)",
    (ClusterConfig, "gateway"): "HOST:PORT, or several: HOST:PORT,HOST:PORT",
    (StarterConfig, "listen"): "HOST:PORT, as in 127.0.0.1:7071; port 0 is any free one",
    (StarterConfig, "advertise"): "HOST or HOST:PORT, as others reach it",
    (StarterConfig, "metrics"): "ADDRESS or HOST:PORT, as in 127.0.0.1 or 0.0.0.0:9720",
    (WatchdogConfig, "listen"): "HOST:PORT, as in 127.0.0.1:7070; port 0 is any free one",
    (WatchdogConfig, "advertise"): "HOST or HOST:PORT, as others reach it",
    (WatchdogConfig, "metrics"): "ADDRESS or HOST:PORT, as in 127.0.0.1 or 0.0.0.0:9710",
    (SubmitterConfig, "listen"): "HOST:PORT, as in 127.0.0.1:7071; port 0 is any free one",
    (SubmitterConfig, "metrics"): "ADDRESS or HOST:PORT, as in 127.0.0.1 or 0.0.0.0:9730",
    (ServerConfig, "dial"): "HOST:PORT, or several: HOST:PORT,HOST:PORT",
    (ServerConfig, "metrics"): "ADDRESS or HOST:PORT, as in 127.0.0.1 or 0.0.0.0:9740",
    (SecurityConfig, "work_gateway"): "HOST:PORT, or several: HOST:PORT,HOST:PORT",
}
#: A name or an address (IPv6 in brackets), and a port.
_PLACE = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+(?:%[\w.-]+)?\]|[\w.-]+)(?::(?P<port>[0-9]{1,5}))?")
#: Who is named in a URL, and passwords among its options.
_SECRETS = re.compile(r"(?<=//)[^/@\s]*(?=@)|(?<=[?&])((?:password|passwd|pwd)=)[^&\s]*")
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
#: A variable of a server of calls for its functions.
_NO_SETTING = "RMGR_SERVER_LIFE"
_SHORT = {"RMGR_ZK": ("cluster", "zk"), "RMGR_STORE": ("cluster", "store"), "RMGR_GATEWAY": ("cluster", "gateway")}


def load(
    overrides: Mapping[str, Mapping[str, Any]] | None = None, *, env: Mapping[str, str] | None = None, file: str | None = None
) -> Config:
    """Returns the configuration of this process.

    Args:
        overrides: options from the command line by section and key; None values are ignored.
        env: default `os.environ`. file: instead of the search (must exist).
    Raises: ConfigError naming file and line, variable, or option.
    """
    env = os.environ if env is None else env
    path = _find_file(env, file)
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    if path is not None:
        _merge_file(values, path)
    variables: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for variable, text in env.items():
        target = _SHORT.get(variable) or _variable(variable)
        if target is not None:
            variables[target[0]][target[1]] = _convert(SECTIONS[target[0]], target[1], text, f"variable {variable}")
    _merge(values, variables)
    typed: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section, options in (overrides or {}).items():
        for key, value in options.items():
            if value is not None:
                typed[section][key] = _convert(SECTIONS[section], key, value, f"option --{key.replace('_', '-')}")
    _merge(values, typed)
    if not values["cluster"].get("zk") and not values["cluster"].get("gateway"):
        cluster, security = _dev_cluster(env)
        values["cluster"] = cluster | values["cluster"]
        values["security"] = security | values["security"]
    if "dir" not in values["security"] and (user_bundle(env) / "ca.crt").is_file():
        values["security"]["dir"] = str(user_bundle(env))
    return Config(**{name: kind(**values[name]) for name, kind in SECTIONS.items()}, source=str(path or ""))


def user_name() -> str:
    """Returns the name of the account that runs this process: its user's in an open cluster."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a uid without a name
        return str(os.getuid()) if hasattr(os, "getuid") else "user"


def user_directory(env: Mapping[str, str] | None = None) -> Path:
    """Returns the directory of a user's own files of rmgr."""
    env = os.environ if env is None else env
    return Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or Path.home()) / ".config") / "rmgr"


def user_bundle(env: Mapping[str, str] | None = None) -> Path:
    """Returns where a user's own credentials are looked for by default."""
    return user_directory(env) / "bundle"


def authority_directory(env: Mapping[str, str] | None = None) -> Path:
    """Returns where an admin's cluster authority is made and looked for by default."""
    return user_directory(env) / "authority"


def dev_file(env: Mapping[str, str] | None = None) -> Path:
    """Returns where a running `rmgr dev` records its endpoints."""
    env = os.environ if env is None else env
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "rmgr" / "dev.toml"
    return Path(env.get("HOME") or Path.home()) / ".rmgr" / "dev.toml"


def check_file(path: Path) -> Config:
    """Reads one file alone, as `rmgr config check` does. Raises: ConfigError."""
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    _merge_file(values, path)
    return Config(**{name: kind(**values[name]) for name, kind in SECTIONS.items()}, source=str(path))


def _merge(values: dict[str, dict[str, Any]], upper: Mapping[str, Mapping[str, Any]]) -> None:
    """Lays `upper` over `values`. A layer that names one way to the cluster replaces the other way of a lower layer."""
    for way, other in (("zk", "gateway"), ("gateway", "zk")):
        if upper["cluster"].get(way) and not upper["cluster"].get(other):
            values["cluster"].pop(other, None)
    for section, keys in upper.items():
        values[section] |= keys


def _find_file(env: Mapping[str, str], file: str | None) -> Path | None:
    named = file or env.get("RMGR_CONFIG")
    if named:
        if not Path(named).is_file():
            hint = f"{'name another: --config FILE' if file else 'unset RMGR_CONFIG'}, or write the file: rmgr config show prints one"
            raise ConfigError(f"the configuration file {named} does not exist", hint=hint)
        return Path(named)
    return next((path for path in (user_directory(env) / "config.toml", Path("/etc/rmgr/config.toml")) if path.is_file()), None)


def _merge_file(values: dict[str, dict[str, Any]], path: Path) -> None:
    try:
        text = path.read_text("utf-8-sig")
        document = tomllib.loads(text)
    except UNREADABLE_TEXT as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", hint="rmgr config check FILE") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name another one: --config FILE or RMGR_CONFIG") from error
    for section, table in document.items():
        kind = SECTIONS.get(section)
        if kind is None or not isinstance(table, dict):
            raise ConfigError(f"{path}:{line_of(text, section, '')}: unknown section {section!r}", hint=nearest(section, SECTIONS))
        known = {field.name for field in dataclasses.fields(kind)}
        for key, value in table.items():
            where = f"{path}:{line_of(text, key, section)}"
            if key not in known:
                raise ConfigError(f"{where}: unknown key {key!r} in section [{section}]", hint=nearest(key, known))
            values[section][key] = _convert(kind, key, value, where)


def line_of(text: str, key: str, section: str) -> int:
    """Returns the line (from 1) of `key` of `[section]` in a TOML text; with section='', of a section itself. 1 if not found."""
    inside = not section
    for number, line in enumerate(text.split("\n"), 1):  # as editors count; splitlines() knows more ends of lines
        header = re.match(r"\s*\[+\s*([^\]\s]+)\s*\]+", line)
        if header:
            if not section and header[1].split(".")[0].strip('"') == key:
                return number
            inside = header[1] == section or not section
        elif inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
            return number
    return 1


def _variable(name: str) -> tuple[str, str] | None:
    """Returns section and key: RMGR_STARTER_CORES -> ("starter", "cores"); None for variables that are no settings (RMGR_JOB_ID, ...)."""
    match = re.match(r"^RMGR_([A-Z]+)_([A-Z_]+)$", name)
    if match is None or match[1].lower() not in SECTIONS or name == _NO_SETTING:
        return None
    section, key = match[1].lower(), match[2].lower()
    known = {field.name for field in dataclasses.fields(SECTIONS[section])}
    for candidate in (key, f"{key}_s", f"{key}_bytes"):
        if candidate in known:
            return section, candidate
    raise ConfigError(f"variable {name}: unknown key {key!r} in section [{section}]", hint=nearest(key, known))


def _convert(kind: type[Any], key: str, value: Any, where: str) -> Any:
    """Converts the value of a key from TOML, a variable's text, or an option."""
    hint = get_type_hints(kind)[key]
    shown = without_secrets(value) if isinstance(value, str) else value
    try:
        if key.endswith("_s") and hint is float:
            seconds = duration_us_of(value) / 1e6
            if (kind, key) == (SubmitterConfig, "refresh_s") and not REFRESH_S[0] <= seconds <= REFRESH_S[1]:
                raise UsageError("servers are asked every 1 s to 1 h", hint="refresh_s = 10")
            return seconds
        if key.endswith("_bytes"):
            return size_of(value)
        if hint is bool:
            return _BOOLEANS[str(value).lower()]
        if hint is int and not isinstance(value, bool):
            return _bounded(kind, key, int(value))
        if hint is float:
            return _bounded(kind, key, float(value))
        if hint is str and isinstance(value, str):
            if (kind, key) in _NAMES and value:
                _check_name(_NAMES[kind, key], value)
            if words := _WORDS.get((kind, key)):
                if value.lower() not in words:
                    raise UsageError(f"it is one of {', '.join(words)}", hint=_SHOWS)
                return value.lower()
            if (kind, key) in _PLACES and (value or getattr(kind(), key)):  # else it may be left empty
                _check_place(key, value, _PLACES[kind, key])
            return value
        if hint == dict[str, int]:
            return checked_resources(_pairs(value))
        if hint == tuple[str, ...]:
            return tuple(part for part in value.split(",") if part) if isinstance(value, str) else tuple(str(part) for part in value)
    except KeyError:
        raise ConfigError(f"{where}: {key} = {shown!r} is not valid", hint="true or false") from None
    except ValueError as error:
        if hint not in {int, float} or isinstance(error, UsageError):
            raise ConfigError(f"{where}: {key} = {shown!r} is not valid: {error}", hint=getattr(error, "hint", "")) from error
        raise ConfigError(f"{where}: {key} = {shown!r} is not valid: a {'whole ' * (hint is int)}number is needed", hint=_SHOWS) from None
    except (TypeError, OverflowError, UsageError) as error:
        raise ConfigError(f"{where}: {key} = {shown!r} is not valid: {error}", hint=getattr(error, "hint", "")) from error
    raise ConfigError(f"{where}: {key} = {shown!r} is not valid: {getattr(hint, '__name__', hint)} expected", hint=_SHOWS)


def _bounded(kind: type[Any], key: str, number: float) -> float:
    """Returns the number. Raises: UsageError if it is out of its bounds, or no number (nan)."""
    least, most = _BOUNDS.get((kind, key), (-_FINITE, _FINITE))
    if not least <= number <= most:
        allowed = f"{least:g} or more" if most == _FINITE else f"{least:g} to {most:g}"
        raise UsageError(f"it is a number of {allowed}", hint=_SHOWS)
    return number


def _check_place(key: str, text: str, hint: str) -> None:
    """Raises UsageError for what can be no place of ZooKeeper, of a store, of gateways, or to listen at. hint: what to write."""
    if key == "store":
        scheme, _, rest = text.partition(":")
        if scheme not in {"sqlite", "cassandra"} or not rest:
            raise UsageError(f"{without_secrets(text)!r} is not the URL of a store", hint=hint)
        return
    hosts, _, path = text.partition("/") if key == "zk" else (text, "", "")
    lowest, is_bare = (0 if key in {"listen", "metrics"} else 1), key in {"zk", "metrics", "advertise"}
    form = "HOST or HOST:PORT" if is_bare else "HOST:PORT"
    parts = hosts.split(",") if key in {"zk", "gateway", "dial", "work_gateway"} else [hosts]
    for part in parts if key == "zk" else [part for part in parts if part.strip()] or parts:
        found = _PLACE.fullmatch(part.strip())
        if found is None or not (found["port"] or is_bare):
            raise UsageError(f"{part!r} is not {form}", hint=hint)
        if found["port"] and not lowest <= int(found["port"]) <= 65535:
            raise UsageError(f"{part!r} is not {form}: ports are {lowest} to 65535", hint=hint)
        if not _is_host(found["host"]) or (key == "metrics" and not found["port"] and not _is_address(found["host"])):
            raise UsageError(f"{found['host']!r} is no address", hint=hint)
    if path.strip("/") and not {"", ".", ".."}.isdisjoint(path.rstrip("/").split("/")):
        raise UsageError(f"'/{path}' is not the path of a znode", hint=hint)


def without_secrets(text: str) -> str:
    """Returns what may be shown of a URL."""
    return _SECRETS.sub(lambda found: f"{found[1] or ''}***", text)


def _is_host(text: str) -> bool:
    """Returns whether it is an address, or can be a name."""
    return _is_address(text) if text.startswith("[") or not text.strip("0123456789.") else text[0] not in "-."


def _is_address(text: str) -> bool:
    """Returns whether it is an IPv4 address, an IPv6 address in brackets, or `localhost`."""
    if text.startswith("["):
        import ipaddress  # few write one

        try:
            return ipaddress.ip_address(text.strip("[]")).version == 6
        except ValueError:
            return False
    parts = text.split(".")
    return text == "localhost" or (len(parts) == 4 and all(part.isdecimal() and int(part) < 256 for part in parts))


def _check_name(kind: str, name: str) -> None:
    from rmgr.model.base import check_name  # clients need nothing of either
    from rmgr.model.servers import CALLS

    check_name(kind, name)
    if kind == "partition" and name == CALLS:
        raise UsageError(
            f"partition {CALLS} is for calls of functions, and has servers instead of nodes",
            hint="leave it out, or another name; rmgr server serves calls, and [starter] call_cores = K keeps cores for it on this machine",
        )


def _pairs(value: Any) -> list[tuple[str, int]]:
    """Splits `gpu=2,tape=1`, a table, or pairs. Raises: TypeError, ValueError."""
    if isinstance(value, str):
        words = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        return [(name.strip(), int(count)) for name, _, count in words]
    return list(value.items()) if isinstance(value, Mapping) else [(name, count) for name, count in value]


def toml_value(value: Any) -> str:
    """Returns a value in TOML notation, in ASCII. TOML has JSON's strings, but neither pairs of surrogates nor a plain DEL."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    text = json.dumps(value).replace("\x7f", "\\u007f")
    return _PAIR.sub(lambda found: f"\\U{ord(json.loads(_QUOTED.format(found[0]))):08x}", text)


def toml_key(key: str) -> str:
    """Returns a key in TOML notation."""
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else toml_value(key)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def is_of_dev(zk: str) -> bool:
    """Returns whether this ZooKeeper belongs to a `rmgr dev` that was not stopped."""
    return bool(zk) and _dev_cluster(os.environ)[0].get("zk") == zk


def stopped_dev(env: Mapping[str, str] | None = None) -> str:
    """Returns the directory of a `rmgr dev` that was not stopped and has lost its ZooKeeper, "" if there is none."""
    env = os.environ if env is None else env
    if not dev_file(env).exists() or _dev_cluster(env)[0]:
        return ""
    try:
        return str(tomllib.loads(dev_file(env).read_text("utf-8"))["dev"]["directory"])
    except (OSError, KeyError, TypeError, AttributeError, *UNREADABLE_TEXT):
        return ""


def _dev_cluster(env: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns endpoints and credentials ([cluster], [security]) of a running `rmgr dev`, else nothing."""
    path = dev_file(env)
    try:
        document = tomllib.loads(path.read_text("utf-8"))
        pids = [int(pid) for pid in document["dev"].get("pids") or [document["dev"]["pid"]]]
    except (OSError, KeyError, TypeError, AttributeError, *UNREADABLE_TEXT):
        return {}, {}
    if not any(map(_lives, pids)):
        return {}, {}
    cluster = {key: value for key, value in document.get("cluster", {}).items() if key in {"zk", "store", "gateway", "session_timeout_s"}}
    return cluster, {key: value for key, value in document.get("security", {}).items() if key == "dir"}
