"""Every option of a network and its training, in one frozen dataclass shared by CLI, estimator and saved models. Name,
type, default, range and help text of an option are defined here and nowhere else."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import os
import stat
import sys
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dslide.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


LARGEST = 2**31 - 1  # bound of integers without a smaller one
RENAMED = {  # old names of options, refused with the new one
    "links": "prior_labels", "link_power": "prior_power", "link_boost": "prior_boost", "link_scale": "prior_scale",
    "hits": "hash_hits", "draws": "random_negatives", "renew_every": "rebuild_every", "renew_growth": "rebuild_growth",
}  # fmt: skip


def option(default: Any, help: str, low: float = -math.inf, high: float = math.inf) -> Any:
    """A dataclass field with the help text and the range that the CLI and the checks use."""
    return dataclasses.field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True)
class Config:
    """How a network is built and trained."""

    # fmt: off
    # the network
    hidden: tuple[int, ...] = option((-1,), "neurons of each hidden layer, in order; none (an empty list): no hidden "
        "layer, features are straight before labels, which makes a linear classifier; -1: one layer of 256, or of as "
        "many as a discriminant has directions, at most 512", -1, 2**24)
    unit_length: Literal["none", "rows", "both"] = option("none", "without hidden layers: what is scaled to length 1; "
        "rows: rows of features; both: these and each label's weights, so that logits are cosines over the temperature")
    temperature: float = option(1.0, "without hidden layers: what products of rows and weights are divided by", 1e-6,
        1e6)
    output_bias: bool = option(True, "without hidden layers: whether labels have a bias; it begins at the log of their "
        "frequency")
    activation: Literal["auto", "relu", "linear"] = option("auto", "activation function of hidden layers; auto: linear "
        "with one hidden layer, relu with more")
    hidden_share: tuple[float, ...] = option((), "share of each hidden layer's neurons that are active for a row, in "
        "order; 1: dense, less: sampled through hashing; empty: all dense", 0, 1)
    loss: Literal["auto", "softmax", "sigmoid"] = option("auto", "softmax: cross-entropy with the row's labels as "
        "targets, in proportion to their weights; sigmoid: binary cross-entropy for every label; auto: sigmoid where "
        "rows of features have several labels, else softmax")
    prior_labels: int = option(-1, "label prior: labels that each feature scores directly, beside the hidden layers: "
        "those it tells most about in the training data; 0: no label prior; -1: chosen from the data. There is none "
        "for dense features and streams of words, with active_sets = row, and with sampled hidden layers", -1, 2**20)
    prior_power: float = option(-1.0, "label prior: power of a label's frequency that its counted weights are divided "
        "by, so that rare labels count as much as frequent ones; 0: not divided; -1: chosen from the data", -1, 2)
    prior_boost: float = option(-1.0, "label prior: factor on its logits in prediction, over that in training; -1: "
        "chosen from the data", -1, 1e6)
    prior_scale: float = option(-1.0, "label prior: factor on what its counted weights add to logits, with rows scaled "
        "to length 1; if the prior is trained, what the factors begin with; -1: chosen from the data", -1, 1e6)
    prior_learning_rate: float = option(-1.0, "label prior: size of a step of its trained weights for one row of "
        "length 1; follows the schedule of learning_rate; 0: the prior is counted only, not trained; -1: chosen from "
        "the data", -1, 1e3)
    linear_negatives: int = option(-1, "linear classifiers: rows of other labels that each is trained against: those "
        "for which the label is among so many that the label prior ranks highest; classifiers are trained at the end, "
        "and mixed into the network's logits if that ranks held-out rows better; 0: there are none; -1: chosen from "
        "the data", -1, 2**16)
    linear_items: int = option(-1, "linear classifiers of interactions: other items of the user that each item's has "
        "weights for; 0: there are none; -1: chosen from the data", -1, 2**12)
    neighbours: int = option(-1, "neighbours: training rows with hidden vectors like a row's, whose labels count in "
        "prediction, beside linear classifiers: how many; they are kept with the network at the end of training, and "
        "used if that ranks held-out rows better; 0: there are none; -1: chosen from the data", -1, 2**12)
    ranking: Literal["precision", "propensity"] = option("precision", "what labels are ranked by in prediction; "
        "precision: the chance that the row has them; propensity: that chance times what a label is worth, which is "
        "more the rarer it is, as PSP@k counts it")
    start: Literal["auto", "random", "discriminant"] = option("auto", "what the network starts from; random: random "
        "weights; discriminant: the linear discriminant of the training data, whose directions are the hidden layer "
        "and are not trained; for one linear hidden layer without a label prior; auto: discriminant for rows that have "
        "at least half of 16 to 4,096 features, else random")
    init_scale: float = option(1.0, "factor on the standard size of the initial weights; output weights beside a "
        "label prior that is trained begin at 0 unless they are hashed", 0, 1e3)

    # which output neurons are active
    output: Literal["auto", "full", "lsh", "cells", "random"] = option("auto", "active output neurons: full: all of "
        "them; random: the labels and random negatives; lsh: these and hash hits; cells: these and the best of the "
        "labels that rows with similar hidden vectors excite; all but full also have prior_hits; auto: full up to "
        "8,192 labels, else random with a label prior that is trained and cells without")
    active_sets: Literal["shared", "row"] = option("shared", "shared: one active set for the whole batch, the union "
        "over its rows; row: an active set for each row, as in the SLIDE papers")
    hash_hits: int = option(-1, "neurons that each row looks up, in hash tables or cells, for the active set of output "
        "neurons; -1: chosen from the number of labels", -1)
    prior_hits: int = option(-1, "labels that each row adds to the active set of output neurons because the label "
        "prior takes it for them; -1: chosen from the data", -1, 2**16)
    random_negatives: int = option(-1, "random negatives: output neurons sampled at random, for the batch's active set "
        "(shared) or each row's (row); -1: chosen from the number of labels", -1)
    negative_sampling: Literal["auto", "frequency", "uniform"] = option("auto", "how likely each label is to be among "
        "the random negatives; uniform: all alike; frequency: half of them in proportion to the rows that labels have, "
        "the others uniformly; auto: frequency, with active_sets = row uniform")
    correction: bool = option(True, "weight sampled neurons by the inverse of their sampling probability: an unbiased "
        "estimate of the full loss")

    # hashing
    family: Literal["auto", "simhash", "wta", "dwta", "minhash"] = option("auto", "family of hash functions; auto: "
        "simhash in training, the one with the best recall in prediction")
    hash_k: int = option(0, "hash values joined into one table address; 0: chosen from the layer's size", 0, 64)
    tables: int = option(0, "number of hash tables; 0: chosen from the layer's size", 0, 1024)
    table_bits: int = option(0, "log2 of the number of buckets in a table; 0: chosen from the layer's size", 0, 24)
    bucket_size: int = option(256, "most neurons a bucket keeps; 0: no bound", 0)
    bucket_policy: Literal["fifo", "reservoir"] = option("reservoir", "what a full bucket keeps: the newest neurons "
        "(fifo) or a random sample (reservoir)")
    probe: Literal["vanilla", "topk", "threshold"] = option("topk", "how hash hits are chosen: vanilla takes buckets "
        "in random order until there are enough, topk the neurons found in most tables, threshold those found in at "
        "least probe_threshold tables")
    probe_threshold: int = option(2, "tables that a neuron must be found in, with probe = threshold", 1)
    rebuild_every: int = option(50, "steps before hash tables are rebuilt for the first time", 1)
    rebuild_growth: float = option(1.3, "factor by which the interval between rebuilds grows", 1, 100)

    # the optimizer
    optimizer: Literal["adam", "sgd", "adagrad"] = option("adagrad", "update rule; only rows with gradients are "
        "updated")
    learning_rate: float = option(5e-2, "size of a step", 0, 1e3)
    schedule: Literal["auto", "constant", "linear", "cosine", "trapezoid"] = option("auto", "how the learning rate "
        "decays from its full value to zero over the run; trapezoid: it stays for a third of the run, then decays "
        "linearly; auto: trapezoid for rows of features, else linear")
    warmup: float = option(0.0, "share of all steps in which the learning rate rises from zero", 0, 1)
    beta1: float = option(0.9, "decay of Adam's mean of gradients", 0, 0.999999)
    beta2: float = option(0.999, "decay of Adam's mean of squared gradients", 0, 0.99999999)
    epsilon: float = option(1e-8, "added to the root of squared gradients in Adam and Adagrad", 0, 1)
    weight_decay: float = option(0.0, "share of a weight subtracted at each update of it, times the learning "
        "rate", 0, 1e3)
    dropout_input: float = option(-1.0, "share of input features left out at random in training; -1: chosen from the "
        "data", -1, 0.99)
    dropout_hidden: float = option(-1.0, "share of hidden activations left out at random in training; -1: chosen from "
        "the data", -1, 0.99)

    # how parameters are kept
    weights: Literal["float32", "bf16", "int8"] = option("float32", "type of weights in memory and in saved models; "
        "bf16 takes half the memory, and less time where memory bandwidth is the limit; 8 significant bits, rounded "
        "stochastically so that small steps count on average; int8: of exported models, for prediction only")
    moments: Literal["float32", "bf16"] = option("float32", "type of the moments of Adam and Adagrad; bf16 costs less "
        "accuracy here than in the weights")

    # how the output layer is computed
    products: Literal["float32", "bf16"] = option("float32", "type of the factors in the output layer's matrix "
        "products in training; bf16 rounds factors to 8 significant bits, sums stay float32: faster on CPUs with "
        "AVX512-BF16, slower on others; for softmax over shared active sets")

    # the run
    epochs: int = option(0, "most passes over the data; 0: 3 for rows of features that are not dense (2 if they have "
        "one label), else 4, or as many as make 200 steps of small data", 0)
    validation: float = option(-1.0, "share of the rows that is held out of training to tell which epoch was the best, "
        "whose network is kept; of interactions a fifth of the items of this share of the users; 0: none, all "
        "rows are trained on and the last network is kept; -1: chosen from the data, at most 0.05", -1, 0.5)
    patience: int = option(2, "epochs without a better result on the held-out rows after which training ends", 1)
    autotune: float = option(0.0, "seconds of trials before the training, in which networks with other options are "
        "compared on held-out rows; the training then has the best options; those that are given stay; 0: no "
        "trials", 0, 1e9)
    batch_size: int = option(0, "rows in a step; 0: 256, and with several ranks up to 256 for each, at most "
        "2,048, where that leaves 640 steps: for rows of features, with a trained label prior and Adagrad", 0, 2**20)
    seed: int = option(0, "seed of all random numbers", 0, 2**63 - 1)
    threads: int = option(0, "threads to compute with; 0: one per core, shared among the ranks of a machine", 0, 1024)
    checkpoint_seconds: float = option(300.0, "seconds between checkpoints during training; 0: only at its end", 0, 1e9)
    checkpoints_kept: int = option(2, "checkpoints that are kept, the newest ones", 1)

    # several ranks
    shares: tuple[int, ...] = option((), "share of the network that each rank has, in proportion, for machines that "
        "are not alike: 2,1 for two ranks of which the first is twice as fast; -1: in proportion to the speed of the "
        "ranks, measured for a few seconds at the start; none (an empty list): equal. Like the ranks it is no property "
        "of the network: a run is resumed with any", -1, 64)
    wire: Literal["float32", "bf16", "int8"] = option("bf16", "type of activations and their gradients in messages "
        "between ranks; int8 has a scale for each row")
    micro_batches: int = option(0, "parts of a batch, each a multiple of 128 rows; exchanging one overlaps with "
        "computing another; 0: 2", 0, 64)
    watchdog: float = option(60.0, "seconds without a heartbeat after which a rank is lost and the job "
        "ends", 0.1, 86400)
    # fmt: on

    def __post_init__(self) -> None:
        check_fields(self)
        if any(neurons < 1 for neurons in self.hidden) and self.hidden != (-1,):
            raise ConfigError(f"hidden: expected a whole number, 1 to {2**24:,}, not {min(self.hidden)}")
        layers = len(self.hidden)  # the default has one
        if self.hidden_share and len(self.hidden_share) != layers:
            raise ConfigError(f"hidden_share: {len(self.hidden_share)} values given for {layers} hidden layers")
        if any(share <= 0 for share in self.hidden_share):
            raise ConfigError("hidden_share: every share must be above 0")
        if any(share < 1 for share in self.shares) and self.shares != (-1,):
            raise ConfigError(f"shares: expected whole numbers, 1 to 64, not {', '.join(map(str, self.shares))}")
        if self.start == "discriminant":
            self._check_start(layers)
        if self.negative_sampling == "frequency" and self.active_sets == "row":
            raise ConfigError("negative_sampling = frequency is for active_sets = shared, not for active_sets = row")
        if self.output == "cells" and any(share < 1 for share in self.hidden_share[-1:]):
            raise ConfigError("output = cells is for a dense last hidden layer, not for hidden_share below 1 there")
        self._check_linear()
        unfit = {
            "loss": self.loss == "sigmoid",
            "active_sets": self.active_sets == "row",
            "hidden_share": any(share < 1 for share in self.hidden_share),
        }
        if self.products == "bf16" and any(unfit.values()):
            name = next(name for name in unfit if unfit[name])
            fit = "loss = softmax, active_sets = shared and dense hidden layers"
            raise ConfigError(f"products = bf16 is for {fit}, not for {name} = {getattr(self, name)}")

    def _check_linear(self) -> None:
        """Options of networks without hidden layers."""
        default = Config if self.hidden else self
        for name in ("unit_length", "temperature", "output_bias"):
            if getattr(self, name) != getattr(default, name):
                raise ConfigError(f"{name}: is for networks without hidden layers, hidden = none")
        if not self.hidden and self.prior_labels > 0:
            raise ConfigError("prior_labels: a network without hidden layers has no label prior")
        if self.unit_length == "both" and self.weights == "bf16":
            raise ConfigError("weights = bf16: weights of length 1 (unit_length = both) are trained as float32")

    def _check_start(self, layers: int) -> None:
        unfit = {
            "hidden": layers != 1,
            "activation": self.activation == "relu",
            "hidden_share": any(share < 1 for share in self.hidden_share),
            "prior_labels": self.prior_labels > 0,
        }
        for name in (name for name in unfit if unfit[name]):
            fit = "one linear and dense hidden layer without a label prior"
            raise ConfigError(f"start = discriminant is for {fit}, not for {name} = {getattr(self, name)}")

    def replace(self, **changes: Any) -> Config:
        """A copy with some options changed; unknown names are refused with the nearest valid one.

        Parameters
        ----------
        **changes
            Options by their names.

        Returns
        -------
        Config

        Raises
        ------
        ConfigError
            An unknown name, or a value that is out of range.

        Examples
        --------
        >>> from dslide import Config
        >>> Config(epochs=3).replace(hidden=(128,)).hidden
        (128,)
        """
        for name in changes:
            check_name(name)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as saved models keep them.

        Returns
        -------
        dict
        """
        return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """The opposite of `to_dict`.

        Parameters
        ----------
        values : dict
            Options by their names; those that are missing have their defaults.

        Returns
        -------
        Config

        Raises
        ------
        ConfigError
            An unknown name, or a value that is out of range.
        """
        return cls().replace(**values)


