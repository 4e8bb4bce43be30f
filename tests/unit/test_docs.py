"""Everything that the pages name exists: paths, modules, sections, links, make targets, commands, settings, errors."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import lancelsm
from lancelsm import errors
from lancelsm.cli.app import app
from lancelsm.common.formats import TABLE_FORMAT
from lancelsm.common.settings import Settings
from lancelsm.stack.delivery.request import STATUS

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "shared" / "lancelsm"
DESIGN = ROOT / "docs" / "design.md"
NAMED_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md")
PAGES = [*(ROOT / name for name in NAMED_PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
DIRECTORIES = "benchmarks|docs|events|examples|functions|infra|layers|local|proto|requirements|shared|tests|tools"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_FILES = {"json", "py", "sqlite", "md", "txt", "zip"}
METADATA = {
    "lancelsm.deletes",
    "lancelsm.fence",
    "lancelsm.files",
    "lancelsm.format",
    "lancelsm.indexes",
    "lancelsm.merged",
    "lancelsm.owner",
    "lancelsm.regions",
    "lancelsm.schema",
    "lancelsm.ttl",
    "spark.sql.python.filterPushdown.enabled",
}
IN_LAYERS = {"lance/lance.py"}  # a build writes it


def each_page(*, without: str = "") -> pytest.MarkDecorator:
    chosen = [page for page in PAGES if page.name != without]
    return pytest.mark.parametrize("page", chosen, ids=lambda page: str(page.relative_to(ROOT)))


pages = each_page()


def inline(page: Path) -> list[str]:
    """The text in backticks, outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text()))


def shown(page: Path) -> Iterator[str]:
    """Everything that a reader may type: inline code, and the lines of code blocks."""
    yield from inline(page)
    for _, text in FENCE.findall(page.read_text()):
        yield from text.splitlines()


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings(page)}


def defines(text: str, name: str) -> bool:
    return re.search(rf"^\s*(?:(?:def|class) {name}\b|{name}\s*[:=])", text, re.MULTILINE) is not None


def class_and_bases(name: str, sources: Sequence[str]) -> Iterator[str]:
    """The sources of a class and of the classes that it inherits from."""
    for text in sources:
        if found := re.search(rf"^class {name}\b(?:\(([^)]*)\))?", text, re.MULTILINE):
            yield text
            for base in re.findall(r"\w+", found[1] or ""):
                yield from class_and_bases(base, sources)


def is_module_or_in_one(dotted: str) -> bool:
    """Whether `package.module.name`, with or without the prefix `lancelsm.`, exists."""
    parts = dotted.removeprefix("lancelsm.").split(".")
    module = LIBRARY
    while parts and ((module / parts[0]).is_dir() or (module / f"{parts[0]}.py").is_file()):
        module /= parts.pop(0)
    at_table = module == LIBRARY / "table"  # its class has its methods from the modules of the package
    sources = module.glob("*.py" if at_table else "__init__.py") if module.is_dir() else [module.with_suffix(".py")]
    text = "\n".join(source.read_text() for source in sources if source.is_file())
    at_top = module == LIBRARY  # the package imports its public names and does not define them
    return all(defines(text, part) or (at_top and re.search(rf'"{part}"', text)) for part in parts)


@pages
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = {text for text in inline(page) if re.fullmatch(rf"(?:{DIRECTORIES})/[\w./*-]*", text)}

    assert not [text for text in sorted(named) if not list(ROOT.glob(text.rstrip("/")))]


@pages
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    """Pages name files of the library below `shared/lancelsm`, and files beside the page."""
    named = {text for text in inline(page) if re.fullmatch(r"[a-z_]+(?:/[a-z_]+)*\.py", text)} - IN_LAYERS

    assert not [text for text in sorted(named) if not any((at / text).is_file() for at in (ROOT, LIBRARY, page.parent))]


