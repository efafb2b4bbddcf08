"""How a job's processes reach its other nodes: from a socket here over gRPC to the program that runs them there; and terminals.

    rmgr run --socket--> Door (head's Starter) --gRPC Launch--> RanksAnswering (helper's Starter) --socket--> runner/ranks/ranks.py

Both Starters pass bytes on; the head's counts what ranks on other nodes have used. Called on threads of the gRPC server and of the door;
questions about nodes go to the thread that owns them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rmgr.adapters.access.auth import Caller
from rmgr.adapters.rpc.ranks import Peers, RanksLink, Step
from rmgr.coord.decisions.rights import denied
from rmgr.daemons.service.serving import audited, person_of
from rmgr.daemons.starter.checkpoint.directories import answer, sentence
from rmgr.errors import UNREADABLE_TEXT, NotFound, PermissionDenied, RmgrError, Unavailable
from rmgr.model.units import counted
from rmgr.runner.ranks import ranks, terminal
from rmgr.runtime import machine

if TYPE_CHECKING:
    from rmgr.daemons.starter.execution.holds import HeldPart
    from rmgr.daemons.starter.node.loop import Starter
    from rmgr.daemons.starter.node.node import NodeAgent

_CHUNK = 64 * 1024
#: How long the program that runs ranks may take to listen, and the pause between two tries.
CONNECT_S, _CONNECT_PAUSE_S = 15.0, 0.01
#: How long to wait for the reason why a node's processes are gone.
_WORDS_S = 5.0
#: Pause of a door without a descriptor for the next connection.
_NO_ROOM_S = 0.2
#: Longest first line of a connection, how long it may take, and the pause between two checks.
_LINE_BYTES, LINE_S, LOOK_S = 4096, 20.0, 0.5
#: Connections that a job may have for each other node, and in addition.
_LINKS_EACH, LINKS_MORE = 4, 64
T = TypeVar("T")
_UNLIMITED = 1 << 20


class RanksAnswering:
    """The `RanksAnswers` (`adapters/rpc/ranks.py`) of one Starter."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    def prepare(self, node: str, hold: str, *, head: str, cores: int) -> Future[Any]:
        ready: Future[Any] = self._ask(node, lambda agent: agent.jobs.holds.when_ready(hold, head=head, cores=cores))
        return ready

    def suspend(self, node: str, hold: str, *, resume: bool, out_of_turn_us: int = 0) -> None:
        self._ask(node, lambda agent: agent.jobs.holds.suspend(hold, resume=resume, out_of_turn_us=out_of_turn_us))

    def checkpoint(self, node: str, hold: str, step: Step) -> tuple[int, str]:
        part = self._ask(node, lambda agent: agent.jobs.helped.get(hold, resume=step.step == "ask" and step.stop))
        try:
            return answer(part, step)
        except OSError as error:
            raise RmgrError(f"node {node}: {sentence(error)}") from None

    def launch(self, node: str, hold: str) -> RanksLink:
        found = self._ask(node, lambda agent: agent.jobs.holds.get(hold), CONNECT_S)  # it may be registering, which takes a while
        if found.place is None:
            raise _nothing_on(node)
        gangs = self._starter.agents[node].jobs.gangs
        takes_turns = found.record is not None and bool(found.record.gang)

        def clock() -> float:  # the program cannot answer while it is stopped between its turns
            return gangs.served_us(hold)[0] / 1e6 if takes_turns else machine.monotonic()

        end_s = clock() + CONNECT_S
        account = found.info.account if found.info is not None else None
        seq = found.seq
        user = account.uid if account is not None else os.getuid()
        while True:
            try:
                link = ranks.connect(str(found.place / "ranks"))
                if ranks.peer_uid(link) not in (-1, user):  # in the user's directory a link may lead to another user's socket
                    link.close()
                    raise PermissionDenied(f"what listens for the job on node {node} is not its user's")
                return SocketLink(link, last_words=lambda: self._last_words(node, found, seq))
            except OSError as error:
                if clock() > end_s or not found.is_ready:
                    raise Unavailable(f"node {node} does not start processes: {error.strerror}") from None
                machine.sleep(_CONNECT_PAUSE_S)

    def _last_words(self, node: str, hold: HeldPart, seq: int) -> bytes:
        """Returns the explanation of processes that all ended together."""
        end_s = machine.monotonic() + _WORDS_S
        while seq not in hold.fates and machine.monotonic() < end_s:  # it is about to arrive
            machine.sleep(_CONNECT_PAUSE_S)
        fate = hold.fates.get(seq, "")
        if not fate:
            return b""
        words = f"node {node}: {fate}".encode()
        starved = ranks.frame(ranks.STARVED, -1, words) if seq in hold.starved else b""
        return starved + ranks.frame(ranks.FAILED, -1, words)

    def _ask(self, node: str, question: Callable[[NodeAgent], Any], timeout_s: float = 5.0) -> Any:
        """Returns the answer of the node, in its thread. Raises: NotFound if the job has nothing there, Unavailable."""
        agent = self._starter.agents.get(node)
        if agent is None:
            raise NotFound(f"this Starter does not serve node {node}")
        try:
            found = self._starter.ask(lambda: question(agent), timeout_s)
        except TimeoutError:
            raise Unavailable(f"node {node} is too busy to answer") from None
        if not found:
            raise _nothing_on(node)
        return found


