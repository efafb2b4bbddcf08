"""`rmgr config show|check|apply`: the configuration of this process, and the settings of the whole cluster."""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import click

from rmgr.cli.control import settings as cluster_settings
from rmgr.cli.control.operate import apply_settings, read_settings
from rmgr.cli.control.settings import warn_of_pulls
from rmgr.cli.display.render import clock, emit, iso
from rmgr.cli.session.command import command, command_group
from rmgr.cli.session.context import Session
from rmgr.config import Config, check_file
from rmgr.errors import UNREADABLE_TEXT, ConfigError, UsageError
from rmgr.model.cluster.queue import ClusterSettings, QueueSpec

_FILE = click.Path(dir_okay=False, path_type=Path)


@command_group(
    "config",
    examples="""\
    rmgr config show                     what this process would use, and from where
    rmgr config show --cluster > c.toml  queues and limits of the cluster, as a file
    rmgr config apply c.toml             changed for everyone, at once""",
)
def config(_session: Session) -> None:
    """The configuration of this process (file, RMGR_* variables, options), and the settings of the whole cluster."""


@command(
    "show",
    group=config,
    examples="rmgr config show\nrmgr config show --cluster\nrmgr config show --json",
    exits="0 ok, 2 a key or value is wrong, 5 ZooKeeper cannot be reached (--cluster)",
)
@click.option("--cluster", "of_cluster", is_flag=True, help="the cluster's settings: queues, limits, retention")
def show(session: Session, of_cluster: bool) -> None:
    """Prints the configuration as a file that could be used; with --cluster what `rmgr config apply` takes."""
    if of_cluster:
        settings, version = read_settings(session)
        if session.json:
            who = {"by": settings.changed_by, "since": iso(settings.changed_us)}
            emit({"version": version, "settings": cluster_settings.to_document(settings), **who})
        else:
            if settings.changed_by:
                session.note(f"changed last by {settings.changed_by}, {clock(settings.changed_us)}")
            sys.stdout.write(cluster_settings.to_toml(settings))
        return
    loaded = session.config()
    if session.json:
        emit({"source": loaded.source or None, "config": _sections(loaded)})
        return
    where = loaded.source or "defaults, variables and options (no file)"
    sys.stdout.write(f"# from {where}\n")
    for section, values in _sections(loaded).items():
        sys.stdout.write(f"\n[{section}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items()))


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
    elif _is_cluster_settings(file):
        found = cluster_settings.read_settings_file(file)
        warn_of_pulls(found, found.placed())
        kind, name = "cluster settings", str(file)
    else:
        check_file(file)
        kind, name = "configuration", str(file)
    if session.json:
        emit({"file": name, "kind": kind, "ok": True})
    else:
        sys.stdout.write(f"{name}: {kind}, nothing wrong\n")


@command(
    "apply",
    group=config,
    examples="rmgr config apply c.toml\nrmgr config apply --dry-run c.toml\nrmgr config apply --remove c.toml     what it leaves out goes",
    exits="""\
0 applied, 1 changed by somebody else meanwhile, or a removed queue holds work,
2 the file is wrong, or leaves out what is set (it names what), 5 no ZooKeeper""",
)
@click.argument("file", type=_FILE)
@click.option("--dry-run", is_flag=True, help="say what would change")
@click.option("--remove", is_flag=True, help="what is set, and FILE leaves out, becomes the default again; queues go")
def apply(session: Session, file: Path, dry_run: bool, remove: bool) -> None:
    """Makes FILE the settings of the cluster; all processes take them up at once. What it leaves out must be the default (or --remove)."""
    wanted = cluster_settings.read_settings_file(file)
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
    if session.json:
        emit({"applied": not dry_run, "changes": [{"key": key, "from": old, "to": new} for key, old, new in changes]})
        return
    defaults = _flat(cluster_settings.to_document(ClusterSettings(queues=(QueueSpec(name="x"),))))
    for name in sorted(_names(wanted) - _names(present)):
        sys.stdout.write(f"queues.{name}: added\n")
    for name in sorted(_names(present) - _names(wanted)):
        sys.stdout.write(f"queues.{name}: removed\n")
    for key, old, new in changes:
        last = key.rpartition(".")[2]
        if new is None or (old is None and new == defaults.get(f"queues.x.{last}")):
            continue  # part of a queue that goes; what a new one leaves as it is
        sys.stdout.write(f"{key}: {_shown(old)} -> {_shown(new)}\n")
    if not changes:
        sys.stdout.write("nothing changes: these are the settings of the cluster\n")
    elif dry_run:
        session.note("nothing was changed (--dry-run)")
    if gone and dry_run and not remove:
        session.note(f"it leaves out what is set, and needs --remove: {', '.join(gone)}")


def left_out(file: Path, present: ClusterSettings, wanted: ClusterSettings) -> list[str]:
    """What is set and `file` does not mention: it would go, or become the default again. Dotted names, a queue or pipeline by its own."""
    keys, pipelines = cluster_settings.mentioned(file.read_text("utf-8-sig"))
    old = {f"pipelines.{item.partition}" for item in present.pipelines}
    gone = [f"queues.{name}" for name in sorted(_names(present) - _names(wanted))] + sorted(old - pipelines)
    for key, before, after in differences(present, wanted):
        is_inside = any(key.startswith(f"{whole}.") for whole in (*gone, *pipelines, *old))
        is_known = after is not None or key.startswith("limits.")  # a user's own cap has no default
        if before is not None and is_known and not is_inside and cluster_settings.settled(key) not in keys:
            gone.append(f"{key} ({_shown(before)} -> {_shown(after)})")
    return gone


def _last_change(settings: ClusterSettings) -> str:
    """Who has changed them last."""
    return f" (changed last by {settings.changed_by}, {clock(settings.changed_us)})" if settings.changed_by else ""


def differences(old: ClusterSettings, new: ClusterSettings) -> list[tuple[str, Any, Any]]:
    """Keys whose values differ, by dotted name, with both values (None: not there)."""
    before, after = _flat(cluster_settings.to_document(old)), _flat(cluster_settings.to_document(new))
    return [(key, before.get(key), after.get(key)) for key in sorted(before | after) if before.get(key) != after.get(key)]


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _names(settings: ClusterSettings) -> set[str]:
    return {queue.name for queue in settings.queues}


def _shown(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items()) + " }" if value else "{}"
    return json.dumps(value)


def _sections(loaded: Config) -> dict[str, dict[str, Any]]:
    return {
        field.name: {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(getattr(loaded, field.name)).items()
        }
        for field in dataclasses.fields(loaded)
        if field.name != "source"
    }


def _is_cluster_settings(file: Path) -> bool:
    try:
        document = tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint="name a TOML file") from error
    except UNREADABLE_TEXT as error:
        raise ConfigError(f"{file}: not valid TOML: {error}", hint="rmgr config show prints a valid one") from error
    return "queues" in document or "default_queue" in document
