#!/usr/bin/env bash
# Regenerates rmgr/v1 from proto/ with grpcio-tools 1.71.2 (stubs that run on protobuf 5.29 and later).
# Usage: deploy/gen_protos.sh [OUT]    default OUT: the checkout itself
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-.}"
python="${PYTHON:-python3}"
if [ -x .venv/bin/python ]; then python="${PYTHON:-.venv/bin/python}"; fi
mkdir -p "$out"
"$python" -m grpc_tools.protoc -Iproto --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" proto/rmgr/v1/*.proto
printf '"""Generated from proto/rmgr/v1 by deploy/gen_protos.sh; wrapped by adapters/rpc. Do not edit."""\n' > "$out/rmgr/v1/__init__.py"
