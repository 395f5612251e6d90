"""What processes that were started together know of each other, in the variables that torch reads.

MPI and Slurm tell a process its number in words of their own. Whoever starts it adds MASTER_ADDR and MASTER_PORT, the place
where the processes meet.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

#: Number of the process, number of all, number on its machine, by who started them.
_WORDS = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def adopt(variables: MutableMapping[str, str] = os.environ) -> None:
    """Translate the words of MPI or Slurm, if a meeting place was given and torch's own words are not there."""
    if "RANK" in variables or "MASTER_ADDR" not in variables:
        return
    for rank, size, local_rank in _WORDS:
        if rank in variables and size in variables:
            variables["RANK"], variables["WORLD_SIZE"] = variables[rank], variables[size]
            variables["LOCAL_RANK"] = variables.get(local_rank, variables[rank])
            return


def free_port() -> int:
    """A port on this machine that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
