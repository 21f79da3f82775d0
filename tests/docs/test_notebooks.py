"""The notebooks run, with the small settings that their cells carry, and hold real outputs."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


@pytest.fixture(scope="module")
def runner():
    pytest.importorskip("nbclient", reason="extra notebooks is not installed")
    pytest.importorskip("ipykernel", reason="extra notebooks is not installed")
    spec = importlib.util.spec_from_file_location("run_notebooks", NOTEBOOKS / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SHORT = {"5_bring_your_own"}
"""It runs in seconds; the code of the others is in tests of their own subjects, too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=() if p.stem in SHORT else pytest.mark.thorough, id=p.stem)
        for p in PATHS
    ],
)
def test_runs(path, runner, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # little is run, much is compiled
    kept = path.read_text()
    notebook = runner.execute(path, fast=True, folder=tmp_path)
    assert path.read_text() == kept
    pictures = [
        o for c in notebook.cells for o in c.get("outputs", ()) if "image/png" in o.get("data", {})
    ]
    assert pictures


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_committed_outputs(path):
    """Every cell was run in order, none failed, and nothing tells of the machine it was run on."""
    assert path.stat().st_size < 300_000
    text = path.read_text()
    cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c["outputs"]]
    assert any("image/png" in o.get("data", {}) for o in outputs)
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    printed = "".join(line for o in outputs for line in o.get("text", ()))
    assert not re.search(r"/(tmp|home|root|work|Users)/|\b20\d\d-\d\d-\d\d\b", printed)


def test_the_conclusion_of_notebook_3_is_what_its_numbers_say():
    """The sentence, not only that cells run: where J is, with all of its interval."""
    cells = json.loads((NOTEBOOKS / "3_train_and_compare.ipynb").read_text())["cells"]
    prose = " ".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    said = {
        name: way
        for way, name in re.findall(r"(below|above|within a tenth of) that of `([\w ]+)`", prose)
    }
    printed = "".join(
        line for c in cells for o in c.get("outputs", ()) for line in o.get("text", ())
    )
    line = r"^J of IPPO ippo relative to ([\w ]+?)(?: \(.*\))?: .* \[([\d.]+), ([\d.]+)\] \(95 %\)$"
    rows = re.findall(line, printed, re.MULTILINE)
    assert {name for name, *_ in rows} == set(said) == {"SECN1", "best static", "oracle"}
    for name, low, high in rows:
        least, most = {
            "below": (0.0, 0.999),
            "above": (1.001, math.inf),
            "within a tenth of": (0.901, 1.099),
        }[said[name]]
        assert least <= float(low) <= float(high) <= most, (name, said[name])


def test_notebook_3_is_short_and_needs_the_front_door_only():
    cells = json.loads((NOTEBOOKS / "3_train_and_compare.ipynb").read_text())["cells"]
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    imports = set(re.findall(r"^(?:import|from) ([\w.]+)", code, re.MULTILINE))
    assert {"ecn_marl"} <= imports <= {"ecn_marl", "matplotlib.pyplot"}


def test_small_settings_name_what_is_set():
    """They assign what the cell assigns: else a setting that was renamed would be missed."""
    found = 0
    for path in PATHS:
        for cell in json.loads(path.read_text())["cells"]:
            if "fast" in cell["metadata"]:
                names = [
                    set(re.findall(r"\b([A-Z]+)\b(?=[^=\n]*=)", text))
                    for text in ("".join(cell["source"]), cell["metadata"]["fast"])
                ]
                assert names[0] == names[1] != set()
                found += 1
    assert found >= 4
