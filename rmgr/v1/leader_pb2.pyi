from rmgr.v1 import views_pb2 as _views_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobsRequest(_message.Message):
    __slots__ = ("ids", "ended", "user")
    IDS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    ended: bool
    user: str
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., ended: bool = ..., user: _Optional[str] = ...) -> None: ...

class JobsReply(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[_views_pb2.JobView]
    def __init__(self, jobs: _Optional[_Iterable[_Union[_views_pb2.JobView, _Mapping]]] = ...) -> None: ...

class NodesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodesReply(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[_views_pb2.NodeView]
    def __init__(self, nodes: _Optional[_Iterable[_Union[_views_pb2.NodeView, _Mapping]]] = ...) -> None: ...

class QueuesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueuesReply(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[_views_pb2.QueueView]
    def __init__(self, queues: _Optional[_Iterable[_Union[_views_pb2.QueueView, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("submission", "index")
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    submission: int
    index: int
    def __init__(self, submission: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class WhatIfRequest(_message.Message):
    __slots__ = ("submission",)
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    submission: bytes
    def __init__(self, submission: _Optional[bytes] = ...) -> None: ...
