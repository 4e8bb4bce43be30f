"""Read the configuration file of the command line: named profiles with values for the shared options.

    [profiles.prod]
    output = "json"
    storage_options = { region = "eu-central-1" }
    settings = { retry_budget_seconds = 60 }

The profile `default` is used if no other one is named. Options of a command override the environment, and the
environment overrides the profile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from lancelsm.common.error_text import did_you_mean
from lancelsm.common.settings import overridden
from lancelsm.errors import Invalid

_DEFAULT = "default"


class Output(StrEnum):
    TEXT = "text"
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Values for the shared options, if a command has none of its own."""

    output: Output = Output.TEXT
    storage_options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


def load_profile(name: str | None, environment: Mapping[str, str] = os.environ) -> Profile:
    """Return the profile in use, after the environment.

    Args:
        name: of the option `--profile`; by default LANCELSM_PROFILE, else `default`, which need not exist.

    Raises:
        Invalid: the file can't be read, has no such profile, or has an unknown key or a value of a wrong type.
        typer.BadParameter: LANCELSM_OUTPUT is not a format.
    """
    wanted = name or environment.get("LANCELSM_PROFILE") or None
    file = _location(environment)
    profile = _read(file, wanted or _DEFAULT, is_required=wanted is not None, environment=environment)
    if text := environment.get("LANCELSM_OUTPUT"):
        if text not in list(Output):
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(Output)}", param_hint="LANCELSM_OUTPUT")
        profile = Profile(output=Output(text), storage_options=profile.storage_options, settings=profile.settings)
    return profile


def _location(environment: Mapping[str, str]) -> Path:
    if given := environment.get("LANCELSM_CONFIG"):
        return Path(given)
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/"), ".config")
    return Path(base, "lancelsm", "config.toml")


def _read(file: Path, name: str, *, is_required: bool, environment: Mapping[str, str]) -> Profile:
    try:
        content = file.read_bytes()
    except OSError as error:
        is_absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        if is_absent and not is_required and not environment.get("LANCELSM_CONFIG"):
            return Profile()
        raise Invalid(
            f"the configuration file can't be read: {error.strerror}",
            remedy=f"Write [profiles.{name}] to it, or set LANCELSM_CONFIG to another file",
            file=str(file),
        ) from error
    import tomllib

    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"not TOML: {error}", remedy="Correct the file", file=str(file)) from error
    _check_keys(document, {"profiles"}, file=file, inside="")
    profiles = _mapping(document.get("profiles", {}), "profiles", file=file)
    if name not in profiles:
        if not is_required:
            return Profile()
        remedy = did_you_mean(name, sorted(profiles), what="Profiles are") if profiles else "Add it to the file"
        raise Invalid(f"there is no profile {name!r}", remedy=remedy, file=str(file))
    return _profile(_mapping(profiles[name], f"profiles.{name}", file=file), name, file=file, environment=environment)


def _profile(values: Mapping[str, Any], name: str, *, file: Path, environment: Mapping[str, str]) -> Profile:
    _check_keys(values, {"output", "storage_options", "settings"}, file=file, inside=f" in profile {name!r}")
    output = values.get("output", Output.TEXT)
    if output not in list(Output):
        raise Invalid(
            f"output is {output!r}", remedy=f"Give one of {', '.join(Output)}", file=str(file), field="output"
        )
    stores = _mapping(values.get("storage_options", {}), "storage_options", file=file)
    for key, value in stores.items():
        if not isinstance(value, str | int | float):
            raise Invalid(
                f"the storage option {key!r} is no text", remedy=f'Write {key} = "..."', file=str(file), field=key
            )
    settings = _mapping(values.get("settings", {}), "settings", file=file)
    return Profile(
        output=Output(output),
        storage_options={key: value if isinstance(value, str) else str(value).lower() for key, value in stores.items()},
        settings=overridden(settings, environment),
    )


def _mapping(value: object, key: str, *, file: Path) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"{key} is not a table of TOML", remedy=f"Write [{key}]", file=str(file), field=key)
    return value


def _check_keys(values: Mapping[str, Any], known: set[str], *, file: Path, inside: str) -> None:
    for key in values.keys() - known:
        remedy = did_you_mean(key, sorted(known), what="Keys are")
        raise Invalid(f"unknown key {key!r}{inside}", remedy=remedy, file=str(file), field=key)
