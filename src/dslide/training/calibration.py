"""Fits the calibration of a network (model/calibration.py) to rows that it was not trained on.

Labels are grouped by how many training rows they have: 0, 1, 2 to 3, 4 to 7 and so on; when a network grew, those whose
rows mostly are new are in groups of their own, for new rows were trained on more often than earlier ones. Of each
held-out row the best labels by logit are candidates. For each group a slope and an offset are fitted so that the loss
of the candidates is least: the network's own kind of loss, with a penalty on departures from what all groups together
have, which is what groups with few candidates get. A bend follows: among the
highest scores, those of rare labels are worth less than their lines say. Six numbers for all groups together fit it.
Cross-validation decides between one line for all, lines, lines with a bend, and none. With sigmoid outputs all lines
are scaled at last, so that the sigmoids of the best labels' scores are their chances.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from dslide.data import Dataset, SparseRows, sparse_part
from dslide.model.calibration import BEND, IDENTITY, KNOT, LEAST, OFFSET, SLOPE, VOTE, WORTH, on_lines
from dslide.model.linear import LinearClassifiers
from dslide.model.neighbours import Neighbours
from dslide.model.network import Network
from dslide.model.prediction import CANDIDATES
from dslide.training.callbacks import CalibrationInfo
from dslide.training.item_regressions import COST, train_regressions
from dslide.training.linear import MIDDLE_COST, Examples, Trials, train_linear
from dslide.training.metrics import Evaluation, hits_of
from dslide.training.newton import Doubles, least_loss
from dslide.util.arrays import Ids

CANDIDATES_PER_K = 4  # candidates for each k of the largest that is reported, but not fewer than are ranked again
NEW, GROUPS = 32, 64  # groups are bits of the number of rows, plus NEW for labels that mostly have new rows
LEAST_QUANTILE = 0.1  # of a group's candidates: logits below keep their distances
PENALTY = (30.0, 10.0, 3.0)  # on slope, what is mixed in, and offset; as many candidates weigh as much
SLOPES = (0.05, 5.0)  # a label's logits keep their order
KNOT_QUANTILE, BEND_PENALTY = 0.9, 10.0  # of the candidates' scores, above which slopes change; on each of six numbers

SHARES = (0.5, 1.0, 2.0, 4.0)  # of linear scores, in the spread of logits: those that are tried
VOTE_SHARES = (0.1, 0.2, 0.4, 0.8)  # of votes, likewise
POWERS = (2.0, 16.0)  # of neighbours' cosines: those that are tried

MIXED = WORTH  # column of a group's lines: the linear classifiers' scores times this are added to logits, and votes
# times the column VOTE

Lines = npt.NDArray[np.float64]  # the columns of a calibration, with MIXED in place of the worth, for each group
Fits = Callable[["Candidates"], list[Lines]]  # several kinds, of which the best is used


@dataclass(frozen=True)
class Candidates:
    """The best labels of some rows: their groups, logits, scores of linear classifiers, in the spread of logits, and
    which are true, (rows, candidates) each."""

    ids: Ids
    groups: npt.NDArray[np.int64]
    logits: Doubles
    linear: Doubles
    hits: Doubles
    true: SparseRows  # the rows' labels
    votes: Doubles | None = None  # of neighbours, in the spread of logits; None: there are none

    def take(self, rows: npt.NDArray[np.integer]) -> Candidates:
        return Candidates(
            self.ids[rows], self.groups[rows], self.logits[rows], self.linear[rows], self.hits[rows],
            self.true.take(rows), None if self.votes is None else self.votes[rows],
        )  # fmt: skip

    def ranked(self, lines: Lines) -> Ids:
        """The candidates by what the lines make of them, best first."""
        order = np.argsort(-np.where(self.ids >= 0, self.scores(lines), -np.inf), axis=1, kind="stable")
        return np.take_along_axis(self.ids, order, axis=1)

    def scores(self, lines: Lines) -> Doubles:
        """What the lines make of the candidates."""
        *columns, mixed, voted = np.moveaxis(lines[self.groups], -1, 0)
        z = self.logits + mixed * self.linear
        return on_lines(z if self.votes is None else z + voted * self.votes, *columns)


def calibrate(
    network: Network, held_out: Dataset, label_counts: npt.NDArray[np.integer], ks: Sequence[int],
    data: Dataset | None = None,
) -> CalibrationInfo:  # fmt: skip
    """Calibrates the network on rows that it was not trained on, if that ranks their labels better by nDCG at the
    largest k, cross-validated: that of each half of the rows, by the lines that the other half gives. Linear
    classifiers are trained on `data`, if there are to be any, at several costs of errors; the best are mixed in if they
    are better than none. So are votes of neighbours beside these. Linear classifiers of interactions may be mixed in
    without lines."""
    network.calibration.reset()
    network.set_neighbours(None)
    earlier = None
    if network.prior is not None:
        earlier = network.prior.linear if network.kept_linear is not None else None
        network.prior.set_linear(None)
    held_out, k = held_out.take(held_out.with_labels()), max(ks)
    found = _candidates(network, held_out, label_counts, max(CANDIDATES, CANDIDATES_PER_K * k))
    sigmoid = not network.loss.needs_labels
    before, users = _ndcg(k, [(half, half.ids) for half in _halves(found)]), held_out.users is not None
    fits: Fits = partial(fit_items if users else fit_rows, k=k, sigmoid=sigmoid)
    which, after = _cross_validated(found, fits, k)
    best, cost, unit = found, 0.0, 1.0
    trials = _linear_classifiers(network, data, label_counts, earlier, found.ids)
    for tried, linear in trials.by_cost.items():
        scores = _linear_scores(network, linear, sparse_part(held_out.x), found.ids)
        factor = _unit(found, scores)
        mixed = dataclasses.replace(found, linear=factor * scores)
        fit, score = _cross_validated(mixed, fits, k)
        if score > max(before, after):
            best, which, after, cost, unit = mixed, fit, score, tried, factor
    near, vote_unit = None, 1.0
    for tried_near in _neighbours(network, data) if cost > 0 else ():
        votes = _votes(network, tried_near, held_out, found.ids)
        factor = _unit(found, votes)
        voted = dataclasses.replace(found, linear=best.linear, votes=factor * votes)
        fit, score = _cross_validated(voted, fits, k)
        if score > max(before, after):
            best, which, after, near, vote_unit = voted, fit, score, tried_near, factor
    if used := after > before:
        groups = network.shard.part(_groups(network, label_counts))
        of_groups = fits(best)[which]
        if sigmoid and not users:
            of_groups = scaled(of_groups, *sureness(best, fits, which, k))
        lines = of_groups[groups]
        if cost > 0 and network.prior is not None:
            network.prior.set_linear(trials.whole(cost).times(unit * lines[:, MIXED]))
        if near is not None:
            network.set_neighbours(near)
            network.calibration.set_votes(vote_unit * lines[:, VOTE])
        network.calibration.set_lines(lines[:, :WORTH])
        network.version += 1
    return CalibrationInfo(f"ndcg_at_{k}", before, after, used, cost, near is not None)


def mix_equally(network: Network, data: Dataset, label_counts: npt.NDArray[np.integer]) -> None:
    """For data with too few rows to hold any out: mixes linear classifiers in, of the middle cost. Their scores get the
    spread that logits have among the best wrong labels of training rows. A network that grew keeps what it has: its
    data may lack rows of old labels."""
    if network.prior is None or data.users is not None or network.kept_linear is not None or not data.y.nnz:
        return
    network.prior.set_linear(None)
    for linear in _linear_classifiers(network, data, label_counts, None).by_cost.values():
        found = _candidates(network, data, label_counts, CANDIDATES)
        found = dataclasses.replace(found, ids=np.where(found.hits > 0, -1, found.ids))
        scores = _linear_scores(network, linear, sparse_part(data.x), found.ids)
        unit = _unit(found, scores)
        network.prior.set_linear(linear.times(np.full(network.output.neurons, unit)))
        network.version += 1


def by_chance(rows: int) -> float:
    """How much the scores of two networks on the same rows differ by chance: about the standard error."""
    return 0.15 / math.sqrt(max(rows, 1))


def _linear_classifiers(
    network: Network, data: Dataset | None, label_counts: npt.NDArray[np.integer], earlier: LinearClassifiers | None,
    candidates: Ids | None = None,
) -> Trials:  # fmt: skip
    """Linear classifiers at each cost that is tried on rows with these candidates, or for None at the middle one; none
    if the network is not to have any. The `earlier` ones of a network that grew stay where most of a label's rows are
    not new."""
    if data is None or network.prior is None:
        return Trials({})
    if data.users is not None:  # items are features and labels both: each would be told by itself
        return Trials({COST: train_regressions(network, data.y)} if network.config.linear_items else {})
    if not network.config.linear_negatives:
        return Trials({})
    examples = Examples.find(network, sparse_part(data.x), data.y)
    if earlier is None:
        if candidates is None:
            return Trials(train_linear(network, examples, MIDDLE_COST))
        needed = np.zeros(network.output.neurons, np.bool_)
        needed[network.shard.to_local(candidates[(candidates >= 0) & network.shard.owns(candidates)])] = True
        return Trials.of_needed(network, examples, needed)
    assert network.kept_linear is not None
    which = ~network.shard.part(network.kept_linear)
    trained, kept = train_linear(network, examples.of_labels(which), network.linear_cost), earlier.without_factors()
    return Trials({cost: kept.with_others(linear, which) for cost, linear in trained.items()})


def _neighbours(network: Network, data: Dataset | None) -> Iterator[Neighbours]:
    """Neighbours from the training rows, of each power that is tried; none if the network is not to have any."""
    if data is not None and network.config.neighbours:
        kept = Neighbours.of_rows(network, data.x, data.y)
        yield from map(kept.to_power, POWERS)


def _votes(network: Network, near: Neighbours, data: Dataset, ids: Ids) -> Doubles:
    """Of some labels of each row; 0 for id -1."""
    begin, found = 0, []
    for h in network.hidden_of(data.x, np.arange(len(data.x))):
        found.append(near.votes(h, ids[begin : begin + h.rows]))
        begin += h.rows
    return np.concatenate(found).astype(np.float64)


def _unit(found: Candidates, scores: Doubles) -> float:
    """The factor that gives scores the spread that logits have within rows: what one unit means for the ranking."""
    return _spread(found, found.logits) / (_spread(found, scores) or 1.0)


def _spread(found: Candidates, scores: Doubles) -> float:
    """The standard deviation of scores within rows: what one unit means for the ranking."""
    usable = found.ids >= 0
    counts = np.maximum(1, usable.sum(axis=1, keepdims=True))
    means = np.where(usable, scores, 0).sum(axis=1, keepdims=True) / counts
    return float(np.sqrt(np.mean((scores - means)[usable] ** 2))) if usable.any() else 0.0


def _linear_scores(network: Network, classifiers: LinearClassifiers, x: SparseRows, ids: Ids) -> Doubles:
    """Scores of some labels of each row, which are on any rank; 0 for id -1."""
    shard = network.shard
    own = np.where((ids >= 0) & shard.owns(ids), shard.to_local(ids), -1).astype(np.int32)
    scores = classifiers.scores(x, own).astype(np.float64)
    return network.collectives.summary(0.0, 0.0, True, more=scores.ravel()).wait().sums.reshape(ids.shape)


def _cross_validated(found: Candidates, fits: Fits, k: int) -> tuple[int, float]:
    """Which of the fits ranks best, and its nDCG."""
    first, second = _halves(found)
    fitted = [(first, fits(second)), (second, fits(first))]
    scores = [_ndcg(k, [(half, half.ranked(lines[i])) for half, lines in fitted]) for i in range(len(fitted[0][1]))]
    which = int(np.argmax(scores))
    return which, scores[which]


def sureness(found: Candidates, fits: Fits, which: int, k: int) -> tuple[float, float]:
    """Slope and offset with which the sigmoid of a score is the chance of a label that is among the row's k best: being
    chosen for its score, a label is less likely than that says. Each half of the rows shows it of the other's lines."""
    first, second = _halves(found)
    scores, hits = [], []
    for half, other in ((first, second), (second, first)):
        each = np.where(half.ids >= 0, half.scores(fits(other)[which]), -np.inf)
        best = np.argsort(-each, axis=1, kind="stable")[:, :k]
        usable = np.take_along_axis(half.ids, best, axis=1) >= 0
        scores.append(np.take_along_axis(each, best, axis=1)[usable])
        hits.append(np.take_along_axis(half.hits, best, axis=1)[usable])
    z, found_hits = np.concatenate(scores), np.concatenate(hits)
    values, none = np.stack([z, np.ones_like(z)], axis=1), np.zeros(len(z), np.int64)
    slope, offset = least_loss(
        values,
        none,
        found_hits,
        none,
        1,
        np.array([1.0, 0.0]),
        True,
        np.full(2, BEND_PENALTY),
        [SLOPES[0], -np.inf],
        SLOPES[1],
    )[0]
    return float(slope), float(offset)


