#!/usr/bin/env bash
# Drives docker-compose.yml for real, as deploy/README.md describes it: up, hello, --scale, kill -9 in mid-run, down -v, and looks at
# what a user would look at: `docker compose ps`, restart counts, the logs, what is left.
usage() {
  cat <<'END'
Usage: tests/compose/run.sh [--keep] [--cassandra 1|3] [--no-build]

Needs Docker with Compose v2.24 or later (any engine that `docker` reaches: DOCKER_HOST, context) and 4 GiB of memory; says so and ends with 77
where there is none. One line a step with its time; exit code 0 when all is well. Everything carries a project name of its own and
is removed at the end, whatever happens; --keep leaves the cluster running. Behind a company proxy set RMGR_BUILD_CA and
RMGR_BUILD_PIP_CONF (deploy/compose.build.yml). RMGR_COMPOSE_EXTRA names further compose files, colon-separated.
END
}
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$ROOT"

keep=false cassandra=1 build=true
while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=true ;;
    --no-build) build=false ;;
    --cassandra)
      cassandra=${2:?--cassandra needs 1 or 3}
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

skip() {
  printf 'SKIPPED  %s\n' "$*"
  exit 77
}
command -v docker >/dev/null || skip "there is no docker on PATH"
timeout 20 docker info >/dev/null 2>&1 || skip "no Docker engine answers (docker info says why; is DOCKER_HOST right?)"
docker compose version --short 2>/dev/null | grep -Eq '^v?2' || skip "docker compose is not version 2"

# -- where -------------------------------------------------------------------------------------------------------------------

# The commands below are typed as a user types them; these variables alone keep this run apart from a cluster of his.
project=rmgr-test-$$
export COMPOSE_PROJECT_NAME=$project COMPOSE_ANSI=never COMPOSE_PROGRESS=plain
export RMGR_IMAGE=${RMGR_IMAGE:-rmgr:test} RMGR_GATEWAY_PORT='' # any free port of 127.0.0.1
COMPOSE_FILE=docker-compose.yml
if [ -n "${RMGR_BUILD_CA:-}${RMGR_BUILD_PIP_CONF:-}" ]; then COMPOSE_FILE+=:deploy/compose.build.yml; fi
if [ "$cassandra" = 3 ]; then COMPOSE_FILE+=:deploy/compose.cassandra3.yml; fi
COMPOSE_FILE+=${RMGR_COMPOSE_EXTRA:+:$RMGR_COMPOSE_EXTRA}
export COMPOSE_FILE
log=$(mktemp -d "${TMPDIR:-/tmp}/rmgr-compose.XXXXXX")

now_ms() { date +%s%3N; }
began_ms=$(now_ms)
step_ms=$began_ms
# ok WHAT: one line for the step that ended just now.
ok() {
  local now
  now=$(now_ms)
  printf 'ok      %6.1f s  %s\n' "$(((now - step_ms) / 100))e-1" "$*"
  step_ms=$now
}
fail() {
  printf 'FAILED            %s\n' "$*"
  printf '                  logs and the last output: %s\n' "$log"
  exit 1
}
# quietly WHAT COMMAND...: its output only when it fails.
quietly() {
  local what=$1
  shift
  if ! "$@" >"$log/out" 2>&1; then
    tail -n 25 "$log/out"
    fail "$what"
  fi
}
rmgr() { docker compose exec -T submitter rmgr "$@"; }
python() { docker compose exec -T submitter python -c "$@"; }
containers() { docker ps -aq --filter "label=com.docker.compose.project=$project"; }

