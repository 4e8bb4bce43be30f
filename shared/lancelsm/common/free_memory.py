"""Give memory that is free, but kept by allocators, back to the system."""

from __future__ import annotations

import ctypes

import pyarrow as pa


def release_free_memory() -> None:
    """Give back what Arrow's pool and the C library keep. It takes some milliseconds after hundreds of megabytes."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it; others keep less
    if trim is not None:
        trim(0)
