from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogsRequest(_message.Message):
    __slots__ = ("submission", "index", "attempt", "stream", "follow", "stdout_offset", "stderr_offset")
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    STDOUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STDERR_OFFSET_FIELD_NUMBER: _ClassVar[int]
    submission: int
    index: int
    attempt: int
    stream: str
    follow: bool
    stdout_offset: int
    stderr_offset: int
    def __init__(self, submission: _Optional[int] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., stream: _Optional[str] = ..., follow: bool = ..., stdout_offset: _Optional[int] = ..., stderr_offset: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("stream", "data", "offset", "attempt", "ended", "time_us")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    stream: str
    data: bytes
    offset: int
    attempt: int
    ended: bool
    time_us: int
    def __init__(self, stream: _Optional[str] = ..., data: _Optional[bytes] = ..., offset: _Optional[int] = ..., attempt: _Optional[int] = ..., ended: bool = ..., time_us: _Optional[int] = ...) -> None: ...

class RunningRequest(_message.Message):
    __slots__ = ("submission",)
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    submission: int
    def __init__(self, submission: _Optional[int] = ...) -> None: ...

class RunningTask(_message.Message):
    __slots__ = ("submission", "index", "attempt", "node", "started_us", "cores", "memory_bytes", "pid")
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    submission: int
    index: int
    attempt: int
    node: str
    started_us: int
    cores: int
    memory_bytes: int
    pid: int
    def __init__(self, submission: _Optional[int] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., node: _Optional[str] = ..., started_us: _Optional[int] = ..., cores: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class RunningReply(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[RunningTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[RunningTask, _Mapping]]] = ...) -> None: ...

class ClockRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class ClockReply(_message.Message):
    __slots__ = ("boot_us", "incarnation")
    BOOT_US_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    boot_us: int
    incarnation: int
    def __init__(self, boot_us: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeStats(_message.Message):
    __slots__ = ("node", "cores_used", "memory_used_bytes", "running", "load", "disk_free_bytes", "spooled_bytes", "reason", "resources_used", "freezer", "clock_error_us", "switches", "late_switches")
    class ResourcesUsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    CORES_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_USED_FIELD_NUMBER: _ClassVar[int]
    FREEZER_FIELD_NUMBER: _ClassVar[int]
    CLOCK_ERROR_US_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    LATE_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    node: str
    cores_used: int
    memory_used_bytes: int
    running: int
    load: float
    disk_free_bytes: int
    spooled_bytes: int
    reason: str
    resources_used: _containers.ScalarMap[str, int]
    freezer: str
    clock_error_us: int
    switches: int
    late_switches: int
    def __init__(self, node: _Optional[str] = ..., cores_used: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., running: _Optional[int] = ..., load: _Optional[float] = ..., disk_free_bytes: _Optional[int] = ..., spooled_bytes: _Optional[int] = ..., reason: _Optional[str] = ..., resources_used: _Optional[_Mapping[str, int]] = ..., freezer: _Optional[str] = ..., clock_error_us: _Optional[int] = ..., switches: _Optional[int] = ..., late_switches: _Optional[int] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("nodes", "version", "time_us")
    NODES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStats]
    version: str
    time_us: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeStats, _Mapping]]] = ..., version: _Optional[str] = ..., time_us: _Optional[int] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("node", "hold", "head", "cores")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    node: str
    hold: str
    head: str
    cores: int
    def __init__(self, node: _Optional[str] = ..., hold: _Optional[str] = ..., head: _Optional[str] = ..., cores: _Optional[int] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("process", "incarnation")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    process: str
    incarnation: int
    def __init__(self, process: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class SuspendRequest(_message.Message):
    __slots__ = ("node", "hold", "resume", "out_of_turn_us")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_TURN_US_FIELD_NUMBER: _ClassVar[int]
    node: str
    hold: str
    resume: bool
    out_of_turn_us: int
    def __init__(self, node: _Optional[str] = ..., hold: _Optional[str] = ..., resume: bool = ..., out_of_turn_us: _Optional[int] = ...) -> None: ...

class SuspendReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LaunchChunk(_message.Message):
    __slots__ = ("node", "hold", "data")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    node: str
    hold: str
    data: bytes
    def __init__(self, node: _Optional[str] = ..., hold: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("node", "hold", "step", "number", "stop", "left_us", "max_bytes", "row")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LEFT_US_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    node: str
    hold: str
    step: str
    number: int
    stop: bool
    left_us: int
    max_bytes: int
    row: str
    def __init__(self, node: _Optional[str] = ..., hold: _Optional[str] = ..., step: _Optional[str] = ..., number: _Optional[int] = ..., stop: bool = ..., left_us: _Optional[int] = ..., max_bytes: _Optional[int] = ..., row: _Optional[str] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("size_bytes", "row")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    row: str
    def __init__(self, size_bytes: _Optional[int] = ..., row: _Optional[str] = ...) -> None: ...