finish() {
  local status=$?
  trap - EXIT INT TERM
  if [ "$status" != 0 ]; then
    docker compose ps -a >"$log/ps" 2>&1 || true
    docker compose logs --no-color --timestamps >"$log/logs" 2>&1 || true
  fi
  if $keep && [ "$status" = 0 ]; then
    printf 'The cluster runs on. COMPOSE_PROJECT_NAME=%s COMPOSE_FILE=%s docker compose down -v ends it.\n' "$project" "$COMPOSE_FILE"
  else
    docker compose down -v --remove-orphans --timeout 5 >/dev/null 2>&1 || true
  fi
  [ "$status" != 0 ] || rm -rf "$log"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# -- checks --------------------------------------------------------------------------------------------------------------------

# all_healthy RESTARTS: every container that is to run does and is healthy; `docker compose ps` says so; nobody was restarted more often.
all_healthy() {
  local bad restarts
  docker compose ps >"$log/ps"
  bad=$(docker compose ps -a --format '{{.Name}} {{.State}} {{.Health}} {{.ExitCode}}' | awk '!($2 == "running" && $3 == "healthy") && !($2 == "exited" && $1 ~ /-init-/ && $NF == 0)')
  [ -z "$bad" ] || { cat "$log/ps"; fail "not healthy: $bad"; }
  restarts=$(containers | xargs docker inspect -f '{{.RestartCount}}' | awk '{n += $1} END {print n}')
  [ "$restarts" = "$1" ] || fail "$restarts restarts by the engine where $1 were expected"
}

# What an attacker of the host or of a neighbour would look for first.
hardened() {
  local id told
  for id in $(containers); do
    told=$(docker inspect -f '{{.Name}} user={{.Config.User}} caps={{.HostConfig.CapDrop}} adds={{.HostConfig.CapAdd}} privileged={{.HostConfig.Privileged}} opts={{.HostConfig.SecurityOpt}} memory={{.HostConfig.Memory}} pids={{.HostConfig.PidsLimit}} image={{.Config.Image}} ro={{.HostConfig.ReadonlyRootfs}}' "$id")
    case $told in *"user= "* | *"user=0"* | *"user=root"*) [[ $told == *"image=$RMGR_IMAGE "* ]] || fail "runs as root: $told" ;; esac
    [[ $told == *"caps=[ALL] adds=[] privileged=false opts=[no-new-privileges:true]"* ]] || fail "may do too much: $told"
    [[ $told != *"memory=0 "* && $told == *"pids="[1-9]* ]] || fail "is not limited: $told"
    [[ $told == *"ro=true"* || $told == *"image=cassandra"* ]] || fail "its root can be written: $told"
  done
  [ "$(docker image inspect -f '{{.Config.User}}' "$RMGR_IMAGE")" = rmgr ] || fail "the image runs as root"
  # shellcheck disable=SC2016 # Go's variables, not the shell's
  told=$(containers | xargs docker inspect -f '{{range $port, $to := .NetworkSettings.Ports}}{{range $to}}{{$port}} on {{.HostIp}}{{"\n"}}{{end}}{{end}}' | sed '/^$/d' | sort -u)
  [ "$told" = "7071/tcp on 127.0.0.1" ] || fail "published: $told"
}

# What a stranger on the cluster's network finds: ZooKeeper answers to certificates of the cluster alone.
closed_to_strangers() {
  quietly "a stranger is let in" python '
import socket, ssl
for host in ("zookeeper1", "zookeeper2", "zookeeper3"):
    for port in (2181, 2888, 3888):
        try:
            socket.create_connection((host, port), 5).close()
            raise SystemExit(f"{host}:{port} is open")
        except ConnectionRefusedError:
            pass
    nobody = ssl.create_default_context()
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    try:
        with nobody.wrap_socket(socket.create_connection((host, 2281), 5)) as link:
            link.sendall(b"srvr")
            answer = link.recv(100)
        if answer:
            raise SystemExit(f"{host} answers {answer!r} to nobody")
    except (ssl.SSLError, ConnectionError):
        pass'
}

# no_errors [SERVICE...]: what containers wrote. Warnings of rmgr's own daemons must be expected ones; those of the servers are theirs.
no_errors() {
  local bad
  docker compose logs --no-color --no-log-prefix "$@" 2>&1 | sed 's/\x1b\[[0-9]*[A-Za-z]//g' >"$log/all"
  # A handshake fails when a client gives up on a server that starts slowly; it goes to the next one.
  bad=$(grep -E '^(ERROR|FATAL)|\] (ERROR|FATAL) |- (ERROR|FATAL) |"level": "(error|critical)"|Traceback|^error: |java.lang.OutOfMemoryError' "$log/all" |
    grep -v 'Unsuccessful handshake with session 0x0' | head -n 5 || true)
  [ -z "$bad" ] || fail "the logs say: $bad"
  bad=$(grep '"level": "warning"' "$log/all" | grep -vE "\"event\": \"($expected_warnings)\"" | head -n 5 || true)
  [ -z "$bad" ] || fail "the logs warn: $bad"
}
# The first after kills; the last two where the store is slower than 2 s, on a loaded machine.
expected_warnings='mass_loss_began|leadership_.*|session|gateway_without_zookeeper|leftover_ended|store_away|store_refused'

# nodes_up N SECONDS: exactly N nodes are up, and no other is known, within so long.
nodes_up() {
  local until_ms=$(($(now_ms) + $2 * 1000)) told
  while :; do
    told=$(rmgr nodes --json | python 'import json, sys; n = json.load(sys.stdin)["nodes"]; print(sum(x["state"] == "up" for x in n), "of", len(n), "up")' || true)
    if [ "$told" = "$1 of $1 up" ]; then return; fi
    [ "$(now_ms)" -lt "$until_ms" ] || fail "nodes after $2 s: $told, $1 expected"
    sleep 0.5
  done
}

# done_of JOB: how many of its tasks are COMPLETED.
done_of() { rmgr show "$1" --json | python 'import json, sys; print(json.load(sys.stdin)["counts"].get("COMPLETED", 0))'; }

