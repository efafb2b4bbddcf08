"""Words that every record uses: names and bounds of numbers, and the resources that work asks for and nodes have.

Submissions have numbers, `42` (`taskq-0000000042`); nodes and queues names. Resources are integers (cores, bytes) and a few attributes.

Spans and moments in records are microseconds that fit every codec, alone and added up. JSON has integers of any size, MessagePack and
protobuf have 64 bits. A record with a longer one is not read (a gateway refuses it, leader and Starters skip it); otherwise one
submission could stop the pass and the Starter that reach it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


# -- resources -----------------------------------------------------------------------------------------------------------------


MIB = 1024 * 1024
#: The resource that also becomes CUDA_VISIBLE_DEVICES.
GPU = "gpu"
CUDA = "CUDA_VISIBLE_DEVICES"
#: (name, count), names ascending, no count 0: hashable, and () if there are none.
Needs: TypeAlias = tuple[tuple[str, int], ...]
#: Most of one resource on one node: every index is a number in a variable.
MOST = 9_999
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


def needs_of(resources: Mapping[str, int], times: int = 1) -> Needs:
    """Returns `times` these resources."""
    return tuple((name, count * times) for name, count in sorted(resources.items()) if count > 0) if resources else ()


def checked_resources(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Checks names and counts of resources of a request or a node. Raises: UsageError naming the invalid one."""
    found: dict[str, int] = {}
    for name, count in pairs:
        if not _RESOURCE.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a resource", hint="letters, digits, and . _ - after the first letter: gpu, licence.x")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
            raise UsageError(f"resource {name}: {count!r} is not a number from 0 to {MOST}")
        if found.get(name, count) != count:
            raise UsageError(f"resource {name} is given twice: {found[name]} and {count}")
        found[name] = count
    return found


def variable_of(name: str) -> str:
    """Returns `RMGR_RESOURCE_GPU` for `gpu`."""
    return "RMGR_RESOURCE_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def lent_variables(lent: Mapping[str, Iterable[int]]) -> dict[str, str]:
    """Returns the environment variables that tell work the indices lent to it."""
    variables = {variable_of(name): ",".join(map(str, indices)) for name, indices in sorted(lent.items())}
    if GPU in lent:
        variables[CUDA] = variables[variable_of(GPU)]
    return variables


def share_variable(resources: Mapping[str, int]) -> str:
    """Returns RMGR_RESOURCES: the resources of one process of a job, so that ranks find their share of the node's."""
    return ",".join(f"{variable_of(name)}={count}" for name, count in needs_of(resources))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Needs of one task on its node.

    cores: at least 1. memory_bytes: 0 = not limited and not counted. time_limit_us: 0 = the queue's default.
    features: node features it needs, all of them. resources: other countable things by name.
    """

    cores: int = 1
    memory_bytes: int = 0
    time_limit_us: SpanUs = 0
    features: tuple[str, ...] = ()
    resources: dict[str, int] = field(default_factory=dict)
    newer: Newer = newer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Resources of a node in all."""

    cores: int
    memory_bytes: int
    resources: dict[str, int] = field(default_factory=dict)
    newer: Newer = newer()

    def fits(self, request: Request) -> bool:
        """Returns whether an empty node of this capacity could run `request`."""
        return (
            request.cores <= self.cores
            and request.memory_bytes <= self.memory_bytes
            and all(self.resources.get(name, 0) >= count for name, count in request.resources.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAttributes:
    """Description of a node: published by its Starter, shown by `rmgr nodes`."""

    partition: str = "default"
    site: str = ""
    speed: float = 1.0  #: relative to the cluster's reference node
    features: tuple[str, ...] = ()
    call_cores: int = 0  #: of the machine, beside its capacity: kept for a server of calls
    newer: Newer = newer()
