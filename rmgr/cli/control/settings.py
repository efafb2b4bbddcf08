"""`rmgr config show|check|apply`: the configuration of this process, and the settings of the whole cluster.

Settings are a record that all processes agree on. People write them as TOML; an unknown key names file and line:

default_queue = "default"
retention = "1h"            # an ended submission leaves ZooKeeper, and its arguments and results the store
log_retention = "7d"        # its captured output; 0 = never. Counted from when it was written
history_retention = "365d"  # its line in `rmgr history`; 0 = never
values = "private"          # what nobody shared is for its owner only; "shared": every user may read it

[queues.default]
max_time = "12h"
order = "fair"              # its users take turns; "fifo": whose work came first

[queues.fast]
partition = "default"
max_cores = 4
default_priority = 10

[queues.batch]
dispatch = "place"

[pipelines.default]
policy = "easy"

[limits]                    # of each user; rmgr limits shows them, 0 = none
sessions = 150
max_cores_per_user = 100    # at once, in pulled queues; a user's own: rmgr admin limit ann --cores 40
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import click

from rmgr.cli.control.operate import apply_settings, read_settings
from rmgr.cli.display.render import clock, iso
from rmgr.cli.session import Session, command, command_group
from rmgr.config import Config, check_file, line_of, toml_key, toml_value, without_secrets
from rmgr.errors import UNREADABLE_TEXT, ConfigError, UsageError, nearest
from rmgr.model.base import check_name
from rmgr.model.block import PRIORITY_RANGE
from rmgr.model.queue import CORES, FAIR, FIFO, PRIVATE, SHARED, ClusterSettings, Dispatch, PipelineSpec, QueueSpec, UserLimits
from rmgr.model.servers import CALLS
from rmgr.model.units import duration_us_of, size_of

_FILE = click.Path(dir_okay=False, path_type=Path)
_STATES = ("open", "closed", "stopped")
_TOP_HIDDEN = {"format", "queues", "pipelines", "limits", "changed_by", "changed_us"}
#: Whole numbers that may be below 0; the limit for all is far within the integers of every codec.
_SIGNED = frozenset({"default_priority", "max_priority", "rank"})
_MOST = 10**12
_SUFFIXES = ("_us", "_bytes")
#: Units of durations, the largest that fits first.
_UNITS = ((86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"))
#: Longest lifetime of a row in the data store (Cassandra's limit is 20 years).
_MAX_ROW_US = 19 * 365 * 24 * 3_600_000_000
#: Most bytes of the settings' znode for all pipelines together.
MAX_BYTES = 256 * 1024


@command_group(
    "config",
    examples="""\
    rmgr config show                     what this process would use, and from where
    rmgr config show --cluster > c.toml  queues and limits of the cluster, as a file
    rmgr config apply c.toml             changed for everyone, at once""",
)
def config(_session: Session) -> None:
    """Shows and checks the configuration of this process (file, RMGR_* variables, options), and the settings of the whole cluster."""


@command(
    "show",
    group=config,
    examples="rmgr config show\nrmgr config show --cluster\nrmgr config show --json",
    exits="0 ok, 2 a key or value is wrong, 5 ZooKeeper cannot be reached (--cluster)",
)
@click.option("--cluster", "of_cluster", is_flag=True, help="the cluster's settings: queues, limits, retention")
def show(session: Session, of_cluster: bool) -> None:
    """Prints the configuration as a usable file; with --cluster the settings that `rmgr config apply` takes."""
    if of_cluster:
        settings, version = read_settings(session)
        who = {"by": settings.changed_by, "since": iso(settings.changed_us)}
        notes = [f"changed last by {settings.changed_by}, {clock(settings.changed_us)}"] if settings.changed_by else []
        session.answer({"version": version, "settings": to_document(settings), **who}, to_toml(settings), *notes)
        return
    loaded = session.config()
    sections = _sections(loaded)
    text = f"# from {loaded.source or 'defaults, variables and options (no file)'}\n"
    for section, values in sections.items():
        text += f"\n[{section}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())
    session.answer({"source": loaded.source or None, "config": sections}, text)


@command(
    "check",
    group=config,
    examples="""\
    rmgr config check
    rmgr config check ~/.config/rmgr/config.toml
    rmgr config check c.toml        cluster settings are recognised""",
    exits="0 it is right, 2 it is not: file, line and the nearest key are named",
)
@click.argument("file", required=False, type=_FILE)
def check(session: Session, file: Path | None) -> None:
    """Checks a configuration file, or one with cluster settings, without changing anything."""
    if file is None:
        loaded = session.config()
        kind, name = "configuration", loaded.source or "variables and options"
    elif is_cluster_settings(file):
        found = read_settings_file(file)
        warn_of_pulls(found, found.placed())
        kind, name = "cluster settings", str(file)
    else:
        _check_store(file, check_file(file))
        kind, name = "configuration", str(file)
    session.answer({"file": name, "kind": kind, "ok": True}, f"{name}: {kind}, nothing wrong\n")


def _check_store(file: Path, loaded: Config) -> None:
    """Checks the whole URL of the file's store, which only its adapter understands."""
    from rmgr.adapters.stores import check_url

    if loaded.cluster.store:
        try:
            check_url(loaded.cluster.store)
        except UsageError as error:
            line = line_of(file.read_text("utf-8-sig"), "store", "cluster")
            shown = without_secrets(loaded.cluster.store)
            raise ConfigError(f"{file}:{line}: store = {shown!r} is not valid: {error.message}", hint=error.hint) from None


