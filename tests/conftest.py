"""What every test runs under: CPU, warnings as errors, no silent broadcasting, shapes in signatures checked."""

import os
import shutil
import signal
from pathlib import Path

from compiled_programs import cache_variables, write_whole

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
# Nearly all of the time goes into compiling small programs; what is tested is their result, not their speed. The newer
# code generator of XLA takes up to four times as long for them as the older one.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)

os.environ.update(cache_variables(Path(__file__).parents[1]))

# A shell that starts tests in the background lets them ignore Ctrl-C, and their children inherit that; what a program
# does on Ctrl-C is tested all the same.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
import jaxtyping
import pytest
from hypothesis import settings
from report_skips import (  # noqa: F401 (hooks of pytest)
    pytest_deselected,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from sample import sample_records
from shared_folders import made_once
from sweeps import pytest_collection_modifyitems  # noqa: F401 (a hook of pytest)

jaxtyping.install_import_hook(["proteinlm.models", "proteinlm.inference", "proteinlm.analysis"], "beartype.beartype")
write_whole()
jax.config.update("jax_numpy_rank_promotion", "raise")
# How long an example takes depends on what else this machine does.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the project, where there is one."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the real data of the authors: no package, a folder {folder}")
    return folder


def write_ingested(folder: Path, records, **splits) -> Path:
    """Ingest records (accession, sequence, families) into FOLDER/dataset."""
    from proteinlm.data.ingest.ingest import IngestConfig, ingest
    from proteinlm.data.splits.rules import SplitsConfig

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.fasta").write_text("".join(f">{name}\n{letters}\n" for name, letters, _ in records))
    (folder / "families.tsv").write_text("".join(f"{name}\t{families}\n" for name, _, families in records if families))
    tables = (folder / "families.tsv",) if any(families for *_, families in records) else ()
    config = IngestConfig(splits=SplitsConfig(**splits), families=tables, workers=1)
    ingest([folder / "in.fasta"], folder / "dataset", config)
    return folder / "dataset"


@pytest.fixture(scope="session")
def sample_fasta(tmp_path_factory) -> tuple[Path, Path]:
    """Some hundreds of real proteins as FASTA, and their families as a table; held-out ones and P00974 among them."""
    from proteinlm.data.families.ids import PAPER_HELD_OUT_FAMILIES

    def make(folder):
        records = sample_records()
        held_out = [r for r in records if not set(r[2].split(";")).isdisjoint(PAPER_HELD_OUT_FAMILIES)]
        chosen = {r[0]: r for r in [*records[:400], *held_out[:20], *(r for r in records if r[0] == "P00974")]}
        (folder / "proteins.fasta").write_text("".join(f">{name}\n{s}\n" for name, s, _ in chosen.values()))
        (folder / "families.tsv").write_text("".join(f"{name}\t{f}\n" for name, _, f in chosen.values() if f))

    folder = made_once(tmp_path_factory, "sample", make)
    return folder / "proteins.fasta", folder / "families.tsv"


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory, sample_fasta) -> Path:
    """A dataset of `sample_fasta` with all four splits."""
    from proteinlm.data.ingest.ingest import IngestConfig, ingest
    from proteinlm.data.splits.rules import SplitsConfig

    config = IngestConfig(splits=SplitsConfig(valid=0.1, test=0.1), families=(sample_fasta[1],), workers=1)
    made = made_once(tmp_path_factory, "tiny", lambda folder: ingest([sample_fasta[0]], folder / "dataset", config))
    return made / "dataset"


@pytest.fixture(scope="session")
def dataset_without_ood(tmp_path_factory) -> Path:
    """A dataset whose ood split is empty."""

    def make(folder):
        write_ingested(folder, sample_records()[:60], valid=0.1, test=0.2, held_out=())

    return made_once(tmp_path_factory, "no_ood", make) / "dataset"


@pytest.fixture(scope="session")
def make_dataset(tmp_path_factory):
    """Return a function that makes a dataset whose train split gives exactly so many batches an epoch."""
    from proteinlm.data.sources.digests import digest
    from proteinlm.data.splits.rules import SplitsConfig, split_of

    splits = {"valid": 0.2, "test": 0.0, "held_out": ()}

    def chosen(form, batches, batch_size, length):
        train = valid = 0
        for name, letters, _ in sample_records():
            is_train = split_of(digest(letters.encode()), (), SplitsConfig(**splits)) == "train"
            size = {"single": 1, "concat": len(letters) + 1, "isolated": min(len(letters) + 1, length)}[form]
            a_batch = batch_size * (1 if form == "single" else length)
            # What goes beyond the last full batch stays below one more.
            if is_train and train < batches * a_batch and train + size < (batches + 1) * a_batch:
                train += size
                yield name, letters, ""
            elif not is_train and valid < 6:
                valid += 1
                yield name, letters, ""

    def make(*, form: str, batches: int, batch_size: int, length: int) -> Path:
        def write(folder):
            write_ingested(folder, list(chosen(form, batches, batch_size, length)), **splits)

        return made_once(tmp_path_factory, f"{form}-{batches}-{batch_size}-{length}", write) / "dataset"

    return make


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory, tiny_dataset) -> dict[str, Path]:
    """Three very small trained runs: causal, masked and concat. All tests share them; none may write into them."""
    from proteinlm.config import (
        VOCAB_SIZE,
        BatchesConfig,
        Config,
        GeneralizedConfig,
        ModelConfig,
        ObjectiveConfig,
    )
    from proteinlm.training.train import train

    model = ModelConfig(
        vocab_size=VOCAB_SIZE, num_layers=2, num_heads=2, embed_dim=16, mlp_dim=32, max_length=128,
        attention=GeneralizedConfig(num_features=8),
    )  # fmt: skip
    padded = BatchesConfig(length=128, batch_size=8, buckets=(64, 128))
    chosen = {
        "causal": ("causal", padded), "masked": ("masked", padded),
        "concat": ("causal", BatchesConfig(form="concat", length=128, batch_size=8)),
    }  # fmt: skip

    def make(folder):
        for name, (kind, batches) in chosen.items():
            config = Config(
                model=model, objective=ObjectiveConfig(kind=kind), batches=batches, num_steps=4, eval_every=2,
                eval_examples=8, checkpoint_every=2, log_every=1,
            )  # fmt: skip
            train(config, tiny_dataset, folder / name)

    folder = made_once(tmp_path_factory, "trained", make)
    return {name: folder / name for name in chosen}


@pytest.fixture
def tiny_runs(tmp_path_factory, trained_runs) -> dict[str, Path]:
    """A test's own copy of `trained_runs` in one folder: evaluations and analyses write into a run's folder."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: shutil.copytree(run, folder / name) for name, run in trained_runs.items()}
