"""Ids and their grammar: submission `42` (`taskq-0000000042`); node and queue names. And bounds of numbers in records.

Spans and moments in records are microseconds that fit every codec, alone and added up. JSON has integers of any size, MessagePack and
protobuf have 64 bits. A record with a longer one is not read (a gateway refuses it, leader and Starters skip it); otherwise one
submission could stop the pass and the Starter that reach it.
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
    """Returns the name of a TaskQueue, by which another process attaches to it."""
    return f"taskq-{submission:010d}"


def parse_submission(text: str) -> int:
    """Returns 42 for `42` or `taskq-0000000042`. Raises UsageError."""
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


#: A span of at most 4,500 years (us); a back-off grows up to 64-fold.
SpanUs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 57)]
#: A span between two readings of clocks that may have been set back (us).
BetweenUs: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 57), le=1 << 57)]
#: Numbers and names in millions of outcomes: the decoder itself refuses bad ones, at no cost.
Attempt: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=9_999_999_999)]
NodeName: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]

Newer = dict[str, Any] | msgspec.UnsetType


def newer() -> Any:
    """Returns the field of a record that keeps fields of a newer release; see `coord/protocol/records.py`."""
    return field(default=msgspec.UNSET, hash=False, repr=False)
