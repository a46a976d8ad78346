"""The layout is the explanation of the system: what may stand where is checked here; layers by import-linter."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for folder in ("proteinlm", "configs", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_holds_one_idea(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    assert path.name not in ("utils.py", "helpers.py", "common.py", "misc.py")


def test_a_folder_can_be_taken_in_at_a_glance():
    for folder in {path.parent for path in (ROOT / "proteinlm").rglob("*.py")}:
        entries = {path.name for path in folder.iterdir()} - {"__init__.py", "__main__.py", "__pycache__", "py.typed"}
        assert len(entries) <= 13, f"{folder.relative_to(ROOT)} has {len(entries)} entries"


# The packages that `pip install proteinlm` brings, by the names under which they are imported.
INSTALLED = {
    "jax", "flax", "optax", "orbax", "grain", "tensorflow_datasets", "array_record", "google", "Bio", "numpy", "scipy",
    "pandas", "pyarrow", "matplotlib", "tyro", "rich", "isal", "backports", "fsspec", "jaxtyping", "lazy_loader",
}  # fmt: skip
# What matplotlib and tyro bring, and Python from 3.14 on.
BROUGHT = {"cycler", "docstring_parser", "compression"}
# They derive from Beam's classes; nothing imports them but a function of the ingest, where --engine beam is chosen.
ON_BEAM = ("proteinlm.data.ingest.beam", "proteinlm.data.ingest.beam_steps")


def imported_at_the_top(node):
    """Yield (module, line) of the imports that run when a module is imported: all but those in functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.module, child.lineno
            yield from ((f"{child.module}.{alias.name}", child.lineno) for alias in child.names)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported_at_the_top(child)


@pytest.mark.parametrize("path", sorted((ROOT / "proteinlm").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_extras_are_imported_where_they_are_used(path):
    """The packages of `pip install 'proteinlm[pfam]'` and its like are imported inside functions alone."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    allowed = INSTALLED | BROUGHT | sys.stdlib_module_names | {"proteinlm"}
    if name in ON_BEAM:
        allowed |= {"apache_beam"}
    for module, line in imported_at_the_top(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        assert module.partition(".")[0] in allowed, f"{where}, which a plain installation does not have"
        assert name in ON_BEAM or module not in ON_BEAM, f"{where}, which needs Beam"


def test_the_packages_of_a_plain_installation_are_those_of_pyproject():
    with open(ROOT / "pyproject.toml", "rb") as file:
        declared = tomllib.load(file)["project"]["dependencies"]
    names = {re.match(r"[\w.-]+", line)[0].partition(".")[0].partition("-")[0] for line in declared}
    renamed = {
        "protobuf": "google",
        "biopython": "Bio",
        "tensorflow": "tensorflow_datasets",
        "array": "array_record",
        "lazy": "lazy_loader",
    }
    assert {renamed.get(name, name) for name in names} == INSTALLED


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
    for name in ("config", "source_counts", "local", "steps", "results")
} | {
    "cli/analyze_options.py": "cli/test_analyze.py",
    "cli/analyze.py": "cli/test_analyze.py",
    "cli/options.py": "cli/test_main.py",
    "cli/ingest.py": "cli/test_main.py",
    "cli/train.py": "cli/test_main.py",
    "cli/plan.py": "cli/test_main.py",
    "cli/report.py": "cli/test_main.py",
    "cli/python_api.py": "test_api.py",
    "output/console.py": "cli/test_main.py",
    "output/version.py": "test_api.py",
    "data/ingest/split_decisions.py": "data/splits/test_by_identity.py",
    "data/ingest/beam_steps.py": "data/ingest/test_beam.py",
    "data/families/table_counts.py": "data/families/test_table_join.py",
    "data/dataset/shard_plan.py": "data/ingest/test_ingest.py",
    "models/sharding_hooks.py": "devices/test_sharding.py",
    "models/attention/linear/state.py": "models/attention/linear/test_linear_attention.py",
    "models/attention/identity.py": "models/attention/test_mechanisms.py",
    "models/attention/exact/hash_buckets.py": "models/attention/test_reformer.py",
}


def test_each_module_has_its_tests():
    for path in sorted((ROOT / "proteinlm").rglob("*.py")):
        relative = path.relative_to(ROOT / "proteinlm")
        if path.name not in ("__init__.py", "__main__.py", "errors.py"):
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
