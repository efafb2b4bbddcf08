from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("problem",)
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    problem: str
    def __init__(self, problem: _Optional[str] = ...) -> None: ...
