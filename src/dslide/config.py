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
        "layer, features connect directly to labels, which is a linear classifier; -1: one layer of 256, or of as "
        "many as a discriminant has directions, at most 512", -1, 2**24)
    unit_length: Literal["none", "rows", "both"] = option("none", "only without hidden layers: what is scaled to "
        "length 1; rows: the feature vector of each row; both: also each label's weights, which makes logits cosines "
        "divided by the temperature")
    temperature: float = option(1.0, "only without hidden layers: the products of rows and weights are divided by it",
        1e-6, 1e6)
    output_bias: bool = option(True, "only without hidden layers: whether labels have a bias, which starts at the log "
        "of their frequency")
    activation: Literal["auto", "relu", "linear"] = option("auto", "activation function of hidden layers; auto: linear "
        "with one hidden layer, relu with more")
    hidden_share: tuple[float, ...] = option((), "for each hidden layer, in order, the share of its neurons that are "
        "active for a row; 1: dense; less than 1: sampled by hashing; empty: all layers are dense", 0, 1)
    loss: Literal["auto", "softmax", "sigmoid"] = option("auto", "softmax: cross-entropy with the row's labels as "
        "targets, in proportion to their weights; sigmoid: binary cross-entropy for every label; auto: sigmoid if "
        "rows of features have several labels, else softmax")
    prior_labels: int = option(-1, "label prior: number of labels that each feature scores directly, in addition to "
        "the hidden layers; the labels about which the feature tells most in the training data are kept; 0: no label "
        "prior; -1: chosen from the data. Not available for dense features, streams of words, active_sets = row or "
        "sampled hidden layers", -1, 2**20)
    prior_power: float = option(-1.0, "label prior: counted weights are divided by the label's frequency to this "
        "power; at higher values rare labels count more; 0: not divided; -1: chosen from the data", -1, 2)
    prior_boost: float = option(-1.0, "label prior: factor by which its logits count more in prediction than in "
        "training; -1: chosen from the data", -1, 1e6)
    prior_scale: float = option(-1.0, "label prior: factor on what its counted weights add to logits, with rows scaled "
        "to length 1; if the prior is trained, the factors start from this value; -1: chosen from the data", -1, 1e6)
    prior_learning_rate: float = option(-1.0, "label prior: step size of its trained weights, for one row of length "
        "1; follows the schedule of learning_rate; 0: the prior is only counted, not trained; -1: chosen from the data",
        -1, 1e3)
    linear_negatives: int = option(-1, "linear classifiers: each label's is trained against rows of other labels, "
        "those for which the label is among this many that the label prior ranks highest; classifiers are trained at "
        "the end, and mixed into the network's logits if that ranks held-out rows better; 0: no classifiers; -1: "
        "chosen from the data", -1, 2**16)
    linear_items: int = option(-1, "linear classifiers for interactions: number of other items of the user for which "
        "each item has a weight; 0: no classifiers; -1: chosen from the data", -1, 2**12)
    neighbours: int = option(-1, "neighbours: number of training rows with hidden vectors like a row's whose labels "
        "count in prediction, in addition to linear classifiers; training rows are kept with the network at the end of "
        "training, and used if that ranks held-out rows better; 0: no neighbours; -1: chosen from the data", -1, 2**12)
    ranking: Literal["precision", "propensity"] = option("precision", "what prediction ranks labels by; precision: "
        "the probability that the row has the label; propensity: that probability times the worth of the label, which "
        "is larger for rarer labels, as in PSP@k")
    start: Literal["auto", "random", "discriminant"] = option("auto", "what the network starts from; random: random "
        "weights; discriminant: the linear discriminant of the training data, whose directions form the hidden layer "
        "and are not trained; only for one linear hidden layer without a label prior; auto: discriminant if there are "
        "16 to 4,096 features and rows have at least half of them, else random")
    init_scale: float = option(1.0, "factor on the standard size of the initial weights; with a trained label prior, "
        "output weights start at 0 unless they are hashed", 0, 1e3)

    # which output neurons are active
    output: Literal["auto", "full", "lsh", "cells", "random"] = option("auto", "which output neurons are active; full: "
        "all of them; random: the batch's labels and random negatives; lsh: these and hash hits; cells: these and the "
        "best of the labels that score high for rows with similar hidden vectors; all but full also add prior_hits; "
        "auto: full up to 8,192 labels, above that random with a trained label prior and cells without")
    active_sets: Literal["shared", "row"] = option("shared", "shared: one active set for the whole batch, the union "
        "over its rows; row: an active set for each row, as in the SLIDE papers")
    hash_hits: int = option(-1, "number of output neurons that each row looks up in hash tables or cells, for the "
        "active set; -1: chosen from the number of labels", -1)
    prior_hits: int = option(-1, "number of labels that each row adds to the active set because the label prior ranks "
        "them high for it; -1: chosen from the data", -1, 2**16)
    random_negatives: int = option(-1, "random negatives: number of output neurons sampled at random for the batch's "
        "active set (shared) or for each row's (row); -1: chosen from the number of labels", -1)
    negative_sampling: Literal["auto", "frequency", "uniform"] = option("auto", "how random negatives are sampled; "
        "uniform: all labels alike; frequency: half of them in proportion to the number of rows that a label has, the "
        "other half uniformly; auto: frequency, or uniform with active_sets = row")
    correction: bool = option(True, "weight sampled neurons by the inverse of their sampling probability, which makes "
        "the sampled loss an unbiased estimate of the full loss")

    # hashing
    family: Literal["auto", "simhash", "wta", "dwta", "minhash"] = option("auto", "family of hash functions; auto: "
        "simhash in training, the one with the best recall in prediction")
    hash_k: int = option(0, "number of hash values combined into one table address; 0: chosen from the layer's size",
        0, 64)
    tables: int = option(0, "number of hash tables; 0: chosen from the layer's size", 0, 1024)
    table_bits: int = option(0, "log2 of the number of buckets in a table; 0: chosen from the layer's size", 0, 24)
    bucket_size: int = option(256, "largest number of neurons in a bucket; 0: no limit", 0)
    bucket_policy: Literal["fifo", "reservoir"] = option("reservoir", "what a full bucket keeps: the newest neurons "
        "(fifo) or a random sample (reservoir)")
    probe: Literal["vanilla", "topk", "threshold"] = option("topk", "how hash hits are chosen: vanilla takes buckets "
        "in random order until there are enough, topk the neurons found in most tables, threshold those found in at "
        "least probe_threshold tables")
    probe_threshold: int = option(2, "with probe = threshold: number of tables in which a neuron must be found", 1)
    rebuild_every: int = option(50, "number of steps before hash tables are rebuilt for the first time", 1)
    rebuild_growth: float = option(1.3, "factor by which the interval between rebuilds grows", 1, 100)

    # the optimizer
    optimizer: Literal["adam", "sgd", "adagrad"] = option("adagrad", "update rule; only weight rows with gradients are "
        "updated")
    learning_rate: float = option(5e-2, "step size of the optimizer", 0, 1e3)
    schedule: Literal["auto", "constant", "linear", "cosine", "trapezoid"] = option("auto", "how the learning rate "
        "decays from its full value to zero over the run; trapezoid: constant for a third of the run, then linear "
        "decay; auto: trapezoid for rows of features, else linear")
    warmup: float = option(0.0, "share of all steps during which the learning rate rises from zero", 0, 1)
    beta1: float = option(0.9, "decay rate of Adam's mean of gradients", 0, 0.999999)
    beta2: float = option(0.999, "decay rate of Adam's mean of squared gradients", 0, 0.99999999)
    epsilon: float = option(1e-8, "added to the root of squared gradients in Adam and Adagrad", 0, 1)
    weight_decay: float = option(0.0, "each update of a weight subtracts this share of it, times the learning rate", 0,
        1e3)
    dropout_input: float = option(-1.0, "share of input features left out at random in training; -1: chosen from the "
        "data", -1, 0.99)
    dropout_hidden: float = option(-1.0, "share of hidden activations left out at random in training; -1: chosen from "
        "the data", -1, 0.99)

    # how parameters are kept
    weights: Literal["float32", "bf16", "int8"] = option("float32", "type of weights in memory and in saved models; "
        "bf16: half the memory, and faster where memory bandwidth is the limit, with 8 significant bits, rounded "
        "stochastically to keep small steps on average; int8: only for exported models, which only predict")
    moments: Literal["float32", "bf16"] = option("float32", "type of the optimizer moments of Adam and Adagrad; bf16 "
        "costs less accuracy here than in the weights")

    # how the output layer is computed
    products: Literal["float32", "bf16"] = option("float32", "type of the factors in the output layer's matrix "
        "products during training; bf16 rounds factors to 8 significant bits while sums stay float32: faster on CPUs "
        "with AVX512-BF16, slower on others; only for softmax over shared active sets")

    # the run
    epochs: int = option(0, "maximum number of passes over the data; 0: 3 for rows of features that are not dense (2 "
        "if they have one label), else 4, and more for small data, as many as make 200 steps", 0)
    validation: float = option(-1.0, "share of the rows held out of training to find the best epoch, whose network is "
        "kept; for interactions, a fifth of the items of this share of the users; 0: nothing is held out and the last "
        "network is kept; -1: chosen from the data, at most 0.05", -1, 0.5)
    patience: int = option(2, "training ends after this many epochs without a better result on the held-out rows", 1)
    autotune: float = option(0.0, "seconds spent before training on trials that compare other options on held-out "
        "rows; training then uses the best; options that are set explicitly are not changed; 0: no trials", 0, 1e9)
    batch_size: int = option(0, "rows per step; 0: 256; with several ranks up to 256 for each, at most 2,048, as long "
        "as 640 steps remain, for rows of features with a trained label prior and Adagrad", 0, 2**20)
    seed: int = option(0, "seed of all random numbers", 0, 2**63 - 1)
    threads: int = option(0, "number of compute threads; 0: one per core, shared among the ranks of a machine", 0, 1024)
    checkpoint_seconds: float = option(300.0, "seconds between checkpoints during training; 0: only at the end", 0, 1e9)
    checkpoints_kept: int = option(2, "how many of the newest checkpoints are kept", 1)

    # several ranks
    shares: tuple[int, ...] = option((), "relative share of the network that each rank holds, for machines of unequal "
        "speed: 2,1 for two ranks of which the first is twice as fast; -1: in proportion to the speed of the ranks, "
        "measured for a few seconds at the start; none (an empty list): equal. Like the number of ranks, shares are "
        "not part of the model: a run can be resumed with others", -1, 64)
    wire: Literal["float32", "bf16", "int8"] = option("bf16", "type of activations and their gradients in messages "
        "between ranks; int8 has one scale per row")
    micro_batches: int = option(0, "number of parts into which a batch is split, each a multiple of 128 rows; one part "
        "is exchanged while another is computed; 0: 2", 0, 64)
    watchdog: float = option(60.0, "seconds without a heartbeat after which a rank counts as lost and the job ends",
        0.1, 86400)
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
