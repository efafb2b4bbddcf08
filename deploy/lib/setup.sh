#!/usr/bin/env bash
# Installs what rmgr needs, each part only when it is missing, one clear line each. Sourced by quickstart.sh and tests/run.sh;
# by hand: deploy/lib/setup.sh ensure_cassandra
#
# The caller sets ROOT (top of the checkout). PYTHON names the interpreter to use, VENV the virtual environment (default: ROOT/.venv).
# Package indexes are whatever apt and pip of this machine are configured for.

ROOT=${ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
VENV=${VENV:-$ROOT/.venv}
ZOOKEEPER_PACKAGES=(default-jre-headless libzookeeper-java libnetty-java libslf4j-java)

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }
die() {
  warn "error: $*"
  exit 1
}

# -- Debian's packages -----------------------------------------------------------------------------------------------------

# install_packages WHY PACKAGE...: installs from Debian; says what to type when that is not possible here.
install_packages() {
  local why=$1 log
  shift
  command -v apt-get >/dev/null || die "$why is missing, and this system has no apt-get. Install what Debian calls: $*"
  [ "$(id -u)" = 0 ] || die "$why is missing. As root, type: apt-get install --no-install-recommends $*"
  say "Installing $why ($*)"
  mkdir -p /usr/share/man/man1 # slim containers leave it out, and the JRE's set-up script fails without it
  log=$(mktemp)
  # The lists may be absent (fresh machine) or old (404): refresh them only then.
  if ! apt_get install "$@" >"$log" 2>&1 && ! { apt_get update && apt_get install "$@"; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    rm -f "$log"
    die "apt-get could not install $*. Is this machine online, and are its package sources right (apt-get update)?"
  fi
  rm -f "$log"
}

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=2 --no-install-recommends "$@" </dev/null; }

# Prints what rmgr lacks to start a ZooKeeper here, nothing when it lacks nothing.
zookeeper_lacks() {
  "$VENV/bin/python" -c 'from rmgr.dev.zookeeper import missing_parts; print(missing_parts() or "")'
}

# A Java runtime and ZooKeeper's jars, after ensure_venv. JAVA_HOME and RMGR_ZOOKEEPER_LIB (a directory of jars) are honoured.
ensure_zookeeper() {
  local lacks
  lacks=$(zookeeper_lacks) || die "rmgr in $VENV cannot be asked what is missing"
  [ -n "$lacks" ] || return 0
  install_packages "ZooKeeper with its Java runtime" "${ZOOKEEPER_PACKAGES[@]}"
  lacks=$(zookeeper_lacks)
  [ -z "$lacks" ] || die "its packages are installed, and still: $lacks"
}

# -- Java programs from Maven Central ------------------------------------------------------------------------------------------

# fetch_jars NAME WHAT: the jars that rmgr/dev/NAME.pom.xml asks for, into the user's cache, when they are missing or the file has changed.
fetch_jars() {
  local name=$1 what=$2 python
  python=$(any_python)
  if PYTHONPATH=$ROOT "$python" -m rmgr.dev.jars --check "$name"; then return 0; fi
  command -v mvn >/dev/null || install_packages "Maven, to fetch $what" maven
  PYTHONPATH=$ROOT "$python" -m rmgr.dev.jars "$name" || die "$what could not be fetched"
}

# ZooKeeper 3.9, what production runs; Debian has 3.8. `rmgr dev` and the tests can use either.
ensure_zookeeper39() { fetch_jars zookeeper-3.9 "ZooKeeper 3.9"; }

# -- Cassandra, for tests and `rmgr dev --store cassandra` -------------------------------------------------------------------

# Its jars and a Java that it runs on. RMGR_CASSANDRA_LIB (a directory of jars) and JAVA_HOME are honoured.
ensure_cassandra() {
  [ -n "${RMGR_CASSANDRA_LIB:-}" ] || fetch_jars cassandra-5.0 "Cassandra 5.0"
  PYTHONPATH=$ROOT "$(any_python)" -c 'from rmgr.dev import cassandra; cassandra.java()' 2>/dev/null ||
    install_packages "Java for Cassandra" default-jre-headless
}

