"""`rmgr doctor`: finds what is wrong, and names the fix."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rmgr.cli.display.render import clock, folded, paint, printable
from rmgr.cli.session import Session, WorkEnded, command
from rmgr.errors import NoServer, RmgrError, StoreUnavailable, Unavailable, WrongCluster
from rmgr.model.node import NodeState
from rmgr.model.states import State
from rmgr.model.units import counted, format_duration, format_size
from rmgr.model.views import Level, StatusView

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.rpc.services import LeaderClient

_LOW_DISK_SHARE, _LOW_DISK_BYTES = 0.03, 1 << 30
_SLOW_FSYNC_MS = 50.0
_SKEW_S = 2.0
_CLOCKS = "by them times are shown and --begin is meant, and certificates and signatures begin and end"
_LOW_FILES = 4096
_MOST_ZNODES = 20_000
_MOST_PARTS = 30
Checks = Iterator["CheckResult"]
#: Days before their end from which certificates are mentioned.
SOON_DAYS = 30
#: Used share from which ZooKeeper's quotas are mentioned.
_FULL_SHARE = 0.8
#: Used share from which it is a fault: what is refused does not count, so it hardly ever reaches 1.
_NO_ROOM_SHARE = 0.99
_SYS_RESOURCE = 24  #: number of the capability


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Finding of one check. fix: the command to type or the thing to change; if `ok`, it is advice."""

    name: str
    detail: str
    fix: str = ""
    ok: bool = True


def failed(name: str, error: RmgrError) -> CheckResult:
    """Returns the finding that a check has raised an error."""
    return CheckResult(name, error.message, error.hint, ok=False)


@command(
    "doctor",
    examples="""\
    rmgr doctor
    rmgr doctor --zk zk1:2181 --store sqlite:/srv/rmgr/store.db
    rmgr doctor --json | jq '.checks[] | select(.ok | not)'""",
    exits="0 healthy, 1 something is wrong: the lines that begin with FAILED say what, and what to do",
)
def doctor(session: Session) -> None:
    """Checks this machine, the configuration, ZooKeeper, the data store and the cluster; says what is wrong and how to mend it."""
    checks: list[CheckResult] = []
    for check in _or_error(everything(session)):
        checks.append(check)
        if not session.json:
            _draw(check)
    wrong = [check.name for check in checks if not check.ok]
    told = [{"name": check.name, "ok": check.ok, "detail": check.detail, "fix": check.fix} for check in checks]
    text = f"{len(wrong)} of {len(checks)} checks failed: {', '.join(wrong)}" if wrong else "healthy"
    session.answer({"healthy": not wrong, "checks": told}, f"\n{text}\n")
    if wrong:
        raise WorkEnded(1)


def _or_error(checks: Checks) -> Checks:
    try:
        yield from checks
    except RmgrError as error:
        yield failed("connection", error)


def _draw(check: CheckResult) -> None:
    out = sys.stdout
    word, style = ("ok", "green") if check.ok and not check.fix else ("advice", "yellow") if check.ok else ("FAILED", "red")
    told = folded(printable(check.detail), out, begin=8 + len(check.name) + 2, indent=8)
    out.write(f"{paint(f'{word:<6}', style, out)}  {paint(check.name, 'bold', out)}: {told}\n")
    if check.fix:
        out.write(f"        -> {folded(printable(check.fix), out, begin=11, indent=11)}\n")
    out.flush()


# -- checks, from this machine outwards ----------------------------------------------------------------------------------------


def everything(session: Session) -> Checks:
    """Yields all checks, from this machine outwards, without those that need a missing part."""
    yield from this_python(session)
    yield from this_machine(session)
    configured = [*configuration(session)]
    configured += credentials(session) if all(check.ok for check in configured) else ()
    yield from configured
    if not all(check.ok for check in configured):
        return
    reached = [*zookeeper_servers(session)]
    yield from reached
    yield from data_store(session)
    sessions = [*coordination(session)]
    yield from sessions
    if all(check.ok for check in sessions):
        yield from root(session)
        yield from cluster(session)


