"""The metadata of a release that depends on where it is built: URLs, and links that work on PyPI.

The README links to files beside it. A package index shows the README alone, so there its links and
pictures have to lead to the repository. The variables of GitHub Actions tell its address, where a
release is built. Builds elsewhere have no URLs and keep the README as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?![a-z]+:|#)([^)\s]+)\)")
"""A relative link or picture of Markdown; the text of a link may hold a picture."""


def absolute_links(markdown: str, repository: str, ref: str) -> str:
    """Markdown whose relative links lead to a repository on GitHub.

    Args:
        markdown: the text of a file at the top of the repository.
        repository: its address, e.g. `https://github.com/OWNER/NAME`.
        ref: branch, tag or commit.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if path.startswith("../../"):  # pages of GitHub beside the files, e.g. of Actions
            address = f"{repository}/{path.removeprefix('../../')}"
        else:
            address = f"{repository}/{'raw' if picture else 'blob'}/{ref}/{path}"
        return f"{picture}[{LINK.sub(absolute, text)}]({address})"

    return LINK.sub(absolute, markdown)


def project_urls(repository: str, ref: str) -> dict[str, str]:
    """Links that a package index shows beside the README."""
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/{ref}/docs/index.md",
        "Changelog": f"{repository}/blob/{ref}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def repository_of(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Address and ref of the repository that a GitHub workflow builds; None outside of one."""
    try:
        server, name = environment["GITHUB_SERVER_URL"], environment["GITHUB_REPOSITORY"]
        return f"{server}/{name}", environment["GITHUB_REF_NAME"]
    except KeyError:
        return None


class Links(MetadataHookInterface):
    """Sets `readme`, and `urls` where the repository is known."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields that `pyproject.toml` names as dynamic."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        place = repository_of(os.environ)
        if place is not None:
            text = absolute_links(text, *place)
            metadata["urls"] = project_urls(*place)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
