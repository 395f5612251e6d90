"""What a trace can be written as: PROV, RO-Crate, Croissant, cards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.data.manifest import CARD_FILE, CRATE_FILE, CROISSANT_FILE, read_manifest
from ringflow.infer.shipped import MODEL_FILE
from ringflow.provenance.node import Node
from ringflow.provenance.trace import kind_of

#: Names of the SPDX list are made of these.
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


@dataclass(frozen=True)
class Wanted:
    """What to write, and where."""

    prov: Path | None = None
    crate: bool = False
    croissant: bool = False
    card: bool = False
    out: Path | None = None
    license: str | None = None

    @property
    def in_folder(self) -> dict[str, bool]:
        """What goes into a folder, by option."""
        return {"--crate": self.crate, "--croissant": self.croissant, "--card": self.card}

    def require(self, path: Path) -> None:
        """Refuse what cannot be written of this path, before any work."""
        asked = [name for name, wanted in self.in_folder.items() if wanted]
        if not asked:
            for name, value in (("--out", self.out), ("--license", self.license)):
                if value is not None:
                    raise UsageError(f"{name} {value} is for {', '.join(self.in_folder)}; give one of them")
            return
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise UsageError(f"--license {self.license} is no SPDX name; write it as in CC-BY-4.0 or Apache-2.0")
        kind = kind_of(path) if path.is_dir() else None
        possible = ("dataset",) if self.croissant else ("run", "dataset")
        if kind not in possible:
            raise UsageError(f"{asked[0]} needs the folder of a {' or a '.join(possible)}, not {path}; give one")
        if self.croissant and self.out is not None and self.out.resolve() != path.resolve():
            raise UsageError(f"a Croissant file lies beside the shards that it names; leave --out {self.out} out")
        if self.card and kind == "run" and not (path / MODEL_FILE).is_file():
            raise InputFileError(f"{path} has no {MODEL_FILE} yet; let it train until its first validation")


def write_all(node: Node, wanted: Wanted) -> list[Path]:
    """Write what is wanted; the paths of what was written."""
    made = []
    if wanted.prov is not None:
        from ringflow.provenance.prov import prov_document

        with write_errors(wanted.prov):
            wanted.prov.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(wanted.prov, _json(prov_document(node)))
        made.append(wanted.prov)
    if any(wanted.in_folder.values()):
        assert node.path is not None, "refused before"
        out = wanted.out or node.path
        with write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        # Names in a description count from the folder it lies in.
        base = "" if out.resolve() == node.path.resolve() else f"{node.path.resolve().as_uri()}/"
        for name, text in _texts(node, wanted, base):
            write_atomic(out / name, text)
            made.append(out / name)
    return made


def _texts(node: Node, wanted: Wanted, base: str) -> Iterator[tuple[str, str]]:
    """Names and contents; the card first, because a crate counts it among its files."""
    assert node.path is not None, "refused before"
    if wanted.card:
        yield CARD_FILE, _card(node, node.path, wanted.license)
    if wanted.croissant:
        from ringflow.provenance.croissant import croissant

        described = croissant(read_manifest(node.path), str(node.sha256), wanted.license)
        yield CROISSANT_FILE, _json(described)
    if wanted.crate:
        from ringflow.provenance.crate import crate

        yield CRATE_FILE, _json(crate(node, base=base, license=wanted.license))


def _card(node: Node, folder: Path, license: str | None) -> str:
    if node.kind == "dataset":
        from ringflow.data.manifest import dataset_card

        return dataset_card(read_manifest(folder), license)
    from ringflow.provenance.cards import model_card
    from ringflow.provenance.headers import model_header

    return model_card(node, model_header(folder / MODEL_FILE), license)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"
