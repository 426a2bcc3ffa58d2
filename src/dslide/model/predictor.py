"""A network's layers, its state, and prediction.

Of every layer a rank holds its own neurons only (shard.py). Methods that compute are called on all ranks alike, with
the same rows, and give every rank the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dslide import _core
from dslide.comm import Communicator, solo
from dslide.config import Config
from dslide.data import SparseRows
from dslide.errors import ConfigError, DataError, known_to_all
from dslide.model.activations import Activations, Dense, Floats, Ids, Offsets, Sparse, aligned_zeros, padded
from dslide.model.collectives import Collectives
from dslide.model.defaults import settled
from dslide.model.hash_parameters import prediction_family
from dslide.model.label_prior import LabelPrior, prior_arrays, row_lengths
from dslide.model.layer import Layer
from dslide.model.lsh import LshIndex, resolve_output
from dslide.model.state_layout import array_dtype
from dslide.model.storage import ArraySource, checked
from dslide.model.targets import targets
from dslide.util.memory import check_memory, rss_bytes

FIRST_SCALE = 0.1  # standard deviation of the first layer's weights
LOGIT_BYTES = 64 << 20  # most memory that explicit logits take in prediction
LINKED_ROWS = 128  # predicted together if there are links: what these add takes memory
PREDICTION_TABLES = 96  # for approximate prediction: 3 to 4 times as many as training uses find most of the best labels


class Predictor:
    """A network over `features` sparse inputs with `labels` outputs.

    `trainable=False` leaves optimizer state and training-time hash tables out; `weights`, a mapping of array names to
    arrays (memory-mapped ones too), takes the place of fresh weights. With a communicator of several ranks the network
    is split by neuron over them, and `weights` are this rank's.
    """

    def __init__(
        self, config: Config, features: int, labels: int, *, comm: Communicator | None = None, trainable: bool = True,
        weights: Mapping[str, npt.NDArray[Any]] | None = None,
    ):  # fmt: skip
        self.config, self.features, self.labels = config, features, labels = settled(config, labels), features, labels
        self.comm = comm or solo()
        self.collectives = Collectives(self.comm, config.wire)
        self.shard = self.collectives.shard
        shares = config.hidden_share or (1.0,) * len(config.hidden)
        self.layers: list[Layer] = []
        self.shares = [*shares, 1.0]
        inputs, sparse = features, True
        for i, neurons in enumerate([*config.hidden, labels]):
            is_output = i == len(config.hidden)
            if neurons < self.shard.size:
                what = "labels" if is_output else "neurons of a hidden layer"
                raise known_to_all(
                    ConfigError(f"{neurons} {what} can't be split over {self.shard.size} ranks; use fewer ranks")
                )
            sampled = self.output_mode == "lsh" if is_output else shares[i] < 1
            # Inputs of a sparse layer are taken to be normalised rows: their sum keeps the weights' own scale.
            scale = config.init_scale * (FIRST_SCALE if sparse else 1 / np.sqrt(inputs))
            given = None
            if weights is not None:
                given = _layer_arrays(weights, config, f"layer{i}", inputs, self.shard.count(neurons), sparse)
            self.layers.append(
                Layer(
                    f"layer{i}", inputs, neurons, sparse, sampled, float(scale), config,
                    int(_core.mix(config.seed, i)), trainable, given, self.shard,
                )
            )  # fmt: skip
            inputs, sparse = neurons, not is_output and shares[i] < 1
        self.prior = None if weights is None else self._given_links(prior_arrays(weights))
        self.version = 0  # rises whenever weights change
        self._prediction: tuple[int, LshIndex] | None = None  # with the version that it was made for

    def _given_links(self, arrays: Mapping[str, npt.NDArray[Any]]) -> LabelPrior | None:
        if not arrays:
            return None
        return LabelPrior.of_state(arrays, self.features, self.output.neurons, self.config.prior_scale)

    @property
    def output(self) -> Layer:
        return self.layers[-1]

    @property
    def parameters(self) -> int:
        """Trainable numbers on all ranks together, padding not counted."""
        return sum(layer.inputs * layer.total + layer.total for layer in self.layers)

    @property
    def output_mode(self) -> str:
        """How output neurons are chosen: full, lsh or random."""
        return resolve_output(self.config, self.labels)

    # ---- prediction -----------------------------------------------------------------------------------------------

    def predict_topk(self, x: SparseRows, k: int, exclude: SparseRows | None = None) -> tuple[Ids, Floats]:
        """The k best labels of each row over all labels, best first: ids and scores, (rows, k). Scores are
        logits. Labels that the row has in `exclude` are left out, whatever their values there. Where fewer than k
        labels are left, ids are -1."""
        self._check_exclude(x, exclude)
        ids, scores = np.empty((len(x), k), np.int32), np.empty((len(x), k), np.float32)
        for begin, end in self._row_blocks(len(x)):
            h = self.last_hidden(x.rows(begin, end))
            own, own_scores = np.empty((h.rows, k), np.int32), np.empty((h.rows, k), np.float32)
            left_out = self._left_out(exclude, begin, end)
            if isinstance(h, Dense):
                everything = self._linked(x.rows(begin, end), self.output.everything(h.rows))
                self.output.native.topk(h.values, own, own_scores, *(left_out or (None, None)), everything)
            else:
                z = self.output.forward(h, self.output.everything(h.rows))[:, : self.output.neurons]
                own, own_scores = _topk_of(z, k, left_out=left_out)
            ids[begin:end], scores[begin:end] = self.collectives.best_labels(own, own_scores)
        return ids, scores

    def predict_topk_approximate(self, x: SparseRows, k: int, exclude: SparseRows | None = None) -> tuple[Ids, Floats]:
        """As `predict_topk`, but only over labels that share a hash bucket with the row or that its features are linked
        to; -1 where fewer than k do."""
        self._check_exclude(x, exclude)
        sampler = self.prediction_tables()
        ids, scores = np.empty((len(x), k), np.int32), np.empty((len(x), k), np.float32)
        for begin, end in self._row_blocks(len(x)):
            h = self.last_hidden(x.rows(begin, end))
            own, own_scores = np.empty((h.rows, k), np.int32), np.empty((h.rows, k), np.float32)
            offsets, found = sampler.candidates(h)
            everything = self._linked(x.rows(begin, end), self.output.everything(h.rows))
            if self.prior is not None:
                offsets, found = _with(offsets, found, everything, self.output.neurons)
            if (left_out := self._left_out(exclude, begin, end)) is not None:
                offsets, found = _without(offsets, found, *left_out, self.output.neurons)
            if isinstance(h, Dense):
                self.output.native.topk_of_lists(h.values, offsets, found, own, own_scores, everything)
            else:
                active = _core.ActiveSet.sampled(True, self.output.neurons, offsets, found, None, None, 0, 0, False)
                z = self.output.forward(h, active).reshape(-1)
                for i in range(end - begin):
                    row = slice(offsets[i], offsets[i + 1])
                    own[i], own_scores[i] = _topk_of(z[None, row], k, found[row])
            ids[begin:end], scores[begin:end] = self.collectives.best_labels(own, own_scores)
        return ids, scores

    def scores(self, x: SparseRows, labels: Ids) -> Floats:
        """Logits of given labels: (rows, len(labels))."""
        order = np.unique(labels).astype(np.int32)
        if len(order) and not 0 <= order[0] <= order[-1] < self.labels:
            raise DataError(f"label numbers must be 0 to {self.labels - 1}, not {order[0]} to {order[-1]}")
        places = np.flatnonzero(order % self.shard.size == self.shard.rank)
        owned = (order[places] // self.shard.size).astype(np.int32)
        out = np.empty((len(x), len(labels)), np.float32)
        columns = np.searchsorted(order, labels)
        for begin, end in self._row_blocks(len(x), len(order)):
            h = self.last_hidden(x.rows(begin, end))
            own = self.output.forward(h, self._only(x.rows(begin, end), owned)).reshape(h.rows, -1)
            out[begin:end] = self.collectives.gather_scores(own, places, len(order))[:, columns]
        return out

    def exact_loss(self, x: SparseRows, y: SparseRows) -> float:
        """The mean loss of rows with the given label weights, over all labels and without sampling. Softmax:
        cross-entropy of the rows that have labels; sigmoid: binary cross-entropy, summed over labels, of all rows.
        Labels that the network has no neurons for don't count."""
        total, rows = self.exact_loss_sum(x, y)
        return total / rows if rows else float("nan")

    def exact_loss_sum(self, x: SparseRows, y: SparseRows) -> tuple[float, int]:
        """The sum whose mean is `exact_loss`, and over how many rows it goes."""
        softmax = self.config.loss == "softmax"
        y = y.where(y.indices < self.labels) if y.columns > self.labels else y
        if softmax and y.empty_rows():
            rows = np.flatnonzero(np.diff(y.indptr))
            x, y = x.take(rows), y.take(rows)
        total = 0.0
        for begin, end in self._row_blocks(len(x), 0 if softmax else self.output.neurons):
            labels = targets(y.rows(begin, end), self.config.loss)
            own = self.shard.owned_lists(labels.offsets, labels.ids, labels.targets)
            some = x.rows(begin, end)
            loss = (self._softmax_loss if softmax else self._sigmoid_loss)(some, self.last_hidden(some), *own)
            total += self.collectives.summary(loss, 0.0, True)().loss
        return total, len(x)

    def _softmax_loss(self, x: SparseRows, h: Activations, offsets: Offsets, ids: Ids, weights: Floats) -> float:
        """What own labels add to the rows' losses."""
        everything = self._linked(x, self.output.everything(h.rows))
        reference, total = np.full(h.rows, -np.inf, np.float32), np.zeros(h.rows, np.float32)
        if isinstance(h, Dense):
            self.output.native.softmax_first(h.values, everything, None, reference, total)
        else:
            _core.softmax_stats(everything, self._all_logits(h, everything), reference, total)
        log_norm = self.collectives.normaliser(reference, total)()
        lists = _core.ActiveSet.sampled(True, self.output.neurons, offsets, ids, None, None, 0, 0, False)
        z = self.output.forward(h, lists).reshape(-1) + self._added(everything, offsets, ids)
        return float(weights @ (np.repeat(log_norm, np.diff(offsets)).astype(np.float64) - z))

    def _sigmoid_loss(self, x: SparseRows, h: Activations, offsets: Offsets, ids: Ids, weights: Floats) -> float:
        """What own labels, and own neurons that are none, add to the rows' losses."""
        everything = self._linked(x, self.output.everything(h.rows))
        return float(_core.sigmoid_gradient(everything, self._all_logits(h, everything), offsets, ids, weights, 1.0))

    def _all_logits(self, h: Activations, everything: Any) -> Floats:
        """Of own neurons, row by row, without padding."""
        z = self.output.forward(h, everything)[:, : self.output.neurons]
        return np.ascontiguousarray(z).reshape(-1)

    def _only(self, x: SparseRows, neurons: Ids) -> Any:
        """The active set of given own neurons, ascending, for all rows."""
        lists = np.zeros(len(x) + 1, np.int64)
        lists[1:] = len(neurons)
        active = _core.ActiveSet.sampled(False, self.output.neurons, lists, neurons, None, None, 0, 0, False)
        return self._linked(x, active)

    def _linked(self, x: SparseRows, active: Any) -> Any:
        """The active set, with what the links of the rows add to it."""
        if self.prior is not None:
            rows = Sparse(x.indptr, x.indices, x.values)
            self.prior.add(rows, row_lengths(rows), active, boost=self.config.prior_boost)
        return active

    def _added(self, everything: Any, offsets: Offsets, ids: Ids) -> Floats:
        """What the links of rows add to the logits of given own neurons, of lists in CSR form."""
        if self.prior is None:
            return np.zeros(len(ids), np.float32)
        added = sp.csr_matrix(
            (everything.added_value, everything.added_position, everything.added_begin),
            (len(offsets) - 1, self.output.neurons),
        )
        return np.asarray(added[_row_numbers(offsets), ids], np.float32).reshape(-1)

    def last_hidden(self, x: SparseRows) -> Activations:
        """What the output layer sees, with every hidden neuron computed."""
        if x.columns > self.features:
            raise DataError(f"rows have {x.columns} features but the network was made for {self.features}")
        a: Activations = Sparse(x.indptr - x.indptr[0], x.indices, x.values)
        for layer, follower in zip(self.layers[:-1], self.layers[1:], strict=True):
            z = layer.forward(a, layer.everything(a.rows))
            if self.config.activation == "relu":
                np.maximum(z, 0, out=z)
            if self.shard.size > 1:
                own, z = z, aligned_zeros(a.rows, padded(layer.total))
                # in full precision: the same network gives the same answers on any number of ranks
                self.collectives.gather_columns(f"prediction of {layer.name}", own, layer.total, exact=True)(z)
            a = Dense(z) if not follower.sparse_input else Sparse.from_matrix(z[:, : layer.total])
        return a

    def _check_exclude(self, x: SparseRows, exclude: SparseRows | None) -> None:
        if exclude is not None and (len(exclude) != len(x) or exclude.columns > self.labels):
            raise DataError(
                f"exclude: expected {len(x)} rows of at most {self.labels} labels, not {len(exclude)} rows of "
                f"{exclude.columns}"
            )

    def _left_out(self, exclude: SparseRows | None, begin: int, end: int) -> tuple[Offsets, Ids] | None:
        """The own neurons that some rows must not get, as ascending lists; None if there are none at all."""
        if exclude is None:
            return None
        rows = exclude.rows(begin, end)
        return self.shard.owned_lists(rows.indptr, rows.indices, rows.values)[:2]

    def _row_blocks(self, rows: int, wide: int = 0) -> list[tuple[int, int]]:
        """Cuts rows so that no matrix of activations (or of `wide` logits) grows past a bound."""
        widest = max([wide, *self.config.hidden] + ([self.labels] if self.output.sparse_input else []))
        size = min(1024 if self.prior is None else LINKED_ROWS, max(1, LOGIT_BYTES // (4 * widest)))
        return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]

    def prediction_tables(self) -> LshIndex:
        """Hash tables over the output weights as they are now, kept until weights change: not those of training, which
        lag behind on purpose, and more of them, since here every candidate counts."""
        if self._prediction is None or self._prediction[0] != self.version:
            from dslide.planner.memory import table_bytes  # which needs this module

            self._prediction = None  # its memory goes before the new tables are made
            tables = self.config.tables or PREDICTION_TABLES
            config = self.config.replace(tables=tables)
            output = self.output
            needed = table_bytes(config, self.labels, output.inputs, output.sparse_input, self.shard.size)
            check_memory(rss_bytes() + needed, "approximate prediction", "exact prediction needs less")
            family = prediction_family(config.family, self.output.sparse_input, config.activation)
            sampler = LshIndex(self.labels, self.output.inputs, family, config, config.seed, self.shard)
            sampler.rebuild(self.output.codes)
            self._prediction = self.version, sampler
        return self._prediction[1]

    # ---- state ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Every array that makes up this rank's part of the network, by name; no copies."""
        return self._layer_state() | self._link_state()

    def _link_state(self) -> dict[str, npt.NDArray[Any]]:
        return {} if self.prior is None else self.prior.state()

    def _layer_state(self) -> dict[str, npt.NDArray[Any]]:
        return {f"{layer.name}.{name}": array for layer in self.layers for name, array in layer.arrays.items()}

    def load_state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Copies arrays given by name over the network's own; all of them must be there. LabelPrior are those given, or
        none."""
        for name, own in self._layer_state().items():
            if isinstance(arrays, ArraySource):
                arrays.copy_into(name, own)
            else:
                own[...] = checked(arrays, name, own.dtype, own.shape)
        self.prior = self._given_links({name: np.array(array) for name, array in prior_arrays(arrays).items()})
        self.version += 1


def _layer_arrays(
    weights: Mapping[str, npt.NDArray[Any]], config: Config, name: str, inputs: int, neurons: int, sparse: bool
) -> dict[str, npt.NDArray[Any]]:
    """A layer's weights and bias out of a mapping, checked."""
    rows, width = (inputs, neurons) if sparse else (neurons, inputs)
    shapes = {"weights": (rows, padded(width)), "bias": (neurons, 1)}
    return {
        which: checked(weights, f"{name}.{which}", array_dtype(config, which), shape) for which, shape in shapes.items()
    }


def _topk_of(
    z: Floats, k: int, names: Ids | None = None, left_out: tuple[Offsets, Ids] | None = None
) -> tuple[Ids, Floats]:
    """The k largest of each row, ties to the lower column; -1 where there are fewer. `names` stand for columns,
    `left_out` are lists of columns that don't count."""
    z = np.where(np.isnan(z), -np.inf, z)
    if left_out is not None:
        z[_row_numbers(left_out[0]), left_out[1]] = np.nan  # which is sorted behind all numbers
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]
    ids, scores = np.full((len(z), k), -1, np.int32), np.full((len(z), k), -np.inf, np.float32)
    ids[:, : order.shape[1]] = order if names is None else names[order]
    scores[:, : order.shape[1]] = np.take_along_axis(z, order, axis=1)
    nothing = np.isnan(scores)
    ids[nothing], scores[nothing] = -1, -np.inf
    return ids, scores


