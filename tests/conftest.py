"""What every test runs under: CPU, warnings as errors, no silent broadcasting, shapes in signatures checked."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import jax
import jaxtyping
import pytest

jaxtyping.install_import_hook(["proteinlm.models", "proteinlm.analysis"], "beartype.beartype")
jax.config.update("jax_numpy_rank_promotion", "raise")

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the project, where there is one."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the shared data folder, absent here: {folder}")
    return folder
