"""Converts views to protobuf messages and back, field by field: both sides have the same names, a test compares them."""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

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
#: What reads each field of a view from its message, made at the first one: a list of jobs has thousands.
_READERS: dict[type[Any], dict[str, Callable[[Any], Any]]] = {}


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
    readers = _READERS.get(kind)
    if readers is None:
        readers = _READERS[kind] = {name: _reader(kind, name, hint) for name, hint in _HINTS[kind].items()}
    return kind(**{name: read(message) for name, read in readers.items()})


def _reader(kind: type[Any], name: str, hint: Any) -> Callable[[Any], Any]:
    if (kind, name) in JSON_FIELDS:
        return lambda message: json.loads(getattr(message, f"{name}_json") or "{}")
    parts, origin = get_args(hint), get_origin(hint)
    if type(None) in parts:
        inner = next(part for part in parts if part is not type(None))
        if inner in _CARRIED:
            return lambda message: from_message(inner, getattr(message, name)) if message.HasField(name) else None
        return lambda message: getattr(message, name) if message.HasField(name) else None
    if hint is State:
        return lambda message: State(getattr(message, name))
    if origin is tuple and parts[0] in _CARRIED:
        return lambda message: tuple(from_message(parts[0], item) for item in getattr(message, name))
    if (kind, name) == (QueueView, "limits"):
        return lambda message: {key: int(text) if text.lstrip("-").isdigit() else text for key, text in getattr(message, name).items()}
    if origin in (tuple, dict):
        return lambda message: origin(getattr(message, name))
    return attrgetter(name)


def _strings(kind: type[Any], name: str, value: dict[str, Any]) -> dict[str, Any]:
    return {key: str(item) for key, item in value.items()} if (kind, name) == (QueueView, "limits") else value
