"""The table of keys in the data store: one family per kind of row, with its builder and, where needed, its parser.

| family | row | made by |
|---|---|---|
| `fn/<sha256>` | a function, pickled | submitter |
| `mod/<sha256>` | a module shipped with functions | submitter |
| `file/<sha256>` | an uploaded file or directory | submitter |
| `args/<sub>/<first>/<guid>` | the arguments of one block | submitter |
| `frag/<sub>/<guid>` | outcomes of a fragment that did not fit its znode | Starter |
| `out/<sub>/<index>/<attempt>/<n>` | the n-th result of one attempt | Starter |
| `log/<sub>/<index>/<attempt>/<stream>/<part>` | a piece of captured output | Starter |
| `ckpt/<sub>/<index>/<attempt>.<n>` | the n-th checkpoint of an attempt | Starter |
| `ckpt/<sub>/<index>/<attempt>/<sha256>` | a piece of the files of its checkpoints | Starter |
| `page/<sub>/<n>` | a page of old fragments | owner, else leader |
| `name/<user key>` | a user's own value, or a pointer to an output | submitter, user |
| `final/<sub>/<index>/<n>/<by>` | the value behind a pointer, written before its submission is collected | owner, else leader |
| `share/<owner>/<user or *>/<hash>` | which users may read or write a user's values (`coord/decisions/rights.py`) | user |
| `hist/<inverted sub>` | summary of a finished submission | owner, else leader |
| `histu/<user>/<inverted sub>` | the same, by user | owner, else leader |
| `metric/<node>/<inverted minute>` | measurements of a node | Starter |
| `use/<gateway>` | how much users have written through it within a day | gateway |
| `events/<epoch>/<log>/<piece>` | lines of the scheduler's event log | leader |
| `picks/<epoch>/<log>/<piece>` | the same for calls: facts of servers, and picks | leader |
| `meta/<name>` | facts about the store itself: `meta/cluster_id` | `rmgr admin init-store`, `rmgr dev` |

Clients that need rows named by their content keep them (`coord/contents.py`); other families go with their submission, or by age.

All but `name/`, `share/`, `use/` and `meta/` are immutable and may be written again with the same bytes. Numbers are padded, so
that keys sort as their numbers do; inverted ones (10^10 - 1 - n) sort newest first. A user's key follows `name/` as a
whole, so it never equals an internal one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from rmgr.coord.protocol.records import UNREADABLE
from rmgr.errors import DataLost, UsageError
from rmgr.model.stream import json_decoder

#: Most bytes of a user's key (UTF-8): with its family it stays below the store's limit of 1,024.
MAX_USER_KEY_BYTES = 1000
_DIGITS = 10
_TOP = 9_999_999_999  # ten digits
_NAME = "name/"
#: Prefix of all final rows.
FINAL = "final/"
_LED = "led/"
_HISTORY = "hist/"
_HISTORY_OF_USER = "histu/"
_METRIC = "metric/"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PART = re.compile(r"[^/\0]+\Z")

#: Streams of captured output.
STREAMS = ("stdout", "stderr")


# -- content by hash ----------------------------------------------------------------------------------------------------

#: Families whose rows are named by the SHA-256 of their content.
FUNCTIONS = "fn"
BY_CONTENT = frozenset({FUNCTIONS, "mod", "file"})


#: Families of the outputs of tasks.
OUTPUTS = frozenset({"out", "final"})


def family(key: str) -> str:
    """Returns the first part of a key."""
    return key.partition("/")[0]


def is_by_content(key: str) -> bool:
    """Returns whether the key names the hash of its row's content."""
    return key.partition("/")[0] in BY_CONTENT


def function(sha256: str) -> str:
    """`fn/<sha256>`."""
    return f"fn/{_hash(sha256)}"


def module(sha256: str) -> str:
    """`mod/<sha256>`."""
    return f"mod/{_hash(sha256)}"


def upload(sha256: str) -> str:
    """`file/<sha256>`."""
    return f"file/{_hash(sha256)}"


# -- rows of a submission ------------------------------------------------------------------------------------------------


def arguments(sub: int, first: int, guid: str) -> str:
    """`args/<sub>/<first>/<guid>`: `first` is the first index of the block."""
    return f"args/{_number(sub)}/{_number(first)}/{_part(guid)}"


def fragment(sub: int, guid: str) -> str:
    """`frag/<sub>/<guid>`."""
    return f"frag/{_number(sub)}/{_part(guid)}"


def page(sub: int, n: int) -> str:
    """`page/<sub>/<n>`."""
    return f"page/{_number(sub)}/{_number(n)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKey:
    """The n-th result of one attempt of one task."""

    sub: int
    index: int
    attempt: int
    n: int = 0


