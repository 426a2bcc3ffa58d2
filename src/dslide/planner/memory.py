"""What a training run will take in memory, told before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from dslide.checkpoint.snapshot import checkpoint_memory
from dslide.config import Config
from dslide.model.activations import padded
from dslide.model.defaults import settled
from dslide.model.hash_parameters import automatic, training_family
from dslide.model.label_prior import has_label_prior
from dslide.model.layer import COPIED_BYTES
from dslide.model.lsh import NEURONS_AT_A_TIME, resolve_output, sampling_sizes
from dslide.model.network import KEPT_BYTES
from dslide.model.state_layout import MOMENTS
from dslide.model.storage import STORAGE
from dslide.util.memory import check_memory, format_bytes
from dslide.util.threads import available_cores

PROGRAM_BYTES = 80_000_000  # Python, numpy and this package: 56 MB measured, more with scikit-learn
MPI_BYTES = 20_000_000  # mpi4py and the MPI behind it: 17 MB measured


@dataclass(frozen=True)
class Plan:
    """Memory of a training run on each of its ranks, by part, in bytes."""

    what: str  # the network, in words
    parameters: int
    parts: dict[str, int]
    ranks: int = 1

    @property
    def bytes_total(self) -> int:
        return sum(self.parts.values())

    def check(self, ranks_here: int = 1) -> None:
        """Raises MemoryNeeded if there is less memory than that for each of the ranks on this machine."""
        what, advice = f"training a network with {self.what}", "smaller hidden layers need less"
        if self.ranks > 1:
            what = f"{what} on {ranks_here} of {self.ranks} ranks"
            advice += ", and so do ranks on more machines"
        check_memory(self.bytes_total, what, advice, ranks_here)

    def lines(self) -> list[str]:
        """The plan in words."""
        parts = ", ".join(f"{format_bytes(size)} {name}" for name, size in self.parts.items() if size >= 10**6)
        each = f" on each of {self.ranks} ranks" if self.ranks > 1 else ""
        return [f"plan: {self.parameters:,} parameters; {format_bytes(self.bytes_total)} of memory{each}: {parts}"]


def plan(
    config: Config, features: int, labels: int, data_bytes: int = 0, ranks: int = 1, threads: int = 0,
    linked: bool = True, features_per_row: float = 75,
) -> Plan:  # fmt: skip
    """The memory for training on data that takes so many bytes itself. `threads` are those of a rank, if the options
    leave them open; `linked` says whether the data is such that there are links, as streams of words are not."""
    config = settled(config, labels)
    threads = config.threads or threads or available_cores()
    shares = config.hidden_share or (1.0,) * len(config.hidden)
    sampled = [share < 1 for share in shares] + [resolve_output(config, labels) == "lsh"]
    parameters = weights = moments = tables = 0
    activations = []  # of a batch's row, in floats
    inputs, sparse = features, True
    for neurons, is_sampled in zip([*config.hidden, labels], sampled, strict=True):
        own = -(-neurons // ranks)
        length, width = (inputs, own) if sparse else (own, inputs)
        parameters += inputs * neurons + neurons
        numbers = length * padded(width)
        weights += STORAGE[config.weights].itemsize * numbers + 4 * own + 4 * (length + own)  # biases and clocks
        moments += len(MOMENTS[config.optimizer]) * (STORAGE[config.moments].itemsize * numbers + 4 * own)
        if is_sampled:
            tables += table_bytes(config, neurons, inputs, sparse, ranks)
        # each thread has its own gradient of the layer's input; messages are out and in at once
        copies = 2 + threads + (4 if ranks > 1 else 0)
        activations.append(copies * (padded(inputs) if not sparse else 0))
        inputs, sparse = neurons, is_sampled
    hits, draws = sampling_sizes(config, labels)
    batch, full = config.batch_size, resolve_output(config, labels) == "full"
    own = -(-labels // ranks)
    neurons = own if full else min(labels, batch * (hits + 8) + draws) // ranks + 1
    if config.active_sets == "row" and not full:
        active = batch * (hits + draws + 8) * 40  # lists of neurons by row and rows by neuron, logits
    else:
        logits = 4 * 146 * -(-batch // 128) * (neurons + 64)  # padded, and a row more for each block
        active = 16 * neurons + (logits if logits <= KEPT_BYTES else 0)
    links = 0
    if linked and has_label_prior(config):  # at most: lists by feature, and a share and a position of each label
        each = min(config.prior_labels, labels)
        links = 8 * (features + 1) + 8 * features * each // ranks + 8 * own
        # what a step adds: each thread's sums by neuron, and what rows add, first by thread and then together
        active += threads * 20 * neurons + 16 * batch * min(neurons, round(features_per_row * each / ranks))
    work = 4 * batch * sum(activations) + active + threads * (1 << 20)
    saving = checkpoint_memory(weights + moments) if config.checkpoint_seconds else 0
    parts = {
        "weights": weights,
        "optimizer state": moments,
        "checkpoints": saving,
        "label prior": links,
        "hash tables": tables,
        "data": data_bytes,
        "work space": work,
        "program": PROGRAM_BYTES + (MPI_BYTES if ranks > 1 else 0),
    }
    layers = ", ".join(map(str, config.hidden))
    return Plan(f"{features:,} features, hidden layers of {layers} and {labels:,} labels", parameters, parts, ranks)


def table_bytes(config: Config, neurons: int, inputs: int, sparse_input: bool, ranks: int = 1) -> int:
    """Hash tables over a rank's share of a layer's neurons, with what renewing and asking them takes."""
    _, automatic_tables, automatic_bits = automatic(neurons, inputs, training_family(config.family))
    neurons = -(-neurons // ranks)
    count, bits = config.tables or automatic_tables, config.table_bits or automatic_bits
    buckets = count * (8 * neurons + 4 * ((1 << bits) + 1))  # codes and numbers of neurons; where buckets begin
    as_stored = config.weights == "float32" and not sparse_input  # else they are copied to be hashed
    copies = 0 if as_stored else min(COPIED_BYTES, 4 * inputs * neurons)
    renewing = 4 * neurons + copies + 4 * count * min(neurons, NEURONS_AT_A_TIME)
    return buckets + renewing + neurons
