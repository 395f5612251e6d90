"""Play iDDS and a pilot on this machine: steer, evaluate, steer again, until the steering says that it is enough.

    python examples/panda/play_idds.py FOLDER clic_tiny data=sim:qq length.events=2000

What it calls is what PanDA calls, in FOLDER, one point after the other. Nothing is asked over a network.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
MAX_POINTS, NUM_POINTS, TRIES = 4, 2, 3
GIVEN_UP = 1e30


def ringflow(*words: str, folder: Path) -> int:
    """Run a command in the working folder."""
    return subprocess.run([sys.executable, "-m", "ringflow.cli", "tune", *words], cwd=folder, check=False).returncode


def steer(points: list[list[object]], settings: list[str], folder: Path) -> list[object]:
    """New points, from all points so far."""
    opt_space = json.loads((HERE / "space.json").read_text(encoding="utf-8"))
    (folder / "in.json").write_text(json.dumps({"points": points, "opt_space": opt_space}), encoding="utf-8")
    numbers = ["--max-points", str(MAX_POINTS), "--num-points", str(NUM_POINTS)]
    files = ["--in-file", "in.json", "--out-file", "out.json"]
    if code := ringflow("panda-steer", *settings, *numbers, *files, folder=folder):
        sys.exit(code)
    new: list[object] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    return new


def evaluate(point: object, settings: list[str], folder: Path) -> float:
    """The loss of a point; a very large one if three tries fail."""
    (folder / "input.json").write_text(json.dumps(point), encoding="utf-8")
    for _ in range(TRIES):
        ringflow("panda-evaluate", *settings, folder=folder)
        output = json.loads((folder / "output.json").read_text(encoding="utf-8"))
        if output["status"] == 0:
            return float(output["loss"])
    return GIVEN_UP


def main(folder: Path, settings: list[str]) -> None:
    """From nothing to the best point."""
    folder.mkdir(parents=True, exist_ok=True)
    points: list[list[object]] = []
    while new := steer(points, settings, folder):
        points += [[point, evaluate(point, settings, folder)] for point in new]
    for point, loss in sorted(points, key=lambda entry: float(str(entry[1]))):
        print(f"{loss:10.4g}  {json.dumps(point)}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
