from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatedFile(_message.Message):
    __slots__ = ("path", "bytes", "sum", "rows", "found")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    path: str
    bytes: int
    sum: bytes
    rows: int
    found: bool
    def __init__(self, path: _Optional[str] = ..., bytes: _Optional[int] = ..., sum: _Optional[bytes] = ..., rows: _Optional[int] = ..., found: _Optional[bool] = ...) -> None: ...

class Statement(_message.Message):
    __slots__ = ("format", "version", "files")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    format: int
    version: int
    files: _containers.RepeatedCompositeFieldContainer[StatedFile]
    def __init__(self, format: _Optional[int] = ..., version: _Optional[int] = ..., files: _Optional[_Iterable[_Union[StatedFile, _Mapping]]] = ...) -> None: ...