def scaled(lines: Lines, slope: float, offset: float) -> Lines:
    """The lines with a slope and an offset on what they give: the order of labels stays, but for those whose logits are
    below the least ones."""
    changed: Lines = lines.copy()
    changed[:, [SLOPE, BEND]] *= slope
    changed[:, OFFSET] = slope * lines[:, OFFSET] + offset
    return changed


def _halves(found: Candidates) -> list[Candidates]:
    return [found.take(np.arange(half, len(found.ids), 2)) for half in (0, 1)]


def _ndcg(k: int, ranked: Sequence[tuple[Candidates, Ids]]) -> float:
    """nDCG at k of candidates in a given order, over all rows. (The same rows in the same parts give the same bits.)"""
    evaluation = Evaluation((k,))
    for found, ids in ranked:
        evaluation.update(ids, found.true)
    return float(evaluation.result()[f"ndcg_at_{k}"])


def fit_rows(found: Candidates, k: int, sigmoid: bool) -> list[Lines]:
    """What is tried for rows of features: one line for all groups, lines, lines with a bend, and one share of linear
    scores for all: what makes the loss least need not rank best."""
    one = fit_one(found, sigmoid)
    lines = fit_lines(found, sigmoid, one)
    share = fit_share(found, k)[0, [MIXED, VOTE]]
    votes = 0.0 if found.votes is None else share[1] * found.votes
    logits = found.logits + share[0] * found.linear + votes
    mixed = dataclasses.replace(found, logits=logits, linear=np.zeros_like(found.linear), votes=None)
    shared = fit_one(mixed, sigmoid)
    shared[:, [MIXED, VOTE]] = share
    return [one, lines, bent(lines, found, sigmoid), shared]