@command(
    "apply",
    group=config,
    examples="rmgr config apply c.toml\nrmgr config apply --dry-run c.toml\nrmgr config apply --remove c.toml     what it leaves out goes",
    exits="""\
0 applied, 1 changed by somebody else meanwhile, or a removed queue holds work,
2 the file is wrong, or leaves out what is set (it names what), 5 no ZooKeeper""",
)
@click.argument("file", type=_FILE)
@click.option("--dry-run", is_flag=True, help="print what would change")
@click.option("--remove", is_flag=True, help="reset settings that FILE leaves out to their defaults, and remove its queues")
def apply(session: Session, file: Path, dry_run: bool, remove: bool) -> None:
    """Makes FILE the settings of the cluster, at once. Settings that it leaves out must be at their default (or --remove)."""
    wanted = read_settings_file(file)
    present, version = read_settings(session)
    changes = differences(present, wanted)
    gone = left_out(file, present, wanted)
    if gone and not remove and not dry_run:
        raise UsageError(
            f"{file} leaves out what is set: {', '.join(gone)}{_last_change(present)}",
            hint=f"rmgr config show --cluster prints what is set; rmgr config apply --remove {file} removes these",
        )
    if changes and not dry_run:
        apply_settings(session, wanted, version)
    defaults = _flat(to_document(ClusterSettings(queues=(QueueSpec(name="x"),))))
    lines = [f"queues.{name}: added\n" for name in sorted(_queue_names(wanted) - _queue_names(present))]
    lines += [f"queues.{name}: removed\n" for name in sorted(_queue_names(present) - _queue_names(wanted))]
    for key, old, new in changes:
        last = key.rpartition(".")[2]
        if new is None or (old is None and new == defaults.get(f"queues.x.{last}")):
            continue  # part of a removed queue, or a value that a new queue leaves at its default
        lines.append(f"{key}: {_value_in_words(old)} -> {_value_in_words(new)}\n")
    if not changes:
        lines.append("nothing changes: these are the settings of the cluster\n")
    notes = ["nothing was changed (--dry-run)"] if changes and dry_run else []
    if gone and dry_run and not remove:
        notes.append(f"it leaves out what is set, and needs --remove: {', '.join(gone)}")
    document = {"applied": not dry_run, "changes": [{"key": key, "from": old, "to": new} for key, old, new in changes]}
    session.answer(document, "".join(lines), *notes)


def left_out(file: Path, present: ClusterSettings, wanted: ClusterSettings) -> list[str]:
    """Returns what is set but not mentioned in `file` and would be lost or reset: dotted names; a queue or pipeline counts as one."""
    keys, pipelines = mentioned(file.read_text("utf-8-sig"))
    old = {f"pipelines.{item.partition}" for item in present.pipelines}
    gone = [f"queues.{name}" for name in sorted(_queue_names(present) - _queue_names(wanted))] + sorted(old - pipelines)
    for key, before, after in differences(present, wanted):
        is_inside = any(key.startswith(f"{whole}.") for whole in (*gone, *pipelines, *old))
        is_known = after is not None or key.startswith("limits.")  # a user's own cap has no default
        if before is not None and is_known and not is_inside and settled(key) not in keys:
            gone.append(f"{key} ({_value_in_words(before)} -> {_value_in_words(after)})")
    return gone


