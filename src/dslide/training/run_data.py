"""The data of a run: read, divided into rows to train on, to validate on and to test on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dslide.checkpoint.saved_model import SavedModel
from dslide.config import Config
from dslide.data import Data, Dataset
from dslide.errors import DataError
from dslide.model.defaults import resolve
from dslide.training.early_stopping import hold_out_rows
from dslide.training.evaluation import EvaluationOptions
from dslide.training.growth import Earlier, GrowingData, growing_data, grown_config, rows_to_pass
from dslide.training.item_growth import growing_items
from dslide.training.reading import (
    Reading,
    Source,
    known_columns,
    read_growth,
    read_item_growth,
    read_replay,
    read_test_data,
    read_token_growth,
    read_training_data,
)
from dslide.training.run import resumed_config
from dslide.training.token_growth import growing_tokens


def read_run_data(
    source: Source, reading: Reading, testing: EvaluationOptions, config: Config, saved: SavedModel | None
) -> tuple[Data, Data | None]:
    """The data to train and validate on, and to test on."""
    data: Data = read_training_data(source, reading, saved)
    test: Data | None = None
    if testing.split != "random":
        if not isinstance(data, Dataset) or data.users is None:
            raise DataError(f"{_name(source, data)}: split = {testing.split} is only for interactions")
        data, test = data.split(testing.hold_out or 0.0, config.seed, testing.split)
    elif testing.hold_out is not None:
        data, test = data.split(testing.hold_out, config.seed)
    if data.features == 0 or data.labels == 0:
        missing = "labels" if data.features else "features"
        where = "; y gives the file of labels" if data.dense_features == data.features > 0 else ""
        raise DataError(f"{_name(source, data)}: there are no {missing} in it{where}")
    if testing.test is not None and data.users is None:
        test = read_test_data(testing.test, data, reading)
    return data, test


def divided_data(
    source: Source, data: Data, test: Data | None, reading: Reading, testing: EvaluationOptions, config: Config,
    saved: SavedModel | None, folder: Path, validation: Dataset | None, ranks: int,
) -> tuple[Config, Data, Dataset | None, Data | None]:  # fmt: skip
    """The options, of which none is left open, and the data to train on, to validate on and to test on."""
    if saved is None:
        config = resolve(config, data.labels, data, ranks)
    if validation is None:
        data, validation = hold_out_rows(data, config.validation, config.seed)
    check_same(source, data, saved, folder)
    if testing.test is not None and data.users is not None:  # their histories are what is trained on
        test = read_test_data(testing.test, data, reading)
    return config, data, validation, test


def grown_data(
    source: Source, replay: Source | None, reading: Reading, testing: EvaluationOptions, given: Mapping[str, Any],
    base: SavedModel | None, saved: SavedModel | None, name: str | Path | None,
) -> tuple[Config, GrowingData, Data | None]:  # fmt: skip
    """The options, the data and the test data of a network that grows, or of a run in the midst of that."""
    test: Data | None = None
    model = saved or base
    assert model is not None
    if model.interactions:
        return _grown_items(source, replay, reading, testing, given, model, saved is not None)
    if model.tokens is not None:
        return _grown_tokens(source, replay, reading, testing, given, model, saved is not None)
    if saved is not None:
        new = known_columns(read_training_data(source, reading, saved), saved)
        config, earlier, model = (
            resumed_config(given, Path(), saved, may_be_done=True),
            Earlier.of_resumed(saved),
            saved,
        )
    else:
        assert base is not None
        new, earlier, model = read_growth(source, reading, base, name), Earlier.of(base), base
    assert earlier is not None
    rows = new
    if testing.hold_out is not None:
        rows, test = new.split(testing.hold_out, model.config.seed)
    old = None if replay is None else read_replay(replay, reading, model, new)
    if saved is None:
        passed = len(rows) if old is None else rows_to_pass(rows, model)
        config = grown_config(given, model, rows, passed, old is not None)
    growing = growing_data(rows, old, config, earlier, model, counted=saved is not None)
    if testing.test is not None:
        test = read_test_data(testing.test, new, reading)
    return config, growing, test


def _grown_items(
    source: Source, replay: Source | None, reading: Reading, testing: EvaluationOptions, given: Mapping[str, Any],
    model: SavedModel, resumed: bool,
) -> tuple[Config, GrowingData, Data | None]:  # fmt: skip
    """As `grown_data`, of interactions. `model`: to go on from, or to resume."""
    new, old = read_item_growth(source, replay, reading, model)
    earlier = Earlier.of_resumed(model) if resumed else Earlier.of(model)
    assert earlier is not None
    if resumed:
        config: Config = resumed_config(given, Path(), model, may_be_done=True)
    else:
        config = grown_config(given, model, new, len(old), replayed=True)
    growing = growing_items(new, old, config, earlier, model)
    return config, growing, None if testing.test is None else read_test_data(testing.test, growing.train, reading)


def _grown_tokens(
    source: Source, replay: Source | None, reading: Reading, testing: EvaluationOptions, given: Mapping[str, Any],
    model: SavedModel, resumed: bool,
) -> tuple[Config, GrowingData, Data | None]:  # fmt: skip
    """As `grown_data`, of running text. `model`: to go on from, or to resume."""
    new, old = read_token_growth(source, replay, reading, model, resumed)
    earlier = Earlier.of_resumed(model) if resumed else Earlier.of(model)
    assert earlier is not None
    if resumed:
        config: Config = resumed_config(given, Path(), model, may_be_done=True)
    else:
        config = grown_config(given, model, new, new.rows_per_epoch, replayed=True)
    growing = growing_tokens(new, old, config, earlier, model, counted=resumed)
    return config, growing, None if testing.test is None else read_test_data(testing.test, growing.train, reading)


def check_same(source: Source, data: Data, saved: SavedModel | None, folder: Path) -> None:
    """DataError if a run to resume was trained on other data."""
    if saved is not None and data.checksum != saved.progress.get("data"):
        raise DataError(
            f"{_name(source, data)}: not the data that {folder} was trained on; to go on with other data: "
            f"--from {folder} (in Python, start_from)"
        )


def _name(source: Source, data: Data) -> str | Path:
    return source if isinstance(source, (str, Path)) else data.source or "the data"
