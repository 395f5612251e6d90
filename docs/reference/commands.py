"""Write `commands.md` from the command table: `python docs/reference/commands.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclopts import App

from ringflow.cli import app

PAGE = Path(__file__).with_suffix(".md")

HEAD = """# Commands

People read stderr; machines read stdout, which carries the result as JSON with `--json` and nothing without. Every command has `--help`
and `--json`, and ends with what it made and the next command to try.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed, or a check said FAIL |
| 2 | wrong usage: an unknown name, a bad value, a misspelt setting |
| 75 | a training stopped by SIGTERM or SIGUSR1 after a checkpoint: the same command goes on |
| 130 | interrupted with Ctrl-C; a training writes a checkpoint first, a second Ctrl-C ends it at once. Where the same command goes on, it says so |

This page is written by `python docs/reference/commands.py` from the commands themselves.
"""

#: What there is to read beside the help of a command.
MORE = {
    "adapt": "More: [Another detector without labels](../how-to/adapt.md).",
    "bench baseline": "It fits how the time grows from 25 to 200 pions per event.",
    "bench infer": """Rows of `engine`, `num_elements`, `events_per_second`, `cpu_ms_per_event` (all threads) and `peak_mb` (memory one event
adds), each measured in a process of its own, the shortest of repeated runs. All engines compute the same function of arrays in memory, from raw
detector values to particles. `file_to_file_events_per_second` is the speed of `ringflow reconstruct` on simulated tt̄ events. Takes minutes.""",
    "bench loader": """Timed are, one after the other and without touching the dataset: chunks of events through a first epoch, which reads
Parquet and stores finished elements, and through later ones, which read those (`null` where all the data is kept in memory); batches taken out
of a chunk; and training steps on the same events. `load_over_train` is how many times more events chunks and batches together deliver than the
training consumes.""",
    "bench model": """Rows of `backbone`, `num_elements`, `parameters`, `cpu_ms_per_event` (all threads), `wall_ms_per_event` and `peak_mb` (memory
one forward adds), each measured in a process of its own; and `exponents`, fitted to the processor time between 1,000 and 50,000 elements.
`attention` is quadratic and by default stops at 16,384 elements. Takes minutes.""",
    "bench scaling": "The bytes that each process sends are told against 2(N-1)K/N of a ring.",
    "bench serve": "Clients on loopback ask without a pause, with events of different sizes. Exit code 1 if an answer is wrong or missing.",
    "bench train": """Loss, optimiser and average of the weights included; with the share of padding and the memory. A third of the elements are
tracks.""",
    "bench tune": """RASDA against ASHA is told twice, first where it is hard: four trials per device and a batch penalty of 0.5
(`study_speedup_over_asha_4_trials_per_device_batch_penalty`), then one trial per device and free batches. So is random search: its compute until
it had its best, then all of it.""",
    "calibrate": """The scales of the calorimeters belong into the `[calibration]` section of the file of a detector: `--detector mine.toml --out mine.toml` puts
them there.""",
    "check": "Exit code 1 if one fails.",
    "config": """A preset, or a setting that only one command has, says which command is meant. In the JSON `settings` are those of the one command,
or those of every command by its name.""",
    "convert": "More: [Read and write EDM4hep files](../how-to/edm4hep.md).",
    "demo": "300 events each of tt̄ and ZH; under three minutes on two cores.",
    "display": "More: [Look at events](../how-to/display.md).",
    "doctor": "Exit code 1 if something says FAIL.",
    "evaluate": "Every figure has its 68 % interval; what the figures are: [How a reconstruction is judged](../explanation/metrics.md).",
    "explain": "More: [Explain candidates](../how-to/explain.md).",
    "export": "Exit code 1, and no file, if the file differs from the network. More: [Export a network](../how-to/export.md).",
    "launch local": "The exit code is that of the command. If a process dies, all end, and the same command goes on from the last checkpoint.",
    "launch mpi": "It takes the `mpiexec` beside this Python or on the path.",
    "launch slurm": """Two minutes before its time is up, and after the failure of a node, it goes back into the queue, and the next start goes on
