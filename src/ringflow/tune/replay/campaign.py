"""What is replayed: learning curves, a cluster, and how long a trial takes.

campaign = plan_campaign(None, trials=1024)
campaign.compare(["asha", "rasda"], [64, 256, 1024])
campaign.lasting(8.0).compare(...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ringflow.base.errors import UsageError
from ringflow.launch import scaling
from ringflow.launch.scaling import CostModel, ScalingSettings
from ringflow.tune.folder import StudyFolder
from ringflow.tune.replay.comparison import Comparison, compare
from ringflow.tune.replay.curves import Curve, model_of
from ringflow.tune.replay.recorded import shipped_curves, study_curves
from ringflow.tune.replay.result import Setting
from ringflow.tune.schedulers import ETA, Ladder, first_rung

#: Hours of a whole trial on one device if nothing says otherwise: our choice, neither the best nor the worst for those that
#: grow; see `sensitivity` for others.
DEFAULT_HOURS = 2.0
#: Curves that are drawn however few are asked for, so that clusters of all sizes see the same ones.
_LEAST_DRAWN = 2048


@dataclass(frozen=True)
class Campaign:
    """Trials that were recorded, or are like those that were, on a cluster that does not exist."""

    what: str
    #: How many curves were recorded, and whether those replayed were drawn from a model of them.
    recorded: int
    drawn: bool
    #: Over one event in all.
    shares: Sequence[Curve]
    #: First rung of a study; None: as `ringflow tune` has it unless told.
    least_share: float | None
    eta: int
    hours: float
    settings: ScalingSettings
    costs: CostModel

    @property
    def most(self) -> int:
        """Events of a whole trial."""
        return round(3600.0 * self.hours * self.costs.throughput(1))

    @property
    def ladder(self) -> Ladder:
        """The rungs."""
        if self.most < 1:
            raise UsageError(f"in {self.hours:g} hours a device does not train a single event; give more --hours")
        least = self.least_share * self.most if self.least_share else first_rung(self.most, self.eta)
        # Rounded down, or Hyperband, which counts from the end, loses its first rung.
        return Ladder(max(int(least + 1e-6), 1), self.most, self.eta)

    @cached_property
    def curves(self) -> list[Curve]:
        """Over the events of a whole trial."""
        return [curve.scaled(float(self.most)) for curve in self.shares]

    def lasting(self, hours: float) -> Campaign:
        """The same with shorter or longer trials: values by the part of the whole stay."""
        return replace(self, hours=hours)

    def compare(
        self,
        schedulers: Sequence[str],
        devices: Sequence[int],
        *,
        setting: Setting | None = None,
        trials: int | None = None,
        orders: int = 5,
        advance: Callable[[int], None] = lambda replays: None,
    ) -> Comparison:
        """Replay with every scheduler on every cluster, see `comparison`."""
        return compare(
            self.curves,
            schedulers,
            devices,
            ladder=self.ladder,
            costs=self.costs,
            setting=setting,
            trials=trials,
            orders=orders,
            advance=advance,
        )


def plan_campaign(
    study: Path | None,
    *,
    trials: int,
    hardware: str = "h200",
    overrides: Sequence[str] = (),
    hours: float | None = None,
    seed: int = 0,
) -> Campaign:
    """Trials like those of a study, or like those that come with the package, so many different ones.

    If fewer were recorded they are drawn from a model of them. Without `hours` trials take as long as those of the study did.
    """
    settings = scaling.resolve(hardware, overrides)
    costs = scaling.build(settings, scaling.default_measured())
    if not costs.throughput(1):
        raise UsageError("one node fails before it gets on; give a larger upkeep.node_lifetime_hours")
    if study is None:
        found, least_share, eta, lasted = shipped_curves(), None, ETA, DEFAULT_HOURS
    else:
        folder = StudyFolder(study)
        found = study_curves(folder)
        least_share, eta = folder.ladder.least / folder.ladder.most, folder.ladder.eta
        lasted = _hours_of(folder) or DEFAULT_HOURS
    shares = [curve.scaled(1.0 / found.most) for curve in found.curves]
    drawn = trials > len(shares)
    return Campaign(
        what=found.what,
        recorded=len(shares),
        drawn=drawn,
        shares=model_of(shares).draw(max(trials, _LEAST_DRAWN), seed=seed) if drawn else shares,
        least_share=least_share,
        eta=eta,
        hours=lasted if hours is None else hours,
        settings=settings,
        costs=costs,
    )


def _hours_of(folder: StudyFolder) -> float:
    """Of a whole trial of a study on one of its processes; 0 if nothing was trained."""
    record = folder.record()
    events = sum(trial.resource for trial in record.trials)
    return record.device_seconds / events * record.most / 3600.0 if events else 0.0
