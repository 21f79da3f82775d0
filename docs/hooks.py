"""Hooks of the documentation site: tutorials from notebooks, pictures from results."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))  # MkDocs reads this file by its path

import tables  # noqa: E402 - after the path

NOTEBOOKS = ROOT / "notebooks"


def on_files(files: Files, config: Any) -> Files:
    """Adds tutorials (page, pictures and notebook of each `notebooks/*.ipynb`) and figures."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        page, pictures = as_page(path.stem, json.loads(path.read_text()))
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=page))
        files.append(
            File.generated(config, f"tutorials/download/{path.name}", abs_src_path=str(path))
        )
        for name, data in pictures.items():
            files.append(File.generated(config, f"tutorials/pictures/{name}", content=data))
    for path in sorted(ROOT.glob("results/*/figures/*_ratios.png")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Writes the site's tables; links that work in the repository lead to pages."""
    markdown = tables.shown(markdown)
    markdown = re.sub(r"\.\./notebooks/(\w+)\.ipynb", r"tutorials/\1.md", markdown)
    return re.sub(r"\]\(\.\./(results/[^)]+\.png)\)", r"](\1)", markdown)


def as_page(stem: str, notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = re.sub(r"\((\d_\w+)\.ipynb\)", r"(\1.md)", source)
            parts.append(source.replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if "text" in output:
                parts.append(f"``` {{ .text .output }}\n{''.join(output['text']).rstrip()}\n```")
            picture = output.get("data", {}).get("image/png")
            if picture:
                name = f"{stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(picture)
                parts.append(f"![output](pictures/{name})")
    note = f"[This page is a notebook: download it.](download/{stem}.ipynb){{ .md-button }}"
    return "\n\n".join([*parts, note]) + "\n", pictures
