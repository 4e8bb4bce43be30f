"""A pipeline of your own that deploys lancelsm with CDK Pipelines.

It builds, synthesizes and checks, deploys `dev`, sends a row through it, waits for a person, and does the same for
`prod`.

Both stages are in the account and AWS region of the pipeline. After `make build`, from the root of the repository:

    PATH="$PWD/.venv/bin:$PATH" node node_modules/aws-cdk/bin/cdk deploy --app "python -m examples.cdk_pipeline" \\
        -c connection=ARN -c repository=OWNER/NAME

`connection` is the ARN of a CodeConnections connection to your repository. Put both values into `context` of cdk.json:
the pipeline synthesizes itself from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import pipelines

from infra.stacks import stacks

# The image has Python and Node. The layers are built for the architecture of the functions, whatever this one is.
_ENVIRONMENT = codebuild.BuildEnvironment(
    build_image=codebuild.LinuxBuildImage.STANDARD_7_0, compute_type=codebuild.ComputeType.LARGE
)
_INSTALL = ["pyenv global 3.13", "make .venv/aws.stamp node_modules/.package-lock.json"]
_SYNTH = [
    "make build",
    *(f"make synth STAGE={stage}" for stage in ("dev", "prod")),  # cdk-nag checks apps, not the stages of a pipeline
    'export PATH="$PWD/.venv/bin:$PATH"',
    'node node_modules/aws-cdk/bin/cdk synth --quiet --app "python -m examples.cdk_pipeline"',
]


class Deployed(cdk.Stage):
    """Both stacks of one stage of lancelsm."""

    def __init__(self, scope: cdk.Stack, name: str) -> None:
        super().__init__(scope, name)
        self.node.set_context("stage", name)
        stacks(self)


class DeployPipeline(cdk.Stack):
    """The pipeline. Each commit to `branch` of the context, by default main, starts it."""

    def __init__(self, app: cdk.App) -> None:
        super().__init__(app, "lancelsm-deploy", description="lancelsm: the pipeline that deploys it")
        repository, connection = (self.node.get_context(name) for name in ("repository", "connection"))
        source = pipelines.CodePipelineSource.connection(
            repository, self.node.try_get_context("branch") or "main", connection_arn=connection
        )
        pipeline = pipelines.CodePipeline(
            self,
            "Pipeline",
            pipeline_name="lancelsm-deploy",
            synth=pipelines.ShellStep("Synth", input=source, install_commands=_INSTALL, commands=_SYNTH),
            code_build_defaults=pipelines.CodeBuildOptions(build_environment=_ENVIRONMENT),
        )
        pipeline.add_stage(Deployed(self, "dev"), post=[self._smoke("dev", source)])
        pipeline.add_stage(
            Deployed(self, "prod"),
            pre=[pipelines.ManualApprovalStep("Approve", comment="Deploy to prod what runs in dev")],
            post=[self._smoke("prod", source)],
        )

    def _smoke(self, stage: str, source: pipelines.IFileSetProducer) -> pipelines.CodeBuildStep:
        """Send a row through a deployed stage."""
        return pipelines.CodeBuildStep(
            f"Smoke-{stage}",
            input=source,
            install_commands=_INSTALL,
            commands=[f".venv/bin/lancelsm doctor --aws --smoke --stage {stage}"],
            role_policy_statements=self._may_smoke(stage),
        )

    def _may_smoke(self, stage: str) -> Sequence[iam.PolicyStatement]:
        """Allow what `doctor --aws --smoke` does: look at the resources of a stage; create, use and drop a table."""

        def allow(actions: Sequence[str], *resources: str) -> iam.PolicyStatement:
            return iam.PolicyStatement(actions=list(actions), resources=list(resources))

        def arn(service: str, resource: str) -> str:
            return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

        name = f"lancelsm-{stage}"
        bucket = f"arn:{self.partition}:s3:::{name}-{self.account}-{self.region}"
        registry = arn("dynamodb", f"table/{name}-registry")
        return [
            allow(["cloudformation:DescribeStacks"], arn("cloudformation", f"stack/{name}-*")),
            allow(["s3:ListBucket"], bucket),
            allow(["s3:GetObject", "s3:PutObject"], f"{bucket}/work/doctor/*"),
            allow(["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], f"{bucket}/tables/lancelsm-smoke/*"),
            allow([f"dynamodb:{one}" for one in ("GetItem", "Query", "UpdateItem", "DeleteItem")], registry),
            allow(["dynamodb:DescribeTable", "dynamodb:DescribeContinuousBackups"], registry),
            allow(["sqs:GetQueueAttributes"], arn("sqs", f"{name}-*")),
            allow(["lambda:InvokeFunction", "lambda:GetFunctionConfiguration"], arn("lambda", f"function:{name}-*")),
            allow(["lambda:ListEventSourceMappings", "emr-serverless:GetApplication"], "*"),
            allow(["states:DescribeStateMachine", "states:StartExecution"], arn("states", f"stateMachine:{name}-*")),
            allow(["states:DescribeExecution"], arn("states", f"execution:{name}-merge:*")),
        ]


if __name__ == "__main__":
    app = cdk.App()
    DeployPipeline(app)
    app.synth()
