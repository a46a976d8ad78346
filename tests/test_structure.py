"""The layout is the explanation of the system: what may stand where is checked here; layers by import-linter."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for folder in ("proteinlm", "configs", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_holds_one_idea(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    assert path.name not in ("utils.py", "helpers.py", "common.py", "misc.py")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda p: p.stem)
def test_configs_import_the_config_alone(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            pytest.fail(f"{path.name} imports {node.names[0].name}")
        if isinstance(node, ast.ImportFrom):
            assert node.module == "proteinlm.config"


# Phases of the ingest have no meaning alone; their tests run through it.
TESTED_ELSEWHERE = {
    f"data/ingest/{name}.py": "data/ingest/test_ingest.py"
    for name in ("config", "source_accounts", "local", "steps", "workers", "summary")
} | {
    "cli/analyze_options.py": "cli/test_analyze.py",
    "output/console.py": "cli/test_main.py",
    "data/ingest/split_decisions.py": "data/splits/test_by_identity.py",
    "data/ingest/beam_steps.py": "data/ingest/test_beam.py",
    "data/families/table_counts.py": "data/families/test_table_join.py",
    "data/dataset/shard_plan.py": "data/ingest/test_ingest.py",
    "data/sources/digests.py": "data/splits/test_rules.py",
    "models/layout.py": "devices/test_sharding.py",
    "models/attention/linear/state.py": "models/attention/linear/test_linear_attention.py",
    "models/attention/identity.py": "models/attention/test_mechanisms.py",
    "models/attention/exact/buckets.py": "models/attention/test_reformer.py",
}


def test_each_module_has_its_tests():
    for path in sorted((ROOT / "proteinlm").rglob("*.py")):
        relative = path.relative_to(ROOT / "proteinlm")
        if path.name not in ("__init__.py", "errors.py"):
            test = TESTED_ELSEWHERE.get(relative.as_posix(), relative.parent / f"test_{path.name}")
            assert (ROOT / "tests" / test).is_file(), f"{relative} has no tests/{test}"


def test_import_contracts_hold():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_notebooks_are_committed_without_outputs():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), path.name
