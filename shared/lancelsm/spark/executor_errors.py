"""Turn the failure of a Spark job into an error of lancelsm that says what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lancelsm import errors
from lancelsm.errors import Invalid, LsmError, Unavailable

_OURS = re.compile(r"lancelsm\.errors\.(\w+): (.*)")
_MODULE = re.compile(r"No module named '((?:lancelsm|lance|pyarrow)\b[^']*)'")
_PACKAGE = re.compile(r"\[PACKAGE_NOT_INSTALLED\] (\w+)|No module named '(pandas|numpy)\b")
_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH|different (?:minor )?version", re.IGNORECASE)


@contextmanager
def job_errors(*, table: str) -> Iterator[None]:
    """Raise the error of lancelsm that a job failed with, else `Unavailable`."""
    try:
        yield
    except LsmError:
        raise
    except Exception as cause:
        if not from_spark(cause):
            raise
        raise error_of(str(cause), table=table) from cause


def from_spark(cause: BaseException) -> bool:
    """Return whether Spark raised an error."""
    return type(cause).__module__.partition(".")[0] in ("pyspark", "py4j")


def error_of(text: str, *, table: str) -> LsmError:
    """Return the error for the text of a failed job, which has the traceback of the worker."""
    if missing := _MODULE.search(text):
        return Invalid(
            f"the Python of the executors has no module {missing[1]}",
            remedy="Install lancelsm there: in the image, or as a packed environment with spark.archives and "
            "spark.pyspark.python. addPyFile does not work: Lance and pyarrow are native",
            table=table,
        )
    if package := _PACKAGE.search(text):
        return Invalid(
            f"a Python of Spark has no package {(package[1] or package[2]).lower()}",
            remedy="pip install 'lancelsm[spark]' in the Python of the driver and of the executors",
            table=table,
        )
    if _PYTHON.search(text):
        return Invalid(
            "the executors run another Python than the driver",
            remedy="Use the same minor version: set PYSPARK_PYTHON or spark.pyspark.python",
            table=table,
        )
    if ours := _OURS.search(text):
        kind = getattr(errors, ours[1], None)
        if isinstance(kind, type) and issubclass(kind, LsmError):
            # The text has location and remedy already.
            return kind(ours[2].strip().removesuffix("."), remedy=" ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return Unavailable(f"the Spark job failed: {[*lines, 'no reason given'][0]}", table=table)
