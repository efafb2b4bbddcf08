"""A release to come, for tests: every Python with this directory in PYTHONPATH and RMGR_TEST_RELEASES_AHEAD=N is N releases ahead.

It announces its protocol and version, writes a field that nobody knows into every record, and an element that nobody
knows at the end of every block.
"""

from __future__ import annotations

import os
from typing import Any

AHEAD = int(os.environ.get("RMGR_TEST_RELEASES_AHEAD", "0"))
FIELD = "field_of_the_next_release"
ELEMENT = b"element of the next release"


def pretend() -> None:
    import msgspec

    from rmgr.coord.protocol import records
    from rmgr.model import version

    version.PROTOCOL += AHEAD
    version.VERSION = f"9.{AHEAD}.0"
    encode_record, encode_block = records.encode_record, records.encode_block

    def next_record(record: object) -> bytes:
        raw: Any = msgspec.json.decode(encode_record(record))
        return msgspec.json.encode(raw | {FIELD: {"n": AHEAD}}, order="sorted") if isinstance(raw, dict) else encode_record(record)

    def next_block(block: Any) -> bytes:
        raw = msgspec.msgpack.decode(encode_block(block))
        return msgspec.msgpack.encode(raw if raw[-1] == ELEMENT else [*raw, ELEMENT])

    records.encode_record, records.encode_block = next_record, next_block


if AHEAD:
    pretend()
