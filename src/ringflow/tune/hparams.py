"""Settings and last values of all trials for the HPARAMS page of TensorBoard, beside the curves that trainings write.

    write_hparams(Path("studies/clic_small"))          # then: tensorboard --logdir studies/clic_small

`tensorboard/0007/` holds a small file per trial; it is written again when something has happened since. Needs no TensorBoard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ringflow.base.config import toml_value
from ringflow.base.rundir import write_errors
from ringflow.tune.folder import StudyFolder
from ringflow.tune.objective import ALIASES
from ringflow.tune.record import TrialRecord
from ringflow.tune.space import Choice, Parameter

BOARD_FOLDER = "tensorboard"
#: The best ones are written if there are more: TensorBoard takes minutes to read thousands.
MOST_TRIALS = 500
_FILE = "events.out.tfevents.0000000000.hparams"
_STATUS = {"complete": "STATUS_SUCCESS", "stopped": "STATUS_SUCCESS", "failed": "STATUS_FAILURE"}


def write_hparams(study: Path) -> Path:
    """Write the files; the folder to give to TensorBoard, which is that of the study."""
    folder = StudyFolder(study)
    objectives = folder.settings.objectives
    board = study / BOARD_FOLDER
    if _is_newer(board / _FILE, folder.journal):
        return study
    best_first = sorted(folder.record().trials, key=lambda trial: _or_infinite(trial.value))
    with write_errors(board):
        for trial in best_first[:MOST_TRIALS]:
            _write(board / f"{trial.number:04d}" / _FILE, trial.created, _session(trial, objectives))
        _write(board / _FILE, 0.0, [_experiment(folder)])  # last: it tells that all are there
    return study


def _is_newer(path: Path, journal: Path) -> bool:
    return path.exists() and journal.exists() and path.stat().st_mtime_ns > journal.stat().st_mtime_ns


def _or_infinite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.inf


def _experiment(folder: StudyFolder) -> dict[str, Any]:
    """Which settings vary, and what is made small."""
    from tensorboardX.proto.api_pb2 import DataType, Experiment, HParamInfo, MetricInfo, MetricName

    varied = [
        HParamInfo(name=parameter.name, type=DataType.Value(_type_of(parameter)))
        for parameter in folder.space.parameters
    ]
    metrics = [
        MetricInfo(name=MetricName(tag=_tag(name)), display_name=name)
        for name in (*folder.settings.objectives, "events")
    ]
    told = Experiment(name=folder.path.absolute().name, hparam_infos=varied, metric_infos=metrics)
    return _plugin("experiment", experiment=told)


def _session(trial: TrialRecord, objectives: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """A trial: its settings, its values at every rung, and how it ended."""
    from tensorboardX.proto.api_pb2 import Status
    from tensorboardX.proto.plugin_hparams_pb2 import SessionEndInfo, SessionStartInfo
    from tensorboardX.proto.summary_pb2 import Summary

    start = SessionStartInfo(group_name=f"trial {trial.number}", start_time_secs=trial.created)
    for name, value in trial.point.items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            start.hparams[name].number_value = value
        else:
            start.hparams[name].string_value = value if isinstance(value, str) else toml_value(value)
    yield _plugin("session_start_info", session_start_info=start)
    for report in trial.reports:
        told = {name: report.figures.get(ALIASES.get(name, name), math.nan) for name in objectives}
        told |= {objectives[0]: report.value, "events": float(report.resource)}
        values = [Summary.Value(tag=_tag(name), simple_value=value) for name, value in told.items()]
        yield {"step": report.resource, "wall_time": report.time, "summary": Summary(value=values)}
    if trial.over:
        end = SessionEndInfo(status=Status.Value(_STATUS[trial.state]), end_time_secs=trial.ended or 0.0)
        yield _plugin("session_end_info", session_end_info=end)


def _plugin(tag: str, **content: Any) -> dict[str, Any]:
    """What the HPARAMS page reads, in the wrapping that it wants."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

    packed = HParamsPluginData(version=0, **content).SerializeToString()
    data = SummaryMetadata.PluginData(plugin_name="hparams", content=packed)
    value = Summary.Value(tag=f"_hparams_/{tag}", metadata=SummaryMetadata(plugin_data=data))
    return {"summary": Summary(value=[value])}


def _write(path: Path, time: float, events: Any) -> None:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    records = RecordWriter(str(path))
    for event in ({"file_version": "brain.Event:2"}, *events):
        known: Mapping[str, Any] = {"wall_time": time, **event}
        records.write(Event(**known).SerializeToString())
    records.close()


def _type_of(parameter: Parameter) -> str:
    if not isinstance(parameter, Choice):
        return "DATA_TYPE_FLOAT64"
    if all(isinstance(option, bool) for option in parameter.options):
        return "DATA_TYPE_BOOL"
    if any(isinstance(option, bool) or not isinstance(option, int | float) for option in parameter.options):
        return "DATA_TYPE_STRING"
    return "DATA_TYPE_FLOAT64"


def _tag(name: str) -> str:
    return f"tune/{name}"
