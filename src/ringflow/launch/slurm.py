"""Jobs of Slurm: the text of one, its submission, and following it to its end.

Shortly before its time is up Slurm tells the processes of a job. They write a checkpoint and end with an exit code of their
own, and the job puts itself back into the queue: its next start goes on from the checkpoint. After the failure of a node Slurm
puts the job back by itself.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import say
from ringflow.launch.environment import GOES_ON, QUIET, STOPPED

#: Minutes, minutes:seconds, hours:minutes:seconds, or days-hours and perhaps more.
_TIME = re.compile(r"\d+(:\d{1,2}){0,2}|\d+-\d{1,2}(:\d{1,2}){0,2}", re.ASCII)
#: Categories of letters that no line has: control characters, and what separates lines and paragraphs.
_NO_LINE = ("Cc", "Zl", "Zp")
#: Seconds that processes have to notice that one of them ended.
_SECONDS_TO_FOLLOW = 60
#: Between the first two looks at a job and, later, at most: a controller answers many.
_SECONDS_BETWEEN_LOOKS, _MOST_SECONDS = 0.5, 15.0
#: States out of which no job comes back.
ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"),
)


@dataclass(frozen=True)
class Job:
    """What is asked of Slurm."""

    nodes: int = 1
    tasks_per_node: int = 1  # processes, one per GPU where there are GPUs
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    threads: int | None = None  # of a process; as many as it has cores unless given
    time: str = "1:00:00"
    partition: str | None = None
    account: str | None = None
    name: str = "ringflow"
    notice: int = 120  # seconds before the end of its time
    setup: tuple[str, ...] = ()  # lines for the shell, before the processes are started
    extra: tuple[str, ...] = ()  # further options for sbatch
    python: str | None = None  # this one, or the one that the setup puts on the path, unless given
    logs: Path | None = None  # folder for a file of every process; unless given, one file for all where it is submitted

    def __post_init__(self) -> None:
        given = {"--job-name": self.name, "--partition": self.partition, "--account": self.account}
        given |= {"--python": self.python, "the folder": str(self.logs)}
        texts = [
            *given.items(),
            *(("--setup", line) for line in self.setup),
            *(("--option", text) for text in self.extra),
        ]
        for option, text in texts:
            _require_one_line(option, text or "")
        if not _TIME.fullmatch(self.time):
            raise UsageError(f"--time {self.time!r} is no time limit; give MINUTES, H:MM:SS or DAYS-HOURS")

    @property
    def processes(self) -> int:
        """Processes of the job."""
        return self.nodes * self.tasks_per_node


def _require_one_line(what: str, text: str) -> None:
    """Refuse what would end a line of a job, and go on as another one."""
    if any(unicodedata.category(letter) in _NO_LINE for letter in text):
        raise UsageError(f"{what} {text!r} has a control character, and a job is lines of text; leave it out")


def job_text(words: Sequence[str], job: Job) -> str:
    """The script of a job that runs a ringflow command in all its processes."""
    for word in words:
        _require_one_line("the word", word)
    find_port = '"$python" -c "from ringflow.launch.environment import free_port as f; print(f())"'
    options = [f"--cpus-per-task={job.cpus_per_task}", "--kill-on-bad-exit=0", f"--wait={_SECONDS_TO_FOLLOW}"]
    if job.logs is not None:
        options += [shlex.quote(f"--output={_log(job, '%j-rank-%t')}"), "--open-mode=append"]
    return "\n".join(
        [
            *beginning(job),
            f'export MASTER_PORT="${{MASTER_PORT:-$({find_port})}}"',
            "code=0",
            # One that ends does not kill the others, which are about to end with a checkpoint; but they may not stay for ever.
            f'srun {" ".join(options)} "$python" -m ringflow.cli {shlex.join(words)} || code=$?',
            f'if [ "$code" -eq {STOPPED} ]; then',
            '    scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$code"',
            "",
        ]
    )


def beginning(job: Job) -> list[str]:
    """The first lines of a job: what it asks for, and what its processes find in their environment."""
    asked = [
        shlex.quote(f"--job-name={job.name}"),
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.tasks_per_node}",
        f"--cpus-per-task={job.cpus_per_task}",
        f"--time={job.time}",
        # Not per task: a process may see the GPUs of its neighbours, to which it sends directly.
        *([f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []),
        *([shlex.quote(f"--partition={job.partition}")] if job.partition else []),
        *([shlex.quote(f"--account={job.account}")] if job.account else []),
        shlex.quote(f"--output={_log(job, '%j-job' if job.logs else '%j')}"),
        "--open-mode=append",
        "--requeue",
        f"--signal=USR1@{job.notice}",
        *job.extra,
    ]
    # An environment that the lines of the user activate is meant for the processes, too.
    activates = bool(job.setup) and job.python is None
    return [
        "#!/bin/bash",
        *(f"#SBATCH {line}" for line in asked),
        # Without it a job that is submitted by hand would fail without a word.
        *([f"# Its folder must be there: mkdir -p {shlex.quote(str(job.logs))}"] if job.logs else []),
        "set -e",
        # What the shell had that submitted the job would be believed.
        "unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS",
        f"python={shlex.quote(job.python or sys.executable)}",
        *(["before=$(command -v python || true)"] if activates else []),
        *job.setup,
        *(
            ['after=$(command -v python || true)\nif [ "$after" != "$before" ]; then python=$after; fi']
            if activates
            else []
        ),
        # This script runs on the first node, where the first process will be; processes of one node need no network.
        'nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))',
        '[ "${#nodes[@]}" -gt 1 ] || nodes=(127.0.0.1)',
        'export MASTER_ADDR="${MASTER_ADDR:-${nodes[0]}}"',
        f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{job.threads or job.cpus_per_task}}}"',
        *(f'export {name}="${{{name}:-{value}}}"' for name, value in QUIET.items()),
    ]


def _log(job: Job, part: str) -> str:
    """Where Slurm writes a part of what is said, in its own patterns."""
    name = f"{job.name}-{part}.out"
    return name if job.logs is None else f"{str(job.logs).replace('%', '%%')}/{name}"


def outputs(job: Job, number: str) -> str:
    """Where a job writes what its processes say; the shell knows the files by it."""
    return f"{job.name}-{number}.out" if job.logs is None else str(job.logs / f"{job.name}-{number}-*.out")


def submit(text: str, folder: Path) -> str:
    """Hand a job in from a folder; what Slurm calls it."""
    done = ask("sbatch", "--parsable", text=text, folder=folder)
    if done.returncode:
        reason = " ".join(done.stderr.replace("sbatch: error:", "").split())[:300]
        raise FailureError(f"sbatch refused the job: {reason}")
    return done.stdout.strip().split(";")[0]


def ask(
    tool: str, *words: str, text: str | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What a tool of Slurm answers."""
    found = shutil.which(tool)
    if found is None:
        raise FailureError(f"{tool} is not on the path: log in to the cluster, or print the job with --dry-run")
    return subprocess.run([found, *words], input=text, cwd=folder, capture_output=True, text=True, check=False)


