"""Submissions as a Starter needs them: records as shapes and worker specs, nonces that end them, and whether a block may run."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from rmgr.adapters.host.accounts import Account
from rmgr.adapters.host.process import WorkerSpec
from rmgr.coord import nonces
from rmgr.coord.nonces import place_of
from rmgr.coord.protocol import keys, paths
from rmgr.coord.protocol.multi import Stamped
from rmgr.coord.protocol.ports import Coordinator
from rmgr.coord.seal import NotSealed, amendment_fault, block_statement, check_shape, opened, seal_fragment, spec_digest
from rmgr.coord.validity import submission as checked_record
from rmgr.daemons.starter.core.blocks import BlockVerdict, ClaimedBlock
from rmgr.daemons.starter.core.fetch import Fetcher, FetchFailure
from rmgr.errors import CoordinationUnavailable, InvalidRecord, PermissionDenied, RmgrError
from rmgr.log import BOOK
from rmgr.model.base import MIB, Needs, needs_of
from rmgr.model.block import Fragment
from rmgr.model.frames import BatchShape
from rmgr.model.queue import ClusterSettings, QueueSpec
from rmgr.model.states import Reason
from rmgr.model.submission import MAX_INITIALIZER_BYTES, Array, OnDisconnect, Phase, Submission, Work, parse_array
from rmgr.model.units import utc
from rmgr.runner.host.environment import UMASK
from rmgr.runtime import machine
from rmgr.runtime.machine import Log
from rmgr.runtime.story import Stories, Story, StoryLoop
from rmgr.runtime.zookeeper_clock import ZooKeeperClock

if TYPE_CHECKING:
    from rmgr.adapters.identity.credentials import Credentials
    from rmgr.adapters.identity.pki import Certified
    from rmgr.adapters.identity.trust import Trust
    from rmgr.model.block import Seal
    from rmgr.model.submission import Amendment

#: Most records kept, and most nonces.
KEEP = 4096
#: How long a record that cannot be read is left alone: at first, and at most.
_PAUSE_S, _MOST_PAUSE_S = 5.0, 600.0
#: Why an absent record is left alone: never longer than at first, since its number may be assigned at any moment.
_ABSENT = "there is none, or none any more"
#: Most verified signatures kept: the parts of one block share a signature, and so do blocks that left together.
KEEP_VERIFIED = 1024
#: How long a node whose clock is wrong takes no work after it would have refused some (s).
_DOUBT_S = 60.0
#: How long before the end of its certificate a node takes no more work (s): outputs that it writes afterwards are not believed.
LAST_S = 600.0


@dataclass(slots=True, eq=False)
class Info:
    """One submission. Its phase and priority may have changed since; its terms are those under which its blocks are claimed."""

    record: Submission
    queue: QueueSpec
    array: Array | None
    shapes: dict[tuple[int, int], BatchShape] = field(default_factory=dict)
    specs: dict[tuple[int, int], WorkerSpec] = field(default_factory=dict)
    own_specs: dict[tuple[int, int], WorkerSpec] = field(default_factory=dict)  #: of workers that serve only this user
    account: Account | None = None  #: whose rights its work has; None = the Starter's, or not known yet
    origin: Submission | None = None  #: the record as it lies in ZooKeeper, which is what its user signed
    spec: bytes = b""  #: digest of its signed part, once needed
    is_closed: bool = False
    read_s: float = -math.inf  #: monotonic time at which `is_closed` was seen
    session: int = 0  #: the session of that reading: a later session may know less for a moment
    czxid: int = 0  #: transaction that made the record
    nonce: str = ""  #: path of the nonce of its record
    refusal: str = ""  #: why nothing of it may run: its record is invalid
    needs: Needs = field(init=False)  #: other resources of one process
    kind: str | int = field(init=False)  #: what its commands share with others of similar run time: script and arguments

    def __post_init__(self) -> None:
        self.needs = needs_of(self.record.request.resources)
        command = self.record.command
        if command is None or not (command.argv or command.script_sha256):
            self.kind = self.record.id
        else:
            self.kind = sha256("\0".join((command.script_sha256, *command.argv)).encode(errors="surrogateescape")).hexdigest()

    @property
    def is_exclusive(self) -> bool:
        """Whether its work dies with the lease."""
        return self.record.on_disconnect is OnDisconnect.EXCLUSIVE

    @property
    def is_python(self) -> bool:
        """Whether it runs function calls, not commands."""
        return self.record.work is Work.PYTHON

    @property
    def python(self) -> str:
        """Interpreter that the user chose, "" = the Starter's."""
        return self.record.python.python if self.record.python is not None else ""

    @property
    def limit_us(self) -> int:
        """Time limit of a task, 0 = none."""
        return self.limited(self.record.request.time_limit_us)

    def limited(self, limit_us: int) -> int:
        """Returns a time limit within what the queue allows; 0 = none."""
        limit_us = limit_us or self.queue.default_time_us
        return min(limit_us or self.queue.max_time_us, self.queue.max_time_us or limit_us)

    def label(self, index: int) -> int:
        """Returns the number that people and RMGR_ARRAY_INDEX see for the task at `index`."""
        return self.array.index_at(index) if self.array is not None and index < len(self.array) else index

    def shape(self, cores: int, memory_mib: int, *, environ: dict[str, str], output_cap: int) -> BatchShape:
        """Returns what its batches share; built once for each size."""
        shape = self.shapes.get((cores, memory_mib))
        if shape is None:
            record = self.record
            umask = {UMASK: f"{record.umask:04o}"} if record.umask >= 0 else {}
            shape = self.shapes[cores, memory_mib] = BatchShape(
                submission=record.id,
                cores=cores,
                limit_us=self.limit_us,
                grace_us=record.grace_us,
                memory_bytes=memory_mib * MIB,
                exclusive=self.is_exclusive,
                output_cap=output_cap,
                environ=environ | {"RMGR_JOB_NAME": record.name} | umask | (record.command.env if record.command is not None else {}),
            )
        return shape

    def worker_spec(self, cores: int, memory_mib: int, fetcher: Fetcher) -> WorkerSpec | FetchFailure | None:
        """Returns the worker that its functions need; None while archives or initializer are fetched."""
        spec = self.specs.get((cores, memory_mib))
        if spec is not None:
            return spec
        python = self.record.python
        if python is None:
            spec = WorkerSpec(environ={"OMP_NUM_THREADS": str(cores)}, memory_bytes=memory_mib * MIB)
        else:
            archives = []
            for sha256 in python.modules:
                archive = fetcher.files.get(keys.module(sha256), self.record.user)
                if archive is None or isinstance(archive, FetchFailure):
                    return archive
                archives.append(archive)
            initializer = b""
            if python.initializer:
                content = fetcher.content(keys.function(python.initializer), MAX_INITIALIZER_BYTES, self.record.user)
                if content is None or isinstance(content, FetchFailure):
                    return content
                initializer = content
            spec = WorkerSpec(
                environ={"OMP_NUM_THREADS": str(cores)},
                sys_path=python.sys_path,
                argv=python.argv,
                warnings=python.warnings,
                settings=python.settings,
                archives=tuple(archives),
                initializer=initializer,
                python_version=python.version,
                cloudpickle=python.cloudpickle,
                memory_bytes=memory_mib * MIB,
                group=python.worker_group,
                program=python.program,
            )
        self.specs[cores, memory_mib] = spec
        return spec


