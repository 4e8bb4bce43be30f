"""The public API, walked from `lancelsm.__all__`: everything reachable is exported, documented and typed."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import lancelsm
import lancelsm.client
import lancelsm.spark

PUBLIC = {name: getattr(lancelsm, name) for name in lancelsm.__all__}
CLASSES = {name: value for name, value in PUBLIC.items() if isinstance(value, type)}
# Only their fields are public: their methods are for the library (docs/reference/stability.md).
VALUES = {"ArrowDataset", "Config", "Head", "Pin", "Region", "RegionSpec", "TableSchema"}
# Public calls that may have `Any` in their types, and why.
ANY = {
    "client.Client.query": "each value of a row has the type that JSON gives it",
    "client.Client.search": "each value of a row has the type that JSON gives it",
    "client.ReadRows": "each value of a row has the type that JSON gives it",
    "AsyncRows.to_pylist": "each value of a row has the type that pyarrow gives it",
    "Table.to_pylist": "each value of a row has the type that pyarrow gives it",
    "Rows.to_pylist": "each value of a row has the type that pyarrow gives it",
}
INTERNAL = {"LanceQuery", "Scannable"}  # protocols: the query objects of Lance, and what a source needs of a table


def callables(owner: str, kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class, without those of Python's own classes."""
    for name, _ in inspect.getmembers(kind):
        found = inspect.getattr_static(kind, name)
        ours = str(getattr(inspect.unwrap(unwrapped(found)), "__module__", "")).startswith("lancelsm")
        if not name.startswith("_") and ours and (callable(unwrapped(found)) or isinstance(found, property)):
            yield f"{owner}.{name}", unwrapped(found)


def unwrapped(found: Any) -> Any:
    if isinstance(found, property):
        return found.fget
    return found.__func__ if isinstance(found, classmethod | staticmethod) else found


FUNCTIONS = {
    **{name: value for name, value in PUBLIC.items() if inspect.isfunction(value)},
    **{name: found for owner, kind in CLASSES.items() if owner not in VALUES for name, found in callables(owner, kind)},
}


# Each is a documented module of its own.
SPARK = {f"spark.{name}": getattr(lancelsm.spark, name) for name in lancelsm.spark.__all__}
CLIENT = {"client.Client": lancelsm.client.Client, "client.ReadRows": lancelsm.client.ReadRows}


def mentioned(function: Any) -> set[str]:
    """The names of classes in the annotations of a function."""
    annotations = function.__annotations__
    return {name for text in annotations.values() for name in re.findall(r"[A-Z]\w+", str(text).partition('"')[0])}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_documented(name: str) -> None:
    assert (inspect.getdoc(PUBLIC[name]) or "").strip(), name
    assert not (PUBLIC[name].__doc__ or "").startswith(f"{name}("), "the generated text of a dataclass"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_public_method_is_documented_and_typed(name: str) -> None:
    function = FUNCTIONS[name]
    parameters = [found for found in inspect.signature(function).parameters.values() if found.name != "self"]

    assert (function.__doc__ or "").strip()
    assert "return" in function.__annotations__
    assert "ports" not in [found.name for found in parameters], "a seam of tests"
    assert [found.name for found in parameters if found.annotation is found.empty and found.name != "cls"] == []


def test_no_module_has_the_name_of_a_public_function() -> None:
    modules = {found.name for found in pkgutil.iter_modules(lancelsm.__path__)}
    assert modules & set(lancelsm.__all__) == set(), "an import of the module would hide the function"


DOCUMENTED = {**PUBLIC, **FUNCTIONS, **SPARK, **{n: f for o, k in CLIENT.items() for n, f in callables(o, k)}}


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_a_public_docstring_stands_alone(name: str) -> None:
    pointers = r"\b[Ss]ee `|[Tt]he same (errors )?as (in )?`|Return as `|those of `|errors as `|as `[A-Z]\w+\.\w+` does"
    assert re.findall(pointers, inspect.getdoc(DOCUMENTED[name]) or "") == []


def test_a_public_type_is_any_only_for_a_reason() -> None:
    kinds = {**{name: kind for name, kind in CLASSES.items() if name not in VALUES}, **CLIENT}
    calls = {name: found for owner, kind in CLIENT.items() for name, found in callables(owner, kind)}
    functions = {name: found for name, found in SPARK.items() if inspect.isfunction(found)}
    types = {name: found.__annotations__ for name, found in {**FUNCTIONS, **calls, **functions}.items()}
    types |= {
        name: {one.name: one.type for one in dataclasses.fields(kind)}
        for name, kind in kinds.items()
        if dataclasses.is_dataclass(kind)
    }
    found = {name for name, kinds in types.items() for kind in kinds.values() if re.search(r"\bAny\b", str(kind))}
    assert found == set(ANY)


def test_each_public_call_checks_its_options() -> None:
    taking = [value for value in PUBLIC.values() if "storage_options" in getattr(value, "__annotations__", ())]
    calls = [value for value in taking if inspect.isfunction(value)]
    assert len(calls) >= 8
    for call in calls:
        required = [one for one in inspect.signature(call).parameters.values() if one.default is one.empty]
        places = [one.name for one in required if one.kind is one.POSITIONAL_OR_KEYWORD]
        options = {one.name: "id" for one in required if one.kind is one.KEYWORD_ONLY}
        wrong = functools.partial(call, *places, **options, storage_options=5)
        with pytest.raises(lancelsm.Invalid, match="storage_options is 5"):
            asyncio.run(wrong()) if inspect.iscoroutinefunction(call) else wrong()


def test_every_class_of_ours_that_a_signature_or_a_result_has_is_exported() -> None:
    hidden = {}
    places = {name: (inspect.unwrap(found).__module__, mentioned(found)) for name, found in FUNCTIONS.items()}
    for name, kind in CLASSES.items():
        if dataclasses.is_dataclass(kind) and name not in VALUES:
            types = {name for found in dataclasses.fields(kind) for name in re.findall(r"[A-Z]\w+", str(found.type))}
            places[name] = (kind.__module__, types)
    for name, (home, types) in places.items():
        module = importlib.import_module(home)
        for mention in types - set(lancelsm.__all__) - INTERNAL:
            value = getattr(module, mention, None) or _type_checked(module, mention)
            if isinstance(value, type) and value.__module__.startswith("lancelsm") and not issubclass(value, str):
                hidden[name] = mention
    assert hidden == {}


def _type_checked(module: Any, name: str) -> Any:
    """A class that a module imports for type checks only."""
    found = re.search(rf"from (lancelsm[\w.]+) import (?:.*\b)?{name}\b", inspect.getsource(module))
    return None if found is None else getattr(importlib.import_module(found[1]), name, None)


def test_the_package_lists_its_names_and_its_version() -> None:
    assert lancelsm.__all__ == sorted(lancelsm.__all__)
    assert set(lancelsm.__all__) <= set(dir(lancelsm))
    assert re.fullmatch(r"\d+\.\d+\.\d+", lancelsm.__version__)
    assert [name for name in lancelsm.__all__ if name not in (lancelsm.__doc__ or "") and name in FUNCTIONS] == []


def test_the_types_of_public_functions_resolve() -> None:
    for name in ("create", "open", "connect"):
        assert typing.get_type_hints(inspect.unwrap(PUBLIC[name]))["return"].__name__ in lancelsm.__all__
