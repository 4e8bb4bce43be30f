"""Check the arguments of public calls by their annotations, before the call does anything.

So a wrong argument is `Invalid` and names itself, instead of an error from the depth of another library. Values of a
kindred type are converted: numpy's numbers to Python's, an iterable of names to a list.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

from lancelsm.common.error_text import shown
from lancelsm.common.panics import panics_as_errors
from lancelsm.errors import Invalid

P = ParamSpec("P")
T = TypeVar("T")

_Check = Callable[[Any], Any]
"""Returns the value to use; raises `_Refused`."""

_MOST = (1 << 63) - 1
_MOST_ITEMS = 1 << 31


class _Refused(Exception):
    """The value is not what the text says, or has a part that is not: `part` shows it."""

    def __init__(self, expected: str, *, part: str = "") -> None:
        super().__init__(expected)
        self.part = part


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public call: `Invalid` for an argument that does not fit its annotation, `Corrupt` for a panic.

    Checked are text, numbers, flags, literals, paths, classes, and sequences and mappings of these; `Any` and callables
    are not, nor is what `Annotated` marks. A wrong number of arguments is a `TypeError`, as everywhere in Python.
    """

    @functools.cache
    def checks() -> tuple[list[str], dict[str, _Check]]:
        parameters = types.SimpleNamespace(
            __annotations__={name: kind for name, kind in function.__annotations__.items() if name != "return"}
        )
        kinds = typing.get_type_hints(
            parameters, function.__globals__, _TypeCheckedNames(function), include_extras=True
        )
        names = list(inspect.signature(function).parameters)
        found = {name: _check_of(kinds[name]) for name in names if name in kinds}
        return names, {name: check for name, check in found.items() if check is not None}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        names, by_name = checks()
        given: list[Any] = list(args)
        try:
            for at, name in enumerate(names[: len(given)]):
                if name in by_name:
                    given[at] = _checked(name, given[at], by_name[name])
            for name, value in kwargs.items():
                if name in by_name:
                    kwargs[name] = _checked(name, value, by_name[name])
        except Invalid as error:
            inspect.signature(function).bind(*args, **kwargs)  # a wrong number of arguments comes first
            if names[0] == "self" and hasattr(given[0], "uri"):
                error.where = {"table": given[0].uri, **error.where}
            raise
        with panics_as_errors():
            return function(*given, **kwargs)

    return call


class _TypeCheckedNames(dict[str, Any]):
    """Names that a module imports for type checks only, such as classes of pandas: `Any`, so they are not checked."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._known = function.__globals__

    def __missing__(self, name: str) -> Any:
        if name in self._known or hasattr(builtins, name):
            raise KeyError(name)
        return Any


def _checked(name: str, value: Any, check: _Check) -> Any:
    try:
        return check(value)
    except _Refused as refused:
        expected = str(refused)
        if isinstance(value, str) and expected.startswith("a list"):
            raise Invalid(
                f"{name} is the text {shown(value)}", remedy=f"Give a list: [{shown(value)}]", field=name
            ) from None
        found = f"{name} has {refused.part}" if refused.part else f"{name} is {_shown(value)}"
        raise Invalid(found, remedy=f"Give {expected}", field=name) from None


def _shown(value: Any) -> str:
    is_plain = value is None or isinstance(value, str | bytes | bool | float | int)
    return shown(value) if is_plain else f"of type {type(value).__name__}"


def _check_of(kind: Any) -> _Check | None:
    """Return the check for an annotation; None if anything is accepted."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:  # the call has a check of its own
        return None
    if origin in (Union, types.UnionType):
        checks = [_check_of(one) for one in arguments]
        return None if None in checks else functools.partial(_any_of, [check for check in checks if check])
    if origin is Literal:
        return functools.partial(_one_of, arguments)
    if origin in (Sequence, Iterable, list):
        return functools.partial(_list, _check_of(arguments[0]))
    if origin in (Mapping, dict):
        return functools.partial(_mapping, _check_of(arguments[0]), _check_of(arguments[1]))
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, typing.NewType):
        return _check_of(kind.__supertype__)
    is_open = kind in (Any, object) or getattr(kind, "_is_protocol", False)
    return functools.partial(_instance, kind) if isinstance(kind, type) and not is_open else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Refused("text")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise _Refused("text in UTF-8 without a NUL character")
    return value if type(value) is str else str.__str__(value)  # a member of an enum would be formatted as its name


def _whole(value: Any) -> int:
    is_duration = type(value).__name__ == "timedelta64"  # of numpy, which calls it a number
    if isinstance(value, bool) or is_duration or not isinstance(value, numbers.Integral):
        raise _Refused("a whole number")
    number = int(value)
    if not -_MOST - 1 <= number <= _MOST:
        raise _Refused("a number of at most 64 bits")
    return number


def _number(value: Any) -> int | float:
    if isinstance(value, numbers.Integral):
        return _whole(value)
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise _Refused("a number")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):  # numpy's
        raise _Refused("True or False")
    return bool(value)


def _none(value: Any) -> None:
    if value is not None:
        raise _Refused("None")


_PLAIN: dict[Any, _Check] = {str: _text, int: _whole, float: _number, bool: _flag, types.NoneType: _none}


def _instance(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _Refused(f"a {'pathlib.Path' if kind is Path else kind.__name__}")
    return value


def _one_of(values: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, str) or value not in values:
        raise _Refused(f"{', '.join(map(repr, values[:-1]))} or {values[-1]!r}")
    return values[values.index(value)]


def _any_of(checks: Sequence[_Check], value: Any) -> Any:
    refused = []
    for check in checks:
        try:
            return check(value)
        except _Refused as one:
            refused.append(str(one))
    raise _Refused(" or ".join(refused))


def _list(item: _Check | None, value: Any) -> list[Any]:
    is_scalar = getattr(value, "shape", None) == ()  # an array of numpy without a dimension can't be read
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable) or is_scalar:
        raise _Refused("a list")
    if isinstance(value, Sequence) and len(value) > _MOST_ITEMS:
        raise _Refused("a shorter list")
    return list(value) if item is None else [_inside("a list of", item, one) for one in value]


def _mapping(key: _Check | None, item: _Check | None, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _Refused("a dict")
    return {
        name if key is None else _inside("a dict whose keys are", key, name): (
            one if item is None else _inside("a dict whose values are", item, one)
        )
        for name, one in value.items()
    }


def _inside(where: str, check: _Check, value: Any) -> Any:
    try:
        return check(value)
    except _Refused as refused:
        found = "" if ", not " in str(refused) else f", not {type(value).__name__}"
        raise _Refused(f"{where} {refused}{found}", part=refused.part or f"the value {shown(value)}") from None
