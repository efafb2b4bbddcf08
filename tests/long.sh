#!/usr/bin/env bash
# Runs the tests that are marked `long`, which tests/run.sh leaves out: they wait for minutes, or need gigabytes. Among them are the attacks of
# tests/chaos/test_attacks_behind.py at the sizes at which they were found, which need 16 GiB of memory.
#
#   tests/long.sh                    all of them: half an hour and more
#   tests/long.sh -k store -x        any arguments of pytest
#
# Two files at a time, because rings of Cassandra and large attacks need the memory. All else is as in tests/run.sh: what is installed,
# second goes, the exit code. RMGR_ATTACKS=small leaves the attacks as small as they are in the daily run, where they need not run again.
set -euo pipefail
export RMGR_ATTACKS=${RMGR_ATTACKS:-full}
exec bash "$(dirname "${BASH_SOURCE[0]}")/run.sh" -n 2 -m long "$@"
