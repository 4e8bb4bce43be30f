"""Decode HTTP requests to EMR Serverless by botocore's model of the service.

Method and path identify the call. The model says where each parameter is, and parameters are validated against it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import botocore.session
from botocore import xform_name
from botocore.validate import ParamValidator

from local.emr import EmrServerless
from local.emr_states import ApiError, Document, invalid

SERVICE = "emr-serverless"

Answer = tuple[int, dict[str, str], bytes]


class EmrHttp:
    """Answer HTTP requests. It has the interface of a MiniStack service."""

    def __init__(self, emr: EmrServerless) -> None:
        self._emr = emr

    async def handle_request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, query: Mapping[str, list[str]]
    ) -> Answer:
        del headers
        try:
            call, labels = self._call(method, path)
            request = call.request(labels, query, body)
            checked(request, call.operation.input_shape)
            document = self._act(call.name, request)
        except ApiError as refused:
            return refusal(refused)
        return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()

    def _call(self, method: str, path: str) -> tuple[ApiCall, dict[str, str]]:
        for call in self._calls:
            found = call.path.fullmatch(path)
            if found and call.method == method:
                return call, {name: unquote(value) for name, value in found.groupdict().items()}
        raise ApiError("UnknownOperationException", f"{method} {path} is not an operation of {SERVICE}")

    def _act(self, name: str, request: Document) -> Document:
        act = getattr(self._emr, name, None)
        if act is None:
            raise ApiError("UnknownOperationException", f"{name} is not emulated")
        document: Document = act(request)
        return document

    @cached_property
    def _calls(self) -> list[ApiCall]:
        model = service_model()
        return [ApiCall(operation=model.operation_model(name)) for name in model.operation_names]


@dataclass(frozen=True)
class ApiCall:
    """One operation of the service."""

    operation: Any

    @property
    def method(self) -> str:
        return str(self.operation.http["method"])

    @cached_property
    def name(self) -> str:
        return str(xform_name(self.operation.name))

    @cached_property
    def path(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+|arn.+)", self.operation.http["requestUri"]))

    def request(self, labels: Mapping[str, str], query: Mapping[str, list[str]], body: bytes) -> Document:
        """Return the parameters of a request from path, query and body."""
        try:
            request: Document = json.loads(body) if body else {}
        except ValueError as error:
            raise invalid(f"The body is not JSON: {error}") from error
        for name, shape in self.operation.input_shape.members.items():
            location = shape.serialization.get("location")
            wire_name = shape.serialization.get("name", name)
            if location == "uri":
                request[name] = labels[wire_name]
            elif location == "querystring" and wire_name in query:
                values = query[wire_name]
                text = values if shape.type_name == "list" else values[0]
                request[name] = int(values[0]) if shape.type_name in ("integer", "long") else text
        return request


def service_model() -> Any:
    """Return botocore's model of the service."""
    return botocore.session.get_session().get_service_model(SERVICE)


def checked(request: Document, shape: Any) -> None:
    """Raise `ApiError` unless a request has all required parameters, with the right types."""
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        raise invalid(report.generate_report())


def refusal(refused: ApiError) -> Answer:
    """Return the HTTP response for an error."""
    body = {"message": str(refused), "__type": refused.name}
    headers = {"Content-Type": "application/json", "x-amzn-errortype": refused.name}
    return refused.status, headers, json.dumps(body).encode()
