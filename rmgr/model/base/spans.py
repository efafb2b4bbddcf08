"""Spans and moments in records: microseconds that fit every codec, alone and added up.

JSON has integers of any size, MessagePack and protobuf have 64 bits: a record with a longer one is not read by anybody (a gateway refuses
it, leader and Starters pass it by), or one submission could stop the pass and the Starter that come to it.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

#: Of 4,500 years at most; a back-off becomes up to 64 times as long.
SpanUs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 57)]
#: Between two readings of clocks that may have been set back.
BetweenUs: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 57), le=1 << 57)]
#: Numbers and names that millions of outcomes hold: refused where they are decoded, which costs nothing.
Attempt: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=9_999_999_999)]
NodeName: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]
