"""Split a condition into tokens, and refuse text that no condition can have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lancelsm.dataset.native import invalid_condition
from lancelsm.errors import Invalid

_TYPED: Final = frozenset({"x", "date", "time", "timestamp", "interval"})  # words that may touch the text after them
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<name>`[^`]*`)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d]\w*)
    |(?P<symbol><=>|<>|<=|>=|!=|==|::|\|\||[-+*/%<>=(),.\[\]&|^~!])""",
    re.VERBOSE | re.DOTALL,
)


class Kind(StrEnum):
    """What a token is."""

    SPACE = "space"  # or a comment
    TEXT = "text"
    QUOTED = "quoted"
    NAME = "name"
    NUMBER = "number"
    WORD = "word"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a condition."""

    kind: Kind
    text: str
    start: int  # in the condition, from 0

    @property
    def word(self) -> str:
        """The text of a word or symbol in lower case; empty for other tokens."""
        return self.text.lower() if self.kind in (Kind.WORD, Kind.SYMBOL) else ""


def read_tokens(text: str, table: str) -> Iterator[Token]:
    """Yield the tokens of a condition, spaces and comments included; raise `Invalid` for text that is no token."""
    at = 0
    before: Token | None = None
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or (found[0] == "/" and text.startswith("/*", at)):
            raise refused(_unreadable(text, at), text, at, table)
        token = Token(Kind(str(found.lastgroup)), found[0], at)
        if (
            before is not None
            and before.kind is Kind.WORD
            and token.kind in (Kind.TEXT, Kind.QUOTED)
            and before.word not in _TYPED
        ):
            raise refused(f"{before.text}{token.text:.20} is not supported", text, before.start, table)
        yield token
        before, at = token, found.end()


def _unreadable(text: str, at: int) -> str:
    if text[at] in "'\"`":
        return f"the quotation that begins with {text[at]} does not end"
    if text.startswith("/*", at):
        return "the comment does not end"
    if text[at] in "?$:@":
        return "placeholders are not supported: write the value itself"
    return f"{text[at]!r} has no meaning in a condition"


def refused(why: str, text: str, start: int, table: str, *, remedy: str = "") -> Invalid:
    """Build the error for a condition that is refused at this position, counted from 0."""
    return invalid_condition(text, f"position {start + 1}: {why}", remedy=remedy, table=table)