class RecordState(Enum):
    """What is known of a submission whose record was read once."""

    OPEN = auto()
    CLOSED = auto()
    ASKED = auto()  #: its record is being read: call again


class RecordCache:
    """Level-triggered cache of `Info`.

    Args:
        settings: returns the cluster's current settings.
        nonces: of a secured cluster: what has ended for ever, whatever a record says.
    """

    def __init__(
        self, coordinator: Coordinator, loop: StoryLoop, *, settings: Callable[[], ClusterSettings], log: Log, nonces: Nonces | None = None
    ) -> None:
        self.nonces = nonces
        self._coordinator = coordinator
        self._stories = Stories(loop)
        self._settings = settings
        self._log = log
        self._here: OrderedDict[int, Info] = OrderedDict()
        self._refused_s: dict[int, float] = {}
        self._pauses_s: dict[int, float] = {}
        self._refused_whys: dict[int, str] = {}  # each is logged once

    @property
    def operators(self) -> tuple[str, ...]:
        """Users whom the settings make operators."""
        return self._settings().operators

    def get(self, submission: int, *, is_announced: bool = False) -> Info | None:
        """Returns the record, None while it is read or if it cannot be read (`is_refused`). Owner's thread only.

        is_announced: so far only a client says that the record exists. If absent it may still come, and is asked for again without a pause.
        """
        info = self._here.get(submission)
        if info is not None:
            self._here.move_to_end(submission)
            return info
        if not self.is_refused(submission):
            self._stories.begin(self._fetch(submission, is_announced=is_announced), key=("get", submission))
        return None

    def is_refused(self, submission: int) -> bool:
        """Returns whether the record cannot be read now (gone, a newer format, bad), so that its blocks are left alone for a
        while."""
        return machine.monotonic() < self._refused_s.get(submission, -math.inf)

    def is_absent(self, submission: int) -> bool:
        """Returns whether the record was found absent. Blocks that name it may come from a client that guesses numbers."""
        return self._refused_whys.get(submission) == _ABSENT

    def state(self, submission: int, age_s: float) -> RecordState:
        """Returns the state of a submission as read in this session, at most `age_s` seconds ago."""
        info = self._here.get(submission)
        if info is not None and machine.monotonic() - info.read_s <= age_s and info.session == self._coordinator.session_id:
            return RecordState.CLOSED if info.is_closed else RecordState.OPEN
        self._stories.begin(self._look(submission), key=("look", submission))
        return RecordState.ASKED

    def _look(self, submission: int) -> Story[None]:
        session, is_closed = self._coordinator.session_id, True
        try:
            found: Stamped | None = yield self._coordinator.get(paths.sub(submission))
            is_closed = found is None or checked_record(found.data, submission).phase is Phase.CLOSED
        except CoordinationUnavailable:
            return  # asked again at the next use
        except RmgrError:
            pass  # that znode holds no valid record
        if (info := self._here.get(submission)) is not None:
            info.is_closed, info.read_s, info.session = is_closed, machine.monotonic(), session

    def forget_lost(self) -> None:
        """Drops worker specs whose files were removed; they are built anew."""
        for info in self._here.values():
            for specs in (info.specs, info.own_specs):
                for size in [size for size, spec in specs.items() if not all(map(os.path.lexists, spec.archives))]:
                    del specs[size]

    def forget(self, submission: int) -> None:
        """Forgets a record, so that the next use reads it."""
        self._here.pop(submission, None)

    def renewed(self, submission: int) -> Story[Info | None]:
        """Reads the record of running work again; None if it is absent or invalid. Raises: CoordinationUnavailable."""
        session = self._coordinator.session_id
        try:
            found: Stamped | None = yield self._coordinator.get(paths.sub(submission))
            if found is None:
                return None
            record = checked_record(found.data, submission)
        except CoordinationUnavailable:
            raise
        except RmgrError as error:
            self._log.warning("submission_not_readable", submission=submission, why=error.message)
            return None
        old = self._here.get(submission)
        info = self._take(record, found.stat.czxid, session)
        info.account = old.account if old is not None else None
        return info

    def _fetch(self, submission: int, *, is_announced: bool) -> Story[None]:
        session = self._coordinator.session_id
        try:
            found: Stamped | None = yield self._coordinator.get(paths.sub(submission))
            if found is None:
                if not is_announced:
                    self._refuse(submission, _ABSENT)
                return
            record = checked_record(found.data, submission)
        except CoordinationUnavailable:
            return  # asked again at the next use
        except InvalidRecord as error:
            self._distrust(submission, error.message)
            return
        except RmgrError as error:
            self._refuse(submission, error.message)
            return
        self._take(record, found.stat.czxid, session)
        if self.nonces is not None:
            self.nonces.ask(place_of(record))  # so it is known when a block is verified

    def _take(self, record: Submission, czxid: int, session: int) -> Info:
        """Takes a record that was read in this session. czxid: of its znode."""
        if record.spec_sha256:
            return self._distrust(record.id, "spec_sha256: its command is said to lie in a row, where no release has ever put one")
        array = parse_array(record.array) if record.array else None
        queue = self._settings().queue(record.queue) or QueueSpec(name=record.queue)
        info = self._here[record.id] = Info(record, queue, array)
        info.origin, info.is_closed, info.read_s, info.session = record, record.phase is Phase.CLOSED, machine.monotonic(), session
        info.czxid, info.nonce = czxid, place_of(record)
        while len(self._here) > KEEP:
            self._here.popitem(last=False)
        return info

    def _distrust(self, submission: int, why: str) -> Info:
        """Keeps a placeholder for a record that must not be believed: its waiting tasks end, and the record is not read again."""
        self._log.warning("submission_invalid", submission=submission, why=why)
        nobodys = Submission(id=submission, name="", user="", queue="", work=Work.COMMAND)
        info = self._here[submission] = Info(nobodys, QueueSpec(name=""), None, refusal=why)
        while len(self._here) > KEEP:
            self._here.popitem(last=False)
        return info

    def _refuse(self, submission: int, why: str) -> None:
        if len(self._refused_s) > KEEP:
            self._refused_s.clear()
            self._pauses_s.clear()
            self._refused_whys.clear()
        pause_s = _PAUSE_S if why == _ABSENT else min(_MOST_PAUSE_S, self._pauses_s.get(submission, _PAUSE_S / 2) * 2)
        self._pauses_s[submission] = pause_s
        self._refused_s[submission] = machine.monotonic() + pause_s
        if self._refused_whys.get(submission) != why and BOOK.admits("unreadable submissions", self._log_further):
            self._log.warning("submission_not_readable", submission=submission, why=why)
        self._refused_whys[submission] = why

    def _log_further(self, more: int) -> None:
        """Logs that `more` further records could not be read: names of blocks may contain any number."""
        self._log.warning("submissions_not_readable", count=more)