# -- this machine --------------------------------------------------------------------------------------------------------------


def this_python(_session: Session) -> Checks:
    """Checks the interpreter and the packages."""
    version = platform.python_version()
    ok = sys.version_info >= (3, 11)
    yield CheckResult("python", f"{version} ({sys.executable})", "" if ok else "rmgr needs Python 3.11 or later", ok=ok)
    from importlib import metadata

    from rmgr.model.version import DISTRIBUTION

    try:
        required = [one for one in metadata.requires(DISTRIBUTION) or () if "extra ==" not in one]
    except metadata.PackageNotFoundError:
        required = []  # rmgr runs from a source tree that is not installed
    problems = []
    for requirement in required:
        package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            problems.append(f"{package} is missing")
            continue
        oldest, newer = re.search(r">=\s*([\d.]+)", requirement), re.search(r"<\s*([\d.]+)", requirement)
        if oldest and _numbers(found) < _numbers(oldest[1]):
            problems.append(f"{package} {found} is too old, it must be {oldest[1]} at least")
        elif newer and _numbers(found) >= _numbers(newer[1]):
            problems.append(f"{package} {found} is too new, it must be before {newer[1]}")
    fix = "install rmgr again into this environment, from its checkout: pip install --upgrade ." if problems else ""
    yield CheckResult("packages", "; ".join(problems) or f"{len(required)} packages are as required", fix, ok=not problems)


def this_machine(_session: Session) -> Checks:
    """Checks Java, cgroups and limits, which daemons and `rmgr dev` use."""
    from rmgr.dev.zookeeper import java, missing_parts

    lacking = missing_parts()
    fix = "only ZooKeeper servers and rmgr dev need it: apt-get install default-jre-headless libzookeeper-java" if lacking else ""
    yield CheckResult("java", lacking or f"{java()}, ZooKeeper's jars are there", fix)
    if sys.platform == "linux":
        yield from containment()
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        low = 0 <= soft < min(_LOW_FILES, hard if hard > 0 else _LOW_FILES)
        yield CheckResult("open files", f"limit {soft}", f"daemons with many tasks need more: ulimit -n {hard}" if low else "")


def disk(path: str) -> CheckResult:
    """Checks the free space where `path` lies or will lie. Low space is only advice: the store itself reports that it is full."""
    where = Path(path)
    while not where.exists() and where != where.parent:
        where = where.parent
    usage = shutil.disk_usage(where)
    low = usage.free < min(_LOW_DISK_BYTES, usage.total * _LOW_DISK_SHARE)
    fix = f"free some space on the file system of {where}: nothing can be stored when it is full" if low else ""
    return CheckResult("store disk", f"{format_size(usage.free)} free of {format_size(usage.total)} at {where}", fix)


# -- configuration -------------------------------------------------------------------------------------------------------------


def configuration(session: Session) -> Checks:
    """Checks the file, the variables, and that they name a cluster."""
    try:
        config = session.config()
    except RmgrError as error:
        yield failed("configuration", error)
        return
    cluster = config.cluster
    where = config.source or "variables, options, or a running rmgr dev"
    if cluster.uses_gateway:
        yield CheckResult("configuration", f"gateway {cluster.gateway}; from {where}")
        return
    if not cluster.zk:
        from rmgr.runtime.secured import zookeeper_security

        try:
            zookeeper_security(config, session.shown_credentials())  # a bundle for gateways needs the name of a gateway
            cluster.hosts_and_chroot()
        except RmgrError as error:
            yield failed("configuration", error)
        return
    yield CheckResult("configuration", f"zk {cluster.zk}, store {cluster.store or '(none)'}; from {where}")
    if not cluster.store:
        yield CheckResult("configuration", "no data store is configured", "name it: --store sqlite:PATH or RMGR_STORE", ok=False)


# -- ZooKeeper -----------------------------------------------------------------------------------------------------------------


