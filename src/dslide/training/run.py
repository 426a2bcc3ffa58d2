"""A training run and its folder: checkpoints/ (the network), log.jsonl (what happened), summary.json (result), and
profile.json and tensorboard/ if they were asked for. With several ranks each keeps a log of its own, log-1.jsonl and so
on, and the first one speaks for all."""

from __future__ import annotations

import dataclasses
import json
import socket
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dslide.checkpoint.collective_load import restore_network
from dslide.checkpoint.saved_model import SavedModel
from dslide.cli.evaluate import evaluate, exact_loss, loss_line, table
from dslide.cli.options import default_ks
from dslide.config import Config
from dslide.data import Tokens
from dslide.errors import Diverged
from dslide.training.checkpointing import Checkpointing
from dslide.training.logging import JsonLog, ProgressLine, RecordLog, finite, warn
from dslide.training.tensorboard import TensorBoardLog
from dslide.training.trainer import TestInfo, Trainer
from dslide.util.memory import peak_rss_bytes
from dslide.util.units import clock, format_bytes

if TYPE_CHECKING:
    from dslide.comm import Communicator
    from dslide.data import Data
    from dslide.training.profiler import Profile
    from dslide.training.trainer import Result


class Run:
    """Trains on the data, from the start or from a saved state, and keeps the run's folder."""

    def __init__(
        self, comm: Communicator, folder: Path, config: Config, data: Data, saved: SavedModel | None, quiet: bool,
        planned_bytes: int, profile: Profile | None = None, ks: tuple[int, ...] | None = None,
        hold_out: float | None = None, last: Path | None = None, tensorboard: bool = False,
    ) -> None:  # fmt: skip
        self.folder, self.comm = folder, comm
        self.data, self.hold_out, self.planned_bytes = data, hold_out, planned_bytes
        self.ks = ks or default_ks(data)
        self.label_counts = data.label_counts
        self.trainer = Trainer(config, data.features, data.labels, comm=comm, profile=profile)
        folder.mkdir(parents=True, exist_ok=True)
        if saved is not None:
            restore_network(self.trainer.network, saved.state)
            self.trainer.load_progress(saved.progress)
        log = "log.jsonl" if comm.rank == 0 else f"log-{comm.rank}.jsonl"
        about = {"data": data.source, "rows": len(data), "planned_bytes": planned_bytes}
        self._logs: list[RecordLog] = [JsonLog(folder / log, about=about)]
        if tensorboard and comm.rank == 0:
            self._logs.append(TensorBoardLog(folder / "tensorboard"))
        checkpointing = Checkpointing(self.trainer, folder, self.model, warn, last)
        self.checkpoints = checkpointing.manager
        self.trainer.callbacks += [ProgressLine(quiet=quiet or comm.rank > 0), *self._logs, checkpointing]

    def train(self) -> Result:
        """Trains until the end or Ctrl-C, and saves the network."""
        try:
            result = self.trainer.fit(self.data)
            self.checkpoints.save()
            self.checkpoints.close()
        except Diverged as error:
            raise Diverged(f"{error}; {self.checkpoints.last_in_words()}") from None
        return result

    def model(self) -> SavedModel:
        """The run as it is now."""
        data, network = self.data, self.trainer.network
        return SavedModel(
            config=network.config,
            features=network.features,
            labels=network.labels,
            state=network.state(),
            label_names=None if data.label_names is None else list(data.label_names),
            feature_names=None if data.feature_names is None else list(data.feature_names),
            vectorizer=None if data.vectorizer is None else data.vectorizer.to_dict(),
            progress={**self.trainer.progress(), "data": data.checksum, "hold_out": self.hold_out},
            label_counts=self.label_counts,
            rows=len(data),
            base=data.base,
            tokens=dataclasses.asdict(data.options) if isinstance(data, Tokens) else None,
            interactions=data.users is not None,
        )

    def measure(self, test: Data) -> dict[str, float]:
        """Metrics of the network as it is now, and its loss over all labels. Ranks measure together."""
        network = self.trainer.network
        found, _ = evaluate(network.predict_topk, network, test, self.label_counts, len(self.data), self.ks)
        return found | {"loss": exact_loss(network, test)}

    def summarize(self, result: Result, test: Data | None) -> None:
        """Measures on the test data, if there is any; writes RUN/summary.json and prints the gist of it. Ranks measure
        together, the first one writes and prints."""
        from dslide import _core

        network = self.trainer.network
        summary: dict[str, Any] = {
            "samples_per_second": result.samples_per_second,
            "seconds": result.seconds,
            "samples": result.samples,
            "epochs": self.trainer.epoch,
            "steps": self.trainer.step,
            "interrupted": result.interrupted,
            "loss": result.loss,
            "active_neurons_mean": result.active_neurons_mean,
            "parameters": network.parameters,
            "features": network.features,
            "labels": network.labels,
            "rows": len(self.data),
            "planned_bytes": self.planned_bytes,
        }
        metrics = [f"{name}_at_{k}" for name in ("p", "r", "ndcg", "psp") for k in self.ks]
        measured: dict[str, float] = {}
        if test is not None:
            measured = self.measure(test)
            for log in self._logs:
                log.on_test(self.trainer, TestInfo(self.trainer.epoch, result.seconds, measured))
        spread = dict(result.spread)
        about = {"host": socket.gethostname(), "threads": _core.threads(), "peak_rss_bytes": peak_rss_bytes()}
        others = self.comm.gather_objects("memory used", about)
        if self.comm.rank > 0:
            return
        spread["per_rank"] = [own | more for own, more in zip(spread["per_rank"], others, strict=True)]
        summary |= {name: measured.get(name) for name in metrics}
        summary |= {
            "test_rows": measured.get("rows"),
            "test_loss": measured.get("loss"),
            "peak_rss_bytes": max(rank["peak_rss_bytes"] for rank in others),
            "ranks": self.comm.size,
            **spread,
            "threads": _core.threads(),
            "isa": _core.isa(),
            "seed": network.config.seed,
            "version": version("dslide"),
            "config": network.config.to_dict(),
        }
        (self.folder / "summary.json").write_text(json.dumps(finite(summary), indent=1) + "\n")

        print(
            f"{self.trainer.epoch} epochs, {clock(result.seconds)}: {result.samples_per_second:,.0f} "
            f"samples/s, loss {result.loss:.4g}, {network.parameters:,} parameters, "
            f"{format_bytes(summary['peak_rss_bytes'])} of memory at most"
        )
        if self.comm.size > 1:
            print(
                f"{self.comm.size} ranks: {format_bytes(round(spread['bytes_sent_per_step']))} sent by each in a step, "
                f"{spread['comm_seconds'] / max(result.seconds, 1e-9):.0%} of the time spent waiting for others, "
                f"{spread['overlap']:.0%} of the exchanges hidden; imbalance {spread['imbalance']:.2f}"
            )
        if self.trainer.profile is not None:
            self._tell_profile(self.trainer.profile)
        if measured:
            print(table(measured, self.ks))
            print(loss_line(measured["loss"]))
        print(f"saved in {self.folder}")

    def _tell_profile(self, profile: Profile) -> None:
        """Writes RUN/profile.json and prints the table, of this rank."""
        from dslide import _core

        about = {
            "rank": self.comm.rank,
            "ranks": self.comm.size,
            "threads": _core.threads(),
            "isa": _core.isa(),
            "steps": profile.steps,
            "seconds": profile.seconds,
            "measured_peak": vars(profile.speeds),
            "phases": profile.figures(),
        }
        (self.folder / "profile.json").write_text(json.dumps(finite(about), indent=1) + "\n")
        print(profile.table())
