"""Every role may do what its code needs and nothing else, by the emulator's own policy evaluator."""

from __future__ import annotations

import pytest

from tests.infra.conftest import Stacks
from tests.infra.roles import (
    BASE_DATA,
    BUCKET,
    ENTRY,
    GENERATION,
    JOB_ROLE,
    MAY,
    MAY_NOT,
    ONLY,
    REGISTRY,
    Roles,
)


@pytest.fixture(scope="session")
def roles(all_stacks: dict[str, Stacks]) -> Roles:
    return Roles(all_stacks["local"])


def test_every_role_is_listed(roles: Roles) -> None:
    assert set(MAY) == set(MAY_NOT) == roles.names


@pytest.mark.parametrize(
    ("name", "action", "resource"), [(name, *request) for name, requests in MAY.items() for request in requests]
)
def test_a_role_allows_what_its_code_needs(name: str, action: str, resource: str, roles: Roles) -> None:
    assert roles.allows(name, action, resource)


@pytest.mark.parametrize(
    ("name", "action", "resource"), [(name, *request) for name, requests in MAY_NOT.items() for request in requests]
)
def test_a_role_denies_everything_else(name: str, action: str, resource: str, roles: Roles) -> None:
    assert not roles.allows(name, action, resource)


@pytest.mark.parametrize("action", sorted(ONLY))
def test_only_the_collector_roles_may_delete(action: str, roles: Roles) -> None:
    resources = [ENTRY, GENERATION, BASE_DATA] if action.startswith("s3") else [REGISTRY]
    deleting = {name for name in roles.names if any(roles.allows(name, action, resource) for resource in resources)}
    assert deleting == ONLY[action]


READERS = sorted(name for name, requests in MAY.items() if any("s3:Get" in action for action, _ in requests))


@pytest.mark.parametrize("name", READERS)
def test_a_role_that_reads_objects_learns_which_are_absent(name: str, roles: Roles) -> None:
    """For an absent object S3 checks the right to list, without a prefix."""
    assert roles.allows(name, "s3:ListBucket", BUCKET)
    assert not roles.allows(name, "s3:ListBucket", BUCKET, **{"s3:prefix": "elsewhere/"})


def test_the_merge_machine_passes_the_job_role_to_emr_serverless_only(roles: Roles) -> None:
    assert not roles.allows(
        "merge-machine", "iam:PassRole", JOB_ROLE, **{"iam:passedtoservice": "lambda.amazonaws.com"}
    )
