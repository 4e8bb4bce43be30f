"""Keep the ports of a table out of the signature of a public call: users have no use for them, tests do."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from lancelsm.region.handle import Ports

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


class OnPorts(Protocol[P, T_co]):
    """A public call. `on` returns the same call on other ports."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    def on(self, ports: Ports) -> Callable[P, T_co]: ...


def on_ports(function: Callable[Concatenate[Ports, P], T_co]) -> OnPorts[P, T_co]:
    """Decorate a function whose first argument is the ports. The call that users see lacks it and uses the real ones.

    `on` of that call gives it other ones; see `lancelsm.testing`.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T_co:
        return function(Ports(), *args, **kwargs)

    signature = inspect.signature(function)
    public = [found for name, found in signature.parameters.items() if name != "ports"]
    call.__signature__ = signature.replace(parameters=public)  # type: ignore[attr-defined]
    call.__annotations__ = {name: kind for name, kind in function.__annotations__.items() if name != "ports"}

    def on(ports: Ports) -> Callable[P, T_co]:
        return functools.partial(function, ports)

    call.on = on  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