def _last_change(settings: ClusterSettings) -> str:
    """Returns who changed the settings last, and when."""
    return f" (changed last by {settings.changed_by}, {clock(settings.changed_us)})" if settings.changed_by else ""


def differences(old: ClusterSettings, new: ClusterSettings) -> list[tuple[str, Any, Any]]:
    """Returns the dotted names of keys whose values differ, with both values (None if absent)."""
    before, after = _flat(to_document(old)), _flat(to_document(new))
    return [(key, before.get(key), after.get(key)) for key in sorted(before | after) if before.get(key) != after.get(key)]


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _queue_names(settings: ClusterSettings) -> set[str]:
    return {queue.name for queue in settings.queues}


def _value_in_words(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value)


def _sections(loaded: Config) -> dict[str, dict[str, Any]]:
    return {
        field.name: {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(getattr(loaded, field.name)).items()
        }
        for field in dataclasses.fields(loaded)
        if field.name != "source"
    }


def is_cluster_settings(file: Path) -> bool:
    try:
        document = tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint="name a TOML file") from error
    except UNREADABLE_TEXT as error:
        raise ConfigError(f"{file}: not valid TOML: {error}", hint="rmgr config show prints a valid one") from error
    return "queues" in document or "default_queue" in document


# -- settings as TOML, and as the record ---------------------------------------------------------------------------------------


