"""Check a deployment or a table: fetch facts from AWS, then evaluate them with pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check.

    Args:
        name: what was checked, such as `base` or `regions`.
        ok: whether nothing is wrong.
        found: what the check found.
        remedy: what to do if it is wrong; else empty.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""


def evaluate(name: str, found: str, *wrong: tuple[bool, str, str]) -> Check:
    """Return the check of several conditions.

    Args:
        found: a description of what was found.
        wrong: for each condition: whether it is violated, what is wrong, and its remedy.
    """
    faults = [(what, remedy) for is_wrong, what, remedy in wrong if is_wrong]
    if not faults:
        return Check(name=name, ok=True, found=found)
    remedies = dict.fromkeys(remedy for _, remedy in faults)
    return Check(name=name, ok=False, found="; ".join(what for what, _ in faults), remedy=". ".join(remedies))


def all_ok(checks: Sequence[Check]) -> bool:
    return all(check.ok for check in checks)
