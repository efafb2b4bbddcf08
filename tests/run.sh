#!/usr/bin/env bash
# Installs what is missing, then runs all checks and tests; the last line is pytest's own summary, the exit code is its verdict.
# Before it stand the ten tests that took longest, and those that needed another go.
#
#   tests/run.sh                     everything but what is marked `long`
#   tests/run.sh --changed           what the change since HEAD can break (--changed=REV: since REV)
#   tests/run.sh -k store -x         any arguments of pytest
#   tests/run.sh -m ""               what is marked `long`, too, which tests/long.sh runs alone
#
# Stages, cheapest first (tests/harness/run_stages.py): what is computed, features on real processes, chaos. A failure of the first ends the
# run. Tests of real processes that fail have another go, alone, at the end (tests/harness/second_goes.py); a run fails in which more than
# ten needed one without a stall of the machine, or more than RMGR_MOST_RERUNS. RMGR_RECORD_DURATIONS=1 refreshes tests/durations.json.
# PYTHON=/path/to/python3 and VENV=DIR choose another interpreter or environment. With CI=true a part that cannot be
# installed is a failure; elsewhere the tests that need it skip themselves and say so.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/lib/setup.sh
. "$ROOT/deploy/lib/setup.sh"

# A part that a developer can do without; continuous integration cannot.
wanted() {
  if ! ("$@"); then
    [ "${CI:-}" != true ] || die "needed for the tests with CI=true"
    warn "Going on without it: the tests that need it will be skipped."
  fi
}

cd "$ROOT"

# Thousands of short processes are started: compiling everything anew in each of them takes minutes.
unset PYTHONDONTWRITEBYTECODE

# In a fresh checkout nothing is compiled: the package and the harness are while pip keeps another core busy.
is_fresh=$([ -e tests/unit/coord/__pycache__ ] || echo yes)
[ -z "$is_fresh" ] || "$(choose_python)" -m compileall -q rmgr tests/harness &

ensure_venv test,examples,cassandra,plots,mpi
wanted ensure_zookeeper
wanted ensure_cassandra
wanted ensure_zookeeper39
wanted ensure_python_testsuite
wanted ensure_oldest_cloudpickle
wanted ensure_systemd_analyze
wanted ensure_iproute
wanted ensure_openmpi

# Each worker would compile all tests for itself: two processes do it once, for all of them, each for every second file.
wait
for half in ${is_fresh:+0 1}; do
  find tests -name 'test_*.py' | sort | awk "NR % 2 == $half" | xargs "$VENV/bin/python" -m pytest --collect-only -qq >/dev/null 2>&1 &
done
wait

export RMGR_STAGED=1

# Import-linter, ruff and mypy run inside pytest (tests/test_house.py), so that its summary is the last line.
# Four files at a time, the longest of each stage first: half of the time goes into waiting for processes and for sessions to expire.
# `tests/run.sh -n 0` runs one after the other.
exec "$VENV/bin/python" -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations=10 --durations-min=1 -m "not long" "$@"