def zookeeper_servers(session: Session) -> Checks:
    """Checks each server by itself: reachable, version, mode, latency of its disk, limits. None is visible behind a gateway."""
    if session.config().cluster.uses_gateway:
        return
    from rmgr.adapters.zookeeper.server import ServerFinding, look_at_all
    from rmgr.runtime.secured import zookeeper_options

    hosts, _ = session.config().cluster.hosts_and_chroot()
    security = zookeeper_options(session.config(), session.credentials()).get("security")
    tls = security.context() if security is not None and security.tls else None
    fixes = {
        ServerFinding.ANSWERS: "4lw.commands.whitelist=srvr in zoo.cfg: rmgr asks for nothing else",
        ServerFinding.NO_QUORUM: "a quorum of them must run: start the other servers",
        ServerFinding.TLS: "is it a port for TLS (secureClientPort), as zookeeper_tls = true says? do certificate and ca.crt belong "
        "together?",
    }
    looks = look_at_all(hosts, security, timeout_s=3.0)
    for look in looks:
        name = f"zookeeper {look.server}"
        if look.finding is not ServerFinding.SERVES:
            fix = fixes.get(look.finding, "is it running? see its log; several servers: a quorum of them must run")
            yield CheckResult(name, look.what, fix, ok=look.finding is ServerFinding.ANSWERS)
            continue
        version = look.fact("Zookeeper version:").split("-", 1)[0].split(",", 1)[0]
        yield CheckResult(name, f"{version}, {look.mode}, {counted(int(look.fact('Connections:') or 0), 'connection')}")
        yield from measured(name, look.server, tls, is_secured=security is not None)
    serving = sum(look.finding in {ServerFinding.SERVES, ServerFinding.ANSWERS} for look in looks)
    if len(looks) > 1 and serving <= len(looks) // 2:
        detail = f"{serving} of {len(looks)} servers serve: no quorum"
        yield CheckResult("zookeeper quorum", detail, "start the others", ok=False)

_DIVERGED_FIX = (
    "while the others have a quorum: stop this server, empty its data directories (dataDir/version-2, dataLogDir/version-2; keep myid), "
    "start it: it fetches all from the leader. Never on a majority at once"
)


def measured(name: str, server: str, tls: ssl.SSLContext | None, *, is_secured: bool = False) -> Checks:
    """Checks what a server reports about itself beyond `srvr`, and to whom."""
    from rmgr.adapters.zookeeper.server import four_letter

    host, _, port = server.rpartition(":")
    try:
        mntr = four_letter(host, int(port), "mntr", timeout_s=3.0, tls=tls)
        conf = four_letter(host, int(port), "conf", timeout_s=3.0, tls=tls)
    except Unavailable:
        return
    if is_secured:
        yield from talkative(name, {word for word, said in (("mntr", mntr), ("conf", conf)) if said and "not in the whitelist" not in said})
    facts = dict(re.findall(r"^(\w+)\t(\S+)", mntr, re.MULTILINE))
    if "zk_avg_fsynctime" in facts:
        average, largest = float(facts["zk_avg_fsynctime"]), facts.get("zk_max_fsynctime", "?")
        slow = average > _SLOW_FSYNC_MS
        fix = "give ZooKeeper's transaction log (dataLogDir) a disk of its own" if slow else ""
        detail = f"{format_duration(average / 1e3)} on average, {largest}ms at most"
        yield CheckResult(f"{name} fsync", detail, fix, ok=not slow)
    mismatches = facts.get("zk_digest_mismatches_count", "0")
    if mismatches != "0":
        # ZooKeeper 3.9.5: a server that loses its leader while it catches up may come back with other data than the rest
        # (NullPointerException in Learner.syncWithLeader, then "Digests are not matching").
        detail = f"its data differ from what the leader said they are ({mismatches} digests did not match since it was started)"
        yield CheckResult(f"{name} data", detail, _DIVERGED_FIX, ok=False)
    limit = re.search(r"^maxClientCnxns=(\d+)", conf, re.MULTILINE)
    if limit is None:
        return
    if limit[1] != "0":
        message = f"{counted(int(limit[1]), 'connection')} from one address"
        fix = "set maxClientCnxns=0 in zoo.cfg: every client and daemon of a machine is a connection"
        yield CheckResult(f"{name} maxClientCnxns", message, fix, ok=int(limit[1]) >= 200)
    else:
        yield CheckResult(f"{name} maxClientCnxns", "0 (no limit)")


