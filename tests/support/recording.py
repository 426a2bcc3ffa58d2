"""A network that keeps the active sets of its steps."""

from __future__ import annotations

from typing import Any

from reference.network import Activity

from dslide.model.network import Network
from dslide.model.train_step import TrainStep


class RecordingStep(TrainStep):
    """`active` has the native active sets of the last step, layer by layer; `chosen` the same for the reference."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.active: list[Any] = []
        self.chosen: list[Activity] = []
        return super().__call__(*arguments, **options)

    def hidden_active(self, i: int, *arguments: Any) -> Any:
        return self._kept(super().hidden_active(i, *arguments), self.network.layers[i].neurons)

    def output_active(self, *arguments: Any) -> Any:
        return self._kept(super().output_active(*arguments), self.network.output.neurons)

    def _kept(self, active: Any, neurons: int) -> Any:
        self.active.append(active)
        self.chosen.append(Activity.of(active, neurons))
        return active


class Recording(Network):
    """As above; `chosen` and `active` are those of the step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.step: RecordingStep = RecordingStep(self)

    @property
    def chosen(self) -> list[Activity]:
        return self.step.chosen

    @property
    def active(self) -> list[Any]:
        return self.step.active
