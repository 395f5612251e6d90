"""Write the events of a dataset into a flat file, with the columns that an exported model takes.

python examples/cpp/write_flat.py DATASET MODEL.onnx EVENTS.flat [--events N]

The layout is described in the README beside this file.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import RingflowError
from ringflow.base.rundir import atomic_path
from ringflow.data.read import Dataset
from ringflow.infer.runtime import EventRuntime, InputColumn

Tables = Mapping[str, npt.NDArray[np.float32]]


def write_header(file: BinaryIO, num_events: int, inputs: Mapping[str, Sequence[InputColumn]]) -> None:
    """The first line, which is text: what the file is, how many events, and the columns of each input."""
    columns = [f"{kind}={','.join(column.name for column in given)}" for kind, given in inputs.items()]
    file.write(f"ringflow-flat 1 {num_events} {' '.join(columns)}\n".encode())


def write_event(file: BinaryIO, number: int, tables: Tables) -> None:
    """One event: its number, the rows of each input, and their values row by row."""
    file.write(struct.pack("<qII", number, *(len(table) for table in tables.values())))
    for table in tables.values():
        file.write(np.ascontiguousarray(table, "<f4").tobytes())


def dataset_events(dataset: Dataset, runtime: EventRuntime, num_events: int) -> Iterator[tuple[int, Tables]]:
    """Number and tables of the first events."""
    left = num_events
    for block in dataset.events(columns=list(runtime.description.kinds)):
        first = block.take(0, min(len(block), left))
        yield from zip(map(int, first.event_number), runtime.events(first), strict=True)
        left -= len(first)
        if not left:
            return


def main() -> int:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=int, help="only so many")
    given = parser.parse_args()
    if given.events is not None and given.events < 1:
        parser.error(f"--events takes a positive number, not {given.events}")
    try:
        dataset, runtime = Dataset(given.dataset), EventRuntime(given.model)
        num_events = min(given.events or len(dataset), len(dataset))
        with atomic_path(given.out) as temporary, temporary.open("wb") as file:
            write_header(file, num_events, runtime.description.inputs)
            for number, tables in dataset_events(dataset, runtime, num_events):
                write_event(file, number, tables)
    except RingflowError as error:
        print(f"write_flat: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
