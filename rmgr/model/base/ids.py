"""Ids and their grammar: submission `42` (`taskq-0000000042`); node and queue names. And what fields of records may hold.

Spans and moments in records are microseconds that fit every codec, alone and added up. JSON has integers of any size, MessagePack and
protobuf have 64 bits: a record with a longer one is not read by anybody (a gateway refuses it, leader and Starters pass it by), or one
submission could stop the pass and the Starter that come to it.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated, Any, TypeAlias

import msgspec

from rmgr.errors import UsageError

_SUBMISSION = re.compile(r"^(?:taskq-)?(\d{1,10})$")
_NAME = re.compile(r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,62}[a-zA-Z0-9])?$")

#: Highest number of a submission and of a task index (ten digits in every key name).
MAX_NUMBER = 9_999_999_999


def taskq_name(submission: int) -> str:
    """Name of a TaskQueue: what another process attaches to."""
    return f"taskq-{submission:010d}"


def parse_submission(text: str) -> int:
    """`42` or `taskq-0000000042` -> 42. Raises UsageError."""
    match = _SUBMISSION.match(text)
    if match is None:
        raise UsageError(f"{text!r} is not a submission id", hint="ids look like 42, 42_7 or taskq-0000000042; rmgr jobs lists them")
    return int(match[1])


def check_name(kind: str, text: str) -> str:
    """Returns `text` if it may name a node, queue, partition, ...; raises UsageError (also for `..` and slashes)."""
    if not _NAME.match(text):
        raise UsageError(
            f"{text!r} cannot be the name of a {kind}",
            hint="at most 64 letters, digits, '.', '_' and '-'; a letter or digit first and last",
        )
    return text


#: Of 4,500 years at most; a back-off becomes up to 64 times as long.
SpanUs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 57)]
#: Between two readings of clocks that may have been set back.
BetweenUs: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 57), le=1 << 57)]
#: Numbers and names that millions of outcomes hold: refused where they are decoded, which costs nothing.
Attempt: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=9_999_999_999)]
NodeName: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]

Newer = dict[str, Any] | msgspec.UnsetType


def newer() -> Any:
    """The field of a record for what a newer release wrote into it; see `coord/protocol/records.py`."""
    return field(default=msgspec.UNSET, hash=False, repr=False)
