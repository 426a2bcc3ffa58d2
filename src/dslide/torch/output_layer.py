"""`OutputLayer`: an output layer of very many labels behind an encoder in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dslide.comm import Communicator, solo
from dslide.comm.agreement import check_agreement
from dslide.config import Config, check_name
from dslide.data.dataset import smoothed_frequencies
from dslide.errors import CommError, ConfigError, DataError, ModelError
from dslide.model.defaults import resolve
from dslide.model.row_collectives import Rows
from dslide.model.shared_output import SharedOutput
from dslide.model.storage import STORAGE
from dslide.torch import operator, ranks
from dslide.torch.labels import Labels, as_csr, label_tensors
from dslide.torch.output_optimizer import OutputOptimizer
from dslide.torch.tensors import as_arrays, as_tensor, check_vectors, vectors
from dslide.training.schedules import RebuildSchedule
from dslide.util.arrays import Floats
from dslide.util.csr import Csr, indptr_of
from dslide.util.threads import use_threads

OPTIONS = (
    "loss", "output", "active_sets", "hash_hits", "random_negatives", "negative_sampling", "correction", "family",
    "hash_k", "tables", "table_bits", "bucket_size", "bucket_policy", "probe", "probe_threshold", "rebuild_every",
    "rebuild_growth", "optimizer", "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "init_scale",
    "weights", "moments", "products", "batch_size", "seed", "threads", "wire", "watchdog",
)  # fmt: skip
# What a network of rows of features has besides, and an output layer alone has not.
ALONE: dict[str, Any] = {
    "prior_labels": 0, "prior_learning_rate": 0.0, "linear_negatives": 0, "start": "random", "activation": "linear",
    "dropout_hidden": 0.0, "micro_batches": 1,
}  # fmt: skip
FORMAT = 1  # of states


class TopK(NamedTuple):
    """The best labels of rows, best first: (rows, k) each, as `torch.topk` has them."""

    values: torch.Tensor  # logits
    indices: torch.Tensor  # labels; -1 where there are fewer


class OutputLayer(torch.nn.Module):
    """An output layer of very many labels: a linear layer with bias and its loss, of which a batch computes and steps
    only the neurons that matter.

    ``forward(h, labels)`` gives the loss, whose ``backward`` gives the gradient of `h`. In training mode, with
    gradients enabled, `forward` also steps the layer's own weights, by the optimizer of its options: they are no
    parameters of the module, and no optimizer of PyTorch knows them. Otherwise the loss is exact, over all labels, and
    nothing is stepped.

    Where ``torch.distributed`` has several ranks, or mpiexec has, neurons are split over them. Each rank calls the
    methods with rows of its own, and all of them together. Encoders are data-parallel.

    Parameters
    ----------
    in_features : int
        Numbers in a hidden vector.
    labels : int
        Number of labels.
    comm : dslide.comm.Communicator, optional
        The ranks that the layer is split over; by default all ranks of ``torch.distributed``, if it is initialized, or
        of mpiexec.
    **options
        Fields of `Config` that say something about an output layer, such as ``loss``, ``output``, ``random_negatives``,
        ``optimizer``, ``learning_rate``, ``weights``, ``seed`` and ``threads``. By default there are as many threads as
        PyTorch uses.
    """

    steps: torch.Tensor

    def __init__(self, in_features: int, labels: int, *, comm: Communicator | None = None, **options: Any) -> None:
        super().__init__()
        for name in options:
            check_name(name, OPTIONS, "option of an output layer")
        self.in_features, self.labels = _size("in_features", in_features), _size("labels", labels)
        self.config = resolve(Config(**ALONE | options, hidden=(self.in_features,)), self.labels)
        if self.config.weights == "int8":
            raise ConfigError("weights: int8 is for prediction only; train with float32 or bf16")
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.optimizer = OutputOptimizer(self.config.learning_rate)
        self._make(ranks.default_communicator(self.config.watchdog) if comm is None else comm)

    def _make(self, comm: Communicator) -> None:
        use_threads(self.config.threads or torch.get_num_threads())
        if comm.size > 1:
            check_agreement(comm, self.config, {"in_features": self.in_features, "labels": self.labels})

        def make() -> SharedOutput:
            return SharedOutput(self.config, self.in_features, self.labels, comm)

        self._network = comm.together("output layer", make)
        self._rebuilds = RebuildSchedule(self.config.rebuild_every, self.config.rebuild_growth)
        self._number = operator.registered(self)

    def extra_repr(self) -> str:
        """The sizes and the options that matter most."""
        config, comm = self.config, self._network.comm
        own = f", rank={comm.rank} of {comm.size}" if comm.size > 1 else ""
        return (
            f"in_features={self.in_features}, labels={self.labels}, loss={config.loss}, output={config.output}, "
            f"optimizer={config.optimizer}, learning_rate={self.learning_rate:g}{own}"
        )

    # ---- loss -------------------------------------------------------------------------------------------------------

    def forward(self, h: torch.Tensor, labels: Labels) -> torch.Tensor:
        """The mean loss of rows; in training a step of the layer.

        Parameters
        ----------
        h : torch.Tensor
            Hidden vectors, (rows, in_features), of any floating type; computed with as float32.
        labels : torch.Tensor, tuple or list
            Integers (rows,) or (rows, n), with -1 for none; a sparse CSR tensor, whose values are weights; a tuple
            ``(crow_indices, col_indices)`` or ``(crow_indices, col_indices, weights)``; or a list with the labels of
            each row. With softmax rows without labels don't count.

        Returns
        -------
        torch.Tensor
            A float32 scalar: the mean over the rows of all ranks, the same on every rank.
        """
        learns = self.training and torch.is_grad_enabled()
        problem, given = "", []
        try:
            check_vectors(h, self.in_features)
            given = label_tensors(labels)
        except DataError as error:
            problem = str(error)
            h = torch.zeros(0, self.in_features)
        device, h = h.device, h.to("cpu", torch.float32)
        if learns and not h.requires_grad:
            h = h.detach().requires_grad_()  # so that the loss has a backward, as with other layers
        with_gradient = torch.is_grad_enabled() and h.requires_grad
        loss, _ = operator.output_loss(h, given, self.steps, self._number, learns, with_gradient, problem)
        if learns:
            self.steps += 1
        on_device: torch.Tensor = loss.to(device)
        return on_device

    def _loss(
        self, h: torch.Tensor, labels: list[torch.Tensor], step: int, learns: bool, with_gradient: bool, problem: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the operator computes."""
        self._check_alive()
        kept = None  # rows that count, if not all do
        found: Floats | None

        def rows() -> Rows:
            nonlocal kept
            if problem:
                raise DataError(problem)
            x, lists = vectors(h), as_csr(labels, len(h), self.labels)
            if self._network.loss.needs_labels and (np.diff(lists.indptr) == 0).any():
                kept = np.diff(lists.indptr) > 0
                x, lists = x[kept], Csr(indptr_of(np.diff(lists.indptr)[kept]), lists.indices, lists.values)
            return x, self._network.loss.targets(lists)

        if learns:
            if self._rebuilds.due(step):
                self._network.rebuild_tables()
            loss, found = self._network.learn(rows, step, self.learning_rate)
        else:
            loss, found = self._network.exact(rows, with_gradient)
        gradient = torch.zeros(h.shape if with_gradient else (0,))
        if found is not None:
            # Data-parallel encoders take the mean of their ranks' gradients: so that it is the gradient of the mean
            # over the rows of all ranks, each has as many times its part of it.
            part = torch.from_numpy(found[:, : self.in_features]) * self._network.comm.size
            gradient[... if kept is None else torch.from_numpy(kept)] = part
        return torch.tensor(loss, dtype=torch.float32), gradient

    # ---- prediction -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def topk(self, h: torch.Tensor, k: int, approximate: bool = False, exclude: Labels | None = None) -> TopK:
        """The k labels with the largest logits of each row, best first.

        Parameters
        ----------
        h : torch.Tensor
            Hidden vectors, (rows, in_features).
        k : int
            Labels of each row.
        approximate : bool
            Only labels that are looked up for a row are scored: much faster, and most of the best are found.
        exclude : torch.Tensor, tuple or list, optional
            Labels that each row must not get, such as items that a user has, in a form that `forward` takes.

        Returns
        -------
        TopK
            ``values`` and ``indices``, (rows, k), as of ``torch.topk``.
        """
        self._check_alive()

        def rows() -> Rows:
            check_vectors(h, self.in_features)
            if not isinstance(k, int) or not 1 <= k <= self.labels:
                raise DataError(f"k: expected 1 to {self.labels}, not {k!r}")
            none = torch.zeros((len(h), 0), dtype=torch.int64)
            return vectors(h), as_csr(label_tensors(none if exclude is None else exclude), len(h), self.labels)

        ids, scores = self._network.topk(rows, k, approximate)
        return TopK(torch.from_numpy(scores).to(h.device), torch.from_numpy(ids).to(h.device, torch.int64))

    @torch.no_grad()
    def log_prob(self, h: torch.Tensor, labels: Labels) -> torch.Tensor:
        """The logarithms of the probabilities of given labels, over all labels and without sampling.

        Parameters
        ----------
        h : torch.Tensor
            Hidden vectors, (rows, in_features).
        labels : torch.Tensor, tuple or list
            As of `forward`.

        Returns
        -------
        torch.Tensor
            In the shape of `labels` if they are integers (rows,) or (rows, n), with 0 where there is none; else a value
            for each label, row by row in ascending order.
        """
        self._check_alive()
        given: list[torch.Tensor] = []
        lists: Csr | None = None

        def rows() -> Rows:
            nonlocal given, lists
            check_vectors(h, self.in_features)
            given = label_tensors(labels)
            lists = as_csr(given, len(h), self.labels)
            return vectors(h), lists

        found = self._network.log_probabilities(rows)
        assert lists is not None
        if len(given) > 1:
            return torch.from_numpy(found).to(h.device)
        table = given[0].cpu().numpy()
        keys = np.arange(len(table)).reshape(-1, *[1] * (table.ndim - 1)) * np.int64(self.labels) + table
        known = lists.row_numbers() * np.int64(self.labels) + lists.indices
        out = np.zeros(table.shape, np.float32)
        out[table >= 0] = found[np.searchsorted(known, keys[table >= 0])]
        return torch.from_numpy(out).to(h.device)

    # ---- weights and state ------------------------------------------------------------------------------------------

    @property
    def learning_rate(self) -> float:
        """The rate of the next step; ``optimizer.param_groups[0]["lr"]``, where schedulers of PyTorch set it."""
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.optimizer.param_groups[0]["lr"] = Config(learning_rate=rate).learning_rate

    @property
    def weight(self) -> torch.Tensor:
        """The weights of this rank's labels, every R-th of R ranks, (own labels, in_features): the layer's own memory,
        not a copy. After writing to it call `weights_changed`."""
        stored = self._network.output.arrays["weights"][:, : self.in_features]
        if stored.dtype == STORAGE["bf16"]:
            return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(stored)

    @property
    def bias(self) -> torch.Tensor:
        """The biases of this rank's labels; memory as of `weight`."""
        return torch.from_numpy(self._network.output.arrays["bias"])[:, 0]

    def weights_changed(self) -> None:
        """What finds labels is made anew from weights that were written to."""
        network = self._network
        network.version += 1
        if network.output.lsh is not None:
            network.output.lsh.forget()
        for cells in (network.cells, network.index):
            if cells is not None:
                cells.forget()

    def set_label_counts(self, counts: Sequence[int] | torch.Tensor, rows: int) -> None:
        """Lets an untrained layer predict each label as often as it occurs, and sample frequent labels more often.

        Parameters
        ----------
        counts : sequence of int or torch.Tensor
            Training rows with each label, (labels,); the same on all ranks.
        rows : int
            Training rows.
        """
        numbers = np.asarray(counts, np.float64)
        if numbers.shape != (self.labels,) or not (numbers >= 0).all() or not numbers.max(initial=0) <= rows:
            raise DataError(f"counts: expected {self.labels} numbers from 0 to the number of rows, {rows}")
        frequencies = smoothed_frequencies(numbers, rows)
        self._network.set_negatives(frequencies)
        self._network.set_output_bias(frequencies)

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` has of the layer, beside the number of steps: copies of this rank's weights and moments,
        and of what finds its labels."""
        comm = self._network.comm
        arrays = {name: as_tensor(array) for name, array in self._network.state().items()}
        return {
            "format": FORMAT, "in_features": self.in_features, "labels": self.labels, "rank": comm.rank,
            "ranks": comm.size, "options": self.config.to_dict(), "learning_rate": self.learning_rate, "arrays": arrays,
        }  # fmt: skip

    def set_extra_state(self, state: Any) -> None:
        """Takes over what `get_extra_state` gave. ModelError if it is of a layer of another size, optimizer or rank."""
        comm = self._network.comm
        if not isinstance(state, dict) or state.get("format") != FORMAT or not isinstance(state.get("arrays"), dict):
            raise ModelError(f"expected the state of an output layer in format {FORMAT}")
        own = {"in_features": self.in_features, "labels": self.labels, "ranks": comm.size, "rank": comm.rank}
        given = dict(state.get("options") or {})
        for name in ("optimizer", "weights", "moments", "output", "family", "hash_k", "tables", "table_bits"):
            own[name], given[name] = getattr(self.config, name), given.get(name)
        for name, expected in own.items():
            found = state.get(name, given.get(name))
            if found != expected:
                raise ModelError(f"the state is of a layer with {name} = {found}, but this one has {expected}")
        self._network.load_state(as_arrays(state["arrays"], self._network.state()))
        self.learning_rate = state["learning_rate"]

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._rebuilds = RebuildSchedule(self.config.rebuild_every, self.config.rebuild_growth)
        self._rebuilds.skip_to(int(self.steps))

    def __getstate__(self) -> dict[str, Any]:
        if self._network.comm.size > 1:
            raise ModelError("an output layer that is split over ranks can't be copied or pickled; use its state_dict")
        hidden = ("_network", "_rebuilds", "_number")
        return {name: value for name, value in self.__dict__.items() if name not in hidden} | {
            "_extra": self.get_extra_state()
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        extra = state.pop("_extra")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._make(solo())
        self.set_extra_state(extra)
        self._rebuilds.skip_to(int(self.steps))

    def _check_alive(self) -> None:
        if ranks.has_ended(self._network.comm):
            raise CommError("the process group of this output layer has ended; make the layer again in a new one")


def _size(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise ConfigError(f"{name}: expected a whole number from 1 to {2**31 - 1}, not {value!r}")
    return value
