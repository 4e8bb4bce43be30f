"""AWS on one machine, for development and tests: `python -m local.server`. No other imports it."""

ACCOUNT = "111111111111"  # who names it as access key, with this secret, is the root of the account
REGION = "us-east-1"
SECRET = "test"
