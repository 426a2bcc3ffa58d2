"""Prediction: the best labels of rows, exactly or among labels that are looked up, their scores, and the exact loss.

All functions are called on all ranks alike, with the same rows, and give every rank the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dslide import _core
from dslide._core import ActiveSet, PriorLogits
from dslide.data import Features, SparseRows, sparse_part
from dslide.errors import DataError, ModelError, known_to_all
from dslide.model.activations import Activations, Dense, Input
from dslide.model.active_sets import of_batch, of_rows
from dslide.model.calibration import VOTE, Calibration
from dslide.model.cells import Cells
from dslide.model.hash_parameters import hash_parameters, prediction_family
from dslide.model.label_prior import row_lengths
from dslide.model.layer import table_bytes
from dslide.model.lsh import LshIndex
from dslide.model.retriever import Hits, Retriever
from dslide.util.arrays import Floats, Ids, aligned_zeros, padded
from dslide.util.csr import Csr, Lists
from dslide.util.memory import check_memory, rss_bytes

if TYPE_CHECKING:
    from dslide.model.network import Network
    from dslide.model.output_network import OutputNetwork

LOGIT_BYTES = 64 << 20  # most memory that explicit logits take
PRIOR_ROWS = 128  # predicted together if there is a label prior, whose logits take memory
CELL_ROWS = 4096  # looked up in cells together: those of a cell have the weights of its labels in cache
PRIOR_CANDIDATES = 512  # labels with the largest prior and bias that approximate prediction scores for a row
CANDIDATES = 50  # labels of a row that are ranked again if there are linear classifiers
TABLES = 96  # 3 to 4 times as many as in training find most of the best labels

TopK = tuple[Ids, Floats]  # ids and scores, (rows, k) each


def predict_topk(network: Network, x: Features, k: int, exclude: SparseRows | None) -> TopK:
    """The k best labels of each row over all labels."""
    _check_exclude(network, x, exclude)
    calibration, wanted = _first_stage(network, k)
    output, best = network.output, _empty(len(x), wanted)
    for begin, end in row_blocks(network, len(x)):
        some = x.part(begin, end)
        h = last_hidden(network, some)
        excluded = _excluded(network, exclude, begin, end)
        if isinstance(h, Dense):
            own = _empty(h.rows, wanted)
            lists = (None, None) if excluded is None else (excluded.indptr, excluded.indices)
            output.native.topk(h.values, *own, *lists, _prior_logits(network, some), *calibration.native)
        else:
            z = output.forward(h, output.everything(h.rows))[:, : output.neurons]
            own = _topk_of(calibration.scores(z, np.arange(output.neurons)), wanted, excluded=excluded)
        best[0][begin:end], best[1][begin:end] = network.collectives.best_labels(*own)
        _add_votes(network, h, best[0][begin:end], best[1][begin:end])
    return _second_stage(network, x, *best, k)


def predict_topk_approximate(network: Network, x: Features, k: int, exclude: SparseRows | None) -> TopK:
    """As `predict_topk`, over labels that are looked up for the row or that the prior leads to."""
    _check_exclude(network, x, exclude)
    calibration, wanted = _first_stage(network, k)
    index, output, best = network.prediction_index(), network.output, _empty(len(x), wanted)
    if index is None:
        return predict_topk(network, x, k, exclude)
    if isinstance(index, Cells) and network.shard.size == 1:
        for begin, end in row_blocks(network, len(x), most=CELL_ROWS):
            own = best[0][begin:end], best[1][begin:end]
            _topk_of_cells(
                network, index, x.part(begin, end), own, _excluded(network, exclude, begin, end), calibration
            )
        return _second_stage(network, x, *best, k)
    for begin, end in row_blocks(network, len(x)):
        some = x.part(begin, end)
        h, own = last_hidden(network, some), _empty(end - begin, wanted)
        prior = _prior_logits(network, some)
        found = _candidates(network, index, h, prior, _excluded(network, exclude, begin, end))
        if isinstance(h, Dense):
            output.native.topk_of_lists(h.values, found.indptr, found.indices, *own, prior, *calibration.native)
        else:
            z = output.forward(h, of_rows(found, output.neurons)).reshape(-1)
            for i in range(h.rows):
                row = slice(found.indptr[i], found.indptr[i + 1])
                calibrated = calibration.scores(z[None, row], found.indices[row])
                own[0][i], own[1][i] = _topk_of(calibrated, wanted, found.indices[row])
        best[0][begin:end], best[1][begin:end] = network.collectives.best_labels(*own)
        _add_votes(network, h, best[0][begin:end], best[1][begin:end])
    return _second_stage(network, x, *best, k)


def _topk_of_cells(
    network: Network, index: Cells, x: Features, best: TopK, excluded: Lists | None, calibration: Calibration
) -> None:
    """The best labels of rows among those of their cells and those that the label prior leads to, on one rank, in one
    native call: what the candidates of several ranks give, too."""
    h, prior, arguments = last_hidden(network, x), network.prior, dict[str, Any]()
    assert isinstance(h, Dense)
    if prior is not None:
        arguments |= prior.arguments(sparse_part(x), network.config.prior_boost) | {"want": PRIOR_CANDIDATES}
    if excluded is not None:
        arguments |= {"excluded_offsets": excluded.indptr, "excluded_ids": excluded.indices}
    found, (numbers, saturates) = index.candidates(h), calibration.native
    _core.topk_of_cells(
        network.output.native, h.values, found.lists.indptr, found.lists.indices, found.list_of, *best,
        calibration=numbers, saturates=saturates, **arguments,
    )  # fmt: skip
    _add_votes(network, h, *best)


def _prior_logits(network: Network, x: Features) -> PriorLogits | None:
    """What the label prior adds to the logits of the rows, with its boost in prediction."""
    return None if network.prior is None else network.prior.logits(sparse_part(x), network.config.prior_boost)


def _candidates(
    network: Network, index: Retriever, h: Activations, prior: PriorLogits | None, excluded: Lists | None
) -> Lists:
    """The own neurons that are scored for each row: those that are looked up, and those that the label prior leads
    to."""
    found = index.candidates(h)
    more: Lists | None = None
    if prior is not None:
        bias = np.ascontiguousarray(network.output.arrays["bias"][:, 0])
        shard = network.shard
        indptr, ids, keys = _core.prior_candidates(prior, bias, PRIOR_CANDIDATES, shard.stripe)
        more = network.collectives.best_hits(Hits(Lists(indptr, ids), keys), PRIOR_CANDIDATES).wait()
    arrays = [(None, None) if lists is None else (lists.indptr, lists.indices) for lists in (more, excluded)]
    cells = found.lists
    joined = _core.join_candidates(
        network.output.neurons, cells.indptr, cells.indices, found.list_of, *arrays[0], *arrays[1]
    )
    return Lists(*joined)


def _first_stage(network: Network, k: int) -> tuple[Calibration, int]:
    """How labels are ranked by the network alone, and how many are wanted: with linear classifiers its uncalibrated
    logits choose the candidates that are ranked again."""
    if network.linear is None:
        return network.calibration, k
    return Calibration.none(), max(k, min(CANDIDATES, network.labels))


def _add_votes(network: Network, h: Activations, ids: Ids, logits: Floats) -> None:
    """Adds what neighbours vote for to the logits of the labels that are ranked again, if they are here: on other ranks
    to theirs."""
    if network.linear is None or network.neighbours is None:
        return
    assert isinstance(h, Dense)
    ranked, shard = ids[:, :CANDIDATES], network.shard
    votes = network.neighbours.votes(h, ranked)
    own = np.where((ranked >= 0) & shard.owns(ranked), shard.to_local(ranked), -1)
    counts = np.append(network.calibration.array[:, VOTE], np.float32(0))[own]
    logits[:, :CANDIDATES] += votes * counts


def _second_stage(network: Network, x: Features, ids: Ids, logits: Floats, k: int) -> TopK:
    """Ranks candidates, best first by logit, again with the scores of linear classifiers. Those after the first
    CANDIDATES, if so many are asked for, keep their order and come last."""
    if network.linear is None:
        return _checked(ids, logits)
    ranked = network.linear.ranked_again(
        sparse_part(x), ids, logits, k, CANDIDATES, network.calibration, network.collectives
    )
    return _checked(*ranked)


def _checked(ids: Ids, scores: Floats) -> TopK:
    """The same; ModelError if scores are not finite. All ranks have the same ones, so all raise it."""
    if not np.isfinite(scores[ids >= 0]).all():
        raise known_to_all(ModelError("the network has weights that are not finite, so it can't predict"))
    return ids, scores


def scores(network: Network, x: Features, labels: Ids) -> Floats:
    """Calibrated logits of given labels: (rows, len(labels))."""
    order = np.unique(labels).astype(np.int32)
    if len(order) and not 0 <= order[0] <= order[-1] < network.labels:
        raise DataError(f"label numbers must be 0 to {network.labels - 1}, not {order[0]} to {order[-1]}")
    shard, output = network.shard, network.output
    places = np.flatnonzero(shard.owns(order))
    owned = shard.to_local(order[places])
    out = np.empty((len(x), len(labels)), np.float32)
    columns = np.searchsorted(order, labels)
    for begin, end in row_blocks(network, len(x), len(order)):
        some = x.part(begin, end)
        h = last_hidden(network, some)
        active = with_prior(network, some, of_batch(owned, h.rows, output.neurons))
        z = output.forward(h, active).reshape(h.rows, -1)
        if network.linear is not None:
            z = z + network.linear.scores(sparse_part(some), np.broadcast_to(owned, z.shape))
        if network.linear is not None and network.neighbours is not None:
            assert isinstance(h, Dense)
            of_rows = np.broadcast_to(shard.to_global(owned).astype(np.int32), z.shape)
            z = z + network.neighbours.votes(h, of_rows) * network.calibration.array[owned, VOTE]
        own = network.calibration.logits(z, owned)
        out[begin:end] = network.collectives.gather_scores(own, places, len(order))[:, columns]
    _checked(np.zeros(out.shape, np.int32), out)
    return out


def exact_loss_sum(network: Network, x: Features, y: SparseRows) -> tuple[float, int]:
    """The loss over all labels, summed over rows, and over how many rows: what training makes small, without sampling.
    So the label prior is as in training, without the boost, with which logits are good for ranking only."""
    y = y.where(y.indices < network.labels) if y.columns > network.labels else y
    if network.loss.needs_labels and y.empty_rows():
        rows = np.flatnonzero(np.diff(y.indptr))
        x, y = x.take(rows), y.take(rows)
    total = 0.0
    for begin, end in row_blocks(network, len(x), 0 if network.loss.needs_labels else network.output.neurons):
        some = x.part(begin, end)
        own = network.shard.own_part(network.loss.targets(y.part(begin, end)))
        h = last_hidden(network, some)
        everything = with_prior(network, some, network.output.everything(h.rows), boost=1.0)
        total += network.collectives.summary(network.loss.exact(h, everything, own), 0.0, True).wait().loss
    return total, len(x)


def last_hidden(network: Network, x: Features) -> Activations:
    """The input of the output layer, with every hidden neuron computed."""
    last = network.input_of(x)
    for activations in hidden_activations(network, last):
        last = activations
    assert isinstance(last, Activations)
    return last


def hidden_activations(network: Network, a: Input) -> Iterator[Activations]:
    """What each layer after the first takes as input, with every hidden neuron computed; `a`: what the first takes."""
    for layer, follower in zip(network.layers[:-1], network.layers[1:], strict=True):
        z = layer.forward(a, layer.everything(a.rows))
        if network.config.activation == "relu":
            np.maximum(z, 0, out=z)
        if network.shard.size > 1:
            own, z = z, aligned_zeros(a.rows, padded(layer.total))
            # in full precision: the same network gives the same answers on any number of ranks
            network.collectives.all_gather(f"prediction of {layer.name}", own, layer.total, z, exact=True).wait()
        a = Dense(z) if not follower.sparse_input else Csr.from_dense(z[:, : layer.total])
        yield a


def with_prior(network: Network, x: Features, active: ActiveSet, boost: float | None = None) -> ActiveSet:
    """The active set, with the label prior of the rows; None: with its boost in prediction."""
    if network.prior is not None:
        sparse = sparse_part(x)
        network.prior.add(
            sparse, row_lengths(sparse), active, boost=network.config.prior_boost if boost is None else boost
        )
    return active


def make_tables(network: OutputNetwork) -> LshIndex:
    """Hash tables over the output weights as they are now: not those of training, which lag behind on purpose, and more
    of them, since every candidate counts."""
    output, config = network.output, network.config.replace(tables=network.config.tables or TABLES)
    family = prediction_family(config.family, output.sparse_input, config.activation)
    parameters = hash_parameters(config, network.labels, output.inputs, family)
    needed = table_bytes(config, output.spec, parameters, 1 / network.shard.fraction)
    check_memory(rss_bytes() + needed, "approximate prediction", "exact prediction needs less")
    index = LshIndex(network.labels, output.inputs, family, parameters, config, config.seed, network.shard)
    index.rebuild(output.codes)
    return index


def row_blocks(network: Network, rows: int, wide: int = 0, most: int | None = None) -> list[tuple[int, int]]:
    """Cuts rows into blocks of at most `most`, so that no matrix of activations (or of `wide` logits) exceeds a bound;
    None: so that the label prior's logits don't, either."""
    widest = max([1, wide, *network.config.hidden] + ([network.labels] if network.output.sparse_input else []))
    if most is None:
        most = 1024 if network.prior is None else PRIOR_ROWS
    size = min(most, max(1, LOGIT_BYTES // (4 * widest)))
    return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def _empty(rows: int, k: int) -> TopK:
    return np.empty((rows, k), np.int32), np.empty((rows, k), np.float32)


def _check_exclude(network: Network, x: Features, exclude: SparseRows | None) -> None:
    if exclude is not None and (len(exclude) != len(x) or exclude.columns > network.labels):
        raise DataError(
            f"exclude: expected {len(x)} rows of at most {network.labels} labels, not {len(exclude)} rows of "
            f"{exclude.columns}"
        )


def _excluded(network: Network, exclude: SparseRows | None, begin: int, end: int) -> Lists | None:
    """The own neurons that some rows must not get, ascending; None if there are none at all."""
    return None if exclude is None else network.shard.own_part(exclude.part(begin, end))


def _topk_of(z: Floats, k: int, names: Ids | None = None, excluded: Lists | None = None) -> TopK:
    """The k largest of each row, ties to the lower column; -1 where there are fewer. `names` stand for columns."""
    z = np.where(np.isnan(z), -np.inf, z)
    if excluded is not None:
        z[excluded.row_numbers(), excluded.indices] = np.nan  # sorted behind all numbers
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]
    ids, best = np.full((len(z), k), -1, np.int32), np.full((len(z), k), -np.inf, np.float32)
    ids[:, : order.shape[1]] = order if names is None else names[order]
    best[:, : order.shape[1]] = np.take_along_axis(z, order, axis=1)
    nothing = np.isnan(best)
    ids[nothing], best[nothing] = -1, -np.inf
    return ids, best