@pages
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = {text for text in inline(page) if re.fullmatch(r"test_\w+", text)}
    chosen = re.findall(r'pytest (tests/\S+\.py) -k "(\w+)"', page.read_text())
    sources = {source: source.read_text() for source in (ROOT / "tests").rglob("test_*.py")} if named else {}

    assert not [name for name in sorted(named) if not any(defines(text, name) for text in sources.values())]
    assert not [name for file, name in chosen if not re.search(rf"def test_\w*{name}", (ROOT / file).read_text())]


def test_the_pages_use_plain_words() -> None:
    """These words make a sentence hard to read for readers whose second language is English."""
    hard = r"\b(?:anew|whoever|told|is none|are none|for ever)\b"
    text = {page.relative_to(ROOT): " ".join(page.read_text().split()) for page in PAGES}
    found = [(str(page), word) for page, words in text.items() for word in re.findall(hard, words, re.IGNORECASE)]

    assert len(found) <= 25, found


@each_page(without="CHANGELOG.md")  # it also has names that no longer exist
def test_every_name_in_a_module_that_a_page_names_exists(page: Path) -> None:
    ours = {"lancelsm", *(found.stem for found in LIBRARY.iterdir())}
    dotted = {text for text in inline(page) if re.fullmatch(r"[a-z_]+(?:\.\w+)+", text)} - METADATA
    named = {text for text in dotted if text.split(".")[0] in ours and text.split(".")[-1] not in OF_FILES}

    assert not [text for text in sorted(named) if not is_module_or_in_one(text)]


@each_page(without="CHANGELOG.md")
def test_every_member_that_a_page_names_belongs_to_its_class(page: Path) -> None:
    sources = [found.read_text() for found in LIBRARY.rglob("*.py")]
    for owner, member in {tuple(text.split(".")) for text in inline(page) if re.fullmatch(r"[A-Z]\w+\.[a-z_]+", text)}:
        classes = list(class_and_bases(owner, sources))

        assert not classes or any(
            re.search(rf"^    (?:def {member}\b|{member}:)", text, re.MULTILINE) for text in classes
        ), f"{owner}.{member}"


def test_every_module_in_the_tables_of_the_design_and_the_concepts_exists() -> None:
    modules = {path.stem for path in LIBRARY.rglob("*") if path.is_dir() or path.suffix == ".py"}
    text = "\n\n".join(page.read_text() for page in (DESIGN, *(ROOT / "docs" / "concepts").glob("*.md")))
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [line.strip()[1:-1].split("|") for line in table.splitlines()]
        for at in (at for at, title in enumerate(rows[0]) if title.strip() == "module"):
            named = {name for row in rows[2:] for name in re.findall(r"`([a-z_]+)`", row[at])}

            assert named <= modules


@pages
def test_every_relative_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+://", target):
            continue
        found = (page.parent / path).resolve() if path else page

        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@pages
def test_every_make_target_that_a_page_shows_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for text in shown(page) for name in re.findall(r"^(?:\w+=\S+ )*make ([a-z][a-z0-9-]*)", text)}

    assert named <= targets


@pytest.mark.one_case
@pages
def test_every_command_that_a_page_shows_exists_with_its_options(page: Path) -> None:
    for text in shown(page):
        for words in re.findall(r"(?:^|\| |bin/)lancelsm ((?:[^`|#]+))", text):
            command: Any = get_command(app)
            for word in shlex.split(words, posix=False):
                if word.startswith("-"):
                    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
                    assert word.partition("=")[0] in {*options, "-", "-h", "--help"}, text
                elif hasattr(command, "commands") and re.fullmatch(r"[a-z]+", word):
                    assert word in command.commands, text
                    command = command.commands[word]


def test_every_execution_that_a_page_starts_has_a_valid_input() -> None:
    started = re.findall(
        r"arn lancelsm-\w+-(\w+)\)\" --input '(.*)'$",
        (ROOT / "docs" / "reference" / "functions.md").read_text(),
        re.MULTILINE,
    )

    assert {machine for machine, _ in started} == {"merge", "collect"}
    for machine, text in started:
        taken = re.findall(r"\$\.request\.(\w+)", (ROOT / f"infra/workflows/{machine}.asl.json").read_text())
        assert {"table"} <= json.loads(text).keys() <= set(taken)