def fit_items(found: Candidates, k: int, sigmoid: bool) -> list[Lines]:
    """What is tried for interactions: lines, and one share of linear scores for all."""
    return [fit_lines(found, sigmoid), fit_share(found, k)]


def fit_one(found: Candidates, sigmoid: bool) -> Lines:
    """One line for all groups together: it changes the order only by how much of the linear scores it mixes in."""
    return _fit(found, np.zeros_like(found.groups), (1.0, 0.0, 0.0, 0.0), sigmoid)[np.zeros(GROUPS, np.int64)]


def fit_lines(found: Candidates, sigmoid: bool, one: Lines | None = None) -> Lines:
    """A line for each group, without a bend. That of all groups together is what the penalty pulls each towards."""
    if one is None:
        one = fit_one(found, sigmoid)
    slope, offset, mixed, voted = one[0, [SLOPE, OFFSET, MIXED, VOTE]]
    lines = _fit(found, found.groups, (slope, offset, slope * mixed, slope * voted), sigmoid)
    usable = found.ids >= 0
    groups = found.groups[usable]
    logits = found.logits[usable] + lines[groups, MIXED] * found.linear[usable]
    if found.votes is not None:
        logits += lines[groups, VOTE] * found.votes[usable]
    for group in np.unique(groups):
        lines[group, LEAST] = np.quantile(logits[groups == group], LEAST_QUANTILE)
    return lines


