"""Emulate AWS on one machine, for development and tests: `python -m local.server`. Deployed code never imports it."""

ACCOUNT = "111111111111"  # as access key with SECRET it is the root of the account
REGION = "us-east-1"
SECRET = "test"
