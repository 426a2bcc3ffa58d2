"""The command line's answers to mistakes: one sentence on stderr, the right exit code, never a traceback."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dslide
from dslide.checkpoint.saved_model import model_folder
from dslide.cli import COMMANDS, main
from dslide.config import RENAMED
from dslide.errors import ConfigError

COMMAND = [sys.executable, "-m", "dslide.cli"]
SMALL = ["--hidden", "8", "--epochs", "1", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a run trained on it."""
    folder = tmp_path_factory.mktemp("cli")
    size = ["--rows", "60", "--test-rows", "20", "--features", "200", "--labels", "30"]
    assert main(["synth", str(folder / "s"), *size]) == 0
    assert main(["train", str(folder / "s/train.txt"), "--out", str(folder / "run"), *SMALL]) == 0
    return folder


def refused(capfd: pytest.CaptureFixture[str], *arguments: object, code: int = 2) -> str:
    """Runs a command that must fail; gives its one sentence."""
    capfd.readouterr()
    assert main([str(a) for a in arguments]) == code
    errors = capfd.readouterr().err
    assert errors.startswith("dslide: error: ")
    assert errors.count("\n") == 1
    return errors.removeprefix("dslide: error: ").rstrip("\n")


def test_unknown_commands_and_options_get_the_nearest_name(capfd: pytest.CaptureFixture[str]) -> None:
    assert refused(capfd, "trian") == "there is no command 'trian'; did you mean 'train'?"
    assert refused(capfd, "train", "x", "--epocs", "3") == "there is no option --epocs; did you mean --epochs?"
    assert refused(capfd, "train", "x", "--epoch=3") == "there is no option --epoch; did you mean --epochs?"
    assert refused(capfd, "train", "x", "--no-corection").endswith("did you mean --no-correction?")
    assert refused(capfd, "predict", "x", "y", "--aproximate").endswith("did you mean --approximate?")
    assert refused(capfd, "train", "x", "y") == "unexpected argument 'y'; see dslide train --help"
    assert refused(capfd, "--verbose").startswith("there is no option --verbose")


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_option_under_its_old_name_is_refused_with_the_new_one(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str
) -> None:
    flag, new_flag = (f"--{name.replace('_', '-')}" for name in (old, new))
    sentence = f"there is no option {flag}: it is called {new_flag} now"
    assert refused(capfd, "train", "x", flag, "3") == sentence
    assert refused(capfd, "train", f"{flag}=3", "x") == sentence
    assert refused(capfd, "plan", "x", flag, "3") == sentence
    assert refused(capfd, "predict", "x", "y", flag, "3").startswith(f"there is no option {flag}; ")
    (tmp_path / "o.toml").write_text(f"{old} = 3\n")
    message = refused(capfd, "train", "x", "--config", tmp_path / "o.toml")
    assert message == f"{tmp_path / 'o.toml'}: there is no option '{old}': it is called '{new}' now"
    with pytest.raises(ConfigError, match=f"there is no option '{old}': it is called '{new}' now"):
        dslide.train("x", **{old: 3})
    with pytest.raises(ConfigError, match=f"there is no option '{old}': it is called '{new}' now"):
        dslide.train("x", {old: 3})


def test_missing_arguments_and_bad_values_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert refused(capfd, "train") == "the following arguments are required: DATA; see dslide train --help"
    assert refused(capfd, "train", "x", "--epochs", "few").startswith(
        "argument --epochs: expected a whole number, not 'few'"
    )
    assert refused(capfd, "train", "x", "--epochs", "-1") == "epochs: expected a whole number, at least 0, not -1"
    assert "hidden" in refused(capfd, "train", "x", "--hidden", "8,x")
    assert refused(capfd, "train", "x", "--loss", "sofmax").endswith("did you mean 'softmax'?")
    assert "expected auto, 0 or 1, not '2'" in refused(capfd, "train", "x", "--base", "2")
    assert "from 1 to 10000 like 1,3,5, not '0'" in refused(capfd, "evaluate", "x", "y", "--k", "0")
    assert refused(capfd, "plan", "--labels", "5") == "without DATA, --features and --labels are needed"
    assert "expected a size like 8GB" in refused(capfd, "plan", "--labels", "5", "--features", "5", "--memory", "lots")


