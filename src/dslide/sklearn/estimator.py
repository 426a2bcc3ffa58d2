"""The network as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin

from dslide.config import OPTIONS, Config
from dslide.data import Dataset
from dslide.model.network import Network
from dslide.sklearn import fit, growth, persistence, prediction
from dslide.sklearn.label_coder import LabelCoder
from dslide.sklearn.parameters import parameters_text
from dslide.sklearn.ranks import rebuild
from dslide.sklearn.rows import rows_to_predict
from dslide.training.callbacks import Callback
from dslide.training.trainer import Trainer
from dslide.util.threads import openmp_threads

Array = npt.NDArray[Any]


class SlideClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A neural network for very many classes or labels, as a scikit-learn classifier.

    Rows should be normalised to length 1, as TfidfVectorizer does. A 1-D y holds the class of each row, as whole
    numbers or texts. A 2-D y, sparse or dense, holds the weight of each label in each row, or 0 if the row does not
    have it; as everywhere in scikit-learn, a dense y with a single column is treated as 1-D.

    Under `mpiexec` the network is split over the ranks: every rank runs the same program with the same data and calls
    the same methods, including prediction, and all ranks get the same result.

    All randomness depends only on `seed`, a whole number: the same seed and number of threads give the same network,
    bit for bit. There is therefore no `random_state`.

    Attributes
    ----------
    classes_ : array of shape (labels,)
        The classes of a 1-D y, sorted; for a 2-D y the column numbers.
    network_ : Network
    trainer_ : Trainer or None
        None for a model that was loaded only to predict.
    n_iter_ : int
        Passes over the data.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if X had column names that are all texts.
    label_names_, vectorizer_ : list of str or None, TextVectorizer or None
        Only for a loaded model: the names of labels and the vectoriser of texts that `dslide train` used.

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
        neighbours: int = Config.neighbours,
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
        checkpoints_kept: int = Config.checkpoints_kept, shares: Sequence[int] = Config.shares,
        wire: str = Config.wire,
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
        """Trains a new network. If there are enough rows, a few are held out of training (`validation`) to find the
        best epoch, whose network is kept. With `autotune`, other options are tried first; `network_.config` has the
        best ones. Options that have their default value count as not given.

        Ctrl-C ends training with KeyboardInterrupt; the network trained so far is kept and can predict.

        Parameters
        ----------
        X : matrix (rows, features), scipy sparse or dense, SparseRows, DenseRows or MixedRows, or a list of texts
            A dense matrix of float16, float32 or float64, which may be mapped from a file, is not copied; if more than
            half of it is 0, it is treated as sparse. A pair of sparse rows (or texts) and a dense matrix gives rows
            with the features of both.
        y : classes (rows,), or weights of labels (rows, labels), sparse or dense
        callbacks : list of Callback
            They receive what training reports.
        out : path
            Run folder, like that of `dslide.train`: checkpoints are written there in the background, every
            `checkpoint_seconds`. If it already has checkpoints, training resumes from the newest one; other data or
            other options are then refused.
        eval_set : pair (X, y)
            Rows that decide which epoch is the best; training then uses all rows of X.
        sample_weight : array (rows,)
            How much each row counts, relative to the others: a row of weight 2 is trained on twice as often as one of
            weight 1, on average over epochs, and one of weight 0 never. An epoch has about as many rows as without
            weights. Linear classifiers and the statistics that training starts from use the same weights.

        Returns
        -------
        SlideClassifier
            Itself.

        Raises
        ------
        UserError
            Data or options that can't be used.
        """
        fit.fit(self, X, y, callbacks, out, eval_set, sample_weight)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> SlideClassifier:
        """Trains the present network for one pass over the given rows, in random order. The learning rate is constant,
        since the number of rows to come is unknown.

        Later calls may bring more labels and features, as classes, as columns of X and y, or as words of texts: the
        network grows, and rows that bring something new are counted in its label prior. Between calls only
        learning_rate, batch_size, epochs, threads, checkpoint options and options of several ranks may change. A
        network that starts with partial_fit has no label prior, and by default the softmax loss. A network from `fit`
        keeps its label prior, and assumes that rows without anything new are among those the prior was counted on.

        Parameters
        ----------
        X, y : as in `fit`
        classes : array of classes
            All classes known so far; required with the first 1-D y. A 2-D y has a column for each label.
        sample_weight : array (rows,)
            How often each row is trained on in this pass; a fraction is the probability of one more time.

        Returns
        -------
        SlideClassifier
            Itself.
        """
        growth.partial_fit(self, X, y, classes, sample_weight)
        return self

    # ---- prediction ----------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Predicts labels. After a 1-D y, the class of each row. After a 2-D y, an indicator matrix (rows, labels) of
        0 and 1, CSR or dense like y: with loss "sigmoid", the labels with a probability above one half; with
        "softmax", the k best, where k is the mean number of labels of a training row, rounded, at least 1.

        Parameters
        ----------
        X : as in `fit`

        Returns
        -------
        array (rows,) or matrix (rows, labels)
        """
        return prediction.predict(self, X)

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
            Labels whose value in this matrix is not 0 are left out. If fewer than k labels are left, the missing
            column numbers are -1; after a 1-D y this is an error. With a model of interactions, the items of a row of
            X are left out unless `exclude` is given.

        Returns
        -------
        labels : array (rows, k)
            Classes after a 1-D y, column numbers after a 2-D y (`classes_[columns]` are their names, if there are any).
        scores : array (rows, k)
        """
        return prediction.predict_topk(self, X, k, approximate, exclude)

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
        x = rows_to_predict(self, X)
        columns = self._coder.columns(labels)
        prediction.check_size(len(x), len(columns), 4, "give fewer rows or labels at a time")
        return self.network_.scores(x, columns)

    def decision_function(self, X: Any) -> Array:
        """Scores (logits) of all labels, (rows, labels). With two classes, as usual in scikit-learn, (rows,): by how
        much the score of the second class exceeds that of the first.

        Parameters
        ----------
        X : as in `fit`

        Returns
        -------
        array (rows, labels), or (rows,)
        """
        scores = prediction.all_scores(self, X, item=4)
        if len(self.classes_) == 2 and not self._coder.multilabel:
            return np.asarray(scores[:, 1] - scores[:, 0])
        return scores

    def predict_proba(self, X: Any, k: int | None = None) -> Any:
        """Probabilities, (rows, labels). They sum to 1 in each row, except after a 2-D y with loss "sigmoid". With `k`,
        the k best labels of each row, like `predict_topk`, and their probabilities: two arrays (rows, k). After a 1-D y
        with loss "sigmoid" these are not divided by the row's sum.

        Parameters
        ----------
        X : as in `fit`
        k : int
            Labels for each row; by default all.

        Returns
        -------
        array (rows, labels), or labels and probabilities, two arrays (rows, k)
        """
        return prediction.predict_proba(self, X, k)

    def score(self, X: Any, y: Any) -> float:
        """Accuracy after a 1-D y. After a 2-D y, P@1: among rows that have labels, the share whose best label is right.

        Parameters
        ----------
        X, y : as in `fit`

        Returns
        -------
        float
        """
        return prediction.score(self, X, y)

    # ---- keeping -------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Writes a model folder, which `load`, `dslide predict` and `dslide evaluate` open.

        Parameters
        ----------
        folder : path
            Folder to create; an existing model folder is replaced.
        """
        persistence.save(self, folder)

    def save_pretrained(self, folder: str | Path, *, metrics: Mapping[str, float] | None = None) -> None:
        """Writes a model folder in the layout of the Hugging Face hub: without what further training needs, and with a
        card, README.md, that says what the model is, what it was trained on and what its limits are.

        Parameters
        ----------
        folder : path
            Folder to create; an existing model folder is replaced, including its card.
        metrics : dict
            Metrics for the card, as returned by `dslide.evaluate`.
        """
        persistence.save_pretrained(self, folder, metrics)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, trainable: bool = False) -> SlideClassifier:
        """Opens a folder written by `save_pretrained` or `dslide export`, or any other model folder. Another name for
        `load`.

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
        return persistence.from_pretrained(cls, folder, trainable)

    @classmethod
    def load(cls, folder: str | Path, *, trainable: bool = False) -> SlideClassifier:
        """Opens a model folder. With `trainable`, partial_fit can continue training; otherwise weights are mapped from
        disk.

        A model from `dslide train` (the run folder or a model in it) opens as if fitted with a sparse 2-D y, whose
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
        return persistence.load(cls, folder, trainable)

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

    # ---- internal ------------------------------------------------------------------------------------------

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


SlideClassifier.__doc__ = (SlideClassifier.__doc__ or "") + parameters_text()