def _fit(found: Candidates, groups: npt.NDArray[np.int64], centre: Sequence[float], sigmoid: bool) -> Lines:
    """Lines of these groups, which the penalty pulls towards the weights `centre` of logits, 1, linear scores and
    votes."""
    usable = found.ids >= 0
    mixed_in = [found.linear] if found.votes is None else [found.linear, found.votes]
    count = 2 + len(mixed_in)
    values = np.stack(
        [found.logits[usable], np.ones(np.count_nonzero(usable)), *(each[usable] for each in mixed_in)], axis=1
    )
    slope, mixed, offset = PENALTY
    fitted = least_loss(
        values, groups[usable], found.hits[usable], np.nonzero(usable)[0], GROUPS, np.array(centre[:count]), sigmoid,
        np.array([slope, offset, mixed, mixed][:count]), (SLOPES[0], -np.inf, 0.0, 0.0)[:count], SLOPES[1],
    )  # fmt: skip
    lines: Lines = np.tile(IDENTITY, (GROUPS, 1))
    lines[:, SLOPE], lines[:, OFFSET] = fitted[:, 0], fitted[:, 1]
    lines[:, [MIXED, VOTE][: len(mixed_in)]] = fitted[:, 2:] / fitted[:, :1]
    return lines


def bent(lines: Lines, found: Candidates, sigmoid: bool) -> Lines:
    """The lines with a bend at one score for all. What is fitted, of a score z of a group g:
    a z + b + c g + d g^2 + (e + f g) max(0, z - knot)."""
    usable = found.ids >= 0
    if not usable.any():
        return lines
    z, hits, rows = found.scores(lines)[usable], found.hits[usable], np.nonzero(usable)[0]
    g, knot = (found.groups[usable] % NEW).astype(np.float64), np.quantile(z, KNOT_QUANTILE)
    above = np.maximum(z - knot, 0)
    values = np.stack([z, np.ones_like(z), g, g * g, above, above * g], axis=1)
    a, b, c, d, e, f = least_loss(
        values, np.zeros(len(z), np.int64), hits, rows, 1, np.array([1.0, 0, 0, 0, 0, 0]), sigmoid,
        np.full(6, BEND_PENALTY), [SLOPES[0], *[-np.inf] * 5], SLOPES[1],
    )[0]  # fmt: skip
    slope, offset, group = lines[:, SLOPE], lines[:, OFFSET], np.arange(GROUPS) % NEW
    curves: Lines = lines.copy()
    curves[:, SLOPE] = a * slope
    curves[:, OFFSET] = a * offset + b + c * group + d * group**2
    curves[:, KNOT] = (knot - offset) / slope
    curves[:, BEND] = np.maximum(e + f * group, SLOPES[0] - a) * slope
    return curves


