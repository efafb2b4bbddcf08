"""Live calls under every interleaving that Hypothesis finds: the real client's function against real ledgers in a hostile world.

The world loses, delays, repeats and reorders messages, kills and stops servers and gateways, and lets clocks stand.

After every step:
- an id is executed at most once in a life, and one that is not idempotent at most once in all;
- what ended as never sent, or never run, never runs; nor does what a life has heard that nobody wants;
- an answer is that of its own call;
- every call has ended once its deadline is there.
At the end all heals, and every call must end, one that nothing happened to with its result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rmgr.coord.calls import caller
from rmgr.coord.calls.caller import Calling, Numbers, next_step
from rmgr.coord.calls.ledger import CallId, Drop, Ending, Fetch, Joined, Kill, Ledger, Life, Lives, Outcome, Refused, Standing

S = 1_000_000
picks = st.integers(0, 1_000)
#: Of a message, mostly it goes through.
fates = st.sampled_from(("through", "through", "through", "through", "twice", "lost"))
ACTIONS = (
    *("call",) * 4, *("deliver",) * 14, *("run",) * 6, *("finish",) * 4, "break", "cancel", *("time",) * 3,
    "kill_server", "kill_gateway", "stop", *("resume",) * 2, *("tell",) * 3, "withdraw",
)  # fmt: skip


class Message(NamedTuple):
    """gateway: (name, incarnation) it passes; one of a dead gateway is lost. to: a life, or the call whose client gets it."""

    kind: str
    gateway: tuple[str, int]
    call: CallId
    attempt: int = 0
    life: Life | None = None
    ask: caller.Ask | None = None
    lowest: int = 0
    left_us: int = 0
    known: bool = False
    why: str = ""
    again: bool = True
    ending: Ending | None = None


@dataclass
class Server:
    life: Life
    ledger: Ledger
    offers: bool = True
    is_stopped: bool = False
    running: dict[CallId, bool] = field(default_factory=dict)  #: killed?
    payload: dict[CallId, str] = field(default_factory=dict)
    ways: dict[CallId, tuple[tuple[str, int], int]] = field(default_factory=dict)  #: the gateway that waits, and for which attempt


class World:
    """All of it, without chance: whoever drives it picks."""

    def __init__(self) -> None:
        self.now = 1_000 * S
        self.numbers = {"u1": Numbers(), "u2": Numbers()}
        self.calls: dict[CallId, Calling] = {}
        self.streams: dict[CallId, tuple[str, int]] = {}
        self.pool: list[Message] = []
        self.gateways = {"g1": 0, "g2": 0}
        self.turn = 0
        self.lives = Lives()
        self.started = 0
        self.servers: dict[str, Server] = {}
        for name in ("s1", "s2"):
            self.start_server(name)
        self.executions: Counter[tuple[CallId, Life]] = Counter()
        self.touched: set[CallId] = set()  #: something happened to it
        self.closed: set[tuple[CallId, Life]] = set()  #: that life has heard that nobody wants it, before it began

    # -- the client's driver --------------------------------------------------------------------------------------------------

    def call(self, user: str, *, idempotent: bool, left_us: int) -> None:
        call = CallId(user, "g", self.numbers[user].take())
        self.calls[call] = Calling(call=call, deadline_us=self.now + left_us, idempotent=idempotent)
        self.happens(call, caller.Begin())

    def happens(self, call: CallId, event: caller.Event) -> None:
        before = self.calls[call]
        after, steps = next_step(before, event, self.now)
        self.calls[call] = after
        for step in steps:
            self.carry_out(after, step)

    def carry_out(self, calling: Calling, step: caller.Step) -> None:
        call, lowest = calling.call, self.numbers[calling.call.user].lowest
        match step:
            case caller.Ask():
                self.turn += 1
                name = ("g1", "g2")[self.turn % 2]
                gateway = self.streams[call] = (name, self.gateways[name])
                self.pool.append(Message("ask", gateway, call, step.attempt, step.to, step, lowest, step.left_us))
            case caller.Send(attempt, life):
                left = calling.deadline_us - self.now
                self.pool.append(Message("arguments", self.streams[call], call, attempt, life, None, lowest, left, why=str(call)))
            case caller.Acknowledge(life):
                self.pool.append(Message("ack", self.streams[call], call, calling.attempt, life))
            case caller.Finish(ending):
                self.numbers[call.user].close(call.number)
                if ending.outcome is Outcome.RESULT:
                    assert ending.why == str(call)
                if ending.outcome in (Outcome.RESULT, Outcome.FAILED):
                    assert self.ran(call)

    def ran(self, call: CallId) -> int:
        return sum(count for (one, _), count in self.executions.items() if one == call)

    def break_stream(self, call: CallId) -> None:
        self.touched.add(call)
        self.happens(call, caller.Broken(self.calls[call].attempt))

    def tick(self) -> None:
        for call, calling in self.calls.items():
            if calling.wake_us is not None and calling.wake_us <= self.now:
                self.happens(call, caller.Tick())

    # -- messages -------------------------------------------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        name, incarnation = message.gateway
        dead = self.gateways[name] != incarnation
        if message.kind in ("ask", "arguments", "ack") and dead:
            return
        match message.kind:
            case "ask":
                self.asked(message)
            case "arguments":
                self.pool.append(message._replace(kind="offer"))
            case "ack" | "offer" | "pieces":
                self.at_server(message)
            case _ if dead:
                return
            case "named":
                self.happens(message.call, caller.Named(message.attempt, message.life, message.known))
            case "none":
                self.happens(message.call, caller.NoneOffers(message.attempt))
            case "full":
                self.happens(message.call, caller.NoRoom(message.attempt))
            case "rejected":
                self.happens(message.call, caller.Rejected(message.attempt, message.life, message.why, message.again))
            case "broken":
                self.happens(message.call, caller.Broken(message.attempt))
            case "answered":
                self.happens(message.call, caller.Answered(message.call, message.life, message.ending))

    def asked(self, message: Message) -> None:
        ask = message.ask
        for server in list(self.servers.values()):
            self.hear(server)
        reached = {server.life: server for server in self.servers.values()}
        if ask.to is not None:
            known = ask.to in reached
            self.pool.append(message._replace(kind="offer") if known else message._replace(kind="broken"))
            return
        able = [life for life, server in reached.items() if server.offers]
        free = [life for life in able if life not in ask.without]
        kind = "named" if free else "full" if able else "none"
        life = free[message.call.number % len(free)] if free else None
        self.pool.append(message._replace(kind=kind, life=life, known=False))

    def at_server(self, message: Message) -> None:
        server = next((one for one in self.servers.values() if one.life == message.life), None)
        if server is None:
            return
        if server.is_stopped:
            self.pool.append(message)
            return
        ledger, call = server.ledger, message.call
        if message.kind == "ack":
            ledger.acknowledged(call, self.now)
            if (call, server.life) not in self.executions:
                self.closed.add((call, server.life))
        elif message.kind == "pieces":
            if ledger.fetched(call, message.attempt):
                server.payload[call] = message.why
        else:
            refusal = None if server.offers else Refused("it offers that no more", again=False)
            verdict = ledger.offered(
                call, attempt=message.attempt, lowest=message.lowest, left_us=message.left_us, now_us=self.now, refusal=refusal
            )
            back = message._replace(kind="named", known=not isinstance(verdict, Fetch))
            if isinstance(verdict, Fetch | Joined):
                server.ways[call] = (message.gateway, message.attempt)
                if message.ask is not None:
                    self.pool.append(back)
                else:  # on the server's stream they come behind their offer, whatever overtakes both
                    self.pool.append(message._replace(kind="pieces"))
            elif isinstance(verdict, Refused):
                self.pool.append(message._replace(kind="rejected", why=verdict.why, again=verdict.again))
            else:
                self.pool.append(message._replace(kind="answered", ending=verdict))
        self.obey(server)

    # -- servers --------------------------------------------------------------------------------------------------------------

    def start_server(self, name: str) -> None:
        self.started += 1
        life = Life(name, self.started)
        assert self.lives.hello(life, self.now)
        self.servers[name] = Server(life, Ledger(most_waiting=3, per_user=2, kept_bytes=25))

    def hear(self, server: Server) -> None:
        """One that was silent for too long is over, and is told to begin another life."""
        if not server.is_stopped and not self.lives.heard(server.life, self.now):
            self.touched.update(self.calls)
            self.start_server(server.life.server)

    def obey(self, server: Server) -> None:
        for order in server.ledger.orders():
            match order:
                case Kill(call):
                    server.running[call] = True
                case Drop(call):
                    server.payload.pop(call, None)

    def run(self, server: Server) -> bool:
        if server.is_stopped or len(server.running) >= 2:
            return False
        call = server.ledger.start(self.now)
        self.obey(server)
        if call is None:
            return False
        server.running[call] = False
        self.executions[call, server.life] += 1
        return True

    def finish(self, server: Server, call: CallId, *, raises: bool = False) -> None:
        killed = server.running.pop(call)
        ending = Ending(Outcome.FAILED, "raised") if killed or raises else Ending(Outcome.RESULT, server.payload.get(call, "?"))
        told = server.ledger.ended(call, ending, now_us=self.now, size_bytes=10)
        self.obey(server)
        if told is not None and call in server.ways:
            gateway, attempt = server.ways[call]
            self.pool.append(Message("answered", gateway, call, attempt, server.life, ending=told))

    def pass_time(self, lasted_us: int, *, hears: bool) -> None:
        """hears: servers and clients hear each other meanwhile."""
        self.now += lasted_us
        for server in list(self.servers.values()) if hears else ():
            self.hear(server)
        for server in self.servers.values():
            if server.is_stopped:
                continue
            for call, (gateway, _) in server.ways.items():
                if hears and self.gateways[gateway[0]] == gateway[1] and self.streams[call] == gateway:
                    server.ledger.heard(call, self.now)
            server.ledger.due(self.now)
            self.obey(server)
        self.touched.update(call for call, calling in self.calls.items() if not hears or self.now >= calling.deadline_us)
        self.tick()


class Calls(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.never: set[CallId] = set()

    @rule(action=st.sampled_from(ACTIONS), pick=picks, fate=fates, yes=st.booleans())
    def something_happens(self, action: str, pick: int, fate: str, yes: bool) -> None:
        world = self.world
        server = world.servers[("s1", "s2")[pick % 2]]
        open_calls = [call for call, calling in world.calls.items() if calling.ending is None]
        some = open_calls[pick % len(open_calls)] if open_calls else None
        match action:
            case "call" if len(open_calls) < 8:
                world.call(("u1", "u2")[pick % 2], idempotent=yes, left_us=(3_600, 20, 3_600, 120)[pick % 4] * S)
            case "deliver" if world.pool:
                message = world.pool[pick % len(world.pool)] if fate != "through" or pick % 3 == 0 else world.pool[0]
                if fate != "twice":
                    world.pool.remove(message)
                if fate == "lost":
                    world.touched.add(message.call)
                else:
                    world.deliver(message)
            case "run":
                world.run(server)
            case "finish" if server.running and not server.is_stopped:
                call = list(server.running)[pick % len(server.running)]
                if not yes and fate == "lost":
                    world.touched.add(call)
                world.finish(server, call, raises=not yes and fate == "lost")
            case "break" if some is not None:
                world.break_stream(some)
            case "cancel" if some is not None and yes:
                world.happens(some, caller.Cancel())
            case "time":
                world.pass_time((S // 2, S, 5 * S, 15 * S, 35 * S, 130 * S, 700 * S)[pick % 7], hears=yes)
            case "kill_server" if yes:
                world.touched.update(world.calls)
                world.start_server(server.life.server)
            case "kill_gateway" if yes:
                name = ("g1", "g2")[pick % 2]
                world.gateways[name] += 1
                for call, stream in list(world.streams.items()):
                    if stream[0] == name and pick % 5:
                        world.break_stream(call)
                    world.touched.add(call)
            case "stop" if yes:
                world.touched.update(world.calls)
                server.is_stopped = True
            case "resume":
                server.is_stopped = False
            case "withdraw":
                world.touched.update(world.calls)
                server.offers = not server.offers
            case "tell" if some is not None:
                bound = world.calls[some].bound
                if bound is not None:
                    standing = world.lives.standing(bound, world.now)
                    if standing is not Standing.HEARD:
                        world.touched.add(some)
                    world.happens(some, caller.LifeIs(bound, standing))
        self.note_endings()

    def note_endings(self) -> None:
        for call, calling in self.world.calls.items():
            ending = calling.ending
            if ending is None:
                continue
            told_never = ending.outcome is Outcome.TIMEOUT and ending.why.startswith("it never ran") and not calling.may_run
            if told_never or ending.outcome in (Outcome.NO_SERVER, Outcome.DENIED):
                self.never.add(call)

    @invariant()
    def an_id_runs_at_most_once_in_a_life(self) -> None:
        assert all(count == 1 for count in self.world.executions.values())

    @invariant()
    def what_is_not_idempotent_runs_at_most_once(self) -> None:
        runs = Counter(call for call, _ in self.world.executions)
        assert all(count == 1 or self.world.calls[call].idempotent for call, count in runs.items())

    @invariant()
    def what_is_told_never_to_have_run_never_runs(self) -> None:
        assert not {call for call, _ in self.world.executions} & self.never
        assert not self.world.executions.keys() & self.world.closed

    @invariant()
    def every_call_ends_within_its_deadline(self) -> None:
        world = self.world
        assert all(calling.ending is not None or world.now < calling.deadline_us for calling in world.calls.values())

    def teardown(self) -> None:
        """All heals: streams that lost something end, as they would after 10 s of silence."""
        world = self.world
        for server in world.servers.values():
            server.is_stopped, server.offers = False, True
        for call, calling in list(world.calls.items()):
            if calling.ending is None and call in world.touched:
                world.happens(call, caller.Broken(calling.attempt))
        for _ in range(150):
            for _ in range(len(world.pool) * 4):
                if world.pool:
                    world.deliver(world.pool.pop(0))
            for server in world.servers.values():
                while world.run(server):
                    pass
                for call in list(server.running):
                    world.finish(server, call)
            world.pass_time(S, hears=True)
            for call, calling in list(world.calls.items()):
                if calling.ending is None and calling.bound is not None:
                    world.happens(call, caller.LifeIs(calling.bound, world.lives.standing(calling.bound, world.now)))
            self.note_endings()
            self.an_id_runs_at_most_once_in_a_life()
            self.what_is_not_idempotent_runs_at_most_once()
            self.what_is_told_never_to_have_run_never_runs()
            if all(calling.ending is not None for calling in world.calls.values()):
                break
        for call, calling in world.calls.items():
            assert calling.ending is not None, calling
            if call not in world.touched:
                assert calling.ending.outcome in (Outcome.RESULT, Outcome.CANCELLED, Outcome.TIMEOUT), calling


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))