def test_without_a_command_there_is_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capfd.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_toml_mistakes_name_file_and_key(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def message(content: str) -> str:
        path = tmp_path / "c.toml"
        path.write_text(content)
        return refused(capfd, "train", "x", "--config", path).replace(str(path), "c.toml")

    assert message("epocs = 3") == "c.toml: there is no option 'epocs'; did you mean 'epochs'?"
    assert message('resume = "x"').startswith("c.toml: there is no option 'resume'")
    assert message("epochs =").startswith("c.toml: not a TOML file")
    assert message('correction = "yes"') == "c.toml: correction: expected true or false, not 'yes'"
    assert message("epochs = true") == "c.toml: epochs: expected a value, not True"
    assert message("[network]\nhidden = 3").startswith("c.toml: there is no option 'network'")
    assert message("[hidden]\na = 3") == "c.toml: hidden: expected a value, not {'a': 3}"
    assert "epochs: expected a whole number, not 'few'" in message('epochs = "few"')
    assert "none.toml: can't be read" in refused(capfd, "train", "x", "--config", tmp_path / "none.toml")


@pytest.mark.parametrize("option", ["DATA", "--test"])
def test_files_that_are_not_data_are_named(
    capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path, option: str
) -> None:
    files = {
        "empty": b"",
        "header": b"3 x 5\n",
        "short": b"5 200 30\n1 2:3\n",
        "binary": b"\0\1\2\n",
        "word": b"1 x:1\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in (*files, "missing"):
        data = [tmp_path / name] if option == "DATA" else [made / "s/train.txt", "--test", tmp_path / name]
        assert str(tmp_path / name) in refused(capfd, "train", *data, "--out", tmp_path / "run", *SMALL)
        assert not (tmp_path / "run").exists()


def test_an_existing_output_folder_is_refused_before_data_is_read(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    message = refused(capfd, "train", tmp_path / "missing", "--out", tmp_path)
    assert message.startswith(f"{tmp_path}: exists already; give another --out")


def test_text_options_are_for_text(capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    message = refused(capfd, "train", made / "s/train.txt", "--min-df", "3", "--out", tmp_path / "run")
    assert message.startswith("min_df: ")
    assert "is not raw text" in message


def test_memory_that_can_not_suffice_is_refused_before_it_is_taken(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tiny.txt").write_text("0 0:1 1:1\n1 1:1\n")
    message = refused(capfd, "train", tmp_path / "tiny.txt", "--labels", "2000000000", "--out", tmp_path / "run")
    assert "needs about" in message
    assert "are available" in message
    assert not (tmp_path / "run").exists()


def test_memory_limits_of_the_process_count(made: Path, tmp_path: Path) -> None:
    limit = 4 * 10**9
    run = subprocess.run(
        [
            *COMMAND,
            "train",
            str(made / "s/train.txt"),
            "--out",
            str(tmp_path / "run"),
            "--hidden",
            "3000000",
        ],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("dslide: error: training a network with 200 features, hidden layers of 3000000")
    assert run.stderr.count("\n") == 1


def test_data_that_does_not_fit_the_model(capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.txt"
    wide.write_text("1 300 30\n1 299:1\n")
    for command in ("predict", "evaluate"):
        message = refused(capfd, command, made / "run", wide)
        assert message == f"{wide}: has 300 features, but the model was trained with 200 features"


def test_folders_that_are_no_whole_model(capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    data = made / "s/test.txt"

    def broken(name: str) -> Path:
        shutil.copytree(model_folder(made / "run"), tmp_path / name)
        return tmp_path / name

    assert "there is no such model folder" in refused(capfd, "predict", tmp_path / "none", data)
    assert "not a complete model folder" in refused(capfd, "predict", made / "s", data)
    incomplete = broken("incomplete")
    (incomplete / "weights.safetensors").unlink()
    assert "weights.safetensors: can't be read" in refused(capfd, "predict", incomplete, data)
    damaged = broken("damaged")
    content = bytearray((damaged / "weights.safetensors").read_bytes())
    content[-1] ^= 255
    (damaged / "weights.safetensors").write_bytes(content)
    assert "weights.safetensors: damaged: its checksum" in refused(capfd, "evaluate", damaged, data)
    newer = broken("newer")
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps(manifest | {"format": 99, "dslide": "9.9"}))
    message = refused(capfd, "predict", newer, data)
    assert "manifest.json: the model has format 99 (written by dslide 9.9), this version of dslide reads" in message


def test_what_resuming_refuses(capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    train, run = made / "s/train.txt", made / "run"
    assert "all 1 epochs are done; give more epochs to resume" in refused(capfd, "train", train, "--resume", run)
    more = ["--resume", run, "--epochs", "2"]
    assert "--out can't be given" in refused(capfd, "train", train, *more, "--out", tmp_path / "x")
    message = refused(capfd, "train", train, *more, "--hidden", "16")
    assert (
        message
        == "hidden: the run was begun with (8,), and on resuming only epochs, patience, learning_rate, threads, wire, "
        "shares, micro_batches, watchdog, checkpoint_seconds and checkpoints_kept may change; "
        "to begin anew, give another folder as out"
    )
    assert "not the data that" in refused(capfd, "train", made / "s/test.txt", *more)
    assert "there is no such run" in refused(capfd, "train", train, "--resume", tmp_path / "none")
    without = "resume-existing: resumes the run in --out if there is one; give --out, without --resume"
    assert refused(capfd, "train", train, "--resume-existing").endswith(without)
    assert refused(capfd, "train", train, *more, "--resume-existing").endswith(without)


def test_a_full_disk_is_one_sentence_and_leaves_no_half_model(made: Path, tmp_path: Path) -> None:
    def train(limit: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *COMMAND,
                "train",
                str(made / "s/train.txt"),
                "--out",
                str(tmp_path / "run"),
                *SMALL,
                "--hidden",
                "128",
            ],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            capture_output=True,
            text=True,
            check=False,
        )

    failed = train(20_000)
    assert failed.stderr == (
        f"dslide: error: {tmp_path}/run/checkpoints/step-000000001: the checkpoint can't be written: File too large\n"
    )
    assert failed.returncode == 2
    assert sorted(p.name for p in (tmp_path / "run").rglob("*")) == ["checkpoints", "log.jsonl"]


def test_output_that_can_not_be_written_is_named(capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    target = tmp_path / "no/such/folder.txt"
    message = refused(capfd, "predict", made / "run", made / "s/test.txt", "--output", target)
    assert message == f"{target}: can't be written: No such file or directory"


def test_divergence_has_its_own_exit_code(capfd: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    options = [
        "--learning-rate",
        "1000",
        "--init-scale",
        "1000",
        "--optimizer",
        "sgd",
        "--schedule",
        "constant",
    ]
    many = ["--hidden", "8", "--epochs", "200", "--activation", "linear", "--quiet"]
    train = ["train", made / "s/train.txt", "--out", tmp_path / "run"]
    message = refused(capfd, *train, *many, *options, code=3)
    assert "step" in message
    assert message.endswith("there is no checkpoint yet")


def test_a_reader_who_has_seen_enough_is_no_error(made: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [*COMMAND, "predict", str(made / "run"), str(made / "s/test.txt")],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert run.stderr == b""
    assert run.returncode == 141


def test_the_program_itself_has_no_traceback_either() -> None:
    run = subprocess.run([*COMMAND, "train", "none"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "dslide: error: none: there is no such file\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_default(capfd: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    entries = capfd.readouterr().out.split("\n  --")[1:]
    exempt = ("config", "resume")
    for entry in entries:
        if not entry.startswith(exempt):
            assert "(default:" in " ".join(entry.split()), entry
