"""Threads that are the first to decode a type, at the same moment."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.places import ROOT

_RACE = """
import sys, threading
sys.setswitchinterval(1e-6)
from rmgr.coord.protocol.records import decode_record, encode_record
from rmgr.model.tasks.submission import Submission, Work
data = encode_record(Submission(id=1, name="n", user="u", queue="q", work=Work.COMMAND))
barrier = threading.Barrier(8)
def decode():
    barrier.wait()
    assert decode_record(data, Submission).id == 1
threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
#: One thread decodes in these, or the type has no fields: programs of a rank and of a bench, a dictionary, a token of one struct.
_ALONE = {"runner/python/rank_call.py", "bench/load/silent_starters.py", "bench/load/virtual_starters.py"}
_ALONE |= {"adapters/identity/invitation.py", "runner/python/served.py"}


@pytest.mark.parametrize("attempt", range(10))
def test_threads_that_decode_a_record_for_the_first_time_do_not_end_the_process(attempt: int) -> None:
    """Before its decoder was made by one thread, every fourth such process ended by SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", _RACE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"attempt {attempt}: {done.stderr}"


def test_no_type_is_decoded_without_a_decoder_that_one_thread_has_made() -> None:
    called = re.compile(r"msgspec\.(?:json|msgpack)\.decode\([^\n]*type=")
    found = {str(path.relative_to(ROOT / "rmgr")) for path in (ROOT / "rmgr").rglob("*.py") if called.search(path.read_text())}
    assert found == _ALONE
