"""Training that goes on from a saved model with new rows, which may have new labels and features (model/growth.py).

New rows alone may make a network forget. So rows of the earlier data, if they are given, are trained on again, as many
as replay.py says, drawn at random. Those that the earlier training held out are held out again, if it was of the same
data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dslide.checkpoint.saved_model import SavedModel
from dslide.config import Config
from dslide.data import Data, Dataset, Tokens
from dslide.data.dataset import smoothed_frequencies
from dslide.errors import ConfigError, DataError, ModelError
from dslide.model.defaults import ResolvedConfig, resolve, resolve_like
from dslide.training.early_stopping import hold_out_rows
from dslide.training.evaluation import EvaluationOptions
from dslide.training.replay import fade, replayed_rows, share_of_new
from dslide.training.trainer import Trainer

STEPS = 20  # that are made at least
# Options that shape the network, its optimizer's state and its label prior, and so can't change.
SHAPE = (
    "hidden", "hidden_share", "activation", "loss", "optimizer", "weights", "moments", "active_sets", "prior_labels",
    "prior_power", "unit_length", "temperature", "output_bias",
)  # fmt: skip
REPLAY_STREAM = 0x7265706C  # random stream of the choice of rows


@dataclass(frozen=True)
class Earlier:
    """What is known of the data that a model was trained on before."""

    data: str  # its checksum
    validation: float  # share of its rows that was held out
    seed: int

    @classmethod
    def of(cls, base: SavedModel) -> Earlier:
        """That of a model to go on from."""
        return cls(str(base.progress.get("data", "")), base.config.validation, base.config.seed)

    @classmethod
    def of_resumed(cls, saved: SavedModel) -> Earlier | None:
        """That of a run to resume which went on from a model; None for other runs. ModelError if it is damaged."""
        about = saved.progress.get("earlier")
        if about is None:
            return None
        types = {field.name: field.type for field in dataclasses.fields(cls)}
        if not isinstance(about, dict) or {name: type(about[name]).__name__ for name in about} != types:
            raise ModelError(f"damaged model: the progress of its training has earlier: {about!r:.80}")
        return cls(**about)

    def saved(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class GrowingData:
    """What a network that grows is trained on."""

    train: Data  # new rows and replayed ones
    new: Data  # the new rows of these
    validation: Dataset | None
    label_counts: npt.NDArray[np.int64]  # in all rows, earlier ones and new ones
    rows: int
    earlier: Earlier
    given: int | None = None  # rows to replay some of; None: all or none are

    def in_words(self) -> str | None:
        """How many of the earlier rows are replayed, if that was decided."""
        if self.given is None:
            return None
        labels, rows, data = ("words", "words", "text") if isinstance(self.new, Tokens) else ("labels", "rows", "rows")
        of_new = share_of_new(self.new.label_counts, self.label_counts, len(self.new), self.rows)
        share = f"{of_new:.0%} are new or mostly in new {data}"
        again = f"{len(self.train) - len(self.new):,} of {self.given:,} earlier {rows} are trained on again"
        return f"{again}: of the {labels} of the new {data} {share}"

    @property
    def forgets(self) -> bool:
        """Whether earlier rows should be replayed, and none are."""
        about = self.new.label_counts, self.label_counts, len(self.new), self.rows
        return self.train is self.new and self.new.users is None and fade(*about)


def check_start(start_from: object, replay: object, resume: object, testing: EvaluationOptions, config: Config) -> None:
    """ConfigError for options that make no sense with a model to go on from, or without one."""
    if start_from is None:
        if replay is not None and resume is None:
            raise ConfigError("replay: is for training that goes on from a model, which from gives")
        return
    if resume is not None:
        raise ConfigError("from: a run that is resumed goes on from its own checkpoints; give one of the two")
    if testing.split != "random":
        raise ConfigError("split: has no use with a model that grows; give other interactions as test")
    if config.autotune:
        raise ConfigError("autotune: the options of a model that grows are its own")


def check_base(base: SavedModel, name: object, replayed: bool, testing: EvaluationOptions) -> None:
    """ModelError, or ConfigError, if training can't go on from a model with new rows."""
    if base.interactions and not replayed:
        what = f"{name} was trained on interactions, and needs the earlier ones of each user beside the new ones"
        raise ConfigError(f"from: {what}: give them as replay")
    if (base.interactions or base.tokens is not None) and testing.hold_out is not None:
        what = "interactions" if base.interactions else "text"
        raise ConfigError(f"hold_out: has no use with {what} of a model that grows; give other {what} as test")
    if base.label_counts is None or not base.progress:
        raise ConfigError(f"from: {name} was saved without what training needs to go on")


