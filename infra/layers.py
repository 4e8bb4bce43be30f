"""Deploy third-party packages: the layers of the functions and the archive of the Spark job, built by `make build`."""

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
    """The layers: `lean` for functions that only use the log, `lance` for functions that use Lance.

    MiniStack needs none: it runs functions and jobs in an interpreter that has the packages. LocalStack needs them.
    """

    def __init__(self, scope: Construct, *, stage: Stage) -> None:
        super().__init__(scope, "Layers")
        self._stage = stage
        self._layers: dict[str, lambda_.LayerVersion] = {}

    def of(self, name: LayerName) -> list[lambda_.ILayerVersion]:
        """Return the layers of a function. The first call for a layer creates it.

        Raises:
            FileNotFoundError: a layer was not built.
        """
        if not self._stage.has_layers:
            return []
        extra = ["expression"] if self._stage.expression and name == "lean" else []
        return [self._layer(one) for one in (name, *extra)]

    def _layer(self, name: str) -> lambda_.LayerVersion:
        if name not in self._layers:
            self._layers[name] = lambda_.LayerVersion(
                self,
                name.title(),
                layer_version_name=f"{self._stage.prefix}-{name}",
                code=lambda_.Code.from_asset(str(self._built(name))),
                compatible_runtimes=[RUNTIME],
                compatible_architectures=[architecture(self._stage)],
            )
        return self._layers[name]

    def archive(self) -> assets.Asset | None:
        """Return the packages of the Spark job, including lancelsm; None if there are no layers.

        Raises:
            FileNotFoundError: the archive was not built.
            ValueError: the archive holds another state of the code than the functions that are deployed.
        """
        if not self._stage.has_layers:
            return None
        built = self._built("spark")
        if _sources(built / "lancelsm") != _sources(ROOT / "shared" / "lancelsm"):
            raise ValueError(f"the code in {built} differs from shared/lancelsm: run `{self._build()}`")
        return assets.Asset(self, "Spark", path=str(built))

    def _built(self, name: str) -> Path:
        directory = self._stage.layers / self._stage.architecture / name
        if not directory.is_dir():
            raise FileNotFoundError(
                f"{directory} does not exist: run `{self._build(name)}`. -c emulator=true needs no layers"
            )
        return directory

    def _build(self, name: str = "") -> str:
        """Return the command that builds a layer. One is only built if it is asked for."""
        chosen = self._stage.architecture
        arch = "" if chosen == "arm64" else f" ARCH={chosen}"
        return f"make build{arch}{' ARGS=expression' if name == 'expression' else ''}"


def _sources(package: Path) -> dict[Path, bytes]:
    """Return the files of a package by their path in it, without compiled ones."""
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(package): path.read_bytes() for path in files}


def architecture(stage: Stage) -> lambda_.Architecture:
    return lambda_.Architecture.ARM_64 if stage.architecture == "arm64" else lambda_.Architecture.X86_64
