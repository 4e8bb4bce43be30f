"""Put functions and Spark jobs into subnets of an existing VPC, with the endpoints that they need there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infra.context import Context

# What functions and jobs call. Both gateways are free; an interface has a price for each hour and subnet.
GATEWAYS: Mapping[str, ec2.GatewayVpcEndpointAwsService] = {
    "s3": ec2.GatewayVpcEndpointAwsService.S3,
    "dynamodb": ec2.GatewayVpcEndpointAwsService.DYNAMODB,
}
INTERFACES: Mapping[str, ec2.InterfaceVpcEndpointAwsService] = {
    "sqs": ec2.InterfaceVpcEndpointAwsService.SQS,
    "lambda": ec2.InterfaceVpcEndpointAwsService.LAMBDA_,
    "states": ec2.InterfaceVpcEndpointAwsService.STEP_FUNCTIONS,
}
# What Lambda does under the role of a function. Network interfaces have no names before they exist.
ATTACHING = (
    "ec2:CreateNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:DeleteNetworkInterface",
    "ec2:AssignPrivateIpAddresses",
    "ec2:UnassignPrivateIpAddresses",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnets:
    """Where functions and jobs run.

    Args:
        vpc: the id of an existing VPC.
        subnets: ids of its subnets, one in each availability zone.
        route_tables: ids of the route tables of these subnets, for the gateways.
        endpoints: whether the stack creates endpoints. If not, those of the VPC are used.
    """

    vpc: str
    subnets: tuple[str, ...]
    route_tables: tuple[str, ...]
    endpoints: bool


def subnets_of(context: Context) -> Subnets | None:
    """Read `vpc`, `subnets`, `route_tables` and `endpoints` of the context; None without `vpc`.

    Raises:
        ValueError: a value has a wrong form, or one is missing.
    """
    found = {
        name: context.words(name, f"an id such as {kind}-0a1b2c3d", rf"{kind}-[0-9a-f]{{8,17}}")
        for name, kind in (("vpc", "vpc"), ("subnets", "subnet"), ("route_tables", "rtb"))
    }
    endpoints = context.one_of("endpoints", Literal["on", "off"], default="on") == "on"
    if not found["vpc"]:
        if given := next((name for name in ("subnets", "route_tables", "endpoints") if context.text(name)), None):
            raise ValueError(f"-c {given}: give the VPC too: -c vpc=ID")
        return None
    if len(found["vpc"]) > 1:
        raise ValueError(f"-c vpc={','.join(found['vpc'])}: give one VPC")
    if not found["subnets"]:
        raise ValueError("-c vpc: give subnets of it too, one in each availability zone: -c subnets=ID,ID")
    if endpoints and not found["route_tables"]:
        raise ValueError(
            "-c vpc: give the route tables of the subnets too, for the endpoints of S3 and DynamoDB: "
            "-c route_tables=ID,ID. If the VPC has all endpoints: -c endpoints=off"
        )
    return Subnets(
        vpc=found["vpc"][0], subnets=found["subnets"], route_tables=found["route_tables"], endpoints=endpoints
    )


class Network(Construct):
    """A security group for functions and jobs, and the endpoints."""

    def __init__(self, scope: Construct, *, subnets: Subnets) -> None:
        super().__init__(scope, "Network")
        count = len(subnets.subnets)
        vpc = ec2.Vpc.from_vpc_attributes(
            self,
            "Vpc",
            vpc_id=subnets.vpc,
            availability_zones=[f"zone-{number}" for number in range(count)],  # no resource shows them
            private_subnet_ids=list(subnets.subnets),
        )
        for subnet in vpc.private_subnets:  # the stack changes no route table of a subnet
            cdk.Annotations.of(subnet).acknowledge_warning("@aws-cdk/aws-ec2:noSubnetRouteTableId")
        self._vpc = vpc
        self._subnets = ec2.SubnetSelection(subnets=vpc.private_subnets)
        self.subnet_ids = list(subnets.subnets)
        self.group = ec2.SecurityGroup(self, "Group", vpc=vpc, description="Functions and Spark jobs of lancelsm")
        if subnets.endpoints:
            self._add_endpoints(subnets)

    def _add_endpoints(self, subnets: Subnets) -> None:
        self.group.add_ingress_rule(self.group, ec2.Port.tcp(443), "Endpoints of AWS services")
        for name, service in GATEWAYS.items():
            ec2.CfnVPCEndpoint(
                self,
                f"{name.title()}Endpoint",
                vpc_id=subnets.vpc,
                service_name=service.name,
                route_table_ids=list(subnets.route_tables),
            )
        for name, interface in INTERFACES.items():
            ec2.InterfaceVpcEndpoint(
                self,
                f"{name.title()}Endpoint",
                vpc=self._vpc,
                service=interface,
                subnets=self._subnets,
                security_groups=[self.group],
                open=False,
            )

    def of_function(self) -> dict[str, Any]:
        """Return the arguments of a function that runs here."""
        return {"vpc": self._vpc, "vpc_subnets": self._subnets, "security_groups": [self.group]}
