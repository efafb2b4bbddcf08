"""`rmgr status`, `nodes`, `queues`: the cluster as its operator sees it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from rmgr.cli.display import columns, shapes
from rmgr.cli.display.render import Column, Layout, clock, elapsed, emit, folded, here, now_us, paint, printable, table, told_counts
from rmgr.cli.session import Session, WorkEnded, command
from rmgr.cli.session.tables import draw, named_nodes, table_options
from rmgr.errors import NotFound, RmgrError, UsageError, nearest
from rmgr.model.node import NodeState
from rmgr.model.states import State
from rmgr.model.units import counted, format_duration, format_size, spanned
from rmgr.model.views import PolicyView, QueueView, StatusView

if TYPE_CHECKING:
    from rmgr.client.queries import GangView
    from rmgr.sched.capacity.gangs import Timetable

_EXITS = "0 ok, 3 no such node, 5 ZooKeeper cannot be reached"
#: Seconds after which a silent gateway is no longer asked for its servers.
_GATEWAY_S = 2.0
#: Column where the answers of `status` begin; most users that it names.
_INDENT, _MOST_USERS = 11, 8
#: What mends a node without a Starter (`coord/views/health.py`).
_START = re.compile(r"start its Starter(?: on [^ ,;]+)?")


@command(
    "status",
    examples="rmgr status\nrmgr status --json | jq .healthy\nrmgr status --watch",
    exits="""\