def coordination(session: Session) -> Checks:
    """Checks a session (or a gateway) and the cluster behind it."""
    from rmgr.submitter.questions import ReadMeta

    began = time.monotonic()
    try:
        asks = session.asks()
    except RmgrError as error:
        yield failed("session", error)
        return
    took_s = time.monotonic() - began
    detail = f"connected in {format_duration(took_s)}, timeout {format_duration(asks.session_timeout_s)}"
    yield CheckResult("session", detail)
    began = time.monotonic()
    meta = session.ask(ReadMeta())  # with a sync
    sync_s = time.monotonic() - began
    fix = "" if sync_s < 1 else "ZooKeeper is overloaded or far"
    yield CheckResult("latency", f"a sync took {format_duration(sync_s)}", fix, ok=sync_s < 1)
    yield from access_lists(session)

    known = meta.cluster_id if meta is not None else ""
    try:
        bound, note = session.data_store().cluster_id() or "", " (the data store has not been bound to it yet)"
    except WrongCluster as error:  # the store belongs to another cluster, or was emptied
        yield failed("cluster id", error)
        return
    except RmgrError:
        bound, note = "", " (the data store cannot be asked)"
    if bound and bound != known:
        detail = f"ZooKeeper is of cluster {known or '(none)'}, the data store of {bound}"
        yield CheckResult("cluster id", detail, "they do not belong together: name the right --zk and --store", ok=False)
    else:
        yield CheckResult("cluster id", known + ("" if bound else note))


def access_lists(session: Session) -> Checks:
    """Checks that every znode of a secured cluster has the access list of its place."""
    from rmgr.adapters.zookeeper.acl import RoleLists
    from rmgr.adapters.zookeeper.client import ZkCoordinator
    from rmgr.adapters.zookeeper.tree import check_tree

    if session.config().cluster.uses_gateway:
        return
    coordinator = session.coordinator()
    if not isinstance(coordinator, ZkCoordinator) or not isinstance(coordinator.lists, RoleLists):
        return
    report = check_tree(coordinator, limit=_MOST_ZNODES, timeout_s=session.left_s(10.0))
    if not report.deviations:
        yield CheckResult("access lists", f"{counted(report.checked, 'znode')} looked at, each as it should be")
        return
    found = "; ".join(item.sentence(coordinator.lists) for item in report.deviations[:5])
    detail = f"{len(report.deviations)} of {counted(report.checked, 'znode')} have another list than they should: {found}"
    yield CheckResult("access lists", detail, "restart a WatchDog: it mends the tree, and logs tree_secured", ok=False)


# -- data store ----------------------------------------------------------------------------------------------------------------

_MEANWHILE = "meanwhile running work goes on, its outputs wait on their nodes, submit is refused, and every daemon comes back by itself"
_STORE_FIX = f"start it, or let this machine reach it; {_MEANWHILE}"
_FULL_FIX = f"free some space there; {_MEANWHILE}"

_READ_ONLY_FIX = "it answers, and takes no writes: are the user's rights (MODIFY) and its disks in order? see its log"


def _driver() -> CheckResult:
    """Checks that the Cassandra driver can be imported, which fails if none of its event loops fits this Python."""
    try:
        from rmgr.adapters.cassandra.driver import DRIVER_VERSION
    except RmgrError as error:
        return failed("store driver", error)
    return CheckResult("store driver", f"cassandra-driver {DRIVER_VERSION}")


