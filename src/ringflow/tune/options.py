"""Options of `ringflow tune` and `ringflow tune resume`: where trials run, and how the study goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from ringflow.base.errors import UsageError
from ringflow.base.options import Count, Several, Switch
from ringflow.tune import ExecutorName, SchedulerName, SearchName
from ringflow.tune.schedulers import ETA, GROWING, first_rung

if TYPE_CHECKING:
    from ringflow.launch.slurm import Job
    from ringflow.train.settings import TrainSettings
    from ringflow.tune.folder import StudySettings


@Parameter(name="*")
@dataclass(frozen=True)
class ExecutorOptions:
    """Where trials run."""

    executor: Annotated[ExecutorName, Parameter(help="Processes of this machine, a Ray cluster, or jobs of Slurm.")] = (
        "local"
    )
    workers: Annotated[
        Count | None, Parameter(help="Processes for all trials together; one per accelerator or core unless given.")
    ] = None
    address: Annotated[
        str | None, Parameter(help="Ray: `auto`, or HOST:PORT of the head; a cluster is started here unless given.")
    ] = None
    max_jobs: Annotated[Count, Parameter(help="Slurm: jobs at a time.")] = 8
    tasks_per_node: Annotated[
        Count | None, Parameter(help="Slurm: processes of a trial on a node; one per GPU, or one, unless given.")
    ] = None
    gpus_per_node: Annotated[int, Parameter(validator=Number(gte=0), help="Slurm: GPUs per node.")] = 0
    cpus_per_task: Annotated[Count, Parameter(help="Slurm: cores per process.")] = 1
    time: Annotated[str, Parameter(help="Slurm: time limit of a job, which trains one trial after the other.")] = (
        "1:00:00"
    )
    notice: Annotated[Count, Parameter(help="Slurm: seconds before the limit at which checkpoints are written.")] = 120
    idle: Annotated[Count, Parameter(help="Slurm: seconds without a trial after which a job ends.")] = 60
    partition: Annotated[str | None, Parameter(help="Slurm: partition of the cluster.")] = None
    account: Annotated[str | None, Parameter(help="Slurm: account to charge.")] = None
    setup: Annotated[
        tuple[str, ...], Several, Parameter(help="Slurm: lines for the shell of a job: --setup 'module load cuda'.")
    ] = ()
    option: Annotated[
        tuple[str, ...], Several, Parameter(help="Slurm: further options for sbatch: --option=--qos=fast.")
    ] = ()

    def __post_init__(self) -> None:
        if self.address is not None and self.executor != "ray":
            raise UsageError(f"--address {self.address} is for --executor ray, not {self.executor}")

    def job(self) -> Job:
        """What is asked of Slurm for a trial; the number of its processes comes with the trial."""
        from ringflow.launch.slurm import Job

        names = ("gpus_per_node", "cpus_per_task", "time", "notice", "partition", "account", "setup")
        asked: dict[str, Any] = {name: getattr(self, name) for name in names}
        tasks = self.tasks_per_node or max(self.gpus_per_node, 1)
        return Job(name="ringflow-tune", tasks_per_node=tasks, extra=self.option, **asked)


@Parameter(name="*")
@dataclass(frozen=True)
class Plan:
    """How a study goes."""

    trials: Annotated[Count, Parameter(help="Settings to try.")] = 24
    search: Annotated[SearchName, Parameter(help="How settings are chosen.")] = "tpe"
    scheduler: Annotated[
        SchedulerName, Parameter(help="Who decides how long a trial lives; with `rasda` also on how many processes.")
    ] = "asha"
    objective: Annotated[
        str, Parameter(help="What is made small: loss, jets, cpu_ms, parameters, or several with commas.")
    ] = "loss"
    least: Annotated[
        Count | None, Parameter(help="Events after which trials are compared first; length.events / eta² unless given.")
    ] = None
    eta: Annotated[
        int, Parameter(validator=Number(gte=2), help="One in so many goes on, to so many times the events.")
    ] = ETA
    workers_per_trial: Annotated[
        Count, Parameter(name=("--workers-per-trial", "--initial-workers"), help="Processes of a trial, at first.")
    ] = 1
    most_workers: Annotated[
        Count | None, Parameter(help="Processes of a trial at most, with `rasda`; all unless given.")
    ] = None
    retries: Annotated[int, Parameter(validator=Number(gte=0), help="How often a trial may fail.")] = 2
    seed: Annotated[int, Parameter(validator=Number(gte=0), help="Of the search.")] = 1
    skip_default: Annotated[
        bool, Switch, Parameter(help="Do not begin with the settings as they are, before anything is varied.")
    ] = False

    def settings(self, training: TrainSettings, place: ExecutorOptions) -> StudySettings:
        """The settings of the study, with what follows from the training and from the place."""
        from ringflow.tune.folder import StudySettings

        grows, of_idle = self.scheduler in GROWING, self.scheduler == "rasda-idle"
        processes = self._processes(training, place) if of_idle or (grows and self.most_workers is None) else None
        most_workers = self.most_workers or processes or self.workers_per_trial
        same = {name: value for name, value in vars(self).items() if name in StudySettings.model_fields}
        return StudySettings(
            **{
                **same,
                "objectives": tuple(name.strip() for name in self.objective.split(",") if name.strip()) or ("loss",),
                "least": self.least or first_rung(training.length.events, self.eta),
                "most_workers": max(most_workers, self.workers_per_trial),
                "processes": processes if of_idle else None,
                "default_first": not self.skip_default,
            }
        )

    def _processes(self, training: TrainSettings, place: ExecutorOptions) -> int:
        """Of all trials together."""
        if place.workers is not None:
            return place.workers
        if place.executor == "local":
            from ringflow.tune.study import default_workers

            return default_workers(training.compute.device)
        limit = "" if self.scheduler == "rasda-idle" else ", or --most-workers for one trial"
        raise UsageError(
            f"with --executor {place.executor} and --scheduler {self.scheduler} say how many processes there are: give "
            f"--workers{limit}"
        )