0 healthy: work that may run will run. 1 something is wrong (it says what, and what to type),
5 ZooKeeper cannot be reached, 6 --timeout ran out""",
)
@click.option("--watch", is_flag=True, help="redraw every 2 s until Ctrl-C")
def status(session: Session, watch: bool) -> None:
    """Shows how long all has been well, leader, ZooKeeper, store, nodes, cores, and running and waiting work. DO: problems; NOTE: hints."""
    healthy = True

    def once() -> None:
        nonlocal healthy
        view = _with_own_certificate(session, _with_calls(session, session.query().status()))
        if session.is_of_dev:
            parts = (msgspec.structs.replace(part, fix=in_dev(part.fix, part.id)) if part.kind == "node" else part for part in view.parts)
            view = msgspec.structs.replace(view, parts=tuple(parts))
        healthy = view.healthy
        emit(shapes.status(view)) if session.json else draw_status(view)

    draw(session, once, watch=watch)
    if not healthy:
        raise WorkEnded(1)


@command(
    "nodes",
    examples="""\
    rmgr nodes
    rmgr nodes n1                       with what runs there; 'n[1-3],m7': of several
    rmgr nodes n1 -o +partition,site,speed,features,since,by
    rmgr nodes --forget n7              one that is stopped and revoked is shown no more
    rmgr nodes --json | jq '.nodes[] | select(.state != "up")'""",
    exits=_EXITS,
)
@click.argument("names", nargs=-1, metavar="[NODE]...")
@click.option("--forget", is_flag=True, help="stop listing nodes that are stopped and revoked (for the admin); add-node brings them back")
@table_options
def nodes(session: Session, names: tuple[str, ...], forget: bool, layout: Layout, watch: bool) -> None:
    """Lists nodes: state, used and total cores and memory, running tasks, load, last contact; for named nodes also what runs there."""
    if forget:
        _forget(session, names)
        return

    def once() -> None:
        found = session.query().nodes()
        if session.is_of_dev:
            found = [msgspec.structs.replace(node, fix=in_dev(node.fix, node.id)) for node in found]
        wanted = named_nodes(names, found)
        shown = [node for node in found if not names or node.id in wanted]
        if session.json:
            emit({"nodes": [shapes.node(node) for node in shown]})
        else:
            table(shown, columns.node_columns(now_us()), layout)
            if not shown:
                session.note("no node has registered; start one: rmgr starter")
            if names and not layout.columns:
                _draw_work(session, {node.id for node in shown})

    draw(session, once, watch=watch)


def _draw_work(session: Session, names: set[str]) -> None:
    """Draws the jobs that run on these nodes; single tasks have a list of their own."""
    from rmgr.cli.listing.work import draw_jobs

    found = [job for job in session.query().jobs() if names & set(job.nodes)]
    if found:
        sys.stdout.write("\n")
        draw_jobs(found, Layout(), of_all=True)
        session.note(f"single tasks: rmgr tasks --node {min(names)}")
    else:
        session.note("nothing of yours runs there" if session.config().cluster.uses_gateway else "nothing runs there")


def _forget(session: Session, names: tuple[str, ...]) -> None:
    """Hides these nodes from all screens; a Starter that registers one again brings it back."""
    from rmgr.submitter.questions import ForgetNode

    if not names:
        raise UsageError("--forget needs the names of nodes", hint="rmgr nodes --forget n7")
    wanted = named_nodes(names, session.query().nodes())
    for name in wanted:
        session.ask(ForgetNode(node=name))
        if not session.json:
            sys.stdout.write(f"{name} is forgotten\n")
    if session.query().has_leader():
        session.note("lists show it until the leader has read its record again")
    if session.json:
        emit({"forgotten": wanted})


@command(
    "queues",
    examples="""\
    rmgr queues
    rmgr queues batch -o queue,partition,dispatch,maxcores,maxmem
    rmgr queues d32                    one queue class, in words
    rmgr queues --json | jq '.classes[] | {id, pending, fired}'
    rmgr queues --tree --matrix 8      jobs that share nodes in time, and the next 8 slots""",
    exits="0 ok, 3 no such queue or class, nothing shares nodes in time, 5 ZooKeeper cannot be reached",
)
@click.argument("queue_names", nargs=-1, metavar="[QUEUE|CLASS]...")
@click.option("--tree", is_flag=True, help="the queue trees of partitions under dqt, instead of queues")
@click.option("--matrix", type=click.IntRange(1, 1000), metavar="N", help="with --tree: job on each core in the next N slots, 1 to 1000")
@table_options
def queues(session: Session, queue_names: tuple[str, ...], tree: bool, matrix: int | None, layout: Layout, watch: bool) -> None:
    """Lists queues: state, policy, waiting and running tasks, limits, and reserved cores. rmgr config apply sets them.

    Each queue class of a policy has a line: waiting and running jobs; the most CPUS, processes and threads of one process,
    TIME that a job may ask for; the individual priority OVER which a job reserves, reservations now and at most (RES), how often each
    trigger has made one (FIRED: priority/head/no waiter), and the cores PROMISED to jobs. -q CLASS sends a job there.

    --tree shows, for each partition that shares its nodes in time, every tree node with a queue: its LEAVES, the jobs in order of service,
    TQLB (each of its jobs gets at least one of this many slots), its state, and which job RUNS there in the current slot.
    """
    if matrix is not None and not tree:
        raise UsageError("--matrix shows the slots of a queue tree", hint="rmgr queues --tree --matrix 8")
    if tree and queue_names:
        raise UsageError("--tree shows all queue trees, and takes no names of queues", hint="rmgr queues --tree")

    def once() -> None:
        if tree:
            draw_trees(session, layout, matrix or 0)
            return
        found = _find_queues(session.query().queues(), queue_names)
        plain, classes = ([queue for queue in found if (queue.of_class is None) is wanted] for wanted in (True, False))
        if session.json:
            emit({"queues": [shapes.queue(queue) for queue in plain], "classes": [shapes.queue_class(queue) for queue in classes]})
        elif classes and not plain:
            _draw_classes(classes, layout, in_words=bool(queue_names) and not layout.columns)
        else:
            table(plain, columns.QUEUE_COLUMNS, layout)
            ledger = [held for queue in plain for held in queue.held]
            for rows, shape in ((classes, columns.CLASS_COLUMNS), (ledger, columns.HELD_COLUMNS)):
                if rows and not layout.columns:
                    sys.stdout.write("\n")
                    table(rows, shape, Layout(header=layout.header))

    draw(session, once, watch=watch)


def draw_trees(session: Session, layout: Layout, slots: int) -> None:
    views = session.query().gangs()
    if session.json:
        emit({"trees": [tree_shape(view, slots) for view in views]})
    elif not views:
        raise NotFound("no partition shares its nodes in time", hint="rmgr policy set dqt; rmgr submit -q batch JOB")
    for at, view in enumerate(views if not session.json else ()):
        sys.stdout.write("\n" if at else "")
        draw_tree(view, layout, slots)


def _draw_classes(classes: list[QueueView], layout: Layout, *, in_words: bool) -> None:
    if not in_words:
        table(classes, columns.CLASS_COLUMNS, layout)
        return
    for at, queue in enumerate(classes):
        sys.stdout.write("\n" if at else "")
        columns.draw_class(queue)


def _find_queues(found: list[QueueView], names: tuple[str, ...]) -> list[QueueView]:
    """Returns the queues and classes with these names; all without names. Raises: NotFound."""
    known = list(dict.fromkeys(queue.id for queue in found))
    for name in names:
        if name not in known:
            raise NotFound(f"there is no queue or queue class {name!r}", hint=nearest(name, known, f"there are {', '.join(known)}"))
    return [queue for queue in found if not names or queue.id in names]


def _with_calls(session: Session, view: StatusView) -> StatusView:
    """Adds, without a leader, what the configured gateway knows of servers: then it picks them by itself."""
    config = session.config()
    if view.leader is not None or not config.cluster.gateway:
        return view
    from rmgr.client.calls import Caller
    from rmgr.coord.views.health import of_servers
    from rmgr.model.servers import CALLS

    caller = Caller(config)
    try:
        told = caller.asked(lambda client: client.servers("", timeout_s=_GATEWAY_S))
    except RmgrError:
        return view
    finally:
        caller.close()
    able = [server for server in told.servers if server.state in {"open", "stale", "odd"}]
    if not told.servers:
        return view
    age_s = max((server.age_s for server in able), default=0.0)
    mine = PolicyView(partition=CALLS, policy=told.policy, servers=len(able), age_s=age_s, degraded=told.degraded)
    if able:
        view = of_servers(view)
    return msgspec.structs.replace(view, policies=(*view.policies, mine))


def _with_own_certificate(session: Session, view: StatusView) -> StatusView:
    """Adds the certificate of the calling user."""
    mine = session.shown_credentials()
    if mine is None:
        return view
    from rmgr.coord.views import health
    from rmgr.coord.views.health import with_part

    who = mine.identity
    holder = health.CertificateHolder(role=who.role.value, name=who.name, is_person=who.is_person)
    for part in health.ending({holder: mine.not_after_s}, now_us() / 1e6):
        view = with_part(view, part)
    return view


def in_dev(fix: str, node: str) -> str:
    """Returns what mends a node of `rmgr dev`, whose Starters a command starts."""
    return _START.sub(f"rmgr dev start {node}", fix)


def draw_status(view: StatusView) -> None:
    out = sys.stdout
    word = paint("healthy", "green", out) if view.healthy else paint("NOT HEALTHY", "red", out)
    out.write(f"{word}{_since_text(view.healthy_since_us)}\n")
    leader = view.leader
    waiting = view.counts.get(State.INITIAL, 0)
    lines = [
        ("leader", f"on {leader.host}, pid {leader.pid}{_since_text(leader.since_us)}" if leader else paint("none", "red", out)),
        ("watchdogs", str(view.watchdogs)),
        ("metrics", f"{leader.metrics} (of nodes: rmgr nodes -o +metrics)" if leader and leader.metrics else ""),
        ("zookeeper", _part(view.zookeeper)),
        ("store", _part(view.store)),
        ("nodes", told_counts(_nodes_by_state(view)) or "none"),
        ("cores", f"{view.cores_used} of {view.cores} busy" if view.cores else ""),
        ("memory", f"{format_size(view.memory_used_bytes)} of {format_size(view.memory_bytes)} asked for" if view.memory_bytes else ""),
        ("tasks", told_counts(view.counts) or "none"),
        ("waiting", counted(waiting, "task") + (f", the oldest{_since_text(view.oldest_us)}" if view.oldest_us else "") if waiting else ""),
        ("users", _users(view)),
    ]
    for name, value in lines:
        if value:
            out.write(f"{paint(f'{name:<9}', 'bold', out)}  {_folded_line(value)}\n")
    for item in view.policies:
        verb, told = ("placing  ", _placing(item)) if item.servers is None else ("calls    ", _picking(item))
        out.write(f"{paint(verb, 'bold', out)}  {_folded_line(told)}\n")
    fixes = {part.told or part.reason: part.fix for part in view.parts}
    faults = [
        f"policy {fault.policy} of partition {item.partition} was skipped {counted(fault.count, 'time')}, the last time: {fault.error}"
        for item in view.policies
        for fault in item.faults
    ]
    for word, colour, found in (("DO", "red", view.problems), ("NOTE", "yellow", (*view.warnings, *faults))):
        for what in found:
            out.write(f"{paint(f'{word:<9}', colour, out)}  {_folded_line(here(what))}\n")
            if fix := fixes.get(what):
                out.write(f"{'-> ':>{_INDENT}}{_folded_line(here(fix))}\n")
    out.flush()


def _since_text(time_us: int) -> str:
    """Returns ` since 14:13:20 (1h2m)`, or "" if unknown."""
    return f" since {clock(time_us)} ({elapsed(time_us, 0, now_us())})" if time_us else ""


def _users(view: StatusView) -> str:
    """Returns the users whose work runs, with their cores: `ann 40 cores, ben 2, others 7`."""
    shown = shapes.by_cores(view.users)
    named = [(name or "others", cores) for name, cores in shown if name][:_MOST_USERS]
    rest = sum(view.users.values()) - sum(cores for _, cores in named)
    found = [*named, *([("others", rest)] if rest else [])]
    return ", ".join(f"{printable(name)} {counted(cores, 'core') if not at else f'{cores:,}'}" for at, (name, cores) in enumerate(found))


def _nodes_by_state(view: StatusView) -> dict[str, int]:
    """Counts nodes by state as `rmgr nodes` shows them: drained ones are counted as draining, lost but unfenced ones as fenced."""
    states = Counter(part.state for part in view.parts if part.kind == "node")
    counts = dict(view.nodes)
    for counted_as, shown in ((NodeState.DRAINING, NodeState.DRAINED), (NodeState.FENCED, NodeState.LOST)):
        counts[shown] = min(states[shown], counts.get(counted_as, 0))
        counts[counted_as] = counts.get(counted_as, 0) - counts[shown]
    return counts


def _folded_line(value: str) -> str:
    """Folds the text that follows a word of `status`."""
    return folded(value, sys.stdout, begin=_INDENT, indent=_INDENT)


def _placing(view: PolicyView) -> str:
    passes = f"; {counted(view.passes, 'pass')}, the last {format_duration(view.last_pass_s)}" if view.passes else ""
    turns = f"; generation {view.generation}, a turn in {counted(view.max_tqlb, 'slot')} at least" if view.generation is not None else ""
    return printable(f"{view.policy} in partition {view.partition}{passes}{turns}")


def _picking(view: PolicyView) -> str:
    age = f", load at most {format_duration(view.age_s)} old" if view.servers else ""
    servers = counted(view.servers or 0, "server")
    picks = "degraded: gateways pick by themselves" if view.degraded else counted(view.passes, "pick")
    return printable(f"{view.policy} in partition {view.partition}; {servers}{age}; {picks}")


def _part(facts: dict[str, object]) -> str:
    """Describes ZooKeeper or the store: its health, place, and problem."""
    word = paint("ok", "green", sys.stdout) if facts.get("ok") else paint("NOT OK", "red", sys.stdout)
    named = [str(facts[name]) for name in ("url", "hosts") if facts.get(name)]
    others = (name for name in facts if name not in {"ok", "problem", "url", "hosts", "kind", "since", "session_timeout_s"})
    rest = ", ".join([*named, *(f"{name} {facts[name]}" for name in others if facts[name] not in {"", None})])
    return f"{word}  {here(rest)}".rstrip()

# -- `rmgr queues --tree`: partitions whose queues hold jobs that share nodes in time, and a matrix of coming slots ------------


_TREE_COLUMNS = (
    Column(name="NODE", text=lambda row: str(row["node"]), is_id=True),
    Column(name="LEAVES", text=lambda row: row["leaves"]),
    Column(name="QUEUE", text=lambda row: ",".join(_label(job) for job, _ in row["queue"]), keep=True),
    Column(name="TQLB", text=lambda row: str(row["tqlb"]), right=True),
    Column(name="STATE", text=lambda row: row["state"]),
    Column(name="RUNS", text=lambda row: _label(row["runs"]) if row["runs"] is not None else "", keep=True),
)


def tree_shape(view: GangView, slots: int) -> dict[str, Any]:
    """Returns the whole record, from which every later slot follows; the current slot, and the requested rows of cores."""
    record = view.record
    return {
        "partition": view.partition,
        "policy": record.policy,
        "generation": view.generation,
        "quantum_seconds": record.slot_us / 1e6,
        "slot": view.slot,
        "round_slots": _timetable(view).round_slots,
        "clock": {"node": record.clock.node, "incarnation": record.clock.incarnation, "offset_us": record.clock.offset_us},
        "origin_us": record.origin_us,
        "first_slot": record.slot,
        "width": record.width,
        "next_round": record.next_round,
        "memory_share": record.memory_share,
        "leaves": [{"node": node, "cores": cores} for node, cores in record.leaves],
        "queues": [{"node": node, "jobs": [{"id": _label(job), "weight": weight} for job, weight in jobs]} for node, jobs in record.queues],
        "front": [{"node": node, "still_to_serve": own, "completed": done} for node, own, done in record.front],
        "newcomers": [{"id": _label(job), "node": node, "weight": weight} for job, node, weight in record.late],
        "attempts": [{"id": _label(job), "attempt": attempt, "served_slots": served} for job, attempt, served in record.attempts],
        "tree": [
            {**row, "queue": [_label(job) for job, _ in row["queue"]], "runs": None if row["runs"] is None else _label(row["runs"])}
            for row in _tree_rows(view)
        ],
        "matrix": [
            {"slot": slot, "cores": [None if job is None else _label(job) for job in cores]} for slot, cores in _matrix(view, slots)
        ],
    }


def draw_tree(view: GangView, layout: Layout, slots: int) -> None:
    """Draws a heading, the tree, and the matrix."""
    record = view.record
    present = "no clock can be read" if view.slot is None else f"slot {view.slot}"
    sys.stdout.write(
        f"{view.partition}: {record.policy}, quantum {format_duration(record.slot_us / 1e6)}, generation {view.generation}, {present}, "
        f"rounds of {_timetable(view).round_slots}, reference {record.clock.node}\n"
    )
    table(_tree_rows(view), _TREE_COLUMNS, layout)
    rows = _matrix(view, slots)
    if rows:
        cores = [f"{node}/{core}" for node, count in record.leaves for core in range(count)]
        columns = [Column(name="SLOT", text=lambda row: str(row[0]), is_id=True)]
        columns += [
            Column(name=name, text=lambda row, at=at: "." if row[1][at] is None else _label(row[1][at]), keep=True)  # type: ignore[misc]
            for at, name in enumerate(cores)
        ]
        sys.stdout.write("\n")
        table(rows, columns, Layout(header=layout.header))


def _label(job: int) -> str:
    from rmgr.model.block import job_label, task_of

    return job_label(*task_of(job))


def _timetable(view: GangView) -> Timetable:
    """Returns the timetable at the current slot, or at the record's first one if that is unknown."""
    from rmgr.sched.capacity.gangs import Timetable

    found = Timetable(view.record, "")
    found.skip_to(view.record.slot if view.slot is None else view.slot)
    return found


