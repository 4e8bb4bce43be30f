"""What is wrong with a deployment or a table, and what to do: facts are fetched, then judged by pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that has to be right. `remedy` says what to do if it isn't."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


def judged(name: str, found: str, *wrong: tuple[bool, str, str]) -> Check:
    """A check of several conditions.

    Args:
        found: what there is.
        wrong: whether something is wrong, what, and its remedy.
    """
    faults = [(what, remedy) for is_wrong, what, remedy in wrong if is_wrong]
    if not faults:
        return Check(name=name, ok=True, found=found)
    remedies = dict.fromkeys(remedy for _, remedy in faults)
    return Check(name=name, ok=False, found="; ".join(what for what, _ in faults), remedy=". ".join(remedies))


def all_right(checks: Sequence[Check]) -> bool:
    return all(check.ok for check in checks)
