from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobView(_message.Message):
    __slots__ = ("id", "name", "user", "queue", "state", "reason", "detail", "submitted_us", "started_us", "ended_us", "exit_code", "counts", "nodes", "tasks", "priority", "cpu_us", "max_rss_kib", "work", "command", "cores", "memory_bytes", "after", "processes", "expected_start_us", "resources", "account", "run_us", "lost", "route", "moving", "asked_json", "share", "account_share", "served_us", "turns", "slots", "failures")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_US_FIELD_NUMBER: _ClassVar[int]
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    ENDED_US_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CPU_US_FIELD_NUMBER: _ClassVar[int]
    MAX_RSS_KIB_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_US_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    RUN_US_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    ASKED_JSON_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_SHARE_FIELD_NUMBER: _ClassVar[int]
    SERVED_US_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    user: str
    queue: str
    state: str
    reason: str
    detail: str
    submitted_us: int
    started_us: int
    ended_us: int
    exit_code: int
    counts: _containers.ScalarMap[str, int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    tasks: int
    priority: int
    cpu_us: int
    max_rss_kib: int
    work: str
    command: str
    cores: int
    memory_bytes: int
    after: _containers.RepeatedScalarFieldContainer[str]
    processes: int
    expected_start_us: int
    resources: _containers.ScalarMap[str, int]
    account: str
    run_us: int
    lost: int
    route: str
    moving: MovingView
    asked_json: str
    share: float
    account_share: float
    served_us: int
    turns: int
    slots: str
    failures: _containers.RepeatedCompositeFieldContainer[FailureView]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., user: _Optional[str] = ..., queue: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ..., submitted_us: _Optional[int] = ..., started_us: _Optional[int] = ..., ended_us: _Optional[int] = ..., exit_code: _Optional[int] = ..., counts: _Optional[_Mapping[str, int]] = ..., nodes: _Optional[_Iterable[str]] = ..., tasks: _Optional[int] = ..., priority: _Optional[int] = ..., cpu_us: _Optional[int] = ..., max_rss_kib: _Optional[int] = ..., work: _Optional[str] = ..., command: _Optional[str] = ..., cores: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., after: _Optional[_Iterable[str]] = ..., processes: _Optional[int] = ..., expected_start_us: _Optional[int] = ..., resources: _Optional[_Mapping[str, int]] = ..., account: _Optional[str] = ..., run_us: _Optional[int] = ..., lost: _Optional[int] = ..., route: _Optional[str] = ..., moving: _Optional[_Union[MovingView, _Mapping]] = ..., asked_json: _Optional[str] = ..., share: _Optional[float] = ..., account_share: _Optional[float] = ..., served_us: _Optional[int] = ..., turns: _Optional[int] = ..., slots: _Optional[str] = ..., failures: _Optional[_Iterable[_Union[FailureView, _Mapping]]] = ...) -> None: ...

class FailureView(_message.Message):
    __slots__ = ("reason", "node", "tasks", "exit_code", "error")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    reason: str
    node: str
    tasks: int
    exit_code: int
    error: str
    def __init__(self, reason: _Optional[str] = ..., node: _Optional[str] = ..., tasks: _Optional[int] = ..., exit_code: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class MovingView(_message.Message):
    __slots__ = ("saves", "moves", "most")
    SAVES_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    saves: bool
    moves: int
    most: int
    def __init__(self, saves: bool = ..., moves: _Optional[int] = ..., most: _Optional[int] = ...) -> None: ...

class NodeView(_message.Message):
    __slots__ = ("id", "state", "cores", "cores_used", "memory_bytes", "memory_used_bytes", "running", "load", "incarnation", "pid", "host", "reason", "partition", "site", "speed", "features", "endpoint", "seen_us", "version", "resources", "resources_used", "trouble", "until_us", "metrics", "fix", "level", "freezer", "clock_error_us", "switches", "late_switches", "call_cores", "by", "since_us")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ResourcesUsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    CORES_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SEEN_US_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_USED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    FREEZER_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_US_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    LATE_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    CALL_CORES_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    cores: int
    cores_used: int
    memory_bytes: int
    memory_used_bytes: int
    running: int
    load: float
    incarnation: int
    pid: int
    host: str
    reason: str
    partition: str
    site: str
    speed: float
    features: _containers.RepeatedScalarFieldContainer[str]
    endpoint: str
    seen_us: int
    version: str
    resources: _containers.ScalarMap[str, int]
    resources_used: _containers.ScalarMap[str, int]
    trouble: str
    until_us: int
    metrics: str
    fix: str
    level: str
    freezer: str
    clock_error_us: int
    switches: int
    late_switches: int
    call_cores: int
    by: str
    since_us: int
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., cores: _Optional[int] = ..., cores_used: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., running: _Optional[int] = ..., load: _Optional[float] = ..., incarnation: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., reason: _Optional[str] = ..., partition: _Optional[str] = ..., site: _Optional[str] = ..., speed: _Optional[float] = ..., features: _Optional[_Iterable[str]] = ..., endpoint: _Optional[str] = ..., seen_us: _Optional[int] = ..., version: _Optional[str] = ..., resources: _Optional[_Mapping[str, int]] = ..., resources_used: _Optional[_Mapping[str, int]] = ..., trouble: _Optional[str] = ..., until_us: _Optional[int] = ..., metrics: _Optional[str] = ..., fix: _Optional[str] = ..., level: _Optional[str] = ..., freezer: _Optional[str] = ..., clock_error_us: _Optional[int] = ..., switches: _Optional[int] = ..., late_switches: _Optional[int] = ..., call_cores: _Optional[int] = ..., by: _Optional[str] = ..., since_us: _Optional[int] = ...) -> None: ...