def output(sub: int, index: int, attempt: int, n: int = 0) -> str:
    """`out/<sub>/<index>/<attempt>/<n>`."""
    return f"out/{_number(sub)}/{_number(index)}/{_short(attempt)}/{_short(n)}"


def outputs_of(sub: int, index: int | None = None, attempt: int | None = None) -> str:
    """Returns the prefix of the outputs of a submission, a task, or an attempt."""
    return f"out/{_number(sub)}/" + _below(index, attempt)


def parse_output(key: str) -> OutputKey:
    """Reads a key made by `output`. Raises: `UsageError`."""
    sub, index, attempt, n = _numbers(key, "out", 4)
    _is_made(key, output(sub, index, attempt, n))
    return OutputKey(sub=sub, index=index, attempt=attempt, n=n)


def log(sub: int, index: int, attempt: int, stream: str, part: int) -> str:
    """`log/<sub>/<index>/<attempt>/<stream>/<part>`; `stream` is one of `STREAMS`."""
    return f"{logs_of(sub, index, attempt, stream)}{_number(part)}"


def logs_of(sub: int, index: int | None = None, attempt: int | None = None, stream: str | None = None) -> str:
    """Returns the prefix of the log parts of a submission, a task, an attempt, or one stream of it."""
    prefix = f"log/{_number(sub)}/" + _below(index, attempt)
    if stream is None:
        return prefix
    if stream not in STREAMS:
        raise UsageError(f"there is no stream {stream!r}", hint=f"one of {', '.join(STREAMS)}")
    return f"{prefix}{stream}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The n-th checkpoint of one attempt; a later attempt, then a higher number, is newer. Numbers start at 1."""

    sub: int
    index: int
    attempt: int
    n: int

    @property
    def key(self) -> str:
        """`ckpt/<sub>/<index>/<attempt>.<n>`."""
        return f"{checkpoints_of(self.sub, self.index)}{_short(self.attempt)}.{_number(self.n)}"

    @property
    def order(self) -> tuple[int, int]:
        """Sort key; the newest checkpoint has the greatest."""
        return self.attempt, self.n

    def __str__(self) -> str:
        return f"{self.attempt}.{self.n}"


def checkpoints_of(sub: int, index: int | None = None, attempt: int | None = None) -> str:
    """Returns the prefix of the checkpoints of a submission, or of one task; with `attempt`, of the pieces of its files."""
    return f"ckpt/{_number(sub)}/" + _below(index, attempt)


def checkpoint_piece(sub: int, index: int, attempt: int, sha256: str) -> str:
    """`ckpt/<sub>/<index>/<attempt>/<sha256>`."""
    return f"{checkpoints_of(sub, index, attempt)}{_hash(sha256)}"


def parse_checkpoint(key: str) -> Checkpoint | None:
    """Reads a key made by `Checkpoint.key`; returns None for the key of a piece. Raises: `UsageError`."""
    match key.split("/"):
        case ["ckpt", sub, index, name]:
            attempt, _, n = name.partition(".")
            if all(map(_is_number, (sub, index, attempt, n))):
                found = Checkpoint(sub=int(sub), index=int(index), attempt=int(attempt), n=int(n))
                _is_made(key, found.key)
                return found
        case ["ckpt", sub, index, attempt, digest] if all(map(_is_number, (sub, index, attempt))) and _SHA256.match(digest):
            return None
    raise UsageError(f"{key!r} is not a key of the family ckpt/")


def prefixes_of(sub: int) -> tuple[str, ...]:
    """Returns the prefixes of all rows that go when a submission is collected (not its history, not values of users)."""
    number = _number(sub)
    return tuple(f"{family}/{number}/" for family in ("args", "ckpt", "frag", "log", "out", "page"))


# -- values of users ------------------------------------------------------------------------------------------------------


def named(user_key: str) -> str:
    """Returns `name/<user key>`: a value under a user's name for it, or a `Pointer` (encoding POINTER)."""
    return _NAME + check_user_key(user_key)


def named_prefix(user_prefix: str = "") -> str:
    """Returns the prefix of user keys that begin with `user_prefix` (may be empty)."""
    return _NAME + user_prefix


def user_key(key: str) -> str:
    """Returns the user's key in a key made by `named`. Raises: `UsageError`."""
    if key.startswith(_NAME) and len(key) > len(_NAME):
        return key[len(_NAME) :]
    raise UsageError(f"{key!r} is not the key of a user's value")


