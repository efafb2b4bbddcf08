"""Converts views to protobuf messages and back, field by field: both sides have the same names, a test compares them."""

from __future__ import annotations

import json
from typing import Any, TypeVar, get_args, get_type_hints

from rmgr.errors import UNREADABLE_TEXT, Unavailable
from rmgr.model import views
from rmgr.model.states import Reason, State
from rmgr.model.views import JobView, QueueView, StatusView
from rmgr.v1 import views_pb2 as pb

V = TypeVar("V")

#: The message that carries each view: it has the view's name.
MESSAGES: dict[type[Any], type[Any]] = {getattr(views, name): getattr(pb, name) for name in pb.DESCRIPTOR.message_types_by_name}
#: Fields that travel as JSON text because their shape is open.
JSON_FIELDS = {(JobView, "asked"), (StatusView, "zookeeper"), (StatusView, "store")}
_CARRIED: dict[type[Any], type[Any]] = dict(MESSAGES)  # and those added by `carry`
_HINTS: dict[type[Any], dict[str, Any]] = {kind: get_type_hints(kind) for kind in MESSAGES}


def carry(messages: dict[type[Any], type[Any]]) -> None:
    """Registers messages for further nouns. Called at import by the modules that need them: most commands load no messages of calls."""
    _CARRIED.update(messages)
    _HINTS.update({kind: get_type_hints(kind) for kind in messages})


def to_message(view: Any) -> Any:
    """Returns a view as its protobuf message."""
    kind = type(view)
    message = _CARRIED[kind]()
    for name in _HINTS[kind]:
        value = getattr(view, name)
        if value is None:
            continue
        if (kind, name) in JSON_FIELDS:
            setattr(message, f"{name}_json", json.dumps(value, sort_keys=True))
        elif isinstance(value, tuple):
            getattr(message, name).extend(to_message(item) if type(item) in _CARRIED else item for item in value)
        elif isinstance(value, dict):
            getattr(message, name).update(_strings(kind, name, value))
        elif type(value) in _CARRIED:
            getattr(message, name).CopyFrom(to_message(value))
        else:
            setattr(message, name, str(value) if isinstance(value, State | Reason) else value)
    return message


def from_message(kind: type[V], message: Any) -> V:
    """Returns a protobuf message as its view; ignores a newer peer's unknown fields. Raises Unavailable if a known field cannot be read."""
    try:
        made: V = _view(kind, message)
        return made
    except UNREADABLE_TEXT as error:  # also for a word that this release does not know
        hint = "rmgr version, here and where the leader runs"
        raise Unavailable(f"a {kind.__name__} of the leader cannot be read: {error}", hint=hint) from None


def _view(kind: type[Any], message: Any) -> Any:
    values: dict[str, Any] = {}
    for name, hint in _HINTS[kind].items():
        if (kind, name) in JSON_FIELDS:
            values[name] = json.loads(getattr(message, f"{name}_json") or "{}")
        elif type(None) in get_args(hint):
            inner = next(part for part in get_args(hint) if part is not type(None))
            present = message.HasField(name)
            raw = getattr(message, name)
            values[name] = (from_message(inner, raw) if inner in _CARRIED else raw) if present else None
        else:
            values[name] = _plain(kind, name, hint, getattr(message, name))
    return kind(**values)


def _plain(kind: type[Any], name: str, hint: Any, raw: Any) -> Any:
    if hint is State:
        return State(raw)
    origin = getattr(hint, "__origin__", None)
    if origin is tuple:
        inner = get_args(hint)[0]
        return tuple(from_message(inner, item) if inner in _CARRIED else item for item in raw)
    if origin is dict:
        return {
            key: int(value) if isinstance(value, str) and value.lstrip("-").isdigit() and (kind, name) == (QueueView, "limits") else value
            for key, value in raw.items()
        }
    return raw


def _strings(kind: type[Any], name: str, value: dict[str, Any]) -> dict[str, Any]:
    return {key: str(item) for key, item in value.items()} if (kind, name) == (QueueView, "limits") else value
