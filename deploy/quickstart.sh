#!/usr/bin/env bash
# From a fresh checkout to an application that survives the loss of a node, on this machine, in one command.
usage() {
  cat <<'END'
Usage: deploy/quickstart.sh [--keep] [--dir DIR]

Installs what is missing (Debian's Java runtime and ZooKeeper, a virtual environment .venv with rmgr), starts a cluster on this
machine (1 ZooKeeper, 2 WatchDogs, 3 Starters, each its own process; SQLite), runs deploy/examples/fragments.py on it, kills one
Starter in the middle, shows the result and how long the recovery took, and stops the cluster.

  --keep      leave the cluster running, and say how to use and how to stop it
  --dir DIR   where the cluster keeps its files (default: a new directory under $TMPDIR or /tmp, removed at the end)

Root is needed only if something has to be installed. PYTHON=/path/to/python3 and VENV=DIR choose another interpreter or environment.
END
}
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/lib/setup.sh
. "$ROOT/deploy/lib/setup.sh"

keep=false dir=""
while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=true ;;
    --dir)
      [ $# -gt 1 ] || die "--dir needs a directory"
      dir=$2
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift
done

heading() { printf '\n== %s\n' "$*"; }

heading "1. What is missing here"
[ "$(uname -s)" = Linux ] || die "the daemons run on Linux; on $(uname -s) only the client does"
ensure_venv examples
ensure_zookeeper
say "Ready: $("$VENV/bin/python" --version), $("$VENV/bin/rmgr" version)"

# Another cluster, of this user or another, is none of our business: everything below names this directory or these two endpoints.
for name in $(compgen -e | grep '^RMGR_' | grep -v '^RMGR_ZOOKEEPER_LIB$' || true); do unset "$name"; done
own_dir=false
if [ -z "$dir" ]; then
  dir=$(mktemp -d "${TMPDIR:-/tmp}/rmgr-quickstart.XXXXXX")
  own_dir=true
fi
dir=$(realpath -m "$dir")
mkdir -p "$dir"
app=""
record=$dir/fault.json
out=$dir/fragments.out

finish() {
  local status=$?
  trap - EXIT INT TERM
  if [ -n "$app" ]; then kill "$app" 2>/dev/null || true; fi
  if [ "$status" = 0 ] && $keep; then exit 0; fi
  "$VENV/bin/rmgr" dev stop --dir "$dir" >/dev/null 2>&1 || true
  case $status in
    0 | 130 | 143) if $own_dir; then rm -rf "$dir"; fi ;;
    *) warn "The quickstart failed. The logs of the cluster are in $dir" ;;
  esac
  case $status in 130 | 143) warn "Interrupted; the cluster is stopped." ;; esac
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

heading "2. A cluster on this machine: 1 ZooKeeper, 2 WatchDogs, 3 Starters of 2 cores"
"$VENV/bin/rmgr" dev --detach --no-restart --dir "$dir" --zookeepers 1 --watchdogs 2 --nodes 3 --cores 2 >"$dir/dev.out"
head -n 1 "$dir/dev.out" # the rest says what to type next: too early here
endpoint() { "$VENV/bin/rmgr" dev status --dir "$dir" --json | "$VENV/bin/python" -c "import json, sys; print(json.load(sys.stdin)['$1'])"; }
RMGR_ZK=$(endpoint zookeeper)
RMGR_STORE=$(endpoint store)
RMGR_SECURITY_DIR=$(endpoint security)
export RMGR_ZK RMGR_STORE RMGR_SECURITY_DIR

loss() { "$VENV/bin/python" "$ROOT/deploy/lib/starter_loss.py" "$@"; }
job=$(($(loss newest) + 2)) # the application's first TaskQueue takes the next number, its second the one after that

heading "3. Energy of a water cluster by fragments; one Starter dies in the middle"
: >"$out" # now: who follows it may look before the application's process has begun
"$VENV/bin/python" -u "$ROOT/deploy/examples/fragments.py" --progress --delay 0.25 >>"$out" 2>&1 &
app=$!
tail -n +1 -s 0.2 -f --pid=$app "$out" 2>/dev/null &
shown=$!
if ! loss kill --job "$job" --done 0.2 --record "$record"; then
  kill "$shown" 2>/dev/null || true
  die "the application did not get as far as it should (its output: $out)"
fi
ended=0
wait "$app" || ended=$?
app=""
wait "$shown" || cat "$out"
[ "$ended" = 0 ] || die "the application ended with exit code $ended (its output: $out)"

heading "4. What the loss of a Starter did"
loss report "$record"

rmgr=$VENV/bin/rmgr
heading "5. rmgr status"
"$rmgr" status || say "(not healthy: the killed node is missing)"

if $keep; then
  heading "The cluster goes on running. Next, type"
  say "  export RMGR_ZK='$RMGR_ZK' RMGR_STORE='$RMGR_STORE' RMGR_SECURITY_DIR='$RMGR_SECURITY_DIR'"
  say "  $rmgr submit --wait -- echo hello"
  say "  $rmgr tasks $job                            # every task, where it ran, in which attempt"
  say "  $VENV/bin/python deploy/examples/eigen.py --progress --delay 2    # kill a Starter in the middle of this one"
  say "  $VENV/bin/python deploy/examples/sweep.py"
  say "  $rmgr dev stop --dir $dir"
else
  "$rmgr" dev stop --dir "$dir"
  heading "The cluster is stopped. Next, type"
  say "  $rmgr dev --detach                       # a cluster to work with; rmgr dev stop ends it"
  say "  $rmgr submit --wait -- echo hello"
  say "  $VENV/bin/python deploy/examples/sweep.py"
  say "  $rmgr --help"
fi
