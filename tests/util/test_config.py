"""Options: every bad value is refused by name, unknown names get a hint, TOML errors name the file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslide.config import RENAMED, Config, check_name, load_toml
from dslide.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", -1, "epochs: expected a whole number, at least 0, not -1"),
        ("epochs", 1.5, "epochs: expected a whole number, not 1.5"),
        ("epochs", "many", "epochs: expected a whole number, not 'many'"),
        ("epochs", True, "epochs: expected a whole number, not True"),
        ("epochs", None, "epochs: expected a whole number, not None"),
        ("epochs", float("inf"), "epochs: expected a whole number, not inf"),
        ("batch_size", 2**20 + 1, "batch_size: expected a whole number, 0 to"),
        ("learning_rate", float("nan"), "learning_rate: expected a number, 0 to 1000, not nan"),
        ("learning_rate", -1, "learning_rate: expected a number, 0 to 1000, not -1"),
        ("dropout_input", 1.0, "dropout_input: expected a number, 0 to 0.99, or -1, not 1.0"),
        ("dropout_input", -0.5, "dropout_input: expected a number, 0 to 0.99, or -1, not -0.5"),
        ("hash_hits", -2, "hash_hits: expected a whole number, at least 0, or -1, not -2"),
        ("hidden", (128, 0), "hidden: expected a whole number, 1 to"),
        ("hidden", "128", "hidden: expected a list of numbers, not '128'"),
        ("hidden_share", (0.5, 0.5), "hidden_share: 2 values given for 1 hidden layers"),
        ("hidden_share", (0.0,), "hidden_share: every share must be above 0"),
        ("correction", "yes", "correction: expected true or false, not 'yes'"),
        ("correction", 1, "correction: expected true or false, not 1"),
        ("loss", "softmx", "loss: expected one of auto, softmax, sigmoid, not 'softmx'; did you mean 'softmax'?"),
        ("optimizer", 5, "optimizer: expected one of adam, sgd, adagrad, not 5"),
    ],
)
def test_bad_values_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_values_get_their_declared_type() -> None:
    config = Config(hidden=64, hidden_share=[1], learning_rate=1, epochs=3.0)  # type: ignore[arg-type]
    assert (config.hidden, config.hidden_share, config.learning_rate) == ((64,), (1.0,), 1.0)
    assert type(config.epochs) is int


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("epoch", "epochs"), ("learning-rate", "learning_rate"), ("bucketsize", "bucket_size")],
)
def test_unknown_names_get_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no option {wrong!r}; did you mean {right!r}"):
        Config().replace(**{wrong: 1})


def test_far_names_get_no_hint() -> None:
    with pytest.raises(ConfigError, match=r"^there is no option 'qqqqqqq'$"):
        Config().replace(qqqqqqq=1)
    with pytest.raises(ConfigError, match=r"^there is no command 'trein'; did you mean 'train'\?$"):
        check_name("trein", ["train", "predict"], "command")


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_names_are_refused_with_the_new_one(old: str, new: str) -> None:
    with pytest.raises(ConfigError, match=f"^there is no option '{old}': it is called '{new}' now$"):
        Config().replace(**{old: 1})
    Config().replace(**{new: 1})


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "hidden": st.lists(st.integers(1, 99), min_size=1, max_size=3).map(tuple),
            "loss": st.sampled_from(["softmax", "sigmoid"]),
            "correction": st.booleans(),
            "epochs": st.integers(1, 10**9),
            "seed": st.integers(0, 2**53),
            "learning_rate": st.floats(0, 1000),
            "warmup": st.floats(0, 1),
        },
    )
)
def test_roundtrip(options: dict[str, Any]) -> None:
    config = Config(**options)
    assert Config.from_dict(config.to_dict()) == config
    for name, value in options.items():
        assert getattr(config, name) == value


def test_every_option_has_help() -> None:
    for field in dataclasses.fields(Config):
        assert len(field.metadata["help"]) > 10, field.name


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('hidden = [128, 64]\nloss = "sigmoid"\ncorrection = false\n')
    assert Config(**load_toml(path)) == Config(hidden=(128, 64), loss="sigmoid", correction=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epochs = ", "not a TOML file"),
        (b"epochs = 1\nepochs = 2\n", "not a TOML file"),
        (b"\xff\xfe", "not a TOML file"),
    ],
)
def test_toml_errors_name_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"bad\.toml: {message}"):
        load_toml(path)
    with pytest.raises(ConfigError, match=r"none\.toml: can't be read: No such file"):
        load_toml(tmp_path / "none.toml")
