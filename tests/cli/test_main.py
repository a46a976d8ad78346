"""The commands as a user types them: each in a process of its own, on real proteins."""

import contextlib
import gzip
import subprocess
import sys

import numpy as np
import pytest
from sweeps import sweep

from proteinlm import __version__
from proteinlm.cli.main import COMMANDS, Command, main
from proteinlm.config import load_config, named_configs
from proteinlm.devices import processes
from proteinlm.errors import InputError, Interrupted
from proteinlm.training import planning
from proteinlm.training.flops import Work


def proteinlm(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "proteinlm.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("command", sweep(COMMANDS, ["ingest", "evaluate"]))
def test_each_command_has_a_page_of_help_with_an_example(command):
    done = proteinlm(command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"proteinlm {command}" in done.stdout


def test_help_and_version(capsys):
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["did you mean train"]),
        (["train"], ["name a config first", "quickstart_causal"]),
        (["train", "quickstart_casual"], ["did you mean quickstart_causal"]),
        (["train", "quickstart_causal"], ["--dataset", "--run"]),
        (["plan"], ["name a config first", "proteinlm plan CONFIG"]),
        (["plan", "quickstart_causal", "--scale", "huge"], ["full", "tiny"]),
        (["plan", "quickstart_causal", "--scale", "tiny", "--mesh.fsdp", "3"], ["mesh.fsdp 3", "devices"]),
        (["plan", "quickstart_causal", "--topology", ""], ["--topology is ''"]),
        (["plan", "quickstart_causal", "--fit", "--rows-per-device", "0"], ["--rows-per-device is 0"]),
        (["train", "quickstart_causal", "--optimizer.final-fraction", "inf", "--dry-run"], ["final_fraction is inf"]),
        (["train", "quickstart_causal", "--dataset", "nowhere", "--run", "x"], ["nowhere"]),
        (["train", "quickstart_causal", "--model.num-heads", "3", "--dry-run"], ["num_heads"]),
        (["train", "quickstart_causal", "--model.max-length", "100", "--dry-run"], ["batches.length is 256", "100"]),
        (["evaluate", "nowhere"], ["nowhere", "not the folder of a training run"]),
        (["analyze", "nowhere"], ["nowhere", "not the folder of a training run"]),
        (["report", "nowhere"], ["nowhere", "holds no training run"]),
        (["ingest", "nowhere.fasta", "--output", "out"], ["nowhere.fasta"]),
    ],
)
def test_what_the_user_can_mend_is_one_sentence_and_exit_code_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    text = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in text
    for word in words:
        assert word in text