def data_store(session: Session) -> Checks:
    """Checks that the store reads, writes, and has room."""
    from rmgr.procedures.bootstrap import store_problem

    cluster = session.config().cluster
    url = f"gateway:{cluster.gateway}" if cluster.uses_gateway else cluster.store
    if url.startswith("cassandra:"):
        yield _driver()
    try:
        problem = store_problem(session.data_store(), timeout_s=session.left_s(10.0) / 2)
    except StoreUnavailable as error:
        yield CheckResult("store", f"{url} is away: {error.message}", _store_fix(error.message), ok=False)
        return
    except RmgrError as error:
        yield CheckResult("store", error.message, error.hint or "rmgr config show", ok=False)
        return
    fix = "" if problem is None else _store_fix(problem)
    yield CheckResult("store", problem or f"{url} reads and writes", fix, ok=problem is None)
    if url.startswith("sqlite:"):
        yield disk(url.removeprefix("sqlite:").removeprefix("//"))


def _store_fix(problem: str) -> str:
    return _READ_ONLY_FIX if "reads work" in problem else _FULL_FIX if "no space left" in problem else _STORE_FIX


# -- the cluster ---------------------------------------------------------------------------------------------------------------


def cluster(session: Session) -> Checks:
    """Checks leader, WatchDogs, nodes, partitions and clocks. Exactly what `rmgr status` calls a problem of the cluster is one here."""
    from rmgr.submitter.questions import DeriveJobs, DeriveNodes, WhoLeads

    led = session.ask(WhoLeads(), 20.0)
    view = session.query().status()
    epoch = led.epoch
    if epoch is not None and led.leads:
        from rmgr.adapters.rpc.services import LeaderClient

        with LeaderClient(epoch.endpoint, timeout_s=3.0, via=session.via, credentials=session.credentials()) as leader:
            serving = _answers(leader) if session.via else leader.is_serving()  # the health of a gateway is not the leader's
        detail = f"{epoch.leader} on {epoch.host}, epoch {epoch.epoch}, {epoch.endpoint}"
        way = f"{epoch.endpoint} cannot be reached from here: firewall, or --listen of the WatchDog"
        fix = "" if serving else f"if it has died another one takes over within seconds (look again); else {way}"
        yield CheckResult("leader", detail + ("" if serving else " does not answer"), fix, ok=serving)
    yield CheckResult("watchdogs", counted(led.watchdogs, "candidate"), ok=led.watchdogs > 0)
    nodes = session.ask(DeriveNodes(), 20.0)
    detail = f"{sum(node.state == NodeState.UP for node in nodes)} of {len(nodes)} up"
    yield CheckResult("nodes", detail, ok=not any(part.kind in {"node", "nodes"} and part.level == Level.PROBLEM for part in view.parts))
    yield from _parts(view)
    yield from _starters({node.endpoint: node.id for node in nodes if node.endpoint}, session.via, session.credentials())
    yield from _calls(session)
    jobs = session.ask(DeriveJobs(ended=True), 20.0)
    waiting = sum(job.tasks - sum(job.counts.get(state, 0) for state in State if state.is_final) for job in jobs)
    message = f"{counted(len(jobs), 'submission')} in memory, {counted(waiting, 'task')} not ended"
    yield CheckResult("work", message)


def _calls(session: Session) -> Checks:
    """Checks that the gateways for calls answer, and which servers they have."""
    config = session.config()
    for gateway in filter(None, map(str.strip, config.cluster.gateway.split(","))):
        from rmgr.client.calls import Caller

        caller = Caller(dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, gateway=gateway)))
        try:
            told = caller.asked(lambda client: client.servers("", timeout_s=3.0))
        except NoServer as error:
            yield CheckResult(f"calls by {gateway}", error.message)
        except RmgrError as error:
            fix = "start it: rmgr submitter --listen HOST:PORT; else firewall, or another gateway: [cluster] gateway, RMGR_GATEWAY"
            yield CheckResult(f"calls by {gateway}", error.message, fix, ok=False)
        else:
            able = sum(server.state in {"open", "stale", "odd"} for server in told.servers)
            who = "picks them by itself: no leader answers" if told.degraded else f"the leader picks by {told.policy}"
            detail = f"{able} of {counted(len(told.servers), 'server')} take calls; {who}"
            yield CheckResult(f"calls by {gateway}", detail)
        finally:
            caller.close()


def _parts(view: StatusView) -> Checks:
    """Yields each problem that `rmgr status` would name, and each warning as advice."""
    for part in view.parts[:_MOST_PARTS]:
        if part.fix == "rmgr doctor":  # the checks above have looked at it
            continue
        name = "store, as the leader sees it" if part.kind == "store" else f"{part.kind} {part.id}".strip()
        yield CheckResult(name, (part.told or part.reason).removeprefix(f"{name} is "), part.fix, ok=part.level != Level.PROBLEM)
    if more := view.parts[_MOST_PARTS:]:
        is_well = all(part.level != Level.PROBLEM for part in more)
        yield CheckResult("more", f"not well: {counted(len(more), 'more part')}", "rmgr status --json | jq .parts", ok=is_well)


def _answers(leader: LeaderClient) -> bool:
    try:
        leader.status()
    except RmgrError:
        return False
    return True


def _starters(endpoints: dict[str, str], via: str, credentials: Credentials | None) -> Checks:
    """Checks that each Starter answers, that its clock agrees with this machine's, and that it has room."""
    from rmgr.adapters.rpc.services import NodeClient

    silent, skewed, full = [], [], []
    worst = 0.0
    for endpoint, node in endpoints.items():
        try:
            with NodeClient(endpoint, timeout_s=2.0, via=via, credentials=credentials) as client:
                asked_s = time.time()
                told_us = client.time_us()
                answered_s = time.time()
                stats = client.stats()
        except RmgrError:
            silent.append(f"{node} ({endpoint})")
            continue
        if told_us:  # 0 = the node does not say
            told_s = told_us / 1e6
            skew = max(0.0, asked_s - told_s, told_s - answered_s)
            worst = max(worst, skew)
            if skew > _SKEW_S:
                skewed.append(f"{node} by {format_duration(skew)}")
        full += [
            f"{item.node}: {format_size(item.disk_free_bytes)} left" for item in stats if 0 < item.disk_free_bytes < _LOW_DISK_BYTES // 4
        ]
    fix = "from this machine their live logs cannot be read: firewall, or --listen of the Starter" if silent else ""
    yield CheckResult("starters", f"no answer from {', '.join(silent)}" if silent else f"{len(endpoints)} answer", fix, ok=not silent)
    fix = f"run a time service everywhere (chrony, systemd-timesyncd): {_CLOCKS}" if skewed else ""
    detail = f"apart from this machine's: {', '.join(skewed)}" if skewed else f"at most {format_duration(worst)} apart"
    yield CheckResult("clocks", detail, fix, ok=not skewed)
    if full:
        fix = "free space in --work-dir before the nodes take no work any more"
        yield CheckResult("disks of nodes", "; ".join(full), fix)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


# -- security ------------------------------------------------------------------------------------------------------------------


def credentials(session: Session) -> Iterator[CheckResult]:
    """Checks the credentials in use; without any, says that this is for an open cluster."""
    try:
        mine = session.credentials()
    except RmgrError as error:
        yield failed("credentials", error)
        return
    if mine is None:
        yield CheckResult("credentials", "none: this is for an open cluster, on loopback")
        return
    who = mine.identity
    left_days = mine.days_left()
    fix = ""
    if left_days < SOON_DAYS:
        command = f"rmgr admin add-user {who.name}" if who.is_person else "rmgr admin rotate tls"
        left = f"in {counted(int(left_days), 'day')}" if left_days >= 1 else "within a day"
        fix = f"they end {left}: ask the cluster's admin for new ones ({command})"
    detail = f"{who.role} {who.name} of the cluster {who.cluster}, until {clock(round(mine.not_after_s * 1e6))}; {mine.directory}"
    if mine.zookeeper_auth is None:
        detail += "; for gateways"
    yield CheckResult("credentials", detail, fix)
    if not session.config().cluster.uses_gateway:
        from rmgr.runtime.secured import zookeeper_security

        try:
            zookeeper_security(session.config(), mine)
        except RmgrError as error:
            yield failed("credentials", error)