# every_task_once JOB N: N tasks, each COMPLETED with exit code 0, each with its one line of output; prints how many needed a further attempt.
every_task_once() {
  rmgr tasks "$1" --json | python '
import json, sys
tasks = json.load(sys.stdin)["tasks"]
assert sorted(task["index"] for task in tasks) == list(range(1, int(sys.argv[1]) + 1)), len(tasks)
assert all(task["state"] == "COMPLETED" and task["exit_code"] == 0 for task in tasks), tasks
print(sum(task["attempt"] > 1 for task in tasks))' "$2" >"$log/again" || fail "not every task of job $1 ended well: $(rmgr show "$1")"
  rmgr logs "$1" 2>"$log/out" | sort -n -k 2 >"$log/lines"
  seq "$2" | sed "s/.*/$1_&: &/" | diff - "$log/lines" >>"$log/out" || fail "the output of job $1 is not one line a task: $(head -n 5 "$log/out")"
}

# -- the run -------------------------------------------------------------------------------------------------------------------

if $build; then
  quietly "the image cannot be built" docker compose build
  ok "docker compose build: $(docker image inspect -f '{{.Size}}' "$RMGR_IMAGE" | awk '{printf "%.0f MB", $1 / 1e6}') with its base image"
fi

quietly "docker compose up -d --wait" docker compose up -d --wait
ok "docker compose up -d --wait: $(containers | wc -l) containers"
all_healthy 0
hardened
closed_to_strangers
ok "docker compose ps: all healthy, no restart; nobody is root, has a capability or a port beyond 127.0.0.1; strangers stay outside"

[ "$(docker compose exec -T submitter rmgr submit --wait -- echo hello 2>"$log/out")" = hello ] || fail "hello: $(cat "$log/out")"
ok "docker compose exec submitter rmgr submit --wait -- echo hello"
nodes_up 3 20
quietly "rmgr status is not healthy" rmgr status
rmgr doctor --json >"$log/out" || true
bad=$(python 'import json, sys; print(*[c["name"] + ": " + c["detail"] for c in json.load(sys.stdin)["checks"] if not c["ok"] and not c["name"].endswith("fsync")], sep="; ")' <"$log/out")
[ -z "$bad" ] || fail "rmgr doctor: $bad" # a slow disk is the machine's
no_errors
ok "rmgr nodes, status, doctor: 3 nodes, healthy; docker compose logs: no error in $(wc -l <"$log/all") lines"

before=$(containers | sort)
quietly "docker compose up --scale starter=5" docker compose up -d --wait --scale starter=5
nodes_up 5 20
[ -z "$(comm -23 <(echo "$before") <(containers | sort))" ] || fail "--scale made containers anew that were there"
ok "docker compose up -d --wait --scale starter=5: 5 nodes, nothing else was touched"

tasks=150
# shellcheck disable=SC2016 # expanded on the node
work='sleep 0.4; echo $RMGR_ARRAY_INDEX'
job=$(rmgr submit --parsable --array "1-$tasks" -- sh -c "$work")
until [ "$(done_of "$job")" -ge 20 ]; do
  [ $(($(now_ms) - step_ms)) -lt 60000 ] || fail "the array does not start: $(rmgr explain "$job")"
done
quietly "docker compose kill" docker compose kill -s KILL starter
running=$(docker compose ps -q starter | wc -l)
[ "$running" = 0 ] || fail "$running Starters survived kill -s KILL"
reached=$(done_of "$job")
[ "$reached" -lt "$tasks" ] || fail "all tasks were done before the kill: nothing was tested"
quietly "up after the kill" docker compose up -d --wait --scale starter=5
quietly "the array does not end" rmgr wait --timeout 2m "$job"
every_task_once "$job" "$tasks"
ok "docker compose kill -s KILL starter, all 5 at task $reached of $tasks, up again: every task COMPLETED once, $(cat "$log/again") by a further attempt"

job=$(rmgr submit --parsable --array "1-$tasks" -- sh -c "$work")
until [ "$(done_of "$job")" -ge 20 ]; do :; done
docker compose exec -T --index 2 starter sh -c 'kill -9 -1' >/dev/null 2>&1 || true # all but process 1, which ends with them
quietly "kill of a WatchDog" docker kill -s KILL "$(docker compose ps -q watchdog | head -n 1)"
quietly "kill of a ZooKeeper" docker compose kill -s KILL zookeeper2
quietly "the array does not end" rmgr wait --timeout 2m "$job"
every_task_once "$job" "$tasks"
quietly "up after the kills" docker compose up -d --wait --scale starter=5
nodes_up 5 20
all_healthy 1
ok "SIGKILL inside a Starter, to a WatchDog and to a ZooKeeper: the same, $(cat "$log/again") by a further attempt; the engine restarted the Starter"

quietly "back to 3" docker compose up -d --wait --scale starter=3
no_errors watchdog starter submitter security-init store-init cassandra1
ok "docker compose logs of the whole run: rmgr and Cassandra wrote no error, no unexpected warning in $(wc -l <"$log/all") lines"

if ! $keep; then
  quietly "docker compose down -v" docker compose down -v
  left=$(containers && docker volume ls -q --filter "label=com.docker.compose.project=$project" && docker network ls -q --filter "label=com.docker.compose.project=$project")
  [ -z "$left" ] || fail "docker compose down -v left $left"
  ok "docker compose down -v: no container, volume or network is left"
fi
printf 'passed in %d s\n' "$((($(now_ms) - began_ms) / 1000))"
