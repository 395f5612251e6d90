"""The command table. Every command imports its work late, so that help starts at once.

People read stderr; stdout carries JSON and nothing else, when `--json` asks for it.
Exit codes: 0 done, 1 failed, 2 wrong usage, 75 stopped by a signal and to be started again, 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from inspect import signature

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError

from ringflow import __version__
from ringflow.base.errors import RingflowError
from ringflow.base.log import complain
from ringflow.base.processes import wait_without_spinning
from ringflow.base.rundir import DISK_TROUBLES
from ringflow.cli.benchmarks import bench, scaling_model
from ringflow.cli.events import (
    adapt,
    calibrate,
    check,
    convert,
    evaluate,
    export,
    reconstruct,
    serve,
    simulate,
    validate,
)
from ringflow.cli.inspection import (
    config,
    demo,
    display,
    doctor,
    explain,
    models,
    reproduce,
    settings_class,
    trace,
    uncertainty,
)
from ringflow.cli.training import launch, perceptron, prune, train
from ringflow.cli.tuning import tune
from ringflow.launch.environment import adopt

app = App(
    name="ringflow",
    help="Scalable machine-learned particle flow: from collisions to particles.",
    version=__version__,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
for command in (
    *(bench, launch, tune),
    *(calibrate, check, convert, simulate, validate),
    *(perceptron, prune, train),
    *(adapt, evaluate, export, reconstruct, serve),
    *(display, explain, reproduce, scaling_model, trace, uncertainty),
    *(config, demo, doctor, models),
):
    app.command(command)

#: Commands that find what an interruption left, and do the rest.
_GOING_ON = (
    *("simulate", "train", "prune", "reconstruct", "tune", "tune resume", "tune panda-steer", "tune panda-evaluate"),
    "demo",
    *("launch local", "launch ray", "launch spark", "launch mpi"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a user's mistake is one line, never a traceback."""
    wait_without_spinning()
    adopt()
    words = sys.argv[1:] if argv is None else list(argv)
    if wrong := next((word for word in words if not _is_text(word)), None):
        return _report(f"{wrong[:80]} is no text in UTF-8; rename it, or reach it by a link", 2)
    try:
        code = app(
            words,
            exit_on_error=False,
            print_error=False,
            result_action="return_int_as_exit_code_else_zero",
        )
        return int(code)
    except UnknownOptionError as error:
        return _report(_no_such_option(error), 2)
    except MissingArgumentError as error:
        return _report(_lacks(error), 2)
    except CycloptsError as error:
        return _report(str(error).replace(" into int.", " into a whole number; give one, such as 1000."), 2)
    except RingflowError as error:
        return error.exit_code if error.told else _report(str(error), error.exit_code)
    except OSError as error:
        if error.errno in DISK_TROUBLES:
            return _report(DISK_TROUBLES[error.errno], 1)
        if error.errno == errno.ENAMETOOLONG:  # a word of the command line, or of a file
            return _report(f"{str(error.filename)[:80]}... is longer than a path may be; give another", 1)
        raise
    except KeyboardInterrupt:
        again = "" if "--overwrite" not in words else " without --overwrite"
        goes_on = f"; the same command{again} goes on where it stopped"
        return _report("interrupted" + (goes_on if " ".join(app.parse_commands(words)[0]) in _GOING_ON else ""), 130)


def _is_text(word: str) -> bool:
    """Whether all bytes of a word of the command line were UTF-8, which libraries want names of files to be."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lacks(error: MissingArgumentError) -> str:
    """Which argument a command lacks, and what it is."""
    assert error.argument is not None
    name, command = error.keyword or error.argument.name, " ".join(("ringflow", *(error.command_chain or ())))
    meaning = (error.argument.parameter.help or "").strip().rstrip(".")
    return f"{command} lacks {name}{f' ({meaning[:1].lower()}{meaning[1:]})' if meaning else ''}; `{command} --help` has more"


def _no_such_option(error: UnknownOptionError) -> str:
    """What to write instead: another option, or a setting, if the command takes settings."""
    command = " ".join(("ringflow", *(error.command_chain or ())))
    option, _, value = (error.token.keyword or error.token.value).partition("=")
    told, lists = f"{command} has no option {option}", f"`{command} --help` lists the options"
    names = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    similar = get_close_matches(option, names, n=1, cutoff=0.7)
    if error.target is not None and "overrides" in signature(error.target).parameters:
        kind = {"simulate": "simulate", "scaling-model": "scaling-model", "replay": "scaling-model"}
        if meant := settings_class(kind.get(command.split()[-1], "train")).meant_by(option, similar=not similar):
            words = [*(error.root_input_tokens or ()), "VALUE", "VALUE"]
            after = words[words.index(option) + 1] if option in words else "VALUE"
            value = value or ("VALUE" if after.startswith("-") else after)
            value = "cuda" if value == "gpu" else value  # what torch calls one
            return f"{told}; write {meant if '=' in meant or ' ' in meant else f'{meant}={value}'}"
        lists += ", `ringflow config` the settings"
    return f"{told}; " + (f"did you mean {similar[0]}? {lists}" if similar else lists)


def _report(message: str, exit_code: int) -> int:
    complain(f"ringflow: error: {message}")
    return exit_code
