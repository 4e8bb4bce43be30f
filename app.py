"""The deployment of lancelsm: `cdk deploy --all -c stage=dev`."""

import aws_cdk as cdk

from infra.stacks import deployment

app = cdk.App()
deployment(app)
app.synth()