# -- nonces ----------------------------------------------------------------------------------------------------------------
# Nonces of submissions, as a Starter needs them: whether the signed submission has this number, and has not ended (`coord/nonces.py`).
# The znode of a nonce is read once, as soon as the record that names it is known, and watched. Until the watch fires, the znode is as new
# as anything read since on the same connection: ZooKeeper sends the event of a change before any answer that contains later changes. So a
# submission costs one read and one watch, which fires when the submission ends.


@dataclass(slots=True, eq=False)
class Nonce:
    """What is known of one nonce. is_known: it was read, and a watch was set. has_fired: set by the thread of the connection."""

    path: str
    found: Stamped | None = None
    is_known: bool = False
    has_fired: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether its submission was seen to have ended, which never changes."""
        return self.found is not None and self.found.version > 0


class Nonces:
    """Nonces of one Starter; used by the owner's thread, except for the watches.

    Attributes: generation: counts changes of what is known.
    """

    def __init__(self, coordinator: Coordinator, loop: StoryLoop) -> None:
        self.generation = 0
        self._coordinator = coordinator
        self._post = loop.post
        self._stories = Stories(loop)
        self._nonces: OrderedDict[str, Nonce] = OrderedDict()

    def look(self, path: str) -> Nonce | None:
        """Returns the nonce at `path`, no older than anything read before; None: call `ask`. Cost: 1 us."""
        nonce = self._nonces.get(path)
        if nonce is None or not (nonce.has_ended or (nonce.is_known and not nonce.has_fired)):
            return None
        return nonce

    def has_ended(self, path: str) -> bool:
        """Returns whether the submission is known to have ended; reads the nonce again if its watch has fired."""
        nonce = self._nonces.get(path)
        if nonce is not None and nonce.has_fired:
            self.ask(path)
        return nonce is not None and nonce.has_ended

    def ask(self, path: str) -> None:
        """Reads the nonce unless it is known or being read. Call it after reading the record that names the nonce."""
        if self.look(path) is None:
            nonce = self._nonces.setdefault(path, Nonce(path))
            self._nonces.move_to_end(path)
            self._stories.begin(self._read(nonce), key=nonce)
            while len(self._nonces) > KEEP:
                self._nonces.popitem(last=False)

    # -- inside

    def _read(self, nonce: Nonce) -> Story[None]:
        nonce.is_known = nonce.has_fired = False
        try:
            found: Stamped | None = yield self._coordinator.get(nonce.path, watch=lambda: self._on_watch(nonce))
        except PermissionDenied:
            found = None  # its maker has closed it to nodes: nothing may run by it
        except (RmgrError, TimeoutError):
            return  # asked again at the next use
        before, nonce.found, nonce.is_known = nonce.found, found, True
        if before is not None and before != found:
            self.generation += 1

    def _on_watch(self, nonce: Nonce) -> None:
        """On the thread of the connection: from now on the nonce is only trusted to have ended, which is the usual reason of the event."""
        nonce.has_fired = True
        self._post(self._changed)

    def _changed(self) -> None:
        """Lets users of the nonce ask (`has_ended`): usually there are none, and nothing is read."""
        self.generation += 1


# -- the gate --------------------------------------------------------------------------------------------------------------
# The gate before all work of a secured cluster: a block must be what its user signed, or nothing of it is fetched or started. The gate
# also signs what this Starter commits. Open clusters have no gate.


class Admission(Enum):
    """Whether work that is not refused may run."""

    GRANTED = "granted"
    AWAITED = "awaited"  #: what decides it is being read


def admission_of(block: ClaimedBlock, gate: Gate | None) -> FetchFailure | Admission:
    """Returns `Gate.admission`, or for open clusters (no gate) the same verdict without signatures: an invalid block or record never
    runs."""
    if block.verdict is BlockVerdict.REFUSED or block.info.refusal:
        return FetchFailure(Reason.UNTRUSTED, f"refused: {block.why or block.info.refusal}", blames_node=False, is_refusal=True)
    if block.goes_back:
        return Admission.AWAITED
    return gate.admission(block) if gate is not None else Admission.GRANTED


class Gate:
    """Verifies blocks and signs fragments for all nodes of a Starter. Owner's thread only."""

    def __init__(self, credentials: Credentials, trust: Trust, records: RecordCache, *, cluster_id: str) -> None:
        self._credentials = credentials
        self._trust = trust
        self._records = records
        assert records.nonces is not None
        self._nonces = records.nonces
        self._cluster_id = cluster_id
        self._verified: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()  #: (key, its signature) -> the signed statement
        self._revocations = 0
        self._clock = ZooKeeperClock()
        self._doubted_s = -math.inf  #: monotonic
        trust.listen(self._on_revocations)

    @property
    def generation(self) -> int:
        """Changes when verified work may have lost its permission to run. Any thread may read it."""
        return self._revocations + self._nonces.generation

    def registered(self, zookeeper_ms: int) -> None:
        """Takes the time by ZooKeeper's clock, 0 = not known."""
        self._clock.heard(zookeeper_ms)

    def fault(self, now_s: float) -> str:
        """Why this Starter should take no work: it would refuse what others accept, or nobody would believe its outcomes; else "".

        now_s: monotonic.
        """
        doubt = self._wrong_clock() if now_s - self._doubted_s < _DOUBT_S else ""
        return doubt or self._ended_certificate()

    def _ended_certificate(self) -> str:
        left_s = self._credentials.not_after_s - machine.wall_s()
        if left_s > LAST_S:
            return ""
        who, when = self._credentials.identity, utc(round(self._credentials.not_after_s * 1e6))
        renew = f"rmgr admin add-node {who.name} --renew, then restart its Starter"
        words = f"its certificate {'ends' if left_s > 0 else 'ended'} at {when}, and nobody believes what it signs afterwards: {renew}"
        return self._wrong_clock() or words

    def _wrong_clock(self) -> str:
        fault = self._clock.fault()
        return f"its clock is {fault}: set it right" if fault else ""

    def is_barred(self, seal: Seal | None, info: Info) -> bool:
        """Returns whether the key was its user's at submission and was revoked since: the block is neither claimed nor refused until that
        is decided.

        Cost: 1 us.
        """
        was = self._trust.was_key_of(seal.key_id, info.czxid) if seal is not None else ""
        return was != "" and was == info.record.user  # "" = the key was not revoked; a placeholder record has the user "", too

    def has_ended(self, block: ClaimedBlock) -> bool:
        """Returns whether its submission has ended since it was verified."""
        return self._nonces.has_ended(block.info.nonce)

    def admission(self, block: ClaimedBlock) -> FetchFailure | Admission:
        """Returns whether the block may be fetched and run, else why not; AWAITED also while it is barred.

        Cost: 0.2 ms for each signature, 0.05 ms for each block.
        """
        if block.is_verified:
            return Admission.GRANTED
        if self.is_barred(block.seal, block.info):
            block.judge(BlockVerdict.BARRED)
            return Admission.AWAITED
        info: Info = block.info
        try:
            admission = self._verify(block, info)
        except NotSealed as error:
            if self._wrong_clock():  # signatures may seem to be over, or not to have begun: other nodes judge the block
                self._doubted_s = machine.monotonic()
                return Admission.AWAITED
            return FetchFailure(Reason.UNTRUSTED, f"refused: {error}", blames_node=False, is_refusal=True)  # who ends it audits it
        block.is_verified = admission is Admission.GRANTED
        return admission

    def belief(self, record: Submission) -> Admission:
        """Returns GRANTED if all amendments of a record come from people who may make them. Raises: NotSealed. Cost: 0.2 ms each.

        An amendment by an operator whose key was revoked later stays valid: other users' work does not end for that.
        """
        for change in record.changes:
            key_id, _, text = change.signature.partition(":")
            signer = self._trust.look(key_id, at_s=change.by_us / 1e6, dated=True) if text else "nobody signed it"
            if signer is None:
                return Admission.AWAITED
            why = signer if isinstance(signer, str) else self._fault(signer, record, change)
            if why:
                raise NotSealed(f"amendment {change.number}, by {change.by}: {why}")
        return Admission.GRANTED

    def _fault(self, signer: Certified, record: Submission, change: Amendment) -> str:
        """Returns why the signer of an amendment may not make it, "" if the amendment is valid."""
        key = change.signature

        def verify(signature: bytes, statement: bytes) -> bool:
            if self._verified.get((key, signature)) != statement:
                if not signer.verify(signature, statement):
                    return False
                self._verified[key, signature] = statement
            return True

        return amendment_fault(record.id, change, self._cluster_id, signer.identity, verify, operators=self._records.operators)

    def sign(self, submission: int, fragment: Fragment) -> Fragment:
        """Returns the fragment with this Starter's seal."""
        mine = self._credentials
        return seal_fragment(fragment, cluster_id=self._cluster_id, submission=submission, key_id=mine.identity.key_id, sign=mine.sign)

    def _on_revocations(self) -> None:
        """Notes, on any thread, that keys may have been revoked."""
        self._revocations = self._trust.revocations

    def _verify(self, block: ClaimedBlock, info: Info) -> Admission:
        """Returns GRANTED if the block is what its user signed. Raises: NotSealed."""
        seal, record, now_s = block.seal, info.origin, machine.wall_s()
        if seal is None or record is None:
            raise NotSealed("nobody signed it")
        if now_s > seal.not_after_s:
            raise NotSealed("its signature has expired")
        if not info.spec:
            info.spec = spec_digest(record)
        check_shape(block.key, record, block.data.allocation)
        if record.changes and self.belief(record) is Admission.AWAITED:
            return Admission.AWAITED
        # Payloads as claimed, as long as they are the block's own; for a block with a row they are pieces of files.
        payloads = () if block.data.row else cast("Sequence[bytes]", block.payloads or ())
        statement = block_statement(
            block.key,
            block.data,
            seal=seal,
            payloads=payloads,
            base=block.base,
            cluster_id=self._cluster_id,
            user=record.user,
            spec=info.spec,
        )
        signer = self._trust.look(seal.key_id, at_s=now_s)
        nonce = self._nonce_admission(record, info)
        if signer is None or nonce is Admission.AWAITED:
            return Admission.AWAITED
        if isinstance(signer, str):
            raise NotSealed(signer)
        who = signer.identity
        if not who.is_person or who.name != record.user:
            raise NotSealed(f"it was signed by {who.role} {who.name}, and is to run for {record.user}")
        if isinstance(nonce, NotSealed):
            raise nonce
        signature, signed = opened(seal.signature, statement)
        if self._verified.get((seal.key_id, signature)) != signed:
            if not signer.verify(signature, signed):
                raise NotSealed("it is not what its user signed: its arguments, its record or its signature was changed")
            self._verified[seal.key_id, signature] = signed
            while len(self._verified) > KEEP_VERIFIED:
                self._verified.popitem(last=False)
        return Admission.GRANTED

    def _nonce_admission(self, record: Submission, info: Info) -> NotSealed | Admission:
        """Returns whether the nonce lets the record run, else why not. Cost: 10 us."""
        nonce = self._nonces.look(info.nonce)
        if nonce is None:
            self._nonces.ask(info.nonce)
            return Admission.AWAITED
        found = nonce.found
        if found is None and self._records.state(record.id, math.inf) is RecordState.ASKED:
            return Admission.AWAITED  # the record came from another connection, which may have known more: read it on this one first
        why = nonces.fault(record, info.czxid, found)
        if not why and found is not None:
            why = nonces.untimely(record, found.stat.ctime_ms / 1000, "ZooKeeper's clock")
        return NotSealed(why) if why else Admission.GRANTED
