"""Mutation testing: faults are put into the simulator and the maths of learning, one at a time.

    python tests/robustness/mutation.py --each 5 --out mutants.json

cosmic-ray changes one operator, number, comparison or keyword of a module; the tests of that module
have to fail. Mutants are a random sample. Changes of annotations and of decorators are left out:
the former change nothing at run time, the latter mostly speed. So is `+` for `|` and `*` for `&`,
which are the same for masks. The checkout is copied first, as modules are changed in place.
`make mutation` installs what it takes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

SIM = {
    "core/queues": "test_queues.py test_classes.py test_conservation.py",
    "core/pfc": "test_pfc.py",
    "core/nic": "test_nic.py test_conservation.py",
    "traffic/sizes": "test_sizes.py",
    "core/last_byte": "test_last_byte.py test_pfc.py test_delays.py",
    "feedback/cnp": "test_cnp_line.py test_feedback.py",
    "network/servers": "test_servers.py",
    "theory": "test_theory.py",
}
LEARNING = {
    "gae": "test_gae.py",
    "replay": "test_replay_memory.py",
    "q_learning": "test_q_learning.py",
    "distributions": "test_distributions.py",
    "gating": "test_gating.py",
}
"""Modules, and the tests that hold them."""

CONFIG = """
[cosmic-ray]
module-path = "{module}"
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -x -q -p no:cacheprovider --hypothesis-profile mutation {tests}"
distributor.name = "local"
"""


def cases() -> dict[str, str]:
    """Module and tests, as paths in the checkout."""

    def paths(folder: str, names: str) -> str:
        return " ".join(f"tests/{folder}/{name}" for name in names.split())

    return {f"ecn_marl/sim/{name}.py": paths("sim", tests) for name, tests in SIM.items()} | {
        f"ecn_marl/baselines/rl/{name}.py": paths("baselines/rl", tests)
        for name, tests in LEARNING.items()
    }


def annotations(source: str) -> list[tuple[int, int]]:
    """First and last lines of annotations and decorators."""
    nodes: list[Any] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            nodes += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            nodes += node.decorator_list
    return [(node.lineno, node.end_lineno) for node in nodes if node is not None]


SAME_FOR_MASKS = ("BitOr_Add", "BitAnd_Mul")


def sample(session: Path, source: str, number: int, seed: int) -> int:
    """Keep a random sample of a session's mutants; returns how many there were."""
    from cosmic_ray.work_db import WorkDB, use_db

    spans = annotations(source)
    with use_db(str(session), WorkDB.Mode.open) as db:
        items = [
            item
            for item in db.work_items
            if not any(a <= item.mutations[0].start_pos[0] <= b for a, b in spans)
            and not item.mutations[0].operator_name.endswith(SAME_FOR_MASKS)
        ]
        chosen = random.Random(seed).sample(sorted(items, key=str), min(number, len(items)))
        db.clear()
        db.add_work_items(chosen)
    return len(items)


def results(session: Path) -> tuple[int, list[str]]:
    """How many mutants were killed, and the survivors as differences."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import TestOutcome

    killed, survivors = 0, []
    with use_db(str(session), WorkDB.Mode.open) as db:
        for _, result in db.completed_work_items:
            if result.test_outcome is TestOutcome.SURVIVED:
                survivors.append(str(result.diff))
            else:
                killed += 1
    return killed, survivors


def mutate(copy: Path, module: str, tests: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Mutants of one module."""
    source = (copy / module).read_text()
    config, session = copy / "mutation.toml", copy / "mutation.sqlite"
    session.unlink(missing_ok=True)
    facts = {"module": module, "tests": tests, "timeout": asked.timeout, "python": sys.executable}
    config.write_text(CONFIG.format(**facts))
    command(copy, "init", config, session)
    of = sample(session, source, asked.each, asked.seed)
    command(copy, "exec", config, session)
    killed, survivors = results(session)
    return {"of": of, "tried": killed + len(survivors), "killed": killed, "survivors": survivors}


def command(copy: Path, verb: str, *files: Path) -> None:
    """One of cosmic-ray's commands, in the copy."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(copy), *sys.path[1:]])}
    # What a mutant computes is seen nowhere else.
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(copy / "cache")}
    work = [sys.executable, "-m", "cosmic_ray.cli", verb, *map(str, files)]
    subprocess.run(work, cwd=copy, env=environment, check=True, stdout=subprocess.DEVNULL)


def main(words: Sequence[str] | None = None) -> int:
    """Run it as the command line says; 1 if less than 80 % of the mutants are killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=5, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600.0, help="s for the tests of a mutant")
    parser.add_argument("--only", help="modules whose path has this in it")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(words)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
        for name in files.stdout.decode().splitlines():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        for module, tests in cases().items():
            if asked.only and asked.only not in module:
                continue
            began = time.monotonic()
            found[module] = mutate(copy, module, tests, asked)
            row = found[module]
            seconds = time.monotonic() - began
            print(f"{module}: {row['killed']} of {row['tried']} in {seconds:.0f} s", flush=True)
            if asked.out:
                asked.out.write_text(json.dumps(found, indent=1) + "\n")
    killed, tried = (sum(row[name] for row in found.values()) for name in ("killed", "tried"))
    print(f"{killed} of {tried} mutants killed")
    return int(killed < 0.8 * tried)


if __name__ == "__main__":
    sys.exit(main())
