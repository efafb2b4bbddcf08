#!/usr/bin/env bash
# Fuzzes rmgr for an hour, or for so many seconds:
#
#   tests/fuzz.sh                    an hour
#   tests/fuzz.sh 60                 a minute
#   tests/fuzz.sh 3600 -k frames     any arguments of pytest
#
# A quarter of the time every decoder gets values of its schema that are spoilt somewhere, and nothing but its documented error may come out.
# For the rest of it a secured cluster gets such messages, in turns from workers, from who stands in a spawner's place, on direct lines, by
# gateways and in rows; no daemon may be lost, and every node serves another user (root only).
#
# The exit code is pytest's. PYTHON=/path/to/python chooses an interpreter that has rmgr and its tests' packages.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
seconds=${1:-3600}
[ $# -eq 0 ] || shift
python=${PYTHON:-$ROOT/.venv/bin/python}
count=$("$python" -c 'from tests.harness.decoders import DECODERS; print(len(DECODERS))')
export RMGR_FUZZ_S RMGR_FUZZ_SIDE_S
RMGR_FUZZ_S=$("$python" -c 'import sys; print(float(sys.argv[1]) / 4 / float(sys.argv[2]))' "$seconds" "$count")
RMGR_FUZZ_SIDE_S=$("$python" -c 'import sys; print(float(sys.argv[1]) * 3 / 4 / 5)' "$seconds")
exec "$python" -m pytest tests/property/test_decoders.py tests/chaos/test_fuzz_behind.py -n 0 -rP -q -p no:cacheprovider -o timeout=$((seconds + 600)) "$@"