def grown_config(given: Mapping[str, Any], base: SavedModel, data: Data, rows: float, replayed: bool) -> ResolvedConfig:
    """The options of the model, with those that are given now. Held-out rows are decided by the new ones, `data`,
    passes by how many `rows` each is over."""
    before = resolve(base.config, base.labels)
    for name in SHAPE:
        if name in given and getattr(resolve_like(Config(**given), before), name) != getattr(before, name):
            raise ConfigError(f"{name}: the model has {getattr(before, name)!r}, and that can't change when it grows")
    options = before.to_dict() | {"epochs": 0, "autotune": 0.0, "start": "random"} | dict(given)
    if not replayed and "validation" not in given:
        options["validation"] = -1
    if options["epochs"] == 0:
        options["epochs"] = max(1, math.ceil(STEPS * (options["batch_size"] or before.batch_size) / max(1.0, rows)))
    return resolve(Config.from_dict(options), data.labels, data)


def growing_data(
    new: Dataset, replay: Dataset | None, config: Config, earlier: Earlier, base: SavedModel, counted: bool
) -> GrowingData:
    """New rows and a sample of earlier ones, without those that are held out. `base` is the model as it was saved;
    `counted`: after the new rows were counted."""
    if replay is not None and len(replay) == 0:
        raise DataError(f"{replay.source}: there are no rows to replay")
    rows, validation = _split(new, config.validation, config.seed)
    assert base.label_counts is not None
    counts, total = np.array(base.label_counts), base.rows
    if not counted:
        counts, total = rows.label_counts, base.rows + len(rows)
        counts[: base.labels] += base.label_counts
    train, given = rows, None
    if replay is not None:
        kept, held_out = _split(replay, earlier.validation, earlier.seed)
        if held_out is None or kept.checksum != earlier.data:
            kept, held_out = replay, None
        elif validation is not None:
            validation = validation.and_rows(_widened(held_out, new))
        given, random = len(kept), np.random.default_rng([config.seed, REPLAY_STREAM])
        chosen = random.permutation(given)[: replayed_rows(rows.label_counts, counts, len(rows), total)]
        train = rows.and_rows(_widened(kept.take(np.sort(chosen)), new))
    return GrowingData(train, rows, validation, counts, total, earlier, given)


def rows_to_pass(rows: Dataset, base: SavedModel) -> int:
    """About how many rows are trained on in a pass, if earlier ones may be replayed."""
    assert base.label_counts is not None
    counts = rows.label_counts
    counts[: base.labels] += base.label_counts
    return len(rows) + replayed_rows(rows.label_counts, counts, len(rows), base.rows + len(rows))


def _split(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset | None]:
    rows, held_out = hold_out_rows(data, share, seed) if 0 < round(share * len(data)) < len(data) else (data, None)
    assert isinstance(rows, Dataset)
    return rows, held_out


def _widened(data: Dataset, like: Dataset) -> Dataset:
    """The rows with as many columns as others have."""
    x, y = data.x.with_columns(like.features), data.y.with_columns(like.labels)
    return Dataset(x, y, like.label_names, like.feature_names, source=data.source)


def grow(trainer: Trainer, base: SavedModel, data: GrowingData, linear_cost: float) -> None:
    """Gives a new network what the model has learned, and what the counts of the new rows say. `linear_cost` is that of
    the model's linear classifiers."""
    network = trainer.network
    network.load_smaller(base.state, base.features, base.labels)
    new, frequencies = data.new, smoothed_frequencies(data.label_counts, data.rows)
    if isinstance(new, Tokens):
        frequencies = data.train.label_frequencies()  # frequent words count less
    network.set_new_bias(frequencies, base.labels)
    if isinstance(new, Dataset) and new.users is None:
        network.add_counts(new.x, new.y, frequencies, data.rows)
    else:
        network.set_negatives(frequencies)
    if isinstance(new, Dataset) and new.users is not None and network.prior is not None:
        network.set_label_prior(new.x, new.y, same=True)
    go_on(trainer, data, linear_cost)


def go_on(trainer: Trainer, data: GrowingData, linear_cost: float) -> None:
    """Lets the trainer of a network that has grown begin, or go on, where that stands."""
    trainer.counted = data.label_counts, data.rows
    if isinstance(data.new, Dataset) and data.new.users is None:
        trainer.network.kept_linear = 2 * data.new.label_counts < data.label_counts
        trainer.network.linear_cost = linear_cost