def _tree_rows(view: GangView) -> list[dict[str, Any]]:
    from rmgr.sched.tree.rotation import states_of
    from rmgr.sched.tree.shape import tqlb

    found = _timetable(view)
    runs = dict(found.row()) if view.slot is not None else {}
    tree, rotation = found.tree, found.rotation
    lengths = {node: sum(weight for _, weight in jobs) for node, jobs in view.record.queues}
    bounds, states = tqlb(tree, lengths), states_of(rotation)
    rows = []
    for node in range(tree.nodes):
        queue = [(job, weight) for at, jobs in view.record.queues if at == node for job, weight in jobs]
        queue += [(job, weight) for job, at, weight in view.record.late if at == node]
        if queue:
            rows.append(
                {
                    "node": node,
                    "leaves": leaves_text(view.record.leaves, *tree.span(node)),
                    "queue": queue,
                    "tqlb": bounds[node],
                    "state": states[node].value,
                    "runs": runs.get(node),
                }
            )
    return rows


def leaves_text(leaves: tuple[tuple[str, int], ...], low: int, high: int) -> str:
    """Describes leaves: `n1-n4` for whole nodes, `n1/0-1` for some cores of one."""
    whole: list[str] = []
    parts: list[str] = []
    at = 0
    for node, cores in leaves:
        first, beyond = max(low - at, 0), min(high - at, cores)
        if first < beyond:
            if (first, beyond) == (0, cores):
                whole.append(node)
            else:
                parts.append(f"{node}/{first}" if beyond - first == 1 else f"{node}/{first}-{beyond - 1}")
        at += cores
    return ",".join(([spanned(whole)] if whole else []) + parts)


def _matrix(view: GangView, slots: int) -> list[tuple[int, list[int | None]]]:
    if not slots:
        return []
    found = _timetable(view)
    rows = []
    for _ in range(slots):
        cores: list[int | None] = [None] * found.tree.leaves
        slot = found.slot
        for node, job in found.row():
            low, high = found.tree.span(node)
            cores[low:high] = [job] * (high - low)
        found.next()
        rows.append((slot, cores))
    return rows