def test_a_misspelt_override_gets_the_nearest_name(tmp_path):
    done = proteinlm("train", "quickstart_causal", "--model.num-layer", "3", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "--model.num-layers" in done.stderr + done.stdout


def test_dry_run_prints_the_plan_and_trains_nothing(tmp_path):
    done = proteinlm("train", "quickstart_causal", "--scale", "tiny", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("parameters", "8 x 64", "MiB", "memory of one step"):
        assert word in done.stdout
    assert not list(tmp_path.iterdir())


def test_plan_prints_what_was_asked_for(monkeypatch, capsys):
    """Options reach the planner: scale first, overrides on top, the search with what it tells on stderr."""
    asked = []

    def plan(config, topology, rows):
        asked.append((config, topology, rows))
        rows = rows or config.batches.batch_size
        return planning.Plan(
            num_parameters=7, device_kind="TPU v0", num_devices=2, shapes=[(2 * rows, 64)], rows=2 * rows, length=64,
            rows_per_device=rows, state_bytes=2**20, temporary_bytes=rows * 2**20 if rows < 8 else None,
            total_bytes=(rows + 1) * 2**20, limit_bytes=8 * 2**20, work=Work(), model_flops=0, xla_bytes=5.0,
            seconds=0.5, compile_seconds=3.0,
        )  # fmt: skip

    monkeypatch.setattr(planning, "plan", plan)
    assert main(["plan", "trembl_transformer_masked", "--scale=tiny", "--model.num-layers", "5", "--topology", "v0:2",
                 "--rows-per-device", "4"]) == 0  # fmt: skip
    (config, topology, rows) = asked.pop()
    assert (config.model.num_layers, config.model.embed_dim, config.objective.kind) == (5, 32, "masked")
    assert (topology, rows) == ("v0:2", 4)
    out = capsys.readouterr().out
    for words in ("2 x TPU v0", "8 x 64", "4 rows a device", "5.0 MiB of 8.0 MiB a device: fits", "1,024 tokens/s"):
        assert words in out

    assert main(["plan", "trembl_transformer_masked", "--fit"]) == 0
    assert asked[0][0] == load_config("trembl_transformer_masked")
    out, told = capsys.readouterr()
    assert "14 rows: 8 rows a device do not fit" in out
    assert "8 rows a device, 9.0 MiB: does not fit (3 s)" in told


@pytest.mark.parametrize("name", sweep(named_configs(), ["quickstart_causal", "trembl_linformer_masked"]))
def test_each_experiment_can_be_overridden(name, capsys):
    with pytest.raises(SystemExit) as left:
        main(["train", name, "--help"])
    assert left.value.code == 0
    assert "--model.num-layers" in capsys.readouterr().out


@pytest.mark.slow
def test_from_fasta_to_figures(tmp_path, sample_fasta):
    """The four commands of the README and the page about them."""

    def run(*arguments):
        done = proteinlm(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    fasta, families = sample_fasta
    out = run(
        "ingest", fasta, "--families", families, "--output", "data", "--valid", "0.1", "--test", "0.1", "--workers", "1"
    )
    for word in ("train", "ood", "median"):
        assert word in out.stdout
    small = [
        "--model.num-layers",
        "1",
        "--num-steps",
        "4",
        "--eval-every",
        "2",
        "--eval-examples",
        "8",
        "--checkpoint-every",
        "2",
    ]
    small += ["--model.embed-dim", "32", "--model.mlp-dim", "32"]
    for kind in ("causal", "masked"):
        run("train", f"quickstart_{kind}", "--dataset", "data", "--run", f"runs/{kind}", *small)
    again = run("train", "quickstart_causal", "--dataset", "data", "--run", "runs/causal", *small)
    assert "is finished" in again.stderr
    scores = run("evaluate", "runs/causal", "runs/masked")
    assert "empirical baseline" in scores.stdout
    run("analyze", "runs/causal", "--sequences", "10")
    run("analyze", "runs/masked", "--sequences", "0", "--protein", "P00974", "--output", "elsewhere")
    run("report", "runs")

    for name in (
        "attention.png",
        "attention.pdf",
        "attention.npz",
        "similarity.png",
        "similarity.npz",
        "similarity.json",
    ):
        assert (tmp_path / "runs/causal/analysis" / name).stat().st_size > 0
    assert {p.name for p in (tmp_path / "elsewhere").iterdir()} == {
        "analysis.json", "attention.html", "attention.npz",
        *(f"{stem}.{kind}" for stem in ("attention", "heads", "lines") for kind in ("png", "pdf")),
    }  # fmt: skip
    attention = np.load(tmp_path / "elsewhere" / "attention.npz")["attention"]
    assert attention.shape[-2:] == (100, 100)
    page = (tmp_path / "runs" / "report.md").read_text()
    assert "attention.png" in page
    assert "similarity.png" in page


def test_an_accession_or_file_that_is_not_there(tiny_runs, capsys):
    assert main(["analyze", str(tiny_runs["causal"]), "--protein", "Q99999", "--sequences", "0"]) == 2
    assert "Q99999 is neither a FASTA file nor an accession" in capsys.readouterr().err


def test_a_protein_longer_than_the_positions(tiny_runs, capsys, tmp_path):
    file = tmp_path / "long.fasta.gz"
    file.write_bytes(gzip.compress(b">long\n" + b"ACDEF" * 100 + b"\n", mtime=0))
    assert main(["analyze", str(tiny_runs["causal"]), "--protein", str(file), "--sequences", "0"]) == 2
    text = capsys.readouterr().err
    assert "500" in text or "501" in text
    assert "127" in text


def test_a_first_record_that_cannot_be_read_is_not_passed_over(tiny_runs, capsys, tmp_path):
    file = tmp_path / "two.fasta"
    file.write_text(">bad\nMKV1LLA\n>second\nMKVLLAAGH\n")
    assert main(["analyze", str(tiny_runs["causal"]), "--protein", str(file), "--sequences", "0"]) == 2
    assert "first record, bad" in capsys.readouterr().err


def test_paths_that_are_files_are_said(tiny_runs, tiny_dataset, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    run = ["train", "quickstart_causal", "--dataset", str(tiny_dataset), "--run"]
    for arguments in ([*run, str(tmp_path / "file")], [*run, str(tmp_path / "file" / "x")]):
        assert main(arguments) == 2
        assert "file" in capsys.readouterr().err
    assert main(["analyze", str(tiny_runs["causal"]), "--sequences", "5", "--split", "tset"]) == 2
    assert "no split 'tset'" in capsys.readouterr().err


def test_a_full_disk_is_one_sentence(capsys, monkeypatch):
    def full(_arguments):
        raise OSError(28, "No space left on device", "/data/x")

    monkeypatch.setitem(COMMANDS, "report", full)
    assert main(["report", "x"]) == 2
    assert "No space left on device: /data/x; make room" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["train", "quickstart_causal", "--dataset", "D", "--run", "r/a"], "r/a"),
        (["train", "quickstart_causal", "--run=r/a", "--dataset", "D"], "r/a"),
        (["ingest", "x.fasta", "--output", "there"], "there"),
        (["evaluate", "run", "--splits", "ood"], "run"),
        (["evaluate", "run", "--output"], "run"),
    ],
)
def test_a_full_disk_that_names_no_file_gets_the_folder_named(arguments, where, capsys, monkeypatch, tmp_path):
    def full(_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    monkeypatch.setitem(COMMANDS, arguments[0], full)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert f"No space left on device: while writing in {where}; make room" in error


def test_a_folder_that_cannot_be_made_is_one_sentence(tiny_dataset, capsys):
    run = ["train", "quickstart_causal", "--scale", "tiny", "--dataset", str(tiny_dataset), "--run", "/proc/x"]
    assert main(run) == 2
    assert "No such file or directory: /proc/x" in capsys.readouterr().err


def test_what_is_not_the_users_fault_keeps_its_traceback(monkeypatch):
    def wrong(_arguments):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setitem(COMMANDS, "report", wrong)
    with pytest.raises(ZeroDivisionError) as found:
        main(["report", "x"])
    assert any(entry.name == "wrong" for entry in found.traceback)


def test_one_of_several_processes_leaves_whatever_happens(monkeypatch, capsys):
    """The others are told by its connections, which the end of the process closes."""
    left = []
    monkeypatch.setattr(processes, "leave", lambda code, *, gone=False: left.append((code, gone)))
    gone = "process 1 is gone"
    monkeypatch.setattr(processes, "who_is_gone", lambda error: gone if "Gloo" in str(error) else None)
    for error, code, is_gone, words in (
        (InputError("no dataset"), 2, False, "proteinlm report: no dataset"),
        (RuntimeError("Gloo"), 1, True, f"proteinlm report: {gone}"),
        (KeyboardInterrupt(), 130, False, "proteinlm report: interrupted."),
        (KeyError("a bug"), 1, False, "Traceback"),
    ):

        def command(_arguments, error=error):
            raise error

        monkeypatch.setitem(COMMANDS, "report", command)
        with contextlib.suppress(KeyError):
            main(["report"])
        assert left.pop() == (code, is_gone)
        assert words in capsys.readouterr().err
    # All leave at the same step, and end as they always do.
    order = Interrupted(3, 15)

    def interrupted(_arguments):
        raise order

    monkeypatch.setitem(COMMANDS, "report", interrupted)
    assert main(["report"]) == 143
    assert not left


def test_ctrl_c_is_no_traceback(capsys, monkeypatch):
    def interrupted(_arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "report", interrupted)
    assert main(["report", "x"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_command_is_a_function_and_a_line(monkeypatch, capsys, tiny_runs):
    """CONTRIBUTING's checklist for a command that needs a trained model, in miniature."""

    def alphabet(arguments):
        from proteinlm.runs.loading import load_run

        run = load_run(arguments[0])
        print(run.name, *run.alphabet.TOKENS)

    monkeypatch.setitem(COMMANDS, "alphabet", Command(alphabet, "a trained run -> its tokens"))
    assert main(["alphabet", str(tiny_runs["causal"])]) == 0
    assert capsys.readouterr().out.startswith("causal <pad> <bos>")
    assert main(["--help"]) == 0
    assert "alphabet   a trained run -> its tokens" in capsys.readouterr().out
    assert main(["alphabet", "nowhere"]) == 2
    assert "proteinlm alphabet: nowhere" in capsys.readouterr().err