def fit_share(found: Candidates, k: int) -> Lines:
    """Logits as they are, and the same shares of linear scores and of votes added for all groups: those that rank
    best, first without votes."""

    def best_of(lines: list[Lines]) -> Lines:
        return max(lines, key=lambda each: _ndcg(k, [(found, found.ranked(each))]))

    best = best_of([np.tile([*IDENTITY[:MIXED], share, 0.0], (GROUPS, 1)) for share in SHARES])
    if found.votes is None:
        return best
    return best_of([np.tile([*best[0, :VOTE], share], (GROUPS, 1)) for share in VOTE_SHARES])


def _candidates(network: Network, data: Dataset, label_counts: npt.NDArray[np.integer], k: int) -> Candidates:
    """The k best labels of each row."""
    ids, logits = network.predict_topk(data.x, min(k, network.labels), data.seen)
    group_of = np.append(_groups(network, label_counts), 0)  # the last: of id -1
    hits = hits_of(ids.astype(np.int64), data.y).astype(np.float64)
    none = np.zeros(ids.shape)
    return Candidates(ids, group_of[ids], logits.astype(np.float64), none, hits, data.y)


def _groups(network: Network, label_counts: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The group of each label."""
    groups = np.ceil(np.log2(np.asarray(label_counts, np.float64) + 1)).astype(np.int64)
    return groups if network.kept_linear is None else groups + NEW * ~network.kept_linear
