"""Named streams of random numbers: one seed drives one stream per purpose, so that changing one part never changes another's draws."""

from __future__ import annotations

import hashlib
import random


def stream(seed: int, purpose: str) -> random.Random:
    """The stream of `purpose` ("arrivals", "sizes", ...) under `seed`.

    The same seed and purpose give the same numbers on every machine and Python (Mersenne Twister, seeded with 256 bits of SHA-256);
    two purposes share nothing. Compared policies are thus given the same workload: common random numbers.
    """
    digest = hashlib.sha256(f"rmgr/{seed}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))
