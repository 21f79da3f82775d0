"""Code in Markdown, run as a reader would: top to bottom, in an empty folder.

Blocks marked `python` or `sh` are meant to be run; blocks without a mark, or marked otherwise, are
not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FENCE = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(markdown: str) -> list[tuple[str, str]]:
    """Language and text of the blocks that are meant to be run."""
    return [(m[1], m[2]) for m in FENCE.finditer(markdown)]


def run(markdown: str, folder: Path, smaller: Mapping[str, str] | None = None) -> str:
    """Runs all blocks: what stands in Python in one process, then each block of commands.

    Python comes first unless a command stands above it; a page is one program either way.

    Args:
        markdown: the page.
        folder: folder to run it in.
        smaller: texts of the page and what replaces them, to make a run short. A text that the page
            no longer has is an error.

    Returns:
        All output.
    """
    for text, shorter in (smaller or {}).items():
        assert text in markdown, f"{text!r} is to be {shorter!r}, but the page has no such text"
        markdown = markdown.replace(text, shorter)
    output, program = "", ""
    for language, text in [*blocks(markdown), ("end", "")]:
        if language == "python":
            program += text
            continue
        if program:
            output += _call([sys.executable, "-c", program], folder)
            program = ""
        if language == "sh":
            output += _call(["bash", "-euo", "pipefail", "-c", text], folder)
    return output


def _call(command: list[str], folder: Path) -> str:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # little is run, much is compiled
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout
