from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallId(_message.Message):
    __slots__ = ("user", "guid", "number")
    USER_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    user: str
    guid: bytes
    number: int
    def __init__(self, user: _Optional[str] = ..., guid: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class FromServer(_message.Message):
    __slots__ = ("hello", "load", "verdict", "leaving", "beat", "over", "answer")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    hello: ServerHello
    load: Load
    verdict: Verdict
    leaving: bool
    beat: bool
    over: bool
    answer: GivePart
    def __init__(self, hello: _Optional[_Union[ServerHello, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., leaving: bool = ..., beat: bool = ..., over: bool = ..., answer: _Optional[_Union[GivePart, _Mapping]] = ...) -> None: ...

class ServerHello(_message.Message):
    __slots__ = ("version", "name", "site", "life", "slots", "mops", "mops_declared", "functions", "most_waiting", "users", "said_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    MOPS_FIELD_NUMBER: _ClassVar[int]
    MOPS_DECLARED_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    MOST_WAITING_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    SAID_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    name: str
    site: str
    life: int
    slots: int
    mops: float
    mops_declared: bool
    functions: _containers.RepeatedScalarFieldContainer[bytes]
    most_waiting: int
    users: _containers.RepeatedCompositeFieldContainer[FunctionUsers]
    said_bytes: int
    def __init__(self, version: _Optional[int] = ..., name: _Optional[str] = ..., site: _Optional[str] = ..., life: _Optional[int] = ..., slots: _Optional[int] = ..., mops: _Optional[float] = ..., mops_declared: bool = ..., functions: _Optional[_Iterable[bytes]] = ..., most_waiting: _Optional[int] = ..., users: _Optional[_Iterable[_Union[FunctionUsers, _Mapping]]] = ..., said_bytes: _Optional[int] = ...) -> None: ...

class FunctionUsers(_message.Message):
    __slots__ = ("function", "users")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    function: str
    users: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, function: _Optional[str] = ..., users: _Optional[_Iterable[str]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("ask", "running", "waiting", "other", "mean_load", "arrivals_per_s", "service_s", "service_cv")
    ASK_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    MEAN_LOAD_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SERVICE_S_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CV_FIELD_NUMBER: _ClassVar[int]
    ask: int
    running: int
    waiting: int
    other: float
    mean_load: float
    arrivals_per_s: float
    service_s: float
    service_cv: float
    def __init__(self, ask: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., other: _Optional[float] = ..., mean_load: _Optional[float] = ..., arrivals_per_s: _Optional[float] = ..., service_s: _Optional[float] = ..., service_cv: _Optional[float] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("key", "kind", "reason", "life")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACCEPTED: _ClassVar[Verdict.Kind]
        JOINED: _ClassVar[Verdict.Kind]
        REFUSED: _ClassVar[Verdict.Kind]
        BARRED: _ClassVar[Verdict.Kind]
        STARTED: _ClassVar[Verdict.Kind]
    ACCEPTED: Verdict.Kind
    JOINED: Verdict.Kind
    REFUSED: Verdict.Kind
    BARRED: Verdict.Kind
    STARTED: Verdict.Kind
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    kind: Verdict.Kind
    reason: str
    life: int
    def __init__(self, key: _Optional[bytes] = ..., kind: _Optional[_Union[Verdict.Kind, str]] = ..., reason: _Optional[str] = ..., life: _Optional[int] = ...) -> None: ...

class ToServer(_message.Message):
    __slots__ = ("welcome", "ask", "offer", "cancel", "closed", "probe", "beat", "orphan", "arguments")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    welcome: ServerWelcome
    ask: int
    offer: Offer
    cancel: CallId
    closed: Closed
    probe: Probe
    beat: bool
    orphan: CallId
    arguments: GivePart
    def __init__(self, welcome: _Optional[_Union[ServerWelcome, _Mapping]] = ..., ask: _Optional[int] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., cancel: _Optional[_Union[CallId, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., beat: bool = ..., orphan: _Optional[_Union[CallId, _Mapping]] = ..., arguments: _Optional[_Union[GivePart, _Mapping]] = ...) -> None: ...

class ServerWelcome(_message.Message):
    __slots__ = ("version", "gateway", "refused", "over")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    version: int
    gateway: str
    refused: str
    over: bool
    def __init__(self, version: _Optional[int] = ..., gateway: _Optional[str] = ..., refused: _Optional[str] = ..., over: bool = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("key", "id", "lowest", "function", "function_version", "bytes", "left_ms", "attempt", "said_bytes", "is_said")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SAID_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_SAID_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    id: CallId
    lowest: int
    function: str
    function_version: int
    bytes: int
    left_ms: int
    attempt: int
    said_bytes: int
    is_said: bool
    def __init__(self, key: _Optional[bytes] = ..., id: _Optional[_Union[CallId, _Mapping]] = ..., lowest: _Optional[int] = ..., function: _Optional[str] = ..., function_version: _Optional[int] = ..., bytes: _Optional[int] = ..., left_ms: _Optional[int] = ..., attempt: _Optional[int] = ..., said_bytes: _Optional[int] = ..., is_said: bool = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ("user", "guid", "lowest", "numbers")
    USER_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    user: str
    guid: bytes
    lowest: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, user: _Optional[str] = ..., guid: _Optional[bytes] = ..., lowest: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("key", "bytes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    bytes: int
    def __init__(self, key: _Optional[bytes] = ..., bytes: _Optional[int] = ...) -> None: ...

class TakeRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class GivePart(_message.Message):
    __slots__ = ("key", "outcome", "data")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    outcome: CallOutcome
    data: bytes
    def __init__(self, key: _Optional[bytes] = ..., outcome: _Optional[_Union[CallOutcome, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class GiveReply(_message.Message):
    __slots__ = ("is_taken",)
    IS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    is_taken: bool
    def __init__(self, is_taken: bool = ...) -> None: ...

class CallOutcome(_message.Message):
    __slots__ = ("kind", "error", "traceback", "bytes", "waited_us", "ran_us", "in_us")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[CallOutcome.Kind]
        FAILED: _ClassVar[CallOutcome.Kind]
        TIMEOUT: _ClassVar[CallOutcome.Kind]
        LOST: _ClassVar[CallOutcome.Kind]
        CANCELLED: _ClassVar[CallOutcome.Kind]
        BARRED: _ClassVar[CallOutcome.Kind]
    OK: CallOutcome.Kind
    FAILED: CallOutcome.Kind
    TIMEOUT: CallOutcome.Kind
    LOST: CallOutcome.Kind
    CANCELLED: CallOutcome.Kind
    BARRED: CallOutcome.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITED_US_FIELD_NUMBER: _ClassVar[int]
    RAN_US_FIELD_NUMBER: _ClassVar[int]
    IN_US_FIELD_NUMBER: _ClassVar[int]
    kind: CallOutcome.Kind
    error: str
    traceback: str
    bytes: int
    waited_us: int
    ran_us: int
    in_us: int
    def __init__(self, kind: _Optional[_Union[CallOutcome.Kind, str]] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ..., bytes: _Optional[int] = ..., waited_us: _Optional[int] = ..., ran_us: _Optional[int] = ..., in_us: _Optional[int] = ...) -> None: ...

class FromCaller(_message.Message):
    __slots__ = ("ask", "data", "cancel", "acknowledged")
    ASK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    ask: CallAsk
    data: bytes
    cancel: bool
    acknowledged: bool
    def __init__(self, ask: _Optional[_Union[CallAsk, _Mapping]] = ..., data: _Optional[bytes] = ..., cancel: bool = ..., acknowledged: bool = ...) -> None: ...

class CallAsk(_message.Message):
    __slots__ = ("version", "guid", "number", "lowest", "function", "function_version", "sizes", "bytes", "left_ms", "bound_server", "bound_life", "without", "interface", "attempt")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    BOUND_SERVER_FIELD_NUMBER: _ClassVar[int]
    BOUND_LIFE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    version: int
    guid: bytes
    number: int
    lowest: int
    function: str
    function_version: int
    sizes: str
    bytes: int
    left_ms: int
    bound_server: str
    bound_life: int
    without: _containers.RepeatedScalarFieldContainer[int]
    interface: bytes
    attempt: int
    def __init__(self, version: _Optional[int] = ..., guid: _Optional[bytes] = ..., number: _Optional[int] = ..., lowest: _Optional[int] = ..., function: _Optional[str] = ..., function_version: _Optional[int] = ..., sizes: _Optional[str] = ..., bytes: _Optional[int] = ..., left_ms: _Optional[int] = ..., bound_server: _Optional[str] = ..., bound_life: _Optional[int] = ..., without: _Optional[_Iterable[int]] = ..., interface: _Optional[bytes] = ..., attempt: _Optional[int] = ...) -> None: ...

class ToCaller(_message.Message):
    __slots__ = ("named", "verdict", "outcome", "data", "beat", "none", "over")
    NAMED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    named: Named
    verdict: Verdict
    outcome: CallOutcome
    data: bytes
    beat: bool
    none: NoneNow
    over: Over
    def __init__(self, named: _Optional[_Union[Named, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., outcome: _Optional[_Union[CallOutcome, _Mapping]] = ..., data: _Optional[bytes] = ..., beat: bool = ..., none: _Optional[_Union[NoneNow, _Mapping]] = ..., over: _Optional[_Union[Over, _Mapping]] = ...) -> None: ...

class EndRequest(_message.Message):
    __slots__ = ("guid", "lowest", "acknowledged", "cancelled")
    GUID_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    guid: bytes
    lowest: int
    acknowledged: _containers.RepeatedScalarFieldContainer[int]
    cancelled: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, guid: _Optional[bytes] = ..., lowest: _Optional[int] = ..., acknowledged: _Optional[_Iterable[int]] = ..., cancelled: _Optional[_Iterable[int]] = ...) -> None: ...

class EndReply(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: int
    def __init__(self, servers: _Optional[int] = ...) -> None: ...

class Named(_message.Message):
    __slots__ = ("server", "life", "pick", "trace", "known")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    PICK_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    server: str
    life: int
    pick: PickReply
    trace: _containers.RepeatedCompositeFieldContainer[TraceStep]
    known: bool
    def __init__(self, server: _Optional[str] = ..., life: _Optional[int] = ..., pick: _Optional[_Union[PickReply, _Mapping]] = ..., trace: _Optional[_Iterable[_Union[TraceStep, _Mapping]]] = ..., known: bool = ...) -> None: ...

class TraceStep(_message.Message):
    __slots__ = ("step", "name", "took_us", "text")
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOK_US_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    step: int
    name: str
    took_us: int
    text: str
    def __init__(self, step: _Optional[int] = ..., name: _Optional[str] = ..., took_us: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class NoneNow(_message.Message):
    __slots__ = ("kind", "reason")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[NoneNow.Kind]
        FULL: _ClassVar[NoneNow.Kind]
        CHANGED: _ClassVar[NoneNow.Kind]
    UNKNOWN: NoneNow.Kind
    FULL: NoneNow.Kind
    CHANGED: NoneNow.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: NoneNow.Kind
    reason: str
    def __init__(self, kind: _Optional[_Union[NoneNow.Kind, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("kind", "life")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ENDED: _ClassVar[Over.Kind]
        SILENT: _ClassVar[Over.Kind]
        ELSEWHERE: _ClassVar[Over.Kind]
    ENDED: Over.Kind
    SILENT: Over.Kind
    ELSEWHERE: Over.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    kind: Over.Kind
    life: int
    def __init__(self, kind: _Optional[_Union[Over.Kind, str]] = ..., life: _Optional[int] = ...) -> None: ...

class FunctionsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class FunctionsReply(_message.Message):
    __slots__ = ("functions", "nearest")
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    NEAREST_FIELD_NUMBER: _ClassVar[int]
    functions: _containers.RepeatedCompositeFieldContainer[FunctionView]
    nearest: str
    def __init__(self, functions: _Optional[_Iterable[_Union[FunctionView, _Mapping]]] = ..., nearest: _Optional[str] = ...) -> None: ...

class FunctionView(_message.Message):
    __slots__ = ("interface", "servers", "odd")
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    ODD_FIELD_NUMBER: _ClassVar[int]
    interface: bytes
    servers: _containers.RepeatedScalarFieldContainer[str]
    odd: str
    def __init__(self, interface: _Optional[bytes] = ..., servers: _Optional[_Iterable[str]] = ..., odd: _Optional[str] = ...) -> None: ...

class ServersRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ServersReply(_message.Message):
    __slots__ = ("servers", "policy", "degraded", "epoch")
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[ServerView]
    policy: str
    degraded: bool
    epoch: int
    def __init__(self, servers: _Optional[_Iterable[_Union[ServerView, _Mapping]]] = ..., policy: _Optional[str] = ..., degraded: bool = ..., epoch: _Optional[int] = ...) -> None: ...

class ServerView(_message.Message):
    __slots__ = ("name", "state", "site", "slots", "running", "waiting", "other", "mops", "bytes_per_s", "age_s", "assigned", "life", "links", "functions", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    MOPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    site: str
    slots: int
    running: int
    waiting: int
    other: float
    mops: float
    bytes_per_s: float
    age_s: float
    assigned: int
    life: int
    links: _containers.RepeatedCompositeFieldContainer[LinkView]
    functions: _containers.RepeatedScalarFieldContainer[str]
    why: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., site: _Optional[str] = ..., slots: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., other: _Optional[float] = ..., mops: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., age_s: _Optional[float] = ..., assigned: _Optional[int] = ..., life: _Optional[int] = ..., links: _Optional[_Iterable[_Union[LinkView, _Mapping]]] = ..., functions: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ...) -> None: ...

class LinkView(_message.Message):
    __slots__ = ("site", "gateway", "bytes_per_s", "round_trip_s", "age_s")
    SITE_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    site: str
    gateway: str
    bytes_per_s: float
    round_trip_s: float
    age_s: float
    def __init__(self, site: _Optional[str] = ..., gateway: _Optional[str] = ..., bytes_per_s: _Optional[float] = ..., round_trip_s: _Optional[float] = ..., age_s: _Optional[float] = ...) -> None: ...

class ExplainCallRequest(_message.Message):
    __slots__ = ("function", "function_version", "sizes")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    function: str
    function_version: int
    sizes: str
    def __init__(self, function: _Optional[str] = ..., function_version: _Optional[int] = ..., sizes: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("gateway", "site", "servers", "refresh_us")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    REFRESH_US_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    site: str
    servers: _containers.RepeatedCompositeFieldContainer[ServerReport]
    refresh_us: int
    def __init__(self, gateway: _Optional[str] = ..., site: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[ServerReport, _Mapping]]] = ..., refresh_us: _Optional[int] = ...) -> None: ...

class ServerReport(_message.Message):
    __slots__ = ("name", "life", "site", "slots", "mops", "mops_declared", "functions", "load", "measured_ago_us", "bytes_per_s", "round_trip_s", "link_ago_us", "state", "answered", "heard_ago_us", "same")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    MOPS_FIELD_NUMBER: _ClassVar[int]
    MOPS_DECLARED_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AGO_US_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    LINK_AGO_US_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    HEARD_AGO_US_FIELD_NUMBER: _ClassVar[int]
    SAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    life: int
    site: str
    slots: int
    mops: float
    mops_declared: bool
    functions: _containers.RepeatedScalarFieldContainer[bytes]
    load: Load
    measured_ago_us: int
    bytes_per_s: float
    round_trip_s: float
    link_ago_us: int
    state: str
    answered: _containers.RepeatedCompositeFieldContainer[CallReport]
    heard_ago_us: int
    same: bool
    def __init__(self, name: _Optional[str] = ..., life: _Optional[int] = ..., site: _Optional[str] = ..., slots: _Optional[int] = ..., mops: _Optional[float] = ..., mops_declared: bool = ..., functions: _Optional[_Iterable[bytes]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., measured_ago_us: _Optional[int] = ..., bytes_per_s: _Optional[float] = ..., round_trip_s: _Optional[float] = ..., link_ago_us: _Optional[int] = ..., state: _Optional[str] = ..., answered: _Optional[_Iterable[_Union[CallReport, _Mapping]]] = ..., heard_ago_us: _Optional[int] = ..., same: bool = ...) -> None: ...

class CallReport(_message.Message):
    __slots__ = ("function", "operations", "bytes", "ran_us", "alone_us", "took_us", "predicted_us")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RAN_US_FIELD_NUMBER: _ClassVar[int]
    ALONE_US_FIELD_NUMBER: _ClassVar[int]
    TOOK_US_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_US_FIELD_NUMBER: _ClassVar[int]
    function: str
    operations: int
    bytes: int
    ran_us: int
    alone_us: int
    took_us: int
    predicted_us: int
    def __init__(self, function: _Optional[str] = ..., operations: _Optional[int] = ..., bytes: _Optional[int] = ..., ran_us: _Optional[int] = ..., alone_us: _Optional[int] = ..., took_us: _Optional[int] = ..., predicted_us: _Optional[int] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("epoch", "policy", "pipeline", "lives", "untold")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    UNTOLD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    policy: str
    pipeline: str
    lives: _containers.RepeatedCompositeFieldContainer[LifeHeard]
    untold: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., policy: _Optional[str] = ..., pipeline: _Optional[str] = ..., lives: _Optional[_Iterable[_Union[LifeHeard, _Mapping]]] = ..., untold: _Optional[_Iterable[int]] = ...) -> None: ...

class LifeHeard(_message.Message):
    __slots__ = ("name", "life", "heard_ago_us", "over")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    HEARD_AGO_US_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    name: str
    life: int
    heard_ago_us: int
    over: bool
    def __init__(self, name: _Optional[str] = ..., life: _Optional[int] = ..., heard_ago_us: _Optional[int] = ..., over: bool = ...) -> None: ...

class PickRequest(_message.Message):
    __slots__ = ("gateway", "site", "function", "operations", "bytes", "user", "servers", "explain")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    site: str
    function: str
    operations: int
    bytes: int
    user: str
    servers: _containers.RepeatedCompositeFieldContainer[Candidate]
    explain: bool
    def __init__(self, gateway: _Optional[str] = ..., site: _Optional[str] = ..., function: _Optional[str] = ..., operations: _Optional[int] = ..., bytes: _Optional[int] = ..., user: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., explain: bool = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("name", "life", "bytes_per_s", "round_trip_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    life: int
    bytes_per_s: float
    round_trip_s: float
    def __init__(self, name: _Optional[str] = ..., life: _Optional[int] = ..., bytes_per_s: _Optional[float] = ..., round_trip_s: _Optional[float] = ...) -> None: ...

class PickReply(_message.Message):
    __slots__ = ("server", "life", "epoch", "policy", "why", "computing_s", "transfer_s", "unknown", "terms", "degraded", "took_us")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    TOOK_US_FIELD_NUMBER: _ClassVar[int]
    server: str
    life: int
    epoch: int
    policy: str
    why: str
    computing_s: float
    transfer_s: float
    unknown: _containers.RepeatedScalarFieldContainer[str]
    terms: _containers.RepeatedCompositeFieldContainer[TermView]
    degraded: bool
    took_us: int
    def __init__(self, server: _Optional[str] = ..., life: _Optional[int] = ..., epoch: _Optional[int] = ..., policy: _Optional[str] = ..., why: _Optional[str] = ..., computing_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., unknown: _Optional[_Iterable[str]] = ..., terms: _Optional[_Iterable[_Union[TermView, _Mapping]]] = ..., degraded: bool = ..., took_us: _Optional[int] = ...) -> None: ...

class TermView(_message.Message):
    __slots__ = ("server", "load", "mops", "bytes_per_s", "computing_s", "transfer_s", "note")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    MOPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    server: str
    load: float
    mops: float
    bytes_per_s: float
    computing_s: float
    transfer_s: float
    note: str
    def __init__(self, server: _Optional[str] = ..., load: _Optional[float] = ..., mops: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., computing_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...