def _nothing_on(node: str) -> NotFound:
    return NotFound(f"the job has no cores on node {node} any more")


class Places:
    """Connections that jobs' processes may have to a Starter: they use descriptors and threads of root. Thread-safe.

    all_links: None = half of the descriptors of this process; one user may have half of them.
    """

    def __init__(self, all_links: int | None = None) -> None:
        self._all_links = all_links
        self._largest = 0
        self._of: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def _most(self) -> int:
        if self._all_links is not None:
            return self._all_links
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Even if the limit of descriptors is lowered for a while: then connections wait, but none is refused.
        self._largest = max(self._largest, soft // 2 if soft > 0 else _UNLIMITED)
        return self._largest

    def take(self, uid: int) -> bool:
        """Takes one more for a user; False if there is none."""
        with self._lock:
            most = self._most
            if self._of[uid] >= max(1, most // 2) or self._of.total() >= most:
                return False
            self._of[uid] += 1
        return True

    def give(self, uid: int) -> None:
        """Gives one back."""
        with self._lock:
            self._of[uid] -= 1
            self._of += Counter()  # drops users without connections


#: The places of this process.
PLACES = Places()


class SocketLink:
    """A `RanksLink` (`adapters/rpc/ranks.py`) over a socket."""

    def __init__(self, link: socket.socket, *, last_words: Callable[[], bytes] = bytes) -> None:
        self._link = link
        self._last_words = last_words
        self._is_closed = False

    def send(self, data: bytes) -> bool:
        try:
            self._link.sendall(data)
        except OSError:
            return False
        return True

    def pieces(self) -> Iterator[bytes]:
        yield from _pieces(self._link)
        if not self._is_closed and (words := self._last_words()):
            yield words

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()


def _pieces(link: socket.socket) -> Iterator[bytes]:
    """Yields what arrives, until the other end is gone."""
    with contextlib.suppress(OSError):
        while data := link.recv(_CHUNK):
            yield data


def _refuse(link: socket.socket, why: str) -> None:
    """Sends the reason, if that is possible at once, and closes."""
    link.setblocking(False)
    with contextlib.suppress(OSError):
        link.send(ranks.frame(ranks.FAILED, -1, why.encode()))
    link.close()


class Door:
    """The socket in a job's private directory through which its processes reach its other nodes.

    Args:
        path: of the socket. nodes: the other nodes.
        endpoint_of: returns the endpoint of a node's Starter when it was ready ("": it was not). Called on any thread; does not ask
            ZooKeeper, which may be away.
        hold: the job's name below /holds. uid: of the job's user, -1 = the Starter's.
        clock: in seconds, for time limits on the job's side: it stops while a gang's job is stopped between its turns. None: monotonic
            time.
        on_starved: called (on any thread) when ranks on another node ran out of memory.
    The first line of a connection is {"node": "n2"}; frames of runner/ranks/ranks.py follow.
    """

    def __init__(
        self,
        path: Path,
        peers: Peers,
        *,
        nodes: frozenset[str],
        endpoint_of: Callable[[str], str],
        hold: str,
        uid: int = -1,
        on_starved: Callable[[], None] = lambda: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._peers = peers
        self._clock = clock or machine.monotonic
        self._endpoint_of = endpoint_of
        self._closed = threading.Event()
        self._losses: dict[str, tuple[float, str]] = {}
        self._nodes = nodes
        self._hold = hold
        self._users = frozenset((-1, 0, os.getuid(), uid))
        self._uid = uid
        self._most = _LINKS_EACH * len(nodes) + LINKS_MORE
        self._links: set[socket.socket] = set()
        self._cpu_us = self._max_rss_kib = 0
        self._on_starved = on_starved
        self.starved = ""  #: where ranks ran out of memory, and how much they had
        self._lock = threading.Lock()
        self._door = ranks.listen(str(path))
        machine.Thread(target=self._accept, name="job-door", daemon=True).start()

    def close(self) -> None:
        """Closes the door and all its connections. Idempotent."""
        self._closed.set()
        for link in (self._door, *self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self._door.close()

    @property
    def lost(self) -> str:
        """Which node's ranks the system ended, and how that showed; "" if none, or if the job has run ranks there since."""
        return next((why for _, why in list(self._losses.values())), "")

    @property
    def used(self) -> tuple[int, int]:
        """(processor time in us, peak memory of one process in KiB) of ended ranks on other nodes."""
        with self._lock:
            return self._cpu_us, self._max_rss_kib

    def _count(self, cpu_us: int, max_rss_kib: int) -> None:
        with self._lock:
            self._cpu_us += cpu_us
            self._max_rss_kib = max(self._max_rss_kib, max_rss_kib)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
            except OSError:
                if self._closed.wait(_NO_ROOM_S):
                    return
                continue  # no descriptor is left: the connection waits
            if ranks.peer_uid(link) not in self._users:
                link.close()
                continue
            if len(self._links) >= self._most or not PLACES.take(self._uid):
                _refuse(link, f"the job has {counted(len(self._links), 'connection')} to its other nodes, and may have no more")
                continue
            with self._lock:
                self._links.add(link)
            try:
                machine.Thread(target=self._serve, args=(link,), name="job-ranks", daemon=True).start()
            except RuntimeError as error:  # no thread is left
                self._losses[""] = machine.monotonic(), f"ranks of the job could not be started: {error}"
                self._forget(link)
                link.close()

    def _forget(self, link: socket.socket) -> None:
        with self._lock:
            self._links.discard(link)
        PLACES.give(self._uid)

    def _serve(self, link: socket.socket) -> None:
        try:
            self._relay(link)
        except RmgrError as error:
            with contextlib.suppress(OSError):
                link.sendall(ranks.frame(ranks.FAILED, -1, error.message.encode()))
        except OSError:
            pass  # the job's side is gone, and the call with it
        finally:
            self._forget(link)
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)  # wakes a reader
            link.close()

    def _relay(self, link: socket.socket) -> None:
        node, begun_s, left = self._node_of(link), machine.monotonic(), threading.Event()
        if not node:
            return
        try:
            is_explained = self._pass_on(link, node, left)
        except PermissionDenied:
            raise  # the work's own fault
        except RmgrError as error:
            if left.is_set():
                return
            self._lose(node, error.message)
            raise
        if not left.is_set():
            if not is_explained:
                self._lose(node, "its processes were ended")
        elif self._losses.get(node, (begun_s, ""))[0] < begun_s:
            del self._losses[node]  # the job has tried again successfully

    def _lose(self, node: str, why: str) -> None:
        self._losses[node] = machine.monotonic(), f"node {node} lost ranks of the job: {why}"

    def _node_of(self, link: socket.socket) -> str:
        """Returns the node that a connection names, "" if it ended before that. Raises: NotFound; OSError."""
        line, end_s = b"", self._clock() + LINE_S
        while not line.endswith(b"\n"):
            left_s = end_s - self._clock()
            if left_s <= 0 or len(line) > _LINE_BYTES:
                return ""
            link.settimeout(min(left_s, LOOK_S))
            with contextlib.suppress(TimeoutError):
                byte = link.recv(1)
                if not byte:
                    return ""
                line += byte
        link.settimeout(None)
        node = node_in(line)
        if node not in self._nodes:
            raise NotFound(f"node {node} is not one of the job's other nodes ({', '.join(sorted(self._nodes))})")
        return node

    def _pass_on(self, link: socket.socket, node: str, left: threading.Event) -> bool:
        """Passes everything on, both ways. left: set when the job's side has ended. Returns: whether the node has said why it ended.

        Raises: errors of `Peers.launch`; OSError if the job's side is gone.
        """
        endpoint, is_explained = self._endpoint_of(node), False
        if not endpoint:
            raise Unavailable(f"node {node} is not ready for the job")
        cancel: list[Callable[[], None]] = []

        def sent() -> Iterator[bytes]:
            yield from _pieces(link)
            left.set()
            for end in cancel:  # the caller is gone: its processes there end
                end()

        pieces, end = self._peers.launch(endpoint, node, self._hold, sent())
        cancel.append(end)
        cutter = ranks.Cutter()
        try:
            for piece in pieces:
                for kind, number, rest in cutter.feed(piece):
                    if kind == ranks.USED:  # before it is passed on, since the job may end with it
                        self._count(*ranks.usage_of(rest))
                    elif kind == ranks.FAILED and number < 0:
                        is_explained = True
                    elif kind == ranks.STARVED:
                        self.starved = rest.decode(errors="replace")
                        self._on_starved()
                link.sendall(piece)
        except ranks.FrameTooLong as error:
            raise PermissionDenied(f"what runs on node {node} for the job is no process of rmgr: {error}") from None
        finally:
            end()
        return is_explained


def node_in(line: bytes) -> str:
    """Returns the node that the first line of a connection names. Raises: NotFound."""
    try:
        return str(json.loads(line)["node"])
    except (*UNREADABLE_TEXT, KeyError, TypeError):
        raise NotFound("the connection does not say for which node it is") from None


# -- terminals -------------------------------------------------------------------------------------------------------------
# Terminals of a Starter's commands: who may use one, and how to reach it. The command of an interactive job is runner/ranks/terminal.py,
# which listens at a socket whose name follows from the job's host file.


class TerminalAnswering:
    """The `TerminalAnswers` (`adapters/terminals.py`) of one Starter."""

    def __init__(self, starter: Starter, operators: Sequence[str] = ()) -> None:
        self._starter = starter
        self._operators = tuple(operators)

    def attach(self, submission: int, index: int, *, caller: Caller) -> RanksLink:
        """See `TerminalAnswers.attach`. Only its owner may type into a command; operators may not."""
        try:
            found = self._starter.ask(lambda: self._look(submission, index))
        except TimeoutError:
            raise Unavailable("the Starter is busy or registering", hint="try again in a moment") from None
        if found is None:
            raise NotFound(f"job {submission} does not run on this node")
        hosts, uid, owner = found
        person = person_of(caller, self._operators)
        with audited(self._starter.shared.log, person, "terminal", str(submission)):
            if not (person.is_open or person.owns(owner)):
                raise denied(submission, owner)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(terminal.address(hosts))
            if ranks.peer_uid(link) != uid:  # any user may listen at any name
                raise Unavailable(f"what listens for job {submission} is not its user's")
        except OSError as error:
            link.close()
            raise Unavailable(f"job {submission} has no terminal yet: {error.strerror}") from None
        except Unavailable:
            link.close()
            raise
        return SocketLink(link)

    def _look(self, submission: int, index: int) -> tuple[str, int, str] | None:
        """Returns (host file, uid of its processes, owner of the job)."""
        for agent in self._starter.agents.values():
            for block in agent.blocks.values():
                if block.key.submission == submission and block.key.first == index and block.is_placed:
                    place = agent.jobs.place_of(block)
                    account = block.info.account if block.info is not None else None
                    if place is not None:
                        return str(place / "hosts"), account.uid if account is not None else os.getuid(), block.info.record.user
        return None