# Network namespaces, the machines of tests/integration/install/test_machines.py.
ensure_iproute() {
  command -v ip >/dev/null || install_packages "ip, for tests with network namespaces" iproute2
}

# Open MPI and a C compiler, for tests/integration/starter/test_starter_ranks.py and test_rank_tasks.py.
ensure_openmpi() {
  if command -v mpirun >/dev/null && command -v mpicc >/dev/null && command -v gcc >/dev/null; then return; fi
  install_packages "Open MPI, for tests of MPI jobs" openmpi-bin libopenmpi-dev gcc libc6-dev
}

# systemd-analyze, which checks deploy/systemd in the tests. It needs no running systemd.
ensure_systemd_analyze() {
  command -v systemd-analyze >/dev/null || install_packages "systemd-analyze" systemd
}

# -- Python ----------------------------------------------------------------------------------------------------------------

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
makes_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Prints the interpreter to use: $PYTHON, else Debian's own, else the newest that can make virtual environments.
choose_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    is_recent "$PYTHON" || die "PYTHON=$PYTHON is not Python 3.11 or later"
    printf '%s\n' "$PYTHON"
    return
  fi
  local candidates=(python3.13 python3.12 python3.11 python3)
  [ ! -e /etc/debian_version ] || candidates=(/usr/bin/python3 "${candidates[@]}")
  for candidate in "${candidates[@]}"; do
    if is_recent "$candidate" && makes_venvs "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  if is_recent /usr/bin/python3; then
    printf '%s\n' /usr/bin/python3 # without its venv module: ensure_venv installs that
    return
  fi
  die "no Python 3.11 or later found. Set PYTHON=/path/to/python3, or install one"
}

# Prints an interpreter for what needs no packages.
any_python() { if [ -x "$VENV/bin/python" ]; then echo "$VENV/bin/python"; else choose_python; fi; }

# ensure_venv EXTRAS: rmgr from this checkout in $VENV, with the extras ("" or "test,examples"); nothing to do when it is there and fresh.
ensure_venv() {
  # One at a time in one checkout. The lock is on a file that is there anyway, and only in this subshell, so that no daemon inherits it.
  (
    if command -v flock >/dev/null; then flock 9; fi
    install_rmgr "$1"
  ) 9<"$ROOT/pyproject.toml"
}

install_rmgr() {
  local extras=$1 python stamp="$VENV/.rmgr-installed" want log wheels
  if [ -e "$VENV" ] && ! "$VENV/bin/python" -c '' >/dev/null 2>&1; then
    [ -e "$VENV/pyvenv.cfg" ] || die "$VENV exists and is not a virtual environment. Move it away, or set VENV=DIR"
    say "The virtual environment in $VENV does not run any more: making it anew"
    rm -rf "$VENV"
  fi
  if [ ! -e "$VENV" ]; then
    python=$(choose_python)
    makes_venvs "$python" || install_packages "Python's venv module" python3-venv
    say "Making a virtual environment ($("$python" --version)) in $VENV"
    "$python" -m venv "$VENV" || die "$python could not make a virtual environment in $VENV"
  fi
  is_recent "$VENV/bin/python" || die "$VENV has $("$VENV/bin/python" --version), needed is 3.11 or later. Remove it, or set VENV=DIR"
  want="$(cksum <"$ROOT/pyproject.toml") $ROOT"
  if [ -x "$VENV/bin/rmgr" ] && is_stamped "$stamp" "$want" "$extras"; then return; fi
  say "Installing rmgr${extras:+ [$extras]} with pip"
  # Once the distribution was called rmgr, which is somebody else's package on the public index.
  "$VENV/bin/python" -m pip uninstall --quiet --yes rmgr </dev/null >/dev/null 2>&1 || true
  log=$(mktemp)
  wheels=${XDG_CACHE_HOME:-$HOME/.cache}/rmgr/wheels/$(cksum <"$ROOT/pyproject.toml" | tr ' ' -)-$(wheels_of "$extras")
  if ! { fetch_wheels "$wheels" "$extras" && pip_quietly install --no-compile --no-index -f "$wheels" \
    --editable "$ROOT${extras:+[$extras]}"; } >"$log" 2>&1; then
    tail -n 8 "$log" >&2
    rm -rf "$log" "$wheels"
    die "pip could not install rmgr${extras:+ [$extras]}. Is this machine online, and does pip know its index (pip config list)?"
  fi
  rm -f "$log"
  # On all cores, where pip uses one, and without what nothing here imports. Some packages have files that do not compile.
  "$VENV/bin/python" -m compileall -q -j 0 -x '/(tests|fontTools|mypyc?|pip|pygments|setuptools)/' "$VENV/lib" >/dev/null 2>&1 || true
  stamp_extras "$stamp" "$want" "$extras"
}