def read_settings_file(path: Path) -> ClusterSettings:
    """Reads settings from a TOML file. Raises ConfigError naming file and line."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {getattr(error, 'strerror', error)}", hint="rmgr config show --cluster prints one"
        ) from error
    return parse_settings(text, str(path))


def parse_settings(text: str, name: str) -> ClusterSettings:
    """Reads settings from TOML text; `name` is the file in errors. Raises ConfigError."""
    try:
        document = tomllib.loads(text)
    except UNREADABLE_TEXT as error:
        raise ConfigError(f"{name}: not valid TOML: {error}", hint="rmgr config show --cluster prints a valid one") from error
    queues, pipelines, limits = document.pop("queues", {}), document.pop("pipelines", {}), document.pop("limits", {})
    values = _values(ClusterSettings, document, text, name, section="", hidden=_TOP_HIDDEN)
    if not isinstance(queues, dict) or not queues:
        raise ConfigError(f"{name}: there is no queue", hint="add one: [queues.default]")
    specs = tuple(_queue(queue, table, text, name) for queue, table in queues.items())
    where = lambda section: f"{name}:{_line_of_section(text, section)}"  # noqa: E731
    made = {"queues": specs, "pipelines": read_pipelines(pipelines, where), "limits": _limits(limits, text, name)}
    settings = ClusterSettings(**{**values, **made})
    _check_settings(settings, text, name)
    check_pipelines(settings, where)
    return settings


def _limits(table: Any, text: str, name: str) -> UserLimits:
    if not isinstance(table, dict):
        raise ConfigError(f"{name}:{line_of(text, 'limits', '')}: limits are a table: [limits]", hint="rmgr limits shows them")
    if (other := "max_cpus_per_user") in table:  # the name that policies use
        if CORES in table:
            where = f"{name}:{line_of(text, other, 'limits')}"
            raise ConfigError(f"{where}: {other} and {CORES} are the same limit", hint=f"leave {other} out")
        table = {CORES if key == other else key: value for key, value in table.items()}
    return UserLimits(**_values(UserLimits, table, text, name, section="limits", hidden=set()))


def _queue(queue: str, table: Any, text: str, name: str) -> QueueSpec:
    section = f"queues.{queue}"
    where = f"{name}:{line_of(text, section, '')}" if f"[{section}]" not in text else f"{name}:{_line_of_section(text, section)}"
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: a queue is a table: [{section}]", hint="rmgr config show --cluster prints an example")
    try:
        check_name("queue", queue)
    except UsageError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from None
    spec = QueueSpec(name=queue, **_values(QueueSpec, table, text, name, section=section, hidden={"name"}))
    if spec.state not in _STATES:
        told = nearest(spec.state, _STATES)
        raise ConfigError(f"{name}:{line_of(text, 'state', section)}: there is no queue state {spec.state!r}", hint=told)
    if spec.order not in (FAIR, FIFO):
        told = nearest(spec.order, (FAIR, FIFO))
        raise ConfigError(f"{name}:{line_of(text, 'order', section)}: there is no order {spec.order!r}, only fair and fifo", hint=told)
    if spec.order == FIFO and spec.dispatch is not Dispatch.PULL:
        where = f"{name}:{line_of(text, 'order', section)}"
        raise ConfigError(f"{where}: order is of queues that Starters pull; queue {queue} is placed by a policy", hint='policy = "fcfs"')
    check_queue_policy(spec, f"{name}:{line_of(text, 'policy', section)}")
    for key in ("default_priority", "max_priority"):
        if not -PRIORITY_RANGE <= getattr(spec, key) <= PRIORITY_RANGE:
            where = f"{name}:{line_of(text, key, section)}"
            raise ConfigError(f"{where}: {key} is between -{PRIORITY_RANGE} and {PRIORITY_RANGE}", hint=f"{key} = 0")
    if spec.max_time_us and spec.default_time_us > spec.max_time_us:
        where = f"{name}:{line_of(text, 'default_time', section)}"
        raise ConfigError(f"{where}: default_time is above max_time of queue {queue}", hint="a shorter default_time, or a longer max_time")
    return spec


def _check_settings(settings: ClusterSettings, text: str, name: str) -> None:
    if settings.queue(settings.default_queue) is None:
        where = f"{name}:{line_of(text, 'default_queue', '')}"
        told = nearest(settings.default_queue, [queue.name for queue in settings.queues])
        raise ConfigError(f"{where}: the default queue {settings.default_queue!r} is not among the queues", hint=told)
    if settings.values not in (PRIVATE, SHARED):
        where = f"{name}:{line_of(text, 'values', '')}"
        raise ConfigError(f"{where}: values are {PRIVATE!r} or {SHARED!r}, not {settings.values!r}", hint="rmgr store share --help")
    if settings.log_retention_us > _MAX_ROW_US:
        where = f"{name}:{line_of(text, 'log_retention', '')}"
        raise ConfigError(f"{where}: log_retention is longer than 19 years, which no data store promises", hint="0 keeps logs for ever")


def _values(kind: type[Any], table: dict[str, Any], text: str, name: str, *, section: str, hidden: set[str]) -> dict[str, Any]:
    """Returns the keyword arguments of `kind` from a TOML table."""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.name not in hidden | {"newer"}}
    shown = {_key_without_unit(field): field for field in fields}
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        where = f"{name}:{line_of(text, key, section)}"
        field = key if key in fields else shown.get(key)
        if field is None:
            part = f"section [{section}]" if section else "the settings"
            raise ConfigError(f"{where}: unknown key {key!r} in {part}", hint=nearest(key, shown))
        try:
            values[field] = _convert(field, hints[field], value)
        except (TypeError, ValueError, UsageError) as error:
            raise ConfigError(f"{where}: {key} = {value!r} is not valid: {error}", hint=getattr(error, "hint", "")) from None
    return values


def _convert(field: str, hint: Any, value: Any) -> Any:
    if field.endswith("_us"):
        return duration_us_of(_measure(value))
    if field.endswith("_bytes"):
        return size_of(_measure(value))
    if hint is Dispatch:
        if value not in set(Dispatch):
            raise UsageError(f"there is no dispatch {value!r}", hint=nearest(str(value), list(Dispatch)))
        return Dispatch(value)
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        if not (-_MOST if field in _SIGNED else 0) <= value <= _MOST:
            raise ValueError("it is negative, or far too large")
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value <= _MOST:
            raise ValueError("it is negative, far too large, or no number")
        return float(value)
    if hint is str and isinstance(value, str):
        return value
    if hint == tuple[str, ...] and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if hint == dict[str, int] and isinstance(value, dict):
        return {key: _convert(field, int, item) for key, item in value.items()}
    if hint == dict[str, str] and isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return dict(value)
    raise TypeError(f"{getattr(hint, '__name__', hint)} expected")


def _measure(value: Any) -> str | float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("a number, or text with a unit, expected")
    return value


def mentioned(text: str) -> tuple[set[str], set[str]]:
    """Returns the keys and the pipelines that a file mentions, dotted and without units (`settled`). text: valid TOML."""
    document = tomllib.loads(text)
    pipelines = {f"pipelines.{partition}" for partition in document.get("pipelines", {})}
    keys = {settled(key) for key in document}
    for section in ("queues", "limits"):
        for name, value in document.get(section, {}).items():
            keys.add(settled(f"{section}.{name}"))
            keys.update(settled(f"{section}.{name}.{key}") for key in (value if isinstance(value, dict) else ()))
    return keys, pipelines


def settled(key: str) -> str:
    """Returns a key of a file, or of `to_document`, without its unit."""
    for suffix in ("_us", "_bytes", "_s"):
        key = key.removesuffix(suffix)
    return key


def to_toml(settings: ClusterSettings) -> str:
    """Returns the settings as a file that `rmgr config apply` takes."""
    lines = [f"{_key_without_unit(key)} = {_literal(key, value)}" for key, value in _items(settings, _TOP_HIDDEN)]
    for queue in settings.queues:
        lines += ["", f"[queues.{toml_key(queue.name)}]"]
        lines += [f"{_key_without_unit(key)} = {_literal(key, value)}" for key, value in _items(queue, {"name"})]
    lines += _pipelines_toml(settings)
    lines += ["", "[limits]", *(f"{_key_without_unit(key)} = {_literal(key, value)}" for key, value in _items(settings.limits, set()))]
    return "\n".join(lines) + "\n"


def to_document(settings: ClusterSettings) -> dict[str, Any]:
    """Returns the settings as JSON: durations as float seconds, sizes in bytes."""
    told = {_json_key(key): _json_value(key, value) for key, value in _items(settings, _TOP_HIDDEN)}
    told["queues"] = {
        queue.name: {_json_key(key): _json_value(key, value) for key, value in _items(queue, {"name"})} for queue in settings.queues
    }
    return told | {"pipelines": document_of(settings), "limits": dict(_items(settings.limits, set()))}


def _items(record: Any, hidden: set[str]) -> Iterable[tuple[str, Any]]:
    for field in dataclasses.fields(record):
        if field.name not in hidden | {"newer"}:
            yield field.name, getattr(record, field.name)


def _key_without_unit(field: str) -> str:
    for suffix in _SUFFIXES:
        field = field.removesuffix(suffix)
    return field


def _json_key(field: str) -> str:
    return f"{field.removesuffix('_us')}_s" if field.endswith("_us") else field


def _json_value(field: str, value: Any) -> Any:
    return value / 1e6 if field.endswith("_us") else list(value) if isinstance(value, tuple) else value


def _literal(field: str, value: Any) -> str:
    if field.endswith("_us"):
        unit_us, unit = next(((size, name) for size, name in _UNITS if value % size == 0), (1_000_000, "s"))
        number = f"{value / unit_us:.6f}".rstrip("0").rstrip(".")
        return toml_value(f"{number}{unit}") if value else "0"
    return toml_value(value)


def _line_of_section(text: str, section: str) -> int:
    return next((number for number, line in enumerate(text.split("\n"), 1) if line.strip().startswith(f"[{section}]")), 1)


# -- pipelines of policies, by partition ---------------------------------------------------------------------------------------


def read_pipelines(tables: Any, where: Callable[[str], str]) -> tuple[PipelineSpec, ...]:
    """Reads the tables [pipelines.PARTITION]. where: file and line of a section. Raises ConfigError; policies are not checked here."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{where('pipelines')}: a pipeline is a table of its partition", hint='[pipelines.default]\npolicy = "easy"')
    return tuple(_pipeline(partition, dict(table), where(f"pipelines.{partition}")) for partition, table in tables.items())


