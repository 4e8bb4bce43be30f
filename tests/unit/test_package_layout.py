"""The layout of the package: few entries at the top, and names that mean one thing."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "shared" / "lancelsm"
SOURCES = [
    path
    for top in (LIBRARY, ROOT / "local")
    for path in top.rglob("*.py")
    if not {"generated", "__pycache__"} & set(path.parts)
]
# The same thing in two layers: the command of a package, what a package does to the base, and so on.
SAME_THING = {
    "base": {"gc", "scrubbing"},
    "changes": {"cli", "history"},
    "compaction": {"cli", "compaction"},
    "cost": {"cli", "cost"},
    "doctor": {"cli", "doctor"},
    "gc": {"cli", "gc"},
    "history": {"history", "table"},
    "indexes": {"cli", "compaction", "dataset"},
    "inspection": {"cli", "scrubbing"},
    "maintenance": {"compaction", "table"},
    "open": {"objects", "registry"},
    "optimize": {"compaction", "dataset"},
    "reads": {"client", "table"},
    "redrive": {"cli", "delivery"},
    "region": {"region", "scrubbing"},
    "search": {"cli", "search"},
    "spark": {"compaction", "spark"},
    "table": {"scrubbing", "table"},
    "table_report": {"cli", "table_report"},
}


def test_the_top_of_the_package_has_few_entries_and_the_package_few_folders() -> None:
    entries = [path for path in LIBRARY.iterdir() if path.name not in {"__init__.py", "__pycache__", "py.typed"}]
    folders = [path for path in LIBRARY.rglob("*") if path.is_dir() and path.name != "__pycache__"]

    assert len(entries) <= 25
    assert len(folders) <= 32


def test_modules_share_a_name_only_if_they_are_the_same_thing_in_two_layers() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in SOURCES:
        found[path.parent.name if path.stem == "__init__" else path.stem].add(path.parent.name)

    assert {name: folders for name, folders in found.items() if len(folders) > 1} == SAME_THING


def test_each_package_that_the_library_imports_is_one_of_its_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = {re.split(r"[\[<>=]", one)[0] for part in (project["dependencies"], *extras) for one in part}
    imported = {name.partition(".")[0] for path in LIBRARY.rglob("*.py") for name in _imports(path)}
    own = {"lancelsm", "pyspark_lancelsm"}
    provided_by = {
        name: {re.sub("[-_.]+", "-", one).lower() for one in found} for name, found in packages_distributions().items()
    }

    others = imported - sys.stdlib_module_names - own
    assert {name for name in others if declared.isdisjoint(provided_by.get(name, ()))} == set()


def _imports(path: Path) -> set[str]:
    """The absolute names of the modules that a file imports, at any place."""
    found = set[str]()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
    return found


def test_no_two_public_classes_share_a_name() -> None:
    found: dict[str, list[Path]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)

    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_module_imports_itself_through_others() -> None:
    modules = {path: ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts) for path in LIBRARY.rglob("*.py")}
    names = {name.removesuffix(".__init__"): path for path, name in modules.items() if ".generated." not in name}
    imported = {name: _imported(_parsed(path), names) - {name} for name, path in names.items()}

    TopologicalSorter(imported).prepare()  # raises CycleError


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imported(node: ast.AST, names: Mapping[str, Path]) -> set[str]:
    """The modules that are imported at any line of the node, but for type checks."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return set()
    found = {name for child in ast.iter_child_nodes(node) for name in _imported(child, names)}
    if isinstance(node, ast.ImportFrom):
        given = {f"{node.module}.{alias.name}": node.module for alias in node.names}
        found |= {full if full in names else str(module) for full, module in given.items()}
    return (found | {alias.name for alias in node.names} if isinstance(node, ast.Import) else found) & names.keys()
