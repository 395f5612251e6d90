"""The same rules in other packages: the same reports, told in the same order, and what they decide.

Optuna's `SuccessiveHalvingPruner` has the rule of `asha`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ringflow.tune import replay
from ringflow.tune.schedulers import Asha, Hyperband, Ladder, Report

RECORDED = json.loads((Path(replay.__file__).parent / "recorded.json").read_text())["trials"]


def tell(ladder: Ladder, seed: int, trials: int, told: Callable[[int, int, float], str]) -> None:
    """Recorded trainings, with a little noise so that no two are alike, come to their rungs in a random order."""
    random = Random(seed)
    curves = [random.choice(RECORDED)["value"] for _ in range(trials)]
    at = dict.fromkeys(range(trials), 0)
    while at:
        trial = random.choice(list(at))
        number, curve = at[trial], curves[trial]
        value = curve[number * (len(curve) - 1) // (len(ladder.rungs) - 1)] + random.gauss(0.0, 0.05)
        if told(trial, ladder.rungs[number], value) == "stop":
            del at[trial]
        else:
            at[trial] += 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ladder", [Ladder(10, 200, 4), Ladder(1, 64, 2), Ladder(3, 100, 3)], ids=str)
def test_optuna_decides_the_same_on_every_report(ladder: Ladder, seed: int) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=ladder.least, reduction_factor=ladder.eta)
    study = optuna.create_study(pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=1))
    ours = Asha(ladder.rungs, ladder.eta)
    theirs = []
    for trial in range(60):
        ours.add(trial)
        theirs.append(study.ask())
    decisions = {"stop": 0, "continue": 0}

    def told(trial: int, resource: int, value: float) -> str:
        verdict = ours.report(Report(trial, resource, value)).verdict
        if resource < ladder.most:  # Optuna knows no end
            theirs[trial].report(value, resource)
            assert theirs[trial].should_prune() == (verdict == "stop"), (trial, resource, value)
            decisions[verdict] += 1
        return verdict

    tell(ladder, seed, 60, told)
    assert min(decisions.values()) > 10


def test_optuna_has_the_same_brackets() -> None:
    """How many trials begin in which bracket. Within a bracket it halves asynchronously: another rule than Hyperband's."""
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for least, most, eta in [(1, 81, 3), (2, 128, 4), (1, 32, 2)]:
        pruner = optuna.pruners.HyperbandPruner(min_resource=least, max_resource=most, reduction_factor=eta)
        trial = optuna.create_study(pruner=pruner).ask()
        trial.report(1.0, 1)
        trial.should_prune()
        ours = Hyperband(Ladder(least, most, eta).from_the_end, eta)
        assert pruner._trial_allocation_budgets == [ours.bracket_trials(i) for i in range(pruner._n_brackets)]
