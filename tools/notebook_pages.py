"""Show a notebook as a page of the documentation site, with what its cells printed and drew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any


def notebook_page(text: str) -> str:
    """Return the text of a notebook file as Markdown. Its links to `../docs/` become links to pages of the site."""
    cells = json.loads(text)["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source.replace("](../docs/", "](../")
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            yield f'<img alt="plot" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
        elif "text/html" in data:
            yield f'<div class="output">{"".join(data["text/html"])}</div>'
        else:
            yield f'<pre class="output">{escape("".join(data["text/plain"]).rstrip())}</pre>'