class QueueView(_message.Message):
    __slots__ = ("id", "partition", "dispatch", "policy", "state", "pending", "running", "held_tasks", "limits", "held", "of_class")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    HELD_TASKS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    OF_CLASS_FIELD_NUMBER: _ClassVar[int]
    id: str
    partition: str
    dispatch: str
    policy: str
    state: str
    pending: int
    running: int
    held_tasks: int
    limits: _containers.ScalarMap[str, str]
    held: _containers.RepeatedCompositeFieldContainer[HeldView]
    of_class: ClassView
    def __init__(self, id: _Optional[str] = ..., partition: _Optional[str] = ..., dispatch: _Optional[str] = ..., policy: _Optional[str] = ..., state: _Optional[str] = ..., pending: _Optional[int] = ..., running: _Optional[int] = ..., held_tasks: _Optional[int] = ..., limits: _Optional[_Mapping[str, str]] = ..., held: _Optional[_Iterable[_Union[HeldView, _Mapping]]] = ..., of_class: _Optional[_Union[ClassView, _Mapping]] = ...) -> None: ...

class ClassView(_message.Message):
    __slots__ = ("limits", "threshold", "max_reservations", "head_trigger", "fired", "promised", "chosen", "is_known")
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    HEAD_TRIGGER_FIELD_NUMBER: _ClassVar[int]
    FIRED_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    limits: str
    threshold: int
    max_reservations: int
    head_trigger: bool
    fired: _containers.RepeatedScalarFieldContainer[int]
    promised: _containers.RepeatedCompositeFieldContainer[PromiseView]
    chosen: str
    is_known: bool
    def __init__(self, limits: _Optional[str] = ..., threshold: _Optional[int] = ..., max_reservations: _Optional[int] = ..., head_trigger: bool = ..., fired: _Optional[_Iterable[int]] = ..., promised: _Optional[_Iterable[_Union[PromiseView, _Mapping]]] = ..., chosen: _Optional[str] = ..., is_known: bool = ...) -> None: ...

class PromiseView(_message.Message):
    __slots__ = ("job", "cores", "held", "waits_for", "expected_start_us")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_US_FIELD_NUMBER: _ClassVar[int]
    job: str
    cores: int
    held: int
    waits_for: _containers.RepeatedScalarFieldContainer[str]
    expected_start_us: int
    def __init__(self, job: _Optional[str] = ..., cores: _Optional[int] = ..., held: _Optional[int] = ..., waits_for: _Optional[_Iterable[str]] = ..., expected_start_us: _Optional[int] = ...) -> None: ...

class HeldView(_message.Message):
    __slots__ = ("queue", "job", "node", "cores", "since_us", "expected_start_us")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_US_FIELD_NUMBER: _ClassVar[int]
    queue: str
    job: str
    node: str
    cores: int
    since_us: int
    expected_start_us: int
    def __init__(self, queue: _Optional[str] = ..., job: _Optional[str] = ..., node: _Optional[str] = ..., cores: _Optional[int] = ..., since_us: _Optional[int] = ..., expected_start_us: _Optional[int] = ...) -> None: ...

class LeaderView(_message.Message):
    __slots__ = ("id", "host", "pid", "epoch", "since_us", "endpoint", "version", "metrics")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    pid: int
    epoch: int
    since_us: int
    endpoint: str
    version: str
    metrics: str
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., epoch: _Optional[int] = ..., since_us: _Optional[int] = ..., endpoint: _Optional[str] = ..., version: _Optional[str] = ..., metrics: _Optional[str] = ...) -> None: ...

