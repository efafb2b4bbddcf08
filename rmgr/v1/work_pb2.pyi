from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Words(_message.Message):
    __slots__ = ("words", "ping")
    WORDS_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    words: _containers.RepeatedScalarFieldContainer[bytes]
    ping: int
    def __init__(self, words: _Optional[_Iterable[bytes]] = ..., ping: _Optional[int] = ...) -> None: ...
