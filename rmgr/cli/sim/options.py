"""Options that several commands of `rmgr sim` share: the machine, the workload, what happens to it."""

from __future__ import annotations

import re
from fractions import Fraction

import click

from rmgr.cli.words.params import DURATION_US
from rmgr.errors import UsageError

_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)")


def parse_factor(text: str) -> Fraction:
    """`0.7`, `.95`, `2`: exactly that decimal number, above 0 and at most 1,000. Raises UsageError."""
    word = text.strip()
    value = Fraction(word) if _NUMBER.fullmatch(word) else Fraction(0)
    if not 0 < value <= 1000:
        raise UsageError(f"{text!r} is not a factor", hint="a number above 0 and at most 1000, as 0.7")
    return value


nodes = click.option(
    "--nodes", type=click.IntRange(1, 10_000_000), help="of the machine; default: as the trace's header says; of a model: 128"
)
cores = click.option("--cores", type=click.IntRange(1, 100_000), default=1, show_default=True, help="of a node")
count = click.option("--count", type=click.IntRange(1), metavar="N", help="only the first N jobs; of a model: so many, default 10000")
tick = click.option("--tick", type=DURATION_US, default="0", show_default=True, help="passes only at multiples of it; 0: at every event")
sites = click.option(
    "--sites", type=click.IntRange(0, 10_000), default=0, help="a grid: nodes of drawn speeds, 0.5 to 1.5, in so many sites"
)
delay = click.option(
    "--delay", type=DURATION_US, default="10m", show_default=True, help="with --sites: for each site of a job beyond the first"
)
penalty = click.option(
    "--penalty", type=DURATION_US, default="1m", show_default=True, help="with --sites: of a migration, for each processor"
)
mtbf = click.option("--mtbf", type=DURATION_US, default="0", help="mean time between failures of each node, as 30d; with --mttr")
