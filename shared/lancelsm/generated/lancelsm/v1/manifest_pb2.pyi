from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTIVE: _ClassVar[Status]
    SEALED: _ClassVar[Status]
ACTIVE: Status
SEALED: Status

class Uuid(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    def __init__(self, uuid: _Optional[bytes] = ...) -> None: ...

class FlushedGeneration(_message.Message):
    __slots__ = ("generation", "path", "in_memory_bytes", "physical_rows", "primary_key_bytes", "first_position", "last_position", "entry_setsum", "row_setsum", "file_setsum", "bloom_setsum", "index_number", "index_version", "index_setsum", "key_index_setsums", "key_bounds", "key_filter_blocks", "key_filter_setsum", "key_sum", "first_number")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    IN_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_ROWS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_POSITION_FIELD_NUMBER: _ClassVar[int]
    ENTRY_SETSUM_FIELD_NUMBER: _ClassVar[int]
    ROW_SETSUM_FIELD_NUMBER: _ClassVar[int]
    FILE_SETSUM_FIELD_NUMBER: _ClassVar[int]
    BLOOM_SETSUM_FIELD_NUMBER: _ClassVar[int]
    INDEX_NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_SETSUM_FIELD_NUMBER: _ClassVar[int]
    KEY_INDEX_SETSUMS_FIELD_NUMBER: _ClassVar[int]
    KEY_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FILTER_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEY_FILTER_SETSUM_FIELD_NUMBER: _ClassVar[int]
    KEY_SUM_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    generation: int
    path: str
    in_memory_bytes: int
    physical_rows: int
    primary_key_bytes: int
    first_position: int
    last_position: int
    entry_setsum: bytes
    row_setsum: bytes
    file_setsum: bytes
    bloom_setsum: bytes
    index_number: int
    index_version: int
    index_setsum: bytes
    key_index_setsums: _containers.RepeatedScalarFieldContainer[bytes]
    key_bounds: _containers.RepeatedCompositeFieldContainer[KeyBounds]
    key_filter_blocks: int
    key_filter_setsum: bytes
    key_sum: bytes
    first_number: int
    def __init__(self, generation: _Optional[int] = ..., path: _Optional[str] = ..., in_memory_bytes: _Optional[int] = ..., physical_rows: _Optional[int] = ..., primary_key_bytes: _Optional[int] = ..., first_position: _Optional[int] = ..., last_position: _Optional[int] = ..., entry_setsum: _Optional[bytes] = ..., row_setsum: _Optional[bytes] = ..., file_setsum: _Optional[bytes] = ..., bloom_setsum: _Optional[bytes] = ..., index_number: _Optional[int] = ..., index_version: _Optional[int] = ..., index_setsum: _Optional[bytes] = ..., key_index_setsums: _Optional[_Iterable[bytes]] = ..., key_bounds: _Optional[_Iterable[_Union[KeyBounds, _Mapping]]] = ..., key_filter_blocks: _Optional[int] = ..., key_filter_setsum: _Optional[bytes] = ..., key_sum: _Optional[bytes] = ..., first_number: _Optional[int] = ...) -> None: ...

class KeyBounds(_message.Message):
    __slots__ = ("lower", "upper")
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    lower: bytes
    upper: bytes
    def __init__(self, lower: _Optional[bytes] = ..., upper: _Optional[bytes] = ...) -> None: ...

class FieldEntry(_message.Message):
    __slots__ = ("field_id", "value")
    FIELD_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    field_id: str
    value: bytes
    def __init__(self, field_id: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("version", "writer_epoch", "replay_after_wal_entry_position", "wal_entry_position_last_seen", "current_generation", "generations", "shard_spec_id", "shard_id", "field_entries", "status", "format", "first_position", "entry_setsum", "wal_rows", "wal_bytes", "source", "collected_entries", "collected_rows", "collector_round", "collector_key", "collector_setsum", "replay_epoch", "collector_committed", "index_number", "foreign", "source_days", "compactions")
    class SourceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SourceDaysEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLAY_AFTER_WAL_ENTRY_POSITION_FIELD_NUMBER: _ClassVar[int]
    WAL_ENTRY_POSITION_LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    CURRENT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    SHARD_SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_ID_FIELD_NUMBER: _ClassVar[int]
    FIELD_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    ENTRY_SETSUM_FIELD_NUMBER: _ClassVar[int]
    WAL_ROWS_FIELD_NUMBER: _ClassVar[int]
    WAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_ROUND_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_KEY_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_SETSUM_FIELD_NUMBER: _ClassVar[int]
    REPLAY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    INDEX_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DAYS_FIELD_NUMBER: _ClassVar[int]
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    version: int
    writer_epoch: int
    replay_after_wal_entry_position: int
    wal_entry_position_last_seen: int
    current_generation: int
    generations: _containers.RepeatedCompositeFieldContainer[FlushedGeneration]
    shard_spec_id: int
    shard_id: Uuid
    field_entries: _containers.RepeatedCompositeFieldContainer[FieldEntry]
    status: Status
    format: int
    first_position: int
    entry_setsum: bytes
    wal_rows: int
    wal_bytes: int
    source: _containers.ScalarMap[str, str]
    collected_entries: bytes
    collected_rows: bytes
    collector_round: int
    collector_key: str
    collector_setsum: bytes
    replay_epoch: int
    collector_committed: float
    index_number: int
    foreign: bool
    source_days: _containers.ScalarMap[str, int]
    compactions: int
    def __init__(self, version: _Optional[int] = ..., writer_epoch: _Optional[int] = ..., replay_after_wal_entry_position: _Optional[int] = ..., wal_entry_position_last_seen: _Optional[int] = ..., current_generation: _Optional[int] = ..., generations: _Optional[_Iterable[_Union[FlushedGeneration, _Mapping]]] = ..., shard_spec_id: _Optional[int] = ..., shard_id: _Optional[_Union[Uuid, _Mapping]] = ..., field_entries: _Optional[_Iterable[_Union[FieldEntry, _Mapping]]] = ..., status: _Optional[_Union[Status, str]] = ..., format: _Optional[int] = ..., first_position: _Optional[int] = ..., entry_setsum: _Optional[bytes] = ..., wal_rows: _Optional[int] = ..., wal_bytes: _Optional[int] = ..., source: _Optional[_Mapping[str, str]] = ..., collected_entries: _Optional[bytes] = ..., collected_rows: _Optional[bytes] = ..., collector_round: _Optional[int] = ..., collector_key: _Optional[str] = ..., collector_setsum: _Optional[bytes] = ..., replay_epoch: _Optional[int] = ..., collector_committed: _Optional[float] = ..., index_number: _Optional[int] = ..., foreign: _Optional[bool] = ..., source_days: _Optional[_Mapping[str, int]] = ..., compactions: _Optional[int] = ...) -> None: ...
