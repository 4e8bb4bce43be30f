"""Read values of the context (`-c name=value`, or `context` in cdk.json). A wrong value is an error that names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

_TAG = re.compile(r"[\w .:/=+@-]+")
_TAG_KEY, _TAG_VALUE, _TAGS = 128, 256, 40  # the limits of AWS; it allows 50 tags, of which we set one
_RESERVED = ("aws:", "lancelsm:")


class Context:
    """The values of one deployment.

    Args:
        read: returns the value of a name, or None.
    """

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._get = read
        self._names: set[str] = set()

    def value(self, name: str) -> Any:
        self._names.add(name)
        return self._get(name)

    def check_names(self, given: Iterable[str]) -> None:
        """Refuse a given name that is almost one that was read: nothing would read its value.

        Other names may belong to another part of the app.
        """
        for name in sorted(set(given) - self._names):
            close = get_close_matches(name, self._names, n=1, cutoff=0.8)
            if close or name.startswith("LANCELSM_"):
                hint = f"Did you mean {close[0]}? " if close else ""
                raise ValueError(f"-c {name}: there is no such value. {hint}docs/operations/deploy.md lists all values")

    def text(self, name: str) -> str | None:
        value = self.value(name)
        return str(value) if value else None

    def flag(self, name: str) -> bool:
        value = (self.text(name) or "false").lower()
        if value not in ("true", "false"):
            raise ValueError(f"-c {name}={value}: give one of true, false")
        return value == "true"

    def one_of(self, name: str, literal: Any, *, default: str) -> Any:
        """Return one of the values of a `Literal`."""
        value = self.text(name) or default
        if value not in get_args(literal):
            raise ValueError(f"-c {name}={value}: give one of {', '.join(get_args(literal))}")
        return value

    def number(self, name: str, allowed: Collection[int]) -> int | None:
        """Return one of these numbers."""
        value = self.value(name)
        if value is None or value == "":
            return None
        if not str(value).isdecimal() or int(value) not in allowed:
            one = (
                f"a whole number from {allowed.start} to {allowed.stop - 1}"
                if isinstance(allowed, range)
                else f"one of {', '.join(map(str, allowed))}"
            )
            raise ValueError(f"-c {name}={value}: give {one}")
        return int(value)

    def name(self, name: str, like: str, pattern: str) -> str | None:
        """Return the name of a resource, which matches the regular expression `pattern`."""
        value = self.text(name)
        if value and not re.fullmatch(pattern, value):
            raise ValueError(f"-c {name}={value}: give {like}")
        return value

    def arn(self, name: str, like: str, pattern: str) -> str | None:
        """Return an ARN.

        Args:
            like: what follows `arn:PARTITION:`, as a person reads it.
            pattern: the same as a regular expression, in which `REGION` and `ACCOUNT` stand for theirs.
        """
        value = self.text(name)
        rest = pattern.replace("REGION", "[a-z0-9-]+").replace("ACCOUNT", r"\d{12}")
        if value and not re.fullmatch(f"arn:aws[a-z-]*:{rest}", value):
            raise ValueError(f"-c {name}={value}: give an ARN of the form arn:PARTITION:{like}")
        return value

    def words(self, name: str, like: str, pattern: str) -> tuple[str, ...]:
        """Return the values of a list, or of a text with commas. Each matches the regular expression `pattern`."""
        value = self.value(name) or ""
        words = value if isinstance(value, list) else [one for one in str(value).split(",") if one]
        for word in words:
            if not re.fullmatch(pattern, str(word)):
                raise ValueError(f"-c {name}: {word} is not {like}")
        if len(set(words)) < len(words):
            raise ValueError(f"-c {name}={','.join(map(str, words))}: a value is there twice")
        return tuple(map(str, words))

    def tags(self, name: str) -> Mapping[str, str]:
        """Return the tags of a mapping, or of a text such as `team=data,cost-center=42`."""
        value = self.value(name) or {}
        if not isinstance(value, dict):
            pairs = [one.partition("=") for one in str(value).split(",")]
            if wrong := next((key for key, equals, _ in pairs if not equals), None):
                raise ValueError(f"-c {name}: {wrong!r} has no value; give KEY=VALUE, separated by commas")
            value = {key: text for key, _, text in pairs}
        for key, text in value.items():
            if not _TAG.fullmatch(key) or not re.fullmatch(rf"({_TAG.pattern})?", str(text)):
                raise ValueError(f"-c {name}: {key}={text} has a character that no tag may have")
            if len(key) > _TAG_KEY or len(str(text)) > _TAG_VALUE:
                raise ValueError(
                    f"-c {name}: {key} is longer than {_TAG_KEY}, or its value than {_TAG_VALUE} characters"
                )
            if key.lower().startswith(_RESERVED):
                raise ValueError(f"-c {name}: {key} begins with a reserved word, {' or '.join(_RESERVED)}")
        if len(value) > _TAGS:
            raise ValueError(f"-c {name}: {len(value)} tags are more than {_TAGS}")
        return {key: str(text) for key, text in value.items()}