pip_quietly() { "$VENV/bin/python" -m pip "$1" --quiet --disable-pip-version-check --retries 2 "${@:2}" </dev/null; }

# Names the wheels of these extras for this interpreter.
wheels_of() { "$VENV/bin/python" -c 'import platform, sys; print(sys.implementation.cache_tag, platform.machine(), *sys.argv[1:], sep="-")' "$1"; }

# fetch_wheels DIR EXTRAS: what pip chooses for rmgr and to build it, kept for a month: to choose anew takes it longer than to install.
fetch_wheels() {
  find "${1%/*}" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + 2>/dev/null || true
  [ ! -d "$1" ] || return 0
  pip_quietly wheel --wheel-dir "$1.$$" 'flit_core>=3.11,<4' "$ROOT${2:+[$2]}" || return 1
  rm -f "$1.$$"/rmgr_cluster-*
  mv -T "$1.$$" "$1" || [ -d "$1" ] # another checkout was quicker
}

# The stamp: first line what was installed from, then one line an extra.
is_stamped() {
  local stamp=$1 want=$2 extra
  [ -e "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$want" ] || return 1
  for extra in ${3//,/ }; do grep -qx "$extra" "$stamp" || return 1; done
}

stamp_extras() {
  local stamp=$1 want=$2 extra
  if [ ! -e "$stamp" ] || [ "$(head -n 1 "$stamp")" != "$want" ]; then printf '%s\n' "$want" >"$stamp"; fi
  for extra in ${3//,/ }; do grep -qx "$extra" "$stamp" || printf '%s\n' "$extra" >>"$stamp"; done
}

# CPython's own tests of concurrent.futures, which rmgr.Executor must pass; Debian keeps them in a package of their own.
ensure_python_testsuite() {
  has_testsuite && return
  local version
  version=$("$VENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  [ "$("$VENV/bin/python" -c 'import sys; print(sys.base_prefix)')" = /usr ] ||
    die "the Python of $VENV has no test.test_concurrent_futures and is not Debian's; use PYTHON=/usr/bin/python3"
  install_packages "Python's own test suite" "libpython$version-testsuite"
  has_testsuite || die "test.test_concurrent_futures is missing although libpython$version-testsuite is installed"
}

# The oldest cloudpickle that rmgr allows, beside the newest of the environment: pickles of both are read by both.
ensure_oldest_cloudpickle() {
  local target=${XDG_CACHE_HOME:-$HOME/.cache}/rmgr/cloudpickle-3.0.0
  [ ! -d "$target" ] || return 0
  say "Installing the oldest cloudpickle"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$target.$$" cloudpickle==3.0.0 ||
    die "pip could not install cloudpickle 3.0.0. Is this machine online?"
  mv "$target.$$" "$target"
}

has_testsuite() { "$VENV/bin/python" -c 'import test.test_concurrent_futures' >/dev/null 2>&1; }

# By hand: deploy/lib/setup.sh FUNCTION
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  set -euo pipefail
  case ${1:-} in
    ensure_*) "$@" ;;
    *) die "usage: $0 ensure_cassandra | ensure_oldest_cloudpickle | ensure_zookeeper39 | ensure_zookeeper | ensure_venv EXTRAS" ;;
  esac
fi
