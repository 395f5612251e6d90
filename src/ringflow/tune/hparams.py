"""Settings and last values of all trials for the HPARAMS page of TensorBoard, beside the curves that trainings write.

    write_hparams(Path("studies/clic_small"))          # then: tensorboard --logdir studies/clic_small

`tensorboard/0007/` holds a small file per trial; what was there before is written again. Needs no TensorBoard.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from ringflow.base.config import toml_value
from ringflow.base.rundir import write_errors
from ringflow.tune.folder import StudyFolder
from ringflow.tune.objective import ALIASES
from ringflow.tune.space import Choice

BOARD_FOLDER = "tensorboard"
#: The best ones are written if there are more: TensorBoard takes minutes to read thousands.
MOST_TRIALS = 500


def write_hparams(study: Path) -> Path:
    """Write the files; the folder to give to TensorBoard, which is that of the study."""
    from tensorboardX import SummaryWriter
    from tensorboardX.summary import hparams

    folder, board = StudyFolder(study), study / BOARD_FOLDER
    objectives, finite = folder.settings.objectives, math.isfinite
    tags = {f"tune/{name}": 0.0 for name in (*objectives, "events")}
    trials = folder.record().trials
    best = sorted(trials, key=lambda t: t.value if t.value is not None and finite(t.value) else math.inf)[:MOST_TRIALS]
    with write_errors(board):
        shutil.rmtree(board, ignore_errors=True)
        for trial in best:
            _, start, end = hparams({name: _plain(value) for name, value in trial.point.items()}, tags)
            with SummaryWriter(str(board / f"{trial.number:04d}")) as writer:
                writer.file_writer.add_summary(start, walltime=trial.created)
                for report in trial.reports:
                    told = {name: report.figures.get(ALIASES.get(name, name), math.nan) for name in objectives}
                    for name, value in (told | {objectives[0]: report.value, "events": report.resource}).items():
                        writer.add_scalar(f"tune/{name}", value, report.resource, walltime=report.time)
                if trial.state in ("complete", "stopped"):
                    writer.file_writer.add_summary(end, walltime=trial.ended)
        # Which settings vary, and what is made small.
        varied = {p.name: _plain(p.options[0] if isinstance(p, Choice) else p.low) for p in folder.space.parameters}
        with SummaryWriter(str(board)) as writer:
            writer.file_writer.add_summary(hparams(varied, tags)[0])
    return study


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) else toml_value(value)
