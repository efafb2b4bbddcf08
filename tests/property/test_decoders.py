"""Every decoder raises its documented error or answers, for spoilt values of its schema and for spoilt bytes.

`tests/fuzz.sh` runs the same for an hour; RMGR_FUZZ_S says how many seconds each decoder gets.
"""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.decoders import DECODERS, Decoder
from tests.harness.fuzzing import HOSTILE, written

_SECONDS = float(os.environ.get("RMGR_FUZZ_S", "0"))


def _written(decoder: Decoder) -> st.SearchStrategy[bytes]:
    return written(decoder.form, decoder.kind, decoder.sample)


def _try(decoder: Decoder, data: bytes) -> None:
    try:
        decoder.decode(data)
    except decoder.raises:
        pass
    except Exception as error:
        error.add_note(f"{decoder.name} of {data[:200]!r} ({len(data)} bytes)")
        raise


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_nothing_but_the_documented_error_comes_out(decoder: Decoder) -> None:
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=_written(decoder))
    def once(data: bytes) -> None:
        _try(decoder, data)

    for hostile in HOSTILE[decoder.form]:
        _try(decoder, hostile)
    end_s = time.monotonic() + _SECONDS
    once()
    while time.monotonic() < end_s:
        settings(max_examples=100, derandomize=False, deadline=None, database=None, suppress_health_check=list(HealthCheck))(
            given(data=_written(decoder))(lambda data: _try(decoder, data))
        )()


def test_samples_are_read() -> None:
    """A fuzz of what never decodes would show nothing."""
    for decoder in DECODERS:
        if decoder.sample and decoder.name != "token":
            decoder.decode(decoder.sample)
