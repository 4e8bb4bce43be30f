"""Third-party packages: the layers of the functions and the archive of the Spark job, as `make build` left them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from infra.stage import ROOT, Stage

RUNTIME = lambda_.Runtime.PYTHON_3_13
LayerName = Literal["lean", "lance"]


class Layers(Construct):
    """`lean` for functions that only touch the log, `lance` for those that touch Lance.

    At stage local there are none, since the emulator runs functions and jobs in an interpreter that has the packages.
    """

    def __init__(self, scope: Construct, *, stage: Stage) -> None:
        super().__init__(scope, "Layers")
        self._stage = stage
        self._made: dict[str, lambda_.LayerVersion] = {}

    def of(self, name: LayerName) -> list[lambda_.ILayerVersion]:
        """The layers of a function, made when the first one asks.

        Raises:
            FileNotFoundError: it wasn't built.
        """
        if self._stage.local:
            return []
        more = ["expression"] if self._stage.expression and name == "lean" else []
        return [self._layer(one) for one in (name, *more)]

    def _layer(self, name: str) -> lambda_.LayerVersion:
        if name not in self._made:
            self._made[name] = lambda_.LayerVersion(
                self,
                name.title(),
                layer_version_name=f"{self._stage.prefix}-{name}",
                code=lambda_.Code.from_asset(str(self._built(name))),
                compatible_runtimes=[RUNTIME],
                compatible_architectures=[architecture(self._stage)],
            )
        return self._made[name]

    def archive(self) -> assets.Asset | None:
        """The packages of the Spark job, lancelsm among them.

        Raises:
            FileNotFoundError: it wasn't built.
            ValueError: it was, from another state of the code than functions are deployed from.
        """
        if self._stage.local:
            return None
        built = self._built("spark")
        if _sources(built / "lancelsm") != _sources(ROOT / "shared" / "lancelsm"):
            raise ValueError(f"the code in {built} is not that of shared/lancelsm: run `make build`")
        return assets.Asset(self, "Spark", path=str(built))

    def _built(self, name: str) -> Path:
        directory = self._stage.layers / self._stage.architecture / name
        if not directory.is_dir():
            raise FileNotFoundError(f"there is no {directory}: run `make build` (or deploy with -c stage=local)")
        return directory


def _sources(package: Path) -> dict[Path, bytes]:
    """The files of a package by their places in it, but for what an interpreter made of them."""
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(package): path.read_bytes() for path in files}


def architecture(stage: Stage) -> lambda_.Architecture:
    return lambda_.Architecture.ARM_64 if stage.architecture == "arm64" else lambda_.Architecture.X86_64
