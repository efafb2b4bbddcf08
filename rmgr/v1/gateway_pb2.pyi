from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECK: _ClassVar[OpKind]
    CREATE: _ClassVar[OpKind]
    SET: _ClassVar[OpKind]
    DELETE: _ClassVar[OpKind]

class ProofKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXISTS: _ClassVar[ProofKind]
    GONE: _ClassVar[ProofKind]
    HOLDS: _ClassVar[ProofKind]
    GONE_OR_HOLDS: _ClassVar[ProofKind]
CHECK: OpKind
CREATE: OpKind
SET: OpKind
DELETE: OpKind
EXISTS: ProofKind
GONE: ProofKind
HOLDS: ProofKind
GONE_OR_HOLDS: ProofKind

class Asks(_message.Message):
    __slots__ = ("hello", "asks", "ping")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    asks: _containers.RepeatedCompositeFieldContainer[Ask]
    ping: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., asks: _Optional[_Iterable[_Union[Ask, _Mapping]]] = ..., ping: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "session_timeout_ms", "user", "host", "pid")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    version: int
    session_timeout_ms: int
    user: str
    host: str
    pid: int
    def __init__(self, version: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ..., user: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("id", "session", "timeout_ms", "watch", "get", "stat", "children", "sync", "create", "commit")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    STAT_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    id: int
    session: int
    timeout_ms: int
    watch: bool
    get: str
    stat: str
    children: str
    sync: bool
    create: str
    commit: Multi
    def __init__(self, id: _Optional[int] = ..., session: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., watch: bool = ..., get: _Optional[str] = ..., stat: _Optional[str] = ..., children: _Optional[str] = ..., sync: bool = ..., create: _Optional[str] = ..., commit: _Optional[_Union[Multi, _Mapping]] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("kind", "path", "data", "version", "ephemeral", "sequence")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    kind: OpKind
    path: str
    data: bytes
    version: int
    ephemeral: bool
    sequence: bool
    def __init__(self, kind: _Optional[_Union[OpKind, str]] = ..., path: _Optional[str] = ..., data: _Optional[bytes] = ..., version: _Optional[int] = ..., ephemeral: bool = ..., sequence: bool = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("kind", "path", "data")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    kind: ProofKind
    path: str
    data: bytes
    def __init__(self, kind: _Optional[_Union[ProofKind, str]] = ..., path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Multi(_message.Message):
    __slots__ = ("name", "ops", "proof", "guard")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    GUARD_FIELD_NUMBER: _ClassVar[int]
    name: str
    ops: _containers.RepeatedCompositeFieldContainer[Op]
    proof: Proof
    guard: Op
    def __init__(self, name: _Optional[str] = ..., ops: _Optional[_Iterable[_Union[Op, _Mapping]]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ..., guard: _Optional[_Union[Op, _Mapping]] = ...) -> None: ...

class Tells(_message.Message):
    __slots__ = ("tells",)
    TELLS_FIELD_NUMBER: _ClassVar[int]
    tells: _containers.RepeatedCompositeFieldContainer[Tell]
    def __init__(self, tells: _Optional[_Iterable[_Union[Tell, _Mapping]]] = ...) -> None: ...

class Tell(_message.Message):
    __slots__ = ("welcome", "session", "fired", "answer", "pong")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    session: SessionChange
    fired: int
    answer: Answer
    pong: Pong
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., session: _Optional[_Union[SessionChange, _Mapping]] = ..., fired: _Optional[int] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "gateway")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    version: int
    gateway: str
    def __init__(self, version: _Optional[int] = ..., gateway: _Optional[str] = ...) -> None: ...

class SessionChange(_message.Message):
    __slots__ = ("state", "session", "session_timeout_ms")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    state: str
    session: int
    session_timeout_ms: int
    def __init__(self, state: _Optional[str] = ..., session: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("ping", "age_s")
    PING_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    ping: int
    age_s: float
    def __init__(self, ping: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "znode", "stat", "names", "outcome", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    ZNODE_FIELD_NUMBER: _ClassVar[int]
    STAT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    znode: Znode
    stat: Stat
    names: Names
    outcome: Outcome
    error: Error
    def __init__(self, id: _Optional[int] = ..., znode: _Optional[_Union[Znode, _Mapping]] = ..., stat: _Optional[_Union[Stat, _Mapping]] = ..., names: _Optional[_Union[Names, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Stat(_message.Message):
    __slots__ = ("version", "mzxid", "children", "creates", "ephemeral_owner", "mtime_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MZXID_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    CREATES_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_OWNER_FIELD_NUMBER: _ClassVar[int]
    MTIME_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    mzxid: int
    children: int
    creates: int
    ephemeral_owner: int
    mtime_ms: int
    def __init__(self, version: _Optional[int] = ..., mzxid: _Optional[int] = ..., children: _Optional[int] = ..., creates: _Optional[int] = ..., ephemeral_owner: _Optional[int] = ..., mtime_ms: _Optional[int] = ...) -> None: ...

class Znode(_message.Message):
    __slots__ = ("data", "stat")
    DATA_FIELD_NUMBER: _ClassVar[int]
    STAT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    stat: Stat
    def __init__(self, data: _Optional[bytes] = ..., stat: _Optional[_Union[Stat, _Mapping]] = ...) -> None: ...

class Names(_message.Message):
    __slots__ = ("names", "more")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., more: bool = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("paths", "versions", "resolved")
    PATHS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    versions: _containers.RepeatedScalarFieldContainer[int]
    resolved: bool
    def __init__(self, paths: _Optional[_Iterable[str]] = ..., versions: _Optional[_Iterable[int]] = ..., resolved: bool = ...) -> None: ...

class Conflict(_message.Message):
    __slots__ = ("index", "path", "kind")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    index: int
    path: str
    kind: str
    def __init__(self, index: _Optional[int] = ..., path: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("committed", "conflict", "unknown")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    committed: Committed
    conflict: Conflict
    unknown: str
    def __init__(self, committed: _Optional[_Union[Committed, _Mapping]] = ..., conflict: _Optional[_Union[Conflict, _Mapping]] = ..., unknown: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("type", "message", "hint")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    hint: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("key", "data", "encoding", "large", "note", "size", "sha256")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    key: str
    data: bytes
    encoding: str
    large: bool
    note: bytes
    size: int
    sha256: bytes
    def __init__(self, key: _Optional[str] = ..., data: _Optional[bytes] = ..., encoding: _Optional[str] = ..., large: bool = ..., note: _Optional[bytes] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("rows", "encoding", "ttl_s", "overwrite")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    encoding: str
    ttl_s: float
    overwrite: bool
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., encoding: _Optional[str] = ..., ttl_s: _Optional[float] = ..., overwrite: bool = ...) -> None: ...

class PutReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ValuePart(_message.Message):
    __slots__ = ("key", "encoding", "ttl_s", "overwrite", "data", "last", "found", "note", "sha256")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    key: str
    encoding: str
    ttl_s: float
    overwrite: bool
    data: bytes
    last: bool
    found: bool
    note: bytes
    sha256: bytes
    def __init__(self, key: _Optional[str] = ..., encoding: _Optional[str] = ..., ttl_s: _Optional[float] = ..., overwrite: bool = ..., data: _Optional[bytes] = ..., last: bool = ..., found: bool = ..., note: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class KeyRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("found", "encoding", "size", "data", "large", "note", "sha256")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LARGE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    found: bool
    encoding: str
    size: int
    data: bytes
    large: bool
    note: bytes
    sha256: bytes
    def __init__(self, found: bool = ..., encoding: _Optional[str] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ..., large: bool = ..., note: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class KeysRequest(_message.Message):
    __slots__ = ("keys", "largest")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    largest: int
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., largest: _Optional[int] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class DeleteReply(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: bool = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("prefix", "after", "limit")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    after: str
    limit: int
    def __init__(self, prefix: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class KeysReply(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class UsageReply(_message.Message):
    __slots__ = ("values", "bytes")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    values: int
    bytes: int
    def __init__(self, values: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SweepRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SweepReply(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class BindRequest(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    def __init__(self, cluster_id: _Optional[str] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("problem",)
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    problem: str
    def __init__(self, problem: _Optional[str] = ...) -> None: ...
