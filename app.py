"""The CDK app that deploys lancelsm: `make deploy`, or `cdk deploy --all -c stage=dev`."""

import sys

import aws_cdk as cdk

from infra.stacks import deployment
from lancelsm.errors import Invalid

app = cdk.App()
try:
    deployment(app)
except (FileNotFoundError, ValueError, Invalid) as error:  # a bad value in the context; any other exception is a bug
    sys.exit(f"{error}")
app.synth()