class StatusView(_message.Message):
    __slots__ = ("healthy", "leader", "zookeeper_json", "store_json", "counts", "nodes", "cluster_id", "problems", "watchdogs", "uptime_s", "policies", "warnings", "parts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class NodesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ZOOKEEPER_JSON_FIELD_NUMBER: _ClassVar[int]
    STORE_JSON_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    WATCHDOGS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    healthy: bool
    leader: LeaderView
    zookeeper_json: str
    store_json: str
    counts: _containers.ScalarMap[str, int]
    nodes: _containers.ScalarMap[str, int]
    cluster_id: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    watchdogs: int
    uptime_s: float
    policies: _containers.RepeatedCompositeFieldContainer[PolicyView]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    parts: _containers.RepeatedCompositeFieldContainer[PartView]
    def __init__(self, healthy: bool = ..., leader: _Optional[_Union[LeaderView, _Mapping]] = ..., zookeeper_json: _Optional[str] = ..., store_json: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ..., nodes: _Optional[_Mapping[str, int]] = ..., cluster_id: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ..., watchdogs: _Optional[int] = ..., uptime_s: _Optional[float] = ..., policies: _Optional[_Iterable[_Union[PolicyView, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[_Union[PartView, _Mapping]]] = ...) -> None: ...

class PartView(_message.Message):
    __slots__ = ("kind", "id", "state", "reason", "fix", "level", "told")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    kind: str
    id: str
    state: str
    reason: str
    fix: str
    level: str
    told: str
    def __init__(self, kind: _Optional[str] = ..., id: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., fix: _Optional[str] = ..., level: _Optional[str] = ..., told: _Optional[str] = ...) -> None: ...

class PolicyView(_message.Message):
    __slots__ = ("partition", "policy", "passes", "last_pass_s", "faults", "problem", "generation", "max_tqlb", "servers", "age_s", "degraded")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    LAST_PASS_S_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MAX_TQLB_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    partition: str
    policy: str
    passes: int
    last_pass_s: float
    faults: _containers.RepeatedCompositeFieldContainer[FaultView]
    problem: str
    generation: int
    max_tqlb: int
    servers: int
    age_s: float
    degraded: bool
    def __init__(self, partition: _Optional[str] = ..., policy: _Optional[str] = ..., passes: _Optional[int] = ..., last_pass_s: _Optional[float] = ..., faults: _Optional[_Iterable[_Union[FaultView, _Mapping]]] = ..., problem: _Optional[str] = ..., generation: _Optional[int] = ..., max_tqlb: _Optional[int] = ..., servers: _Optional[int] = ..., age_s: _Optional[float] = ..., degraded: bool = ...) -> None: ...

class FaultView(_message.Message):
    __slots__ = ("policy", "count", "error")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    policy: str
    count: int
    error: str
    def __init__(self, policy: _Optional[str] = ..., count: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class WhyView(_message.Message):
    __slots__ = ("what", "id", "detail")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    what: str
    id: str
    detail: str
    def __init__(self, what: _Optional[str] = ..., id: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class ExplainView(_message.Message):
    __slots__ = ("id", "state", "reason", "why", "expected_start_us", "priority", "account", "share", "account_share")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_SHARE_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    reason: str
    why: _containers.RepeatedCompositeFieldContainer[WhyView]
    expected_start_us: int
    priority: int
    account: str
    share: float
    account_share: float
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., why: _Optional[_Iterable[_Union[WhyView, _Mapping]]] = ..., expected_start_us: _Optional[int] = ..., priority: _Optional[int] = ..., account: _Optional[str] = ..., share: _Optional[float] = ..., account_share: _Optional[float] = ...) -> None: ...

class ShareView(_message.Message):
    __slots__ = ("node", "processes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    node: str
    processes: int
    def __init__(self, node: _Optional[str] = ..., processes: _Optional[int] = ...) -> None: ...

class WhatIfView(_message.Message):
    __slots__ = ("start_us", "nodes", "at_once", "reason", "route")
    START_US_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    start_us: int
    nodes: _containers.RepeatedCompositeFieldContainer[ShareView]
    at_once: bool
    reason: str
    route: str
    def __init__(self, start_us: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[ShareView, _Mapping]]] = ..., at_once: bool = ..., reason: _Optional[str] = ..., route: _Optional[str] = ...) -> None: ...