def check_user_key(user_key: str) -> str:
    """Returns the key if it is 1 to 1,000 bytes of UTF-8 without NUL, else raises `UsageError`."""
    if not isinstance(user_key, str):
        raise UsageError(f"a key is text, not {type(user_key).__name__}")
    if not user_key:
        raise UsageError("a key cannot be empty")
    if "\0" in user_key:
        raise UsageError(f"the key {user_key[:80]!r} holds a NUL character")
    try:
        size = len(user_key.encode())
    except UnicodeEncodeError:
        raise UsageError(f"the key {user_key[:80]!r} is not valid Unicode (a lone surrogate)") from None
    if size > MAX_USER_KEY_BYTES:
        raise UsageError(f"the key {user_key[:40]!r}... has {size} bytes; the limit is {MAX_USER_KEY_BYTES}")
    return user_key


def check_new_key(user_key: str) -> str:
    """Checks as `check_user_key` a key to be written: no part of it may be . or .., which mean something else where keys become files."""
    if not {".", ".."}.isdisjoint(check_user_key(user_key).split("/")):
        raise UsageError(f"the key {user_key[:80]!r} has . or .. between its slashes", hint="keys are names, not paths: write it out")
    return user_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Reference to the value of an output key: the `n`-th result of the committed attempt of a task.

    Stored as JSON under `name/<user key>` with encoding POINTER when the task is submitted, and never changed.
    by: guid of the Submitter that wrote it. The pointer counts only if that Submitter submitted the task (`reign_of` in
    `coord/ops/membership.py`), because it is written before the task is committed.
    """

    sub: int
    index: int
    n: int = 0
    by: str = ""


def final(pointer: Pointer) -> str:
    """Returns `final/<sub>/<index>/<n>/<by>`: the value of a pointer whose submission is gone.

    Named after the whole pointer and not after the user's key, so a later pointer under the same key never finds it, nor
    does a pointer whose author did not submit the task.
    """
    return f"{FINAL}{_number(pointer.sub)}/{_number(pointer.index)}/{_short(pointer.n)}/{_part(pointer.by or '-')}"


def is_final_of(row: str, sub: int, index: int, n: int) -> bool:
    """Returns whether `row` keeps that output, for a pointer of any author."""
    return row.startswith(f"{FINAL}{_number(sub)}/{_number(index)}/{_short(n)}/")


def is_output_of(row: str, pointer: Pointer) -> bool:
    """Returns whether `row` is the output of an attempt of the pointer's task."""
    try:
        found = parse_output(row)
    except UsageError:
        return False
    return (found.sub, found.index, found.n) == (pointer.sub, pointer.index, pointer.n)


def led(user_key: str) -> str:
    """Returns `led/<user key>`: not a row, but the request to a gateway for the value behind another user's pointer."""
    return _LED + check_user_key(user_key)


def parse_led(key: str) -> str | None:
    """Returns the user's key in a key made by `led`; None for other keys."""
    return key[len(_LED) :] if key.startswith(_LED) else None


def use(daemon: str) -> str:
    """Returns `use/<daemon>`: of the gateway that listens there, or the Starter of that name."""
    return f"use/{_part(daemon)}"


def share(owner: str, user: str, name: str) -> str:
    """`share/<owner>/<user>/<name>`."""
    return f"{shares_of(owner, user)}{_part(name)}"


def shares_of(owner: str, user: str | None = None) -> str:
    """Returns the prefix of a user's shares; with `user`, of those with that user (`*`: with everybody)."""
    return f"share/{_part(owner)}/" + ("" if user is None else f"{_part(user)}/")


def parse_share(key: str) -> tuple[str, str]:
    """Returns (owner, user) of a row of the family share/. Raises: `UsageError`."""
    match key.split("/"):
        case ["share", owner, user, name] if owner and user and name:
            return owner, user
    raise UsageError(f"{key!r} is not the key of a share")


#: Most bytes of an encoded pointer. Values under users' keys may have any size.
POINTER_BYTES = 4096


def encode_pointer(pointer: Pointer) -> bytes:
    """Returns canonical JSON, e.g. `{"by":"","index":7,"n":0,"sub":42}`."""
    return msgspec.json.encode(pointer, order="sorted")


def decode_pointer(data: bytes) -> Pointer:
    """Reads bytes made by `encode_pointer`. Raises: `DataLost`."""
    try:
        return json_decoder(Pointer).decode(data)
    except UNREADABLE as error:
        raise DataLost(f"the pointer {data[:80]!r} cannot be read: {error}") from None