from the last checkpoint. What its processes say is in `logs/` of the run, a file for each.""",
    "perceptron": "More: [Use Spark](../how-to/spark.md).",
    "prune": "More: [Make a network smaller](../how-to/prune.md).",
    "reconstruct": "More: [Reconstruct events](../how-to/reconstruct.md).",
    "scaling-model": "More: [Predict how a training scales](../how-to/scaling.md).",
    "serve": """It serves until SIGTERM or Ctrl-C. With `--json` one line with the address, inputs and outputs is printed when the server is ready.
More: [Serve a network](../how-to/serve.md).""",
    "trace": "More: [See where a file came from](../how-to/provenance.md).",
    "train": "How and with which settings: [Train a network](../how-to/train.md).",
    "tune": "More: [Tune](../how-to/tune.md).",
    "tune panda-steer": "More: [Tune with PanDA](../how-to/tune-with-panda.md).",
    "tune replay": "More: [A study on a thousand devices](../explanation/replay.md).",
    "tune report": "More: [Read a study](../how-to/read-a-study.md).",
    "tune resume": "A study of other data or of another version of ringflow is refused. More: [Moving a study](../how-to/tune.md#moving-a-study).",
    "uncertainty": "More: [Know how far off a candidate may be](../how-to/uncertainties.md).",
    "validate": "Exit code 1 if a figure is outside of what is accepted.",
}


def commands(group: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, App]]:
    """Every command that does something, with the words that call it."""
    for name in sorted(name for name in group if not name.startswith("-")):
        if group[name].show:
            if group[name].default_command is not None:
                yield " ".join((*path, name)), group[name]
            yield from commands(group[name], (*path, name))


def reference() -> str:
    """The page."""
    return HEAD + "".join(_section(name, command) for name, command in commands(app))


def _section(name: str, command: App) -> str:
    assert command.default_command is not None
    arguments = [one for one in command.assemble_argument_collection(parse_docstring=True) if one.name != "*"]
    options = [one for one in arguments if one.name.startswith("--") and one.name != "--json"]
    given = [one for one in arguments if one.index is not None]
    must = [f"{one.name} {_kind(one)}" for one in options if one.required]
    usage = " ".join(("ringflow", name, *map(_place, given), *must))
    said = (inspect.getdoc(command.default_command) or "").split("\n\n")
    text = [f"\n## `ringflow {name}`\n", f"`{usage}`\n"]
    text += [
        f"{f'`{part}`' if part.startswith('ringflow ') else part}\n"
        for part in [*said, *filter(None, [MORE.get(name)])]
    ]
    for title, found in (("argument", given), ("option", options)):
        if found:
            rows = [f"| `{', '.join(one.names)}` | {_meaning(one)} |" for one in found]
            text += ["\n".join([f"| {title} | meaning |", "|---|---|", *rows]) + "\n"]
    return "\n".join(text)


def _place(argument: Any) -> str:
    shown = f"{argument.name} ..." if argument.field_info.kind is argument.field_info.VAR_POSITIONAL else argument.name
    return shown if argument.required else f"[{shown}]"


def _kind(argument: Any) -> str:
    return "PATH" if "Path" in str(argument.hint) else "N" if "int" in str(argument.hint) else "VALUE"


def _meaning(argument: Any) -> str:
    default = argument.field_info.default
    shown = (
        default is not None and default is not inspect.Parameter.empty and argument.parameter.show_default is not False
    )
    choices = re.findall(r"'([\w-]+)'", str(argument.hint)) if "Literal" in str(argument.hint) else []
    words = [argument.parameter.help, f"One of {', '.join(f'`{one}`' for one in choices)}." if choices else ""]
    return " ".join([*filter(None, words), *([f"(`{default}`)"] if shown else [])]).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