def _pipeline(partition: str, table: dict[str, Any], where: str) -> PipelineSpec:
    name = table.pop("name", "")
    if "policy" in table:
        stage = {key: table.pop(key) for key in ("policy", "parameters", "shares") if key in table}
        if table:
            raise ConfigError(
                f"{where}: [pipelines.{partition}] has policy and {', '.join(sorted(table))}", hint="policy, or stage with the other tables"
            )
        name, table = name or stage["policy"], {"stage": [stage]}
    if not isinstance(name, str):
        raise ConfigError(f"{where}: name = {name!r} is no text", hint='name = "classes"')
    return PipelineSpec(partition=partition, document=text_of(table, where), name=name)


def text_of(document: Mapping[str, Any], where: str) -> str:
    """Returns a document as it is recorded. Raises ConfigError for dates, which no policy takes, and for a document that is too long."""
    try:
        text = json.dumps(document, sort_keys=True)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}", hint="numbers, text, true, false, lists and tables") from None
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{where}: the pipeline has {len(text)} bytes, at most {MAX_BYTES} are kept", hint="leave out nodes")
    return text


def check_pipelines(settings: ClusterSettings, where: Callable[[str], str]) -> None:
    """Checks that every partition with place queues has a pipeline that can place there. Raises ConfigError."""
    from rmgr.daemons.leader.placement.pipeline import checked, refuse_shared_names

    placed = settings.placed()
    for queue in settings.queues:
        if queue.partition == CALLS:
            raise ConfigError(
                f"{where(f'queues.{queue.name}')}: partition {CALLS} is for calls of functions on servers: it has no queues and no nodes",
                hint=f'partition = "default", or another name; rmgr policy show --partition {CALLS}',
            )
    for spec in settings.pipelines:
        if spec.partition == CALLS:
            try:
                checked(settings, CALLS)
            except ConfigError as error:
                raise ConfigError(f"{where(f'pipelines.{CALLS}')}: {error.message}", hint=error.hint) from error
        elif spec.partition not in placed:
            raise ConfigError(
                f"{where(f'pipelines.{spec.partition}')}: no queue places jobs in partition {spec.partition}",
                hint=f'partitions with queues of dispatch = "place": {", ".join(placed) or "none"}',
            )
    for partition, queues in placed.items():
        at = f"pipelines.{partition}" if settings.pipeline(partition) is not None else f"queues.{queues[0].name}"
        try:
            checked(settings, partition)
            refuse_shared_names(settings, partition)
        except ConfigError as error:
            raise ConfigError(f"{where(at)}: {error.message}", hint=error.hint) from error