def talkative(name: str, words: set[str]) -> Iterator[CheckResult]:
    """Warns of a server that answers more four-letter words than rmgr needs: it shows anybody its clients' addresses and its paths."""
    if words:
        detail = f"shows itself and its clients to everybody who reaches it ({', '.join(sorted(words))})"
        yield CheckResult(f"{name} words", detail, "4lw.commands.whitelist=srvr in zoo.cfg: rmgr needs no other")


def root(session: Session) -> Iterator[CheckResult]:
    """Checks whether strangers can fill ZooKeeper beside a secured cluster, and how full it is. Skipped if open or behind a gateway."""
    from rmgr.adapters.zookeeper.tree import look_at_root
    from rmgr.runtime.secured import zookeeper_security

    config = session.config()
    if config.cluster.uses_gateway or session.credentials() is None:
        return
    seen = look_at_root(*config.cluster.hosts_and_chroot(), zookeeper_security(config, session.credentials()))
    close = "rmgr admin init --close-root --zk HOSTS/PATH; and enforceQuota=true in zoo.cfg"
    if seen.is_open:
        detail = "anybody who reaches ZooKeeper may create below its /, without credentials, until its memory is full"
        yield CheckResult("zookeeper /", detail, close)
    else:
        yield CheckResult("zookeeper /", "closed to strangers")
    if not seen.used:
        yield CheckResult("zookeeper quotas", "there are none: a user may fill its memory", close)
        return
    shares = {
        place: max(there.znodes / max(1, limit.znodes), there.data_bytes / max(1, limit.data_bytes))
        for place, (there, limit) in seen.used.items()
    }
    fullest = max(shares, key=lambda place: shares[place])
    fix = "who has made so much there? rmgr jobs; a larger heap: rmgr admin init --close-root --zookeeper-heap SIZE"
    detail = f"{fullest} is the fullest subtree: {shares[fullest]:.0%} of its quota"
    ok = shares[fullest] < _NO_ROOM_SHARE
    yield CheckResult("zookeeper quotas", detail, fix if shares[fullest] > _FULL_SHARE else "", ok)


# -- containment of tasks ------------------------------------------------------------------------------------------------------


def containment() -> Iterator[CheckResult]:
    """Checks how tasks would be contained. Linux only."""
    yield _cgroups()
    if os.geteuid() == 0:
        yield _scores()


def _cgroups() -> CheckResult:
    """Checks whether tasks started here can have cgroups of their own (memory limits, whole kills, counted processes)."""
    root = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text()
    except OSError as error:
        return CheckResult("cgroups", f"cannot be read: {error.strerror}", "tasks are killed by session and process tree instead")
    if (root / "cgroup.controllers").exists():
        line = next((line for line in own.splitlines() if line.startswith("0::")), "0::/")
        mine = root / line[3:].strip().lstrip("/")
        writable = os.access(mine, os.W_OK)
        detail = f"v2, {mine}" + ("" if writable else " (not writable)")
    else:
        mine = root / "memory"
        writable = mine.is_dir() and os.access(mine, os.W_OK)
        detail = "v1, memory controller " + ("writable" if writable else "not writable")
    fix = (
        "memory limits are watched instead of enforced by the kernel, processes are limited for each user and not for each slot, and work "
        "that kills its spawner can outlive its task; run Starters as a service with Delegate=yes"
    )
    fix = "" if writable else fix
    return CheckResult("cgroups", detail, fix)


def _scores() -> CheckResult:
    try:
        return judged(Path("/proc/self/status").read_text(), Path("/proc/self/oom_score_adj").read_text())
    except OSError as error:
        return CheckResult("oom scores", f"cannot be read: {error.strerror}")


def judged(status: str, score: str) -> CheckResult:
    """Checks whether a root Starter keeps work among the OOM killer's first choices. status, score: this process's files in /proc."""
    held = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    if held >> _SYS_RESOURCE & 1:
        return CheckResult("oom scores", "work goes before daemons when memory runs out")
    fix = f"a task can lower its score to {score.strip()}, that of its Starter; give Starters CAP_SYS_RESOURCE (deploy/systemd has it)"
    return CheckResult("oom scores", "without CAP_SYS_RESOURCE work begins with 500 and is not held there", fix)