def output_missing(key: str, pointer: Pointer, row: str) -> DataLost:
    """Returns the error for an output that its task has committed but the store lacks."""
    message = f"the output {key!r} of task {pointer.sub}_{pointer.index} is missing from the store (row {row})"
    return DataLost(message, hint=f"rmgr rerun {pointer.sub} --lost")


# -- history and measurements, newest first -----------------------------------------------------------------------------------


def history(sub: int) -> str:
    """`hist/<inverted sub>`: `keys("hist/")` lists the newest submission first."""
    return f"{_HISTORY}{_descending(sub)}"


def history_of_user(user: str, sub: int) -> str:
    """`histu/<user>/<inverted sub>`: as `history`, for one user."""
    return f"{_HISTORY_OF_USER}{_part(user)}/{_descending(sub)}"


def history_prefix(user: str | None = None) -> str:
    """Returns the prefix of all history rows, or of one user's; it lists newest first."""
    return _HISTORY if user is None else f"{_HISTORY_OF_USER}{_part(user)}/"


def parse_history(key: str) -> int:
    """Returns the submission of a history row. Raises: `UsageError`."""
    family, _, rest = key.partition("/")
    inverted = rest.rpartition("/")[2]
    if f"{family}/" not in (_HISTORY, _HISTORY_OF_USER) or not _is_number(inverted) or len(inverted) != _DIGITS:
        raise UsageError(f"{key!r} is not the key of a history row")
    return _TOP - int(inverted)


def metric(node: str, minute: int) -> str:
    """`metric/<node>/<inverted minute>`: measurements of a node in one minute since the epoch."""
    return f"{_METRIC}{_part(node)}/{_descending(minute)}"


# -- the scheduler's event log ------------------------------------------------------------------------------------------------


#: Families of event logs: of jobs, and of calls.
EVENTS, PICKS = "events", "picks"


def events(epoch: int, log: int, piece: int, *, family: str = EVENTS) -> str:
    """Returns `events/<epoch>/<log>/<piece>`: one log for each state that this leader has built."""
    return f"{events_of(epoch, log, family=family)}{_number(piece)}"


def events_of(epoch: int | None = None, log: int | None = None, *, family: str = EVENTS) -> str:
    """Returns the prefix of all pieces, of those of a leadership, or of one log."""
    if epoch is None:
        return f"{family}/"
    return f"{family}/{_number(epoch)}/" + ("" if log is None else f"{_number(log)}/")


def parse_events(key: str, *, family: str = EVENTS) -> tuple[int, int, int]:
    """Reads a key made by `events`. Raises: `UsageError`."""
    epoch, log, piece = _numbers(key, family, 3)
    _is_made(key, events(epoch, log, piece, family=family))
    return epoch, log, piece


# -- prefixes --------------------------------------------------------------------------------------------------------------


def prefix_end(prefix: str) -> str | None:
    """Returns the smallest text above every text that begins with `prefix`; None if there is none.

    `prefix <= key < prefix_end(prefix)` means "key begins with prefix", in code point order (the order of UTF-8 bytes).
    """
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    if following == 0xD800:  # UTF-8 has no surrogates
        following = 0xE000
    return stem[:-1] + chr(following)


def _hash(sha256: str) -> str:
    if not _SHA256.match(sha256):
        raise UsageError(f"{sha256[:80]!r} is not a SHA-256 in lower-case hex")
    return sha256


def _part(text: str) -> str:
    if not _PART.match(text):
        raise UsageError(f"{text!r} cannot be a part of a key")
    return text


def _number(n: int) -> str:
    if not 0 <= n <= _TOP:
        raise UsageError(f"{n} cannot be part of a key: numbers go from 0 to {_TOP}")
    return f"{n:010d}"


def _short(n: int) -> str:
    if not 0 <= n <= 99_999:
        raise UsageError(f"{n} cannot be part of a key: attempts and result numbers go from 0 to 99999")
    return f"{n:05d}"


def _descending(n: int) -> str:
    return _number(_TOP - n)


def _below(index: int | None, attempt: int | None) -> str:
    if index is None:
        return ""
    return f"{_number(index)}/" + ("" if attempt is None else f"{_short(attempt)}/")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def _is_made(key: str, made: str) -> None:
    """Raises UsageError for a key that its builder never makes: other padding, numbers out of range."""
    if key != made:
        raise UsageError(f"{key[:200]!r} is written otherwise: {made!r}")


def _numbers(key: str, family: str, count: int) -> list[int]:
    parts = key.split("/")
    if parts[0] != family or len(parts) != count + 1 or not all(map(_is_number, parts[1:])):
        raise UsageError(f"{key!r} is not a key of the family {family}/")
    return [int(part) for part in parts[1:]]
