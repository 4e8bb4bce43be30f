"""AWS list prices in us-east-1, in US dollars, without tax, discounts and free tiers.

`CHECKED` is the day on which prices were compared with published copies of the list. A price with `compared` false was
not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REGION: Final = "us-east-1"
CHECKED: Final = "2026-11-28"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for one unit.

    Attributes:
        compared: whether a published copy of the list had the same price on the day `CHECKED`.
    """

    name: str
    unit: str
    usd: float
    compared: bool


def _price(name: str, unit: str, usd: float, per: float = 1, *, compared: bool = False) -> Price:
    return Price(name=name, unit=unit, usd=usd / per, compared=compared)


_MILLION: Final = 1e6

INVOCATION = _price("Lambda requests", "request", 0.20, _MILLION, compared=True)
ARM_GB_SECOND = _price("Lambda duration, arm64", "GB-second", 0.0000133334, compared=True)
STEP = _price("Step Functions Standard", "transition", 25.0, _MILLION, compared=True)
QUEUE_REQUEST = _price("SQS FIFO", "request of 64 KiB", 0.50, _MILLION, compared=True)
OBJECT_WRITE = _price("S3 PUT, POST, LIST", "request", 0.005, 1000)
OBJECT_READ = _price("S3 GET, HEAD", "request", 0.0004, 1000)
OBJECT_STORAGE = _price("S3 Standard storage", "GB-month", 0.023)
RECORD_WRITE = _price("DynamoDB on-demand writes", "write unit", 0.625, _MILLION, compared=True)
RECORD_READ = _price("DynamoDB on-demand reads", "read unit", 0.125, _MILLION, compared=True)
RECORD_STORAGE = _price("DynamoDB storage", "GB-month", 0.25)
RECORD_RECOVERY = _price("DynamoDB point-in-time recovery", "GB-month", 0.20)
VCPU_HOUR = _price("EMR Serverless CPU, arm64", "vCPU-hour", 0.042094)
MEMORY_HOUR = _price("EMR Serverless memory, arm64", "GB-hour", 0.004628)
LOGS = _price("CloudWatch Logs ingestion", "GB", 0.50, compared=True)
METRIC = _price("CloudWatch custom metric", "metric-month", 0.30, compared=True)
ALARM = _price("CloudWatch alarm", "alarm-month", 0.10)
DASHBOARD = _price("CloudWatch dashboard beyond the account's three free ones", "dashboard-month", 3.0, compared=True)
ENDPOINT_HOUR = _price("VPC interface endpoint", "hour and subnet", 0.01)
KEY = _price("KMS key", "key-month", 1.0)