def warn_of_pulls(settings: ClusterSettings, partitions: Iterable[str]) -> None:
    """Warns on stderr about pull queues from which nothing is pulled, in partitions that were checked."""
    from rmgr.daemons.leader.placement.pipeline import idle_pulls

    for partition in partitions:
        if told := idle_pulls(settings, partition):
            sys.stderr.write(f"rmgr: warning: {told}\n")


def check_queue_policy(spec: QueueSpec, where: str) -> None:
    """Checks the policy of a queue: only placed queues take policies of the catalogue; pulled ones have an order. Raises ConfigError."""
    if spec.dispatch is Dispatch.PULL and spec.policy not in {"", FAIR, FIFO}:
        raise ConfigError(
            f"{where}: queue {spec.name} is pulled by Starters, in the order fair or fifo; {spec.policy!r} could only place jobs",
            hint='dispatch = "place"',
        )


def document_of(settings: ClusterSettings) -> dict[str, Any]:
    """Returns [pipelines] as JSON, by partition."""
    return {spec.partition: _pipeline_table(spec) for spec in settings.pipelines}


def _pipelines_toml(settings: ClusterSettings) -> list[str]:
    """Returns [pipelines] as lines of a file."""
    lines: list[str] = []
    for spec in settings.pipelines:
        lines += ["", f"[pipelines.{toml_key(spec.partition)}]"]
        lines += [f"{toml_key(key)} = {toml_value(value)}" for key, value in _pipeline_table(spec).items()]
    return lines


def _pipeline_table(spec: PipelineSpec) -> dict[str, Any]:
    """Returns the table of a pipeline, in short form if it is one policy under its own name."""
    document = spec.tables()
    stages = document.get("stage", [])
    if list(document) == ["stage"] and len(stages) == 1 and "partitions" not in stages[0] and stages[0].get("policy") == spec.name:
        return {"policy": spec.name} | {key: value for key, value in stages[0].items() if key != "policy"}
    return ({"name": spec.name} if spec.name else {}) | document
