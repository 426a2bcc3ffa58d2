"""The network as a scikit-learn classifier."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

from dslide.api import open_run
from dslide.checkpoint.collective_load import load_on_all_ranks, open_on_all_ranks
from dslide.checkpoint.saved_model import SavedModel, save_model
from dslide.comm import job
from dslide.config import Config
from dslide.data import Dataset, DenseRows, Features, MixedRows, SparseRows, TextVectorizer, dense_part, sparse_part
from dslide.data.dataset import item_features, smoothed_frequencies
from dslide.data.formats.interactions import rows_of_items
from dslide.errors import TERMINATED, ConfigError, DataError, ModelError, Terminated
from dslide.model.defaults import resolve, resolve_like
from dslide.model.network import Network
from dslide.sklearn.inputs import (
    FLOATS,
    are_items,
    are_texts,
    features_of_texts,
    is_pair,
    new_vectorizer,
    relative_weights,
    rows_of_matrix,
)
from dslide.sklearn.label_coder import LabelCoder, column_names, is_dense, read_exclude, read_labels
from dslide.sklearn.parameters import parameters_text
from dslide.sklearn.ranks import best_labels, check_size, likely_labels, new_trainer, rebuild, tuned, use_rank_threads
from dslide.training.autotune import given_options
from dslide.training.callbacks import Callback
from dslide.training.early_stopping import EarlyStopping, hold_out_rows
from dslide.training.evaluation import EvaluationOptions
from dslide.training.logging import ProgressLine, warn
from dslide.training.metrics import Evaluation
from dslide.training.model_card import write_card
from dslide.training.predictions import probabilities_of
from dslide.training.run import CHANGEABLE, first_change
from dslide.training.trainer import Trainer
from dslide.util.signals import terminated
from dslide.util.threads import openmp_threads

OPTIONS = tuple(field.name for field in dataclasses.fields(Config))
FIXED = tuple(name for name in OPTIONS if name not in (*CHANGEABLE, "batch_size"))  # between calls of partial_fit

Array = npt.NDArray[Any]


class SlideClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A neural network for very many classes or labels, as a scikit-learn classifier.

    Rows are best normalised to length 1, as TfidfVectorizer does. A 1-D y holds the class of each row, whole
    numbers or texts. A 2-D y, sparse or dense, holds the weight of each label in each row, 0 where the row
    lacks it; as everywhere in scikit-learn, a dense one of a single column is taken for a 1-D y.

    Inside `mpiexec` the network is split over the ranks: every rank runs the same program with the same data, and calls
    the same methods, prediction included, which give every rank the same result.

    What is random follows from `seed` alone, which is always a whole number: the same seed and number of
    threads give the same network, bit for bit. That is why there is no `random_state`.

    Attributes
    ----------
    classes_ : array of shape (labels,)
        The classes of a 1-D y, sorted; of a 2-D y the column numbers.
    network_ : Network
    trainer_ : Trainer or None
        None for a model that was loaded only to predict.
    n_iter_ : int
        Passes over the data.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if X had names of columns, all of them texts.
    label_names_, vectorizer_ : list of str or None, TextVectorizer or None
        Only of a loaded model; what `dslide train` knew of the names of labels and of the words of texts.

    Examples
    --------
    >>> import numpy as np
    >>> from dslide import SlideClassifier
    >>> X = np.repeat(np.eye(3, 8, dtype=np.float32), 30, axis=0)
    >>> y = np.repeat(["apple", "pear", "plum"], 30)
    >>> model = SlideClassifier(hidden=(8,), epochs=10, threads=1).fit(X, y)
    >>> model.predict(X[[0, 30, 60]])
    array(['apple', 'pear', 'plum'], dtype='<U5')
    >>> labels, scores = model.predict_topk(X[[0]], k=2)
    >>> labels.shape
    (1, 2)
    """

    _rows: int  # trained on
    _dense_features: int  # at the end of those that rows have

    def __init__(
        self, *,
        hidden: Sequence[int] = Config.hidden, unit_length: str = Config.unit_length,
        temperature: float = Config.temperature, output_bias: bool = Config.output_bias,
        activation: str = Config.activation, hidden_share: Sequence[float] = Config.hidden_share,
        loss: str = Config.loss, prior_labels: int = Config.prior_labels, prior_power: float = Config.prior_power,
        prior_boost: float = Config.prior_boost, prior_scale: float = Config.prior_scale,
        prior_learning_rate: float = Config.prior_learning_rate,
        linear_negatives: int = Config.linear_negatives, linear_items: int = Config.linear_items,
        ranking: str = Config.ranking, start: str = Config.start, init_scale: float = Config.init_scale,
        output: str = Config.output, active_sets: str = Config.active_sets, hash_hits: int = Config.hash_hits,
        prior_hits: int = Config.prior_hits, random_negatives: int = Config.random_negatives,
        negative_sampling: str = Config.negative_sampling, correction: bool = Config.correction,
        family: str = Config.family, hash_k: int = Config.hash_k,
        tables: int = Config.tables, table_bits: int = Config.table_bits, bucket_size: int = Config.bucket_size,
        bucket_policy: str = Config.bucket_policy, probe: str = Config.probe,
        probe_threshold: int = Config.probe_threshold, rebuild_every: int = Config.rebuild_every,
        rebuild_growth: float = Config.rebuild_growth, optimizer: str = Config.optimizer,
        learning_rate: float = Config.learning_rate, schedule: str = Config.schedule, warmup: float = Config.warmup,
        beta1: float = Config.beta1, beta2: float = Config.beta2, epsilon: float = Config.epsilon,
        weight_decay: float = Config.weight_decay, dropout_input: float = Config.dropout_input,
        dropout_hidden: float = Config.dropout_hidden, weights: str = Config.weights, moments: str = Config.moments,
        products: str = Config.products, epochs: int = Config.epochs, validation: float = Config.validation,
        patience: int = Config.patience, autotune: float = Config.autotune, batch_size: int = Config.batch_size,
        seed: int = Config.seed, threads: int = Config.threads, checkpoint_seconds: float = Config.checkpoint_seconds,
        checkpoints_kept: int = Config.checkpoints_kept, wire: str = Config.wire,
        micro_batches: int = Config.micro_batches, watchdog: float = Config.watchdog, verbose: bool = False,
        vectorizer: Any = None,
    ):  # fmt: skip
        given = locals()
        for name in (*OPTIONS, "verbose", "vectorizer"):
            setattr(self, name, given[name])

    # ---- training ------------------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any, callbacks: Sequence[Callback] = (), out: str | Path | None = None, eval_set: Any = None,
        sample_weight: Any = None,
    ) -> SlideClassifier:  # fmt: skip
        """Trains a new network. Of enough data a few rows are held out of training (`validation`), to keep the network
        of the best epoch. With `autotune` other options are tried first; `network_.config` has those that were the
        best. Options that have their default value count as not given.

        Ctrl-C ends training with KeyboardInterrupt; what was learned until then is kept and can predict.

        Parameters
        ----------
        X : matrix (rows, features), scipy sparse or dense, SparseRows, DenseRows or MixedRows, or a list of texts
            A dense one of float16, float32 or float64, which may be mapped from a file, is not copied; if more than
            half of it is 0, it is taken as sparse. A pair of sparse rows, or texts, and a dense matrix gives rows with
            the features of both.
        y : classes (rows,), or weights of labels (rows, labels), sparse or dense
        callbacks : list of Callback
            They receive what training reports.
        out : path
            Folder of a run, as `dslide.train` makes it: checkpoints are written there in the background, every
            `checkpoint_seconds`. If it has checkpoints already, training resumes from the newest one; other data than
            theirs, or other options, are refused.
        eval_set : pair (X, y)
            Rows to tell by which epoch is the best; all of X are trained on then.
        sample_weight : array (rows,)
            How much each row counts, relative to the others: a row of weight 2 is trained on twice as often as one of
            weight 1, on average over epochs, and one of weight 0 never. An epoch has about as many rows as without.
            Statistics that training starts from and linear classifiers see rows as often, too.

        Returns
        -------
        SlideClassifier
            Itself.

        Raises
        ------
        UserError
            Data or options that can't be used.
        """
        config, labels = self._config(), read_labels(y)
        coder = LabelCoder.learn(labels, is_dense(y))
        self._forget()
        data = Dataset(self._features(X, new=True), coder.encode(labels), source="y")
        if sample_weight is not None:
            data = dataclasses.replace(data, row_weights=relative_weights(sample_weight, len(data)))
        validation = None if eval_set is None else self._validation(eval_set, coder)
        if out is None:
            config = tuned(config, data, callbacks, self.verbose) if config.autotune else config
            config = resolve(config, data.labels, data, job(config.watchdog).size)
            rows: Dataset = data
            if validation is None:
                rows, validation = hold_out_rows(data, config.validation, config.seed)
            trainer = new_trainer(config, data)
            trainer.callbacks = [*callbacks, *([ProgressLine()] if self.verbose else [])]
            early_stopping = None if validation is None else EarlyStopping.in_memory(trainer, rows, validation)
            interrupted = trainer.fit(rows, early_stopping).interrupted
        else:
            names = coder.names() or column_names(y)
            trainer, interrupted = self._fit_run(config, data, coder, names, out, callbacks, validation)
        self._keep(trainer.network, trainer, coder)
        self._name_labels(column_names(y))
        self._count(data)
        self.n_iter_ = trainer.epoch
        if interrupted:
            raise SystemExit(TERMINATED) if terminated() else KeyboardInterrupt
        return self

    def _fit_run(
        self, config: Config, data: Dataset, coder: LabelCoder, names: list[str] | None, out: str | Path,
        callbacks: Sequence[Callback], validation: Dataset | None,
    ) -> tuple[Trainer, bool]:  # fmt: skip
        """Trains as a run in a folder, from its newest checkpoint if there is one; also returns whether training was
        interrupted."""
        vectorizer = getattr(self, "vectorizer_", None)
        data = dataclasses.replace(
            data, label_names=names, feature_names=self._feature_names(),
            vectorizer=vectorizer if isinstance(vectorizer, TextVectorizer) else None,
        )  # fmt: skip
        run = open_run(
            data, given_options(config), out=out, resume_existing=True, testing=EvaluationOptions(),
            progress=self.verbose, callbacks=callbacks, estimator=self._about(coder), validation=validation,
        )  # fmt: skip
        try:
            return run.trainer, run.train().interrupted
        except Terminated:
            return run.trainer, True

    def _validation(self, eval_set: Any, coder: LabelCoder) -> Dataset:
        """Rows to tell which epoch is the best, as the user gives them."""
        pair = eval_set[0] if isinstance(eval_set, list) and len(eval_set) == 1 else eval_set
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise DataError("eval_set: expected a pair (X, y)")
        return Dataset(self._features(pair[0], new=False), coder.encode(read_labels(pair[1])), source="eval_set")

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> SlideClassifier:
        """One pass over the given rows, in random order, from where the network stands. The learning rate is
        constant, since the number of rows to come is unknown.

        More labels and features may come later, as classes, as columns of X and y, or as words of texts: the network
        grows, and rows that bring something new are counted in its label prior. Between calls only learning_rate,
        batch_size, epochs, threads, checkpoint options and options of several ranks may change. A network that starts
        here has no label prior, and softmax as its loss if that is left open; one of `fit` keeps its own, and treats
        rows that bring nothing new as some of those that its label prior was counted on.

        Parameters
        ----------
        X, y : as in `fit`
        classes : array of classes
            All that are known so far, to be given with the first 1-D y; a 2-D y has a column for each label.
        sample_weight : array (rows,)
            How often each row is trained on in this pass; of a fraction, one time more with that chance.

        Returns
        -------
        SlideClassifier
            Itself.
        """
        first = not hasattr(self, "network_")
        if first and self.vectorizer is None and are_texts(X):
            raise DataError("X: partial_fit sees too few texts to learn words from; give a vectorizer that needs none, "
                            "such as HashingVectorizer, or matrices")  # fmt: skip
        labels = read_labels(y)
        x = self._features(X, new=first) if first else self._more_features(X)
        coder = self._coder_for(labels, is_dense(y), classes, first)
        data = Dataset(x, coder.encode(labels), source="y", row_weights=sample_weight)
        if first:
            if self.start == "discriminant":
                raise ConfigError("start = discriminant needs all rows at once: use fit")
            trainer = new_trainer(self._config(), data)
            self._keep(trainer.network, trainer, coder)
        else:
            trainer = self._reconfigured_trainer()
            if (data.features, data.labels) != (trainer.network.features, trainer.network.labels):
                trainer = self._grow(trainer, data, coder, column_names(y))
                gc.collect()  # the smaller network, which refers to itself
        self._count(data)
        trainer.fit_pass(data)
        trainer.set_worth(self._label_counts, self._rows)
        self.n_iter_ = trainer.epoch
        return self

    def _about(self, coder: LabelCoder) -> dict[str, Any]:
        """What a saved model keeps for `load`: the labels, and the options as they were asked for."""
        asked = self._config().replace(threads=self.threads)
        return {**coder.to_dict(), "options": asked.to_dict()}

    def _feature_names(self) -> list[str] | None:
        return self.feature_names_in_.tolist() if hasattr(self, "feature_names_in_") else None

    def _config(self) -> Config:
        """The options as they were asked for; threads that are left open are as many as OMP_NUM_THREADS says."""
        asked = Config(**{name: getattr(self, name) for name in OPTIONS})
        return asked if asked.threads else asked.replace(threads=openmp_threads())

    def _features(self, X: Any, *, new: bool) -> Features:
        """X as rows; `new` sets how many features there are, else it must fit what was set."""
        x = self._pair(*X, new=new) if is_pair(X) else self._matrix(X, new=new)
        if new:
            dense = dense_part(x)
            self._dense_features = 0 if dense is None else dense.columns
        return x

    def _matrix(self, X: Any, *, new: bool) -> Features:
        """Rows of one kind."""
        if not new and self._has_items and are_items(X):
            X = rows_of_items(X, self.label_names_, self.network_.features)
        if (new or getattr(self, "vectorizer_", None) is not None) and are_texts(X):
            if not new and self._has_pairs:
                raise DataError("X: expected a pair of texts and dense rows, as in fitting, not texts alone")
            X = self._vectorized(X, new)
        if not isinstance(X, Features):
            matrix = validate_data(self, X, accept_sparse="csr", dtype=FLOATS, reset=new)
            return rows_of_matrix(matrix)
        if new:
            if len(X) == 0 or X.columns == 0:
                raise DataError(f"X: there is nothing to learn from {len(X)} rows of {X.columns} features")
            self._set_features(X.columns)
        elif X.columns > self.n_features_in_:
            raise DataError(f"X has {X.columns} features, but there were {self.n_features_in_} in fitting")
        if not isinstance(X, SparseRows) or not isinstance(X.values, np.memmap):
            X.refuse_infinite()  # sparse rows on disk were checked when they were written
        rows: Features = X
        return rows

    def _pair(self, first: Any, second: Any, *, new: bool) -> MixedRows:
        """Sparse rows or texts, and a dense matrix, side by side."""
        if (new or getattr(self, "vectorizer_", None) is not None) and are_texts(first):
            first = self._vectorized(first, new)
        if not isinstance(first, SparseRows):
            first = SparseRows.from_scipy(check_array(first, accept_sparse="csr", dtype=np.float32))
        if not isinstance(second, DenseRows):
            second = DenseRows(np.ascontiguousarray(check_array(second, dtype=FLOATS)))
        rows = MixedRows(first, second)
        rows.refuse_infinite()
        if new:
            self._set_features(rows.columns)
        elif second.columns != self._dense_features or rows.columns > self.n_features_in_:
            sparse = self.n_features_in_ - self._dense_features
            raise DataError(
                f"X has {first.columns} sparse features and {second.columns} dense ones, but there were {sparse} and "
                f"{self._dense_features} in fitting"
            )
        return rows

    def _vectorized(self, texts: Any, new: bool) -> Any:
        if new:
            self.vectorizer_ = new_vectorizer(self.vectorizer)
        return features_of_texts(texts, self.vectorizer_, learn=new)

    def _set_features(self, columns: int) -> None:
        self.n_features_in_ = columns
        self.__dict__.pop("feature_names_in_", None)

    @property
    def _has_pairs(self) -> bool:
        """Whether rows have sparse and dense features."""
        return 0 < self._dense_features < self.n_features_in_

    def _coder_for(self, labels: Any, dense: bool, classes: Any, first: bool) -> LabelCoder:
        """What partial_fit encodes labels with."""
        if first and classes is None and not isinstance(labels, SparseRows):
            raise DataError("classes must be passed on the first call to partial_fit")
        every = labels if isinstance(labels, SparseRows) or not first else read_labels(classes)
        if first:
            coder = LabelCoder.learn(every, dense)
            if classes is not None and not np.array_equal(np.unique(classes), coder.classes):
                raise DataError("classes: not the columns of y")
            return coder
        if classes is None:
            return self._coder.with_more(labels)
        given = read_labels(classes)
        if not np.isin(self._coder.classes, np.unique(classes)).all():
            raise DataError("classes: some of those of earlier calls are missing")
        return self._coder.with_more(given).with_more(labels)

    def _more_features(self, X: Any) -> Features:
        """X as rows, which may have more columns, or words, than there were."""
        if is_pair(X):
            return self._features(X, new=False)
        vectorizer, texts = getattr(self, "vectorizer_", None), are_texts(X)
        shape: Any = getattr(X, "shape", ())
        if isinstance(vectorizer, TextVectorizer) and texts:
            vectorizer.grow(X)
            self.n_features_in_ = len(vectorizer.words)
        elif isinstance(X, SparseRows):
            self.n_features_in_ = max(X.columns, self.n_features_in_)
        elif not texts and len(shape) == 2 and shape[1] > self.n_features_in_:
            if hasattr(self, "feature_names_in_"):
                raise DataError("X: its columns have names, and of these there can't be more later")
            validate_data(self, X[:1], accept_sparse="csr", reset=True)
        return self._features(X, new=False)

    def _grow(self, trainer: Trainer, data: Dataset, coder: LabelCoder, names: list[str] | None) -> Trainer:
        """A trainer whose network has the columns of the data, and has learned what the given one has."""
        old = getattr(self, "label_names_", None)
        if names is not None and old is not None and names[: len(old)] != old:
            raise DataError("y: its first columns have other names than those of the rows before")
        counts, rows, passes = self._label_counts, self._rows, self.n_iter_
        before = trainer.network
        grown = new_trainer(trainer.config, data)
        grown.callbacks = trainer.callbacks
        grown.load_progress(trainer.progress())
        grown.network.load_smaller(before.state(), before.features, before.labels)
        self._keep(grown.network, grown, coder)
        self._name_labels(names if names is not None or old is None or len(old) == data.labels else None)
        self._label_counts[: len(counts)], self._rows, self.n_iter_ = counts, rows, passes
        total = rows + len(data)
        frequencies = smoothed_frequencies(self._label_counts + data.label_counts, total)
        grown.network.set_new_bias(frequencies, len(counts))
        grown.network.add_counts(data.x, data.y, frequencies, total)
        return grown

    def _reconfigured_trainer(self) -> Trainer:
        """The trainer, with the options as they are now; ConfigError if some changed that must not."""
        trainer: Trainer | None = self.trainer_
        if trainer is None:
            raise ModelError("the model was loaded only to predict; load(..., trainable=True) opens it for training")
        given = given_options(self._config())
        decided = {name: getattr(trainer.config, name) for name in OPTIONS if name not in given}  # by autotune
        config = resolve_like(self._config().replace(**decided), trainer.config)
        if name := first_change(config, trainer.config, FIXED):
            change = f"{getattr(trainer.config, name)!r}, and partial_fit can't continue with {getattr(config, name)!r}"
            raise ConfigError(f"{name}: training began with {change}; fit starts anew")
        trainer.reconfigure(config)
        return trainer

    def _keep(self, network: Network, trainer: Trainer | None, coder: LabelCoder) -> None:
        self.network_, self.trainer_, self._coder, self.classes_ = network, trainer, coder, coder.classes
        self._label_counts, self._rows, self.n_iter_ = np.zeros(network.labels, np.int64), 0, 0

    def _name_labels(self, names: list[str] | None) -> None:
        """Names of the columns of a 2-D y, which become the classes."""
        self.label_names_ = names
        if names is not None and self._coder.multilabel:
            self.classes_ = np.array(names, object)

    def _count(self, data: Dataset) -> None:
        """Counts rows and labels: for the number of labels that predict gives, and for saved models."""
        self._label_counts = self._label_counts + data.label_counts  # not in place: copies may share it
        self._rows += len(data.x)

    def _forget(self) -> None:
        """Frees an earlier network: memory may not hold two."""
        for name in ("network_", "trainer_", "label_names_", "vectorizer_", "_base", "_interactions", "_layout"):
            self.__dict__.pop(name, None)

    # ---- prediction ----------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """After a 1-D y the class of each row. After a 2-D y an indicator matrix (rows, labels) of 0 and 1,
        CSR or dense as y was: with loss "sigmoid" the labels with a probability above one half; with
        "softmax" the k best, k being the mean number of labels of a training row, rounded, at least 1.

        Parameters
        ----------
        X : as in `fit`

        Returns
        -------
        array (rows,) or matrix (rows, labels)
        """
        x = self._rows_to_predict(X)
        if not self._coder.multilabel:
            return self._coder.decode(self.network_.predict_topk(x, 1)[0][:, 0])
        if self._coder.dense:
            check_size(len(x), len(self.classes_), 8, "a network fitted with a sparse y predicts sparse rows")
        if self.network_.config.loss == "sigmoid":
            found = likely_labels(self.network_, x)
        else:
            found = best_labels(self.network_, x, max(1, round(self._label_counts.sum() / max(self._rows, 1))))
        return found.toarray() if self._coder.dense else found

    def predict_topk(self, X: Any, k: int = 5, approximate: bool = False, exclude: Any = None) -> tuple[Array, Array]:
        """The k best labels of each row, best first, and their scores (logits).

        Parameters
        ----------
        X : as in `fit`
        k : int
            Labels for each row.
        approximate : bool
            Score only labels that are looked up; rows with fewer than k of them are computed in full.
        exclude : matrix (rows, labels)
            Labels whose value in it is not 0 are left out. Where fewer than k are left, column numbers are -1, and
            classes are refused. Of a model of interactions, items that a row of X has are left out unless `exclude`
            says otherwise.

        Returns
        -------
        labels : array (rows, k)
            Classes after a 1-D y, column numbers after a 2-D y (`classes_[columns]` are their names, if it had any).
        scores : array (rows, k)
        """
        x = self._rows_to_predict(X)
        if not isinstance(k, (int, np.integer)) or not 1 <= k <= len(self.classes_):
            raise DataError(f"k: expected 1 to {len(self.classes_)}, the number of labels, not {k!r}")
        left_out = sparse_part(x) if self._has_items else None
        if exclude is not None:
            left_out = read_exclude(exclude, len(x), len(self.classes_))
        network = self.network_
        columns, scores = (network.predict_topk_approximate if approximate else network.predict_topk)(x, k, left_out)
        if approximate:
            short = np.flatnonzero(columns[:, -1] < 0)
            left_out = None if left_out is None else left_out.take(short)
            columns[short], scores[short] = network.predict_topk(x.take(short), k, left_out)
        return self._coder.decode(columns), scores

    def decision(self, X: Any, labels: Any) -> Array:
        """Scores (logits) of the given labels, (rows, len(labels)). Labels are classes after a 1-D y, column
        numbers after a 2-D y.

        Parameters
        ----------
        X : as in `fit`
        labels : list of labels

        Returns
        -------
        array (rows, len(labels))
        """
        x = self._rows_to_predict(X)
        columns = self._coder.columns(labels)
        check_size(len(x), len(columns), 4, "give fewer rows or labels at a time")
        return self.network_.scores(x, columns)

    def decision_function(self, X: Any) -> Array:
        """Scores (logits) of all labels, (rows, labels); with two classes, as scikit-learn has it, (rows,):
        by how much the second one leads.

        Parameters
        ----------
        X : as in `fit`

        Returns
        -------
        array (rows, labels), or (rows,)
        """
        scores = self._all_scores(X, item=4)
        if len(self.classes_) == 2 and not self._coder.multilabel:
            return np.asarray(scores[:, 1] - scores[:, 0])
        return scores

    def predict_proba(self, X: Any, k: int | None = None) -> Any:
        """Probabilities, (rows, labels). They sum to 1 in a row, except after a 2-D y with loss "sigmoid". With `k`
        the k best labels of each row, as `predict_topk` has them, and their probabilities: two arrays (rows, k). After
        a 1-D y with loss "sigmoid" these are not divided by the row's sum.

        Parameters
        ----------
        X : as in `fit`
        k : int
            Labels for each row; by default all.

        Returns
        -------
        array (rows, labels), or labels and probabilities, two arrays (rows, k)
        """
        if k is not None:
            labels, found = self.predict_topk(X, k)
            return labels, probabilities_of(self.network_, self._rows_to_predict(X), found)
        scores = self._all_scores(X, item=8).astype(np.float64)
        if self.network_.config.loss == "softmax":
            return np.asarray(softmax(scores, axis=1))
        chances = np.asarray(expit(scores))
        return chances if self._coder.multilabel else chances / chances.sum(axis=1, keepdims=True)

    def score(self, X: Any, y: Any) -> float:
        """After a 1-D y accuracy; after a 2-D y P@1: the share of rows whose best label is right, among those
        that have labels.

        Parameters
        ----------
        X, y : as in `fit`

        Returns
        -------
        float
        """
        labels = read_labels(y)
        if isinstance(labels, SparseRows):
            x, evaluation = self._rows_to_predict(X), Evaluation((1,))
            truth = Dataset(x, self._coder.encode(labels), source="y").y
            evaluation.update(self.network_.predict_topk(x, 1)[0], truth)
            return evaluation.result()["p_at_1"]
        predicted = self.predict(X)
        check_consistent_length(predicted, labels)
        return float(np.mean(predicted == labels))

    def _rows_to_predict(self, X: Any) -> Features:
        check_is_fitted(self)
        use_rank_threads(self._config().threads)
        x = self._features(X, new=False)
        return item_features(sparse_part(x), self._label_counts) if self._has_items else x

    @property
    def _has_items(self) -> bool:
        """Whether the model was trained by `dslide train` on interactions: a row has the items of a user."""
        return getattr(self, "_interactions", False)

    def _all_scores(self, X: Any, item: int) -> Array:
        """Logits of all labels, which become numbers of `item` bytes."""
        x = self._rows_to_predict(X)
        check_size(len(x), len(self.classes_), item, "use predict_topk, or decision for the labels of interest")
        return self.network_.scores(x, np.arange(len(self.classes_), dtype=np.int32))

    # ---- keeping -------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Writes a model folder, which `load`, `dslide predict` and `dslide evaluate` open.

        Parameters
        ----------
        folder : path
            Folder to make; one that has a model is replaced.
        """
        save_model(folder, self._saved(folder), optimizer=self.trainer_ is not None, comm=self.network_.comm)

    def save_pretrained(self, folder: str | Path, *, metrics: Mapping[str, float] | None = None) -> None:
        """Writes a model folder as the Hugging Face hub has them: without what further training needs, and with a card,
        README.md, that says what the model is, what it was trained on and where it falls short.

        Parameters
        ----------
        folder : path
            Folder to make; one that has a model is replaced, with its card.
        metrics : dict
            What `dslide.evaluate` returned, for the card.
        """
        saved = self._saved(folder)
        save_model(folder, saved, optimizer=False, comm=self.network_.comm)
        if self.network_.comm.rank == 0:
            about = {} if metrics is None else {**metrics, "test_rows": metrics.get("rows")}
            write_card(Path(folder), saved, about, Path(folder).absolute().name)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, trainable: bool = False) -> SlideClassifier:
        """Opens a folder that `save_pretrained` or `dslide export` made, or any other of a model: `load` by the name
        that it has elsewhere.

        Parameters
        ----------
        folder : path
            A folder on this machine; nothing is downloaded.
        trainable : bool
            As in `load`.

        Returns
        -------
        SlideClassifier
        """
        if not Path(folder).exists() and len(Path(folder).parts) == 2:
            how = f"to copy a model of that name from the hub: hf download {folder} --local-dir FOLDER"
            raise ModelError(f"{folder}: there is no such model folder; {how}")
        return cls.load(folder, trainable=trainable)

    def _saved(self, folder: str | Path) -> SavedModel:
        """The model as it is now, to be written to a folder."""
        check_is_fitted(self)
        network, trainer = self.network_, self.trainer_
        vectorizer = getattr(self, "vectorizer_", None)
        if vectorizer is not None and not isinstance(vectorizer, TextVectorizer):
            warn(f"{folder}: the {type(vectorizer).__name__} is not saved with the model, only dslide's own would be")
        return SavedModel(
            config=network.config, features=network.features, dense_features=self._dense_features,
            labels=network.labels, state=network.state(),
            label_names=self._coder.names() or getattr(self, "label_names_", None), feature_names=self._feature_names(),
            vectorizer=vectorizer.to_dict() if isinstance(vectorizer, TextVectorizer) else None,
            progress={} if trainer is None else trainer.progress(),
            label_counts=self._label_counts, rows=self._rows, base=getattr(self, "_base", 0),
            interactions=getattr(self, "_interactions", False), layout=getattr(self, "_layout", None),
            estimator=self._about(self._coder) | {"passes": self.n_iter_},
        )  # fmt: skip

    @classmethod
    def load(cls, folder: str | Path, *, trainable: bool = False) -> SlideClassifier:
        """Opens a model folder. With `trainable` partial_fit can continue; else weights are mapped from disk.

        A model of `dslide train` (the folder of the run or its model) opens as if fitted with a sparse 2-D y, whose
        column names, if there are any, are `classes_`. If it was trained on texts, X may be a list of texts.

        Parameters
        ----------
        folder : path
            Folder of a run or of a model.
        trainable : bool
            Load the state of the optimizer too.

        Returns
        -------
        SlideClassifier

        Raises
        ------
        ModelError
            A file is missing or damaged.
        """
        load = open_on_all_ranks if trainable else load_on_all_ranks  # to train, arrays are received in place
        saved = load(folder, job(), optimizer=trainable, verify=True)
        about = saved.estimator or {"multilabel": True, "dense": False, "dtype": "<i8"}
        asked = _asked(folder, about["options"]) if "options" in about else saved.config
        self = cls(**{name: getattr(asked, name) for name in OPTIONS})
        coder = LabelCoder.restore(about, saved.label_names, saved.labels)
        progress = saved.progress if trainable else None
        self._keep(*rebuild(saved.config, saved.features, saved.labels, saved.state, progress), coder)
        if saved.label_counts is not None:
            self._label_counts[:], self._rows = saved.label_counts, saved.rows
        self.n_features_in_, self._dense_features = saved.features, saved.dense_features
        self.n_iter_ = passes = about.get("passes", saved.progress.get("epoch", 0))
        if type(passes) is not int or passes < 0:
            raise ModelError(f"{folder}: damaged model: passes: expected a whole number, not {passes!r}")
        if saved.estimator is not None and saved.feature_names is not None:
            self.feature_names_in_ = np.array(saved.feature_names, object)
        self._base, self._interactions, self._layout = saved.base, saved.interactions, saved.layout
        self._name_labels(saved.label_names)
        self.vectorizer_ = None if saved.vectorizer is None else TextVectorizer.from_dict(saved.vectorizer)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "network_" in state:  # native objects are rebuilt from arrays
            network, trainer = state.pop("network_"), state.pop("trainer_")
            progress = None if trainer is None else trainer.progress()
            state["_arrays"] = (network.config, network.features, network.labels, network.state(), progress)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "_arrays"})
        if "_arrays" in state:
            self.network_, self.trainer_ = rebuild(*state["_arrays"])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "network_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags


def _asked(folder: str | Path, options: Any) -> Config:
    """The options that a saved estimator was given; ModelError if they are damaged."""
    try:
        return Config.from_dict(options)
    except (ConfigError, TypeError) as error:
        raise ModelError(f"{folder}: damaged model: options of the estimator: {error}") from None


SlideClassifier.__doc__ = (SlideClassifier.__doc__ or "") + parameters_text()
