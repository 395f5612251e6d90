"""A Slurm of one node with two cores, on loopback, from the daemons that are installed: munged, slurmctld and slurmd."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS_TO_START = 60.0
SETTINGS = """\
ClusterName=ringflow
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller_port}
SlurmdPort={node_port}
# Not on all addresses of the machine.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
CredType=cred/munge
# The last is how long a job that was put back into the queue waits, 120 seconds unless given.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why no Slurm can be started here; None if it can."""
    if os.geteuid() != 0:
        return "only root can start the daemons of Slurm"
    absent = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if not shutil.which(name)]
    return f"{absent[0]} is not installed" if absent else None


def poll(what: str, ready: Callable[[], object], seconds: float = SECONDS_TO_START) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.1)


@contextmanager
def slurm(folder: Path) -> Iterator[Path]:
    """The settings file of a Slurm that runs meanwhile, and leaves nothing behind; `folder` has a short name."""
    host, ports = socket.gethostname().split(".")[0], _free_ports(2)
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    settings = folder / "slurm.conf"
    settings.write_text(
        SETTINGS.format(host=host, folder=folder, controller_port=ports[0], node_port=ports[1]), encoding="utf-8"
    )
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    guard = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    guard += [f"--{name}-file={folder}/munged.{name}" for name in ("log", "pid", "seed")]
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> None:
        with (folder / f"{name}.out").open("wb") as log:
            started.append(subprocess.Popen(words, stdout=log, stderr=log))

    try:
        start("munged", *guard)
        poll("munged", lambda: (folder / "munge.socket").exists())
        start("slurmctld", "slurmctld", "-D", "-f", str(settings))
        start("slurmd", "slurmd", "-D", "-f", str(settings), "-N", "localhost")
        poll("a node of Slurm", lambda: _idle(settings))
        yield settings
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _idle(settings: Path) -> bool:
    environment = {**os.environ, "SLURM_CONF": str(settings)}
    words = ["sinfo", "--noheader", "--format=%t"]
    told = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return told.stdout.strip() == "idle"


def _free_ports(number: int) -> list[int]:
    held = [socket.socket() for _ in range(number)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
