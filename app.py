"""The deployment of lancelsm: `make deploy`, or `cdk deploy --all -c stage=dev`."""

import sys

import aws_cdk as cdk

from infra.stacks import deployment
from lancelsm.errors import Invalid

app = cdk.App()
try:
    deployment(app)
except (FileNotFoundError, ValueError, Invalid) as error:  # a choice that can't be; the rest are bugs
    sys.exit(f"{error}")
app.synth()