def check_name(name: str, valid: Iterable[str] | None = None, what: str = "option") -> None:
    """Raises ConfigError, with the nearest valid name, if there is no such option."""
    names = [f.name for f in dataclasses.fields(Config)] if valid is None else list(valid)
    if name not in names:
        if RENAMED.get(name) in names:
            raise ConfigError(f"there is no option {name!r}: it is called {RENAMED[name]!r} now")
        raise ConfigError(f"there is no {what} {name!r}{_nearest(name, names, 0.5)}")


def _nearest(name: str, names: Sequence[str], cutoff: float = 0.6) -> str:
    """The end of a message about a wrong name."""
    near = difflib.get_close_matches(name, names, 1, cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def load_toml(path: str | Path) -> dict[str, Any]:
    """Reads a flat TOML file of options; the caller checks the keys."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe or a device may never end
            raise ConfigError(f"{path}: is not a regular file")
        with open(path, "rb") as file:
            return dict(tomllib.load(file))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not a TOML file of options: it is nested too deeply") from None
    except ValueError as error:  # also bad UTF-8 and numbers of thousands of digits
        raise ConfigError(f"{path}: not a TOML file: {error}") from None


def check_fields(options: Any) -> None:
    """Converts every value of a dataclass of options to its declared type, or raises ConfigError."""
    kind: type = type(options)
    hints = _type_hints(kind)
    for field in dataclasses.fields(options):
        object.__setattr__(options, field.name, _checked(field, hints[field.name], getattr(options, field.name)))


@functools.cache  # to evaluate them takes longer than all the checks
def _type_hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _checked(field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    """The value in its declared type; raises ConfigError."""
    name = field.name
    if choices := literal_choices(hint):
        if value not in choices:
            near = _nearest(str(value), choices)
            raise ConfigError(f"{name}: expected one of {', '.join(choices)}, not {value!r}{near}")
        return value
    if typing.get_origin(hint) is tuple:
        of_texts = typing.get_args(hint)[0] is str
        if isinstance(value, (int, float)):
            value = (value,)
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{name}: expected a list of {'texts' if of_texts else 'numbers'}, not {value!r}")
        if of_texts:
            if not all(isinstance(each, str) for each in value):
                raise ConfigError(f"{name}: expected a list of texts, not {value!r}")
            return tuple(value)
        return tuple(_number(field, typing.get_args(hint)[0], v) for v in value)
    if hint is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name}: expected true or false, not {value!r}")
        return value
    return _number(field, hint, value)


def _number(field: dataclasses.Field[Any], kind: Any, value: Any) -> Any:
    wanted = "a whole number" if kind is int else "a number"
    try:
        number = kind(value)
        if isinstance(value, bool) or (kind is int and value != number):  # a text, or a number with a fraction
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{field.name}: expected {wanted}, not {value!r}") from None
    low, high = field.metadata["low"], field.metadata["high"]
    if kind is int and high == math.inf and number > LARGEST:
        raise ConfigError(f"{field.name}: expected {wanted}, at most {LARGEST}, not {value!r}")
    least = 0 if low == -1 else low  # -1 leaves an option open, and nothing between that and 0 means anything
    if not (least <= number <= high or number == low):  # also refuses NaN
        bounds = f"at least {least:g}" if high == math.inf else f"{least:g} to {high:g}"
        bounds += ", or -1" * (low == -1)
        raise ConfigError(f"{field.name}: expected {wanted}, {bounds}, not {value!r}")
    return number


def literal_choices(hint: Any) -> tuple[str, ...]:
    """The values a Literal type allows; empty for other types."""
    return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


OPTIONS = tuple(field.name for field in dataclasses.fields(Config))  # the names of all
