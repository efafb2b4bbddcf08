"""Interfaces as they travel: canonical JSON, so that two are the same where their bytes are."""

from __future__ import annotations

import json

from rmgr.errors import UNREADABLE_TEXT, ConfigError
from rmgr.model.calls.interface import Interface, interface_of

#: Of one interface.
MOST_BYTES = 16 * 1024
#: Among the sizes that a client sends: bytes of its texts, which no size of an interface says.
LENGTHS = "+bytes"


def encode_interface(interface: Interface) -> bytes:
    """Canonical JSON of its table."""
    return json.dumps(interface.table(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_interface(text: bytes, where: str = "an interface") -> Interface:
    """Raises: ConfigError, which begins with `where`, for what is none, or is not written as `encode_interface` does."""
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{where}: {len(text):,} bytes, {MOST_BYTES:,} are the most")
    try:
        table = json.loads(text)
    except UNREADABLE_TEXT:
        raise ConfigError(f"{where}: it is no JSON") from None
    made = interface_of(table, where)
    if encode_interface(made) != text:
        raise ConfigError(f"{where}: {made.key} is not in its canonical form")
    return made