def _row_numbers(offsets: Offsets) -> npt.NDArray[np.int64]:
    """The row of each element of CSR lists."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _with(offsets: Offsets, ids: Ids, everything: Any, neurons: int) -> tuple[Offsets, Ids]:
    """CSR lists of neurons, and those that rows add something to."""
    begin = everything.added_begin
    linked = _row_numbers(begin) * neurons + everything.added_position
    pairs = np.unique(np.concatenate([_row_numbers(offsets) * neurons + ids, linked]))
    rows, found = np.divmod(pairs, neurons)
    return np.searchsorted(rows, np.arange(len(begin))), found.astype(np.int32)


def _without(offsets: Offsets, ids: Ids, out_offsets: Offsets, out_ids: Ids, neurons: int) -> tuple[Offsets, Ids]:
    """CSR lists of neurons without those that the ascending lists `out` name. Pairs (row, neuron) are compared as
    single numbers."""
    pairs = _row_numbers(offsets) * neurons + ids
    out = np.append(_row_numbers(out_offsets) * neurons + out_ids, -1)  # -1: where a search ends behind the last
    keep = out[np.searchsorted(out[:-1], pairs)] != pairs
    before = np.concatenate([[0], np.cumsum(keep, dtype=np.int64)])
    return before[offsets], ids[keep]
