"""A training that is to be planned: its options, its data, and rows to time its steps with."""

from __future__ import annotations

from dataclasses import dataclass

from dslide.config import Config
from dslide.data import Data, Dataset
from dslide.data.dataset import rows_bytes
from dslide.model.defaults import ResolvedConfig, resolve
from dslide.planner.calibration import Calibration, calibrate
from dslide.planner.forecast import NODES
from dslide.planner.memory import Plan, plan
from dslide.planner.trial_rows import TrialRows, made_up, rows_of


@dataclass(frozen=True)
class Workload:
    """What is planned for any number of nodes."""

    config: ResolvedConfig
    trial: TrialRows
    rows: int  # of an epoch; 0: unknown
    data_bytes: int
    with_prior: bool  # the data is such that there can be a label prior

    @classmethod
    def of_data(cls, config: Config, data: Data) -> Workload:
        """Training on this data."""
        decided = resolve(config, data.labels, data)
        trial = rows_of(data, config.batch_size, config.seed)
        return cls(decided, trial, data.rows_per_epoch, data.data_bytes, isinstance(data, Dataset))

    @classmethod
    def of_size(
        cls, config: Config, features: int, labels: int, features_per_row: int, labels_per_row: int, rows: int
    ) -> Workload:
        """Training on data of which only the size is known."""
        decided = resolve(config, labels)
        trial = made_up(config.batch_size, features, labels, features_per_row, labels_per_row, rows)
        data_bytes = rows_bytes(rows, rows * (features_per_row + labels_per_row)) if rows else 0
        return cls(decided, trial, rows, data_bytes, with_prior=True)

    @property
    def most_nodes(self) -> int:
        """The number of nodes that the narrowest layer can be split over."""
        return min(self.trial.labels, *self.config.hidden)

    def node_counts(self, nodes: int) -> list[int]:
        """Numbers of nodes to compare, this one among them, ascending."""
        return sorted({nodes, *(count for count in NODES if count <= self.most_nodes)})

    def memory(self, nodes: int, cores: int) -> Plan:
        """The memory of each node."""
        features_per_row, _ = self.trial.values_per_row
        return plan(
            self.config, self.trial.features, self.trial.labels, self.data_bytes, nodes, cores, self.with_prior,
            features_per_row,
        )  # fmt: skip

    def calibrate(self, nodes: int, cores: int) -> Calibration:
        """Times steps of this training, cut down, on this machine: for the extremes of `node_counts` first, then for
        `nodes`, and for the rest as time allows."""
        counts = self.node_counts(nodes)
        return calibrate(self.config, self.trial, [1, counts[-1], nodes, *counts[2:], *counts], cores, self.with_prior)
