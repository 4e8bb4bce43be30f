from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNKNOWN: _ClassVar[Kind]
    GENERATION: _ClassVar[Kind]
    ENTRY: _ClassVar[Kind]
    STAGED: _ClassVar[Kind]
    PUBLISHED: _ClassVar[Kind]
    LIST: _ClassVar[Kind]
    BASE_FILE: _ClassVar[Kind]
    BASE_VERSION: _ClassVar[Kind]
KIND_UNKNOWN: Kind
GENERATION: Kind
ENTRY: Kind
STAGED: Kind
PUBLISHED: Kind
LIST: Kind
BASE_FILE: Kind
BASE_VERSION: Kind

class Item(_message.Message):
    __slots__ = ("kind", "path", "number", "bytes", "why")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    kind: Kind
    path: str
    number: int
    bytes: int
    why: str
    def __init__(self, kind: _Optional[_Union[Kind, str]] = ..., path: _Optional[str] = ..., number: _Optional[int] = ..., bytes: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("format", "region", "round", "items", "fence", "floor", "discarded", "marked", "standing", "compactions")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    MARKED_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    format: int
    region: bytes
    round: int
    items: _containers.RepeatedCompositeFieldContainer[Item]
    fence: int
    floor: int
    discarded: bytes
    marked: float
    standing: int
    compactions: int
    def __init__(self, format: _Optional[int] = ..., region: _Optional[bytes] = ..., round: _Optional[int] = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., fence: _Optional[int] = ..., floor: _Optional[int] = ..., discarded: _Optional[bytes] = ..., marked: _Optional[float] = ..., standing: _Optional[int] = ..., compactions: _Optional[int] = ...) -> None: ...
