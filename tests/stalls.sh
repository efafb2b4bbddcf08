#!/usr/bin/env bash
# Runs tests/run.sh on a machine that stands still: once a minute all its processes are stopped for 2 to 10 s (tests/harness/stalls.py).
#
#   tests/stalls.sh                  everything that tests/run.sh runs
#   tests/stalls.sh -k store -x      any arguments of pytest
#
# Nothing is excused for a stall here: a test that fails has one more go, and a run fails in which more than ten needed one. It names them:
# each waits for seconds where it should wait for a condition, or for an order of events. The exit code is that of tests/run.sh.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
python=${PYTHON:-$ROOT/.venv/bin/python}
[ -x "$python" ] || { echo "tests/stalls.sh needs $python: run tests/run.sh once, which makes it" >&2; exit 1; }
exec "$python" -m tests.harness.stalls bash tests/run.sh "$@"