def follow(number: str, output: Path) -> int:
    """Wait until a job has ended for good, showing what it writes meanwhile; its exit code. `output` may be a pattern."""
    shown: dict[Path, int] = {}
    pause, state, code = _SECONDS_BETWEEN_LOOKS, "", 0
    while state not in ENDED:
        if state:
            time.sleep(pause)
            pause = min(1.2 * pause, _MOST_SECONDS)
        told = ask("scontrol", "--oneliner", "show", "job", number)
        if told.returncode and "Invalid job id" in told.stderr:
            raise FailureError(f"Slurm has forgotten job {number}; look into its output")
        # The controller may be down for a while; jobs go on without it.
        fields = dict(word.split("=", 1) for word in told.stdout.split() if "=" in word)
        state, code = fields.get("JobState", "UNKNOWN"), int(fields.get("ExitCode", "0:0").split(":")[0])
        for path in sorted(output.parent.glob(output.name)):
            with path.open("rb") as file:
                file.seek(shown.get(path, 0))
                lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            shown[path] = shown.get(path, 0) + len(whole)
            if whole:
                say(whole.decode(errors="replace").removesuffix("\n"))
    if state == "COMPLETED" or code:
        return code
    raise FailureError(f"job {number} ended as {state}, see {output}; submit it again: {GOES_ON}")