def test_every_page_has_the_sections_that_the_code_cites() -> None:
    cited = set()
    for directory in ("shared", "functions", "infra", "tests"):
        for source in (ROOT / directory).rglob("*.py"):
            text = " ".join(source.read_text().split())
            for page, names in re.findall(r'(docs/[\w/-]+\.md), ((?:"[A-Z][^"]*"(?:, | and )?)+)', text):
                cited |= {(page, name) for name in re.findall(r'"([^"]+)"', names)}

    assert cited
    assert not [
        (page, name)
        for page, name in sorted(cited)
        if not any(found.startswith(name) for found in headings(ROOT / page))
    ]


def test_the_page_of_settings_shows_every_setting_with_its_default_and_variable() -> None:
    row = re.compile(r"^\| `(\w+)`<br>`(\w+)` \| ([\d,]+) (\S+) \|", re.MULTILINE)
    sizes = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    rows = row.findall((ROOT / "docs" / "reference" / "settings.md").read_text())
    defaults = {name: int(number.replace(",", "")) * sizes.get(unit, 1) for name, _, number, unit in rows}

    assert defaults == {field.name: field.default for field in fields(Settings)}
    assert not [name for name, variable, _, _ in rows if variable != f"LANCELSM_{name.upper()}"]


def test_the_page_of_formats_shows_the_newest_number_of_each() -> None:
    text = (ROOT / "docs" / "reference" / "formats.md").read_text().partition("\n## Format numbers\n")[2]
    rows = re.findall(r"^\| .*? \| (\d.*?) \| .*<br>`([\w.]+)` \|$", text, re.MULTILINE)
    files = {".".join(file.relative_to(LIBRARY.parent).with_suffix("").parts) for file in LIBRARY.rglob("*.py")}

    assert len(rows) >= 13
    for numbers, checker in rows:
        module = import_module(checker if checker in files else checker.rpartition(".")[0])
        newest = getattr(module, "FORMAT", None) or getattr(module, "_FORMAT", TABLE_FORMAT)
        assert int(max(re.findall(r"\d", numbers))) == newest, checker


def test_the_page_of_errors_shows_every_kind_with_its_status_and_exit_code() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    row = re.compile(r"^\| `(\w+)` \|.*\| (\d+) \| (\d) \|$", re.MULTILINE)
    answers = {kind: (status, code) for kind, status, code in row.findall(text)}

    kinds = [one for one in errors.LsmError.__subclasses__() if one.__module__ == errors.__name__]
    assert answers == {one.kind: (str(STATUS.get(one.kind, 500)), str(one.exit_code)) for one in kinds}
    assert answers.keys() <= set(headings(ROOT / "docs" / "reference" / "errors.md"))


def test_the_page_of_functions_shows_every_function() -> None:
    text = (ROOT / "docs" / "reference" / "functions.md").read_text()
    inputs = text.partition("| function |")[2].partition("\n\n")[0]
    files = {source.stem for source in (ROOT / "functions").glob("*.py")}

    assert set(re.findall(r"^\| `(\w+)` \|", inputs, re.MULTILINE)) == files - {"gc_round"} | {"gc"}


def test_every_state_and_error_kind_that_a_runbook_names_exists() -> None:
    machines = [json.loads(path.read_text()) for path in (ROOT / "infra" / "workflows").glob("*.json")]
    known = {name for machine in machines for name in machine["States"]}
    known |= {one.__name__ for one in errors.LsmError.__subclasses__()}
    for page in (ROOT / "docs" / "operations" / "runbooks").glob("*.md"):
        named = {text for text in inline(page) if re.fullmatch(r"[A-Z][A-Za-z]+", text)}

        assert named <= known, page.name


def test_each_public_name_has_a_place_on_the_site() -> None:
    shown = re.findall(r"^::: lancelsm\.(\w+)$", "\n".join(page.read_text() for page in PAGES), re.MULTILINE)

    assert sorted(shown) == sorted([*lancelsm.__all__, "client", "spark"])
