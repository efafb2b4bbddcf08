from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UseRequest(_message.Message):
    __slots__ = ("users", "fresh")
    USERS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedScalarFieldContainer[str]
    fresh: bool
    def __init__(self, users: _Optional[_Iterable[str]] = ..., fresh: bool = ...) -> None: ...

class UseReply(_message.Message):
    __slots__ = ("users", "age_s", "settings", "problem")
    USERS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserUse]
    age_s: float
    settings: str
    problem: str
    def __init__(self, users: _Optional[_Iterable[_Union[UserUse, _Mapping]]] = ..., age_s: _Optional[float] = ..., settings: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class UserUse(_message.Message):
    __slots__ = ("user", "used", "refused")
    class UsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    USER_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    user: str
    used: _containers.ScalarMap[str, int]
    refused: _containers.ScalarMap[str, int]
    def __init__(self, user: _Optional[str] = ..., used: _Optional[_Mapping[str, int]] = ..., refused: _Optional[_Mapping[str, int]] = ...) -> None: ...
