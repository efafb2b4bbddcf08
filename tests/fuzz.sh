#!/usr/bin/env bash
# Fuzzes every decoder of rmgr (frames of workers and lines, rows, what gateways get, files) for an hour, or for so many seconds:
#
#   tests/fuzz.sh                    an hour
#   tests/fuzz.sh 60                 a minute, shared by all decoders
#   tests/fuzz.sh 3600 -k frames     any arguments of pytest
#
# Each decoder gets values of its schema that are spoilt somewhere, and nothing but its documented error may come out. The exit code is
# pytest's. PYTHON=/path/to/python chooses an interpreter that has rmgr and its tests' packages.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
seconds=${1:-3600}
[ $# -eq 0 ] || shift
python=${PYTHON:-$ROOT/.venv/bin/python}
count=$("$python" -c 'from tests.harness.decoders import DECODERS; print(len(DECODERS))')
export RMGR_FUZZ_S
RMGR_FUZZ_S=$("$python" -c 'import sys; print(float(sys.argv[1]) / float(sys.argv[2]))' "$seconds" "$count")
exec "$python" -m pytest tests/property/test_decoders.py -n 0 -q -p no:cacheprovider -o timeout=$((seconds + 600)) "$@"
