"""A trace for others: W3C PROV, RO-Crate, Croissant, and a model card for the Hugging Face Hub.

Every value is one that was recorded; what is not recorded, such as times and persons, is not made up.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.rundir import SETTINGS_FILE, write_atomic, write_errors
from ringflow.base.words import flat
from ringflow.data.manifest import (
    CARD_FILE,
    CRATE_FILE,
    CROISSANT_FILE,
    MANIFEST_FILE,
    SPLITS,
    Manifest,
    dataset_card,
    inside,
    read_manifest,
    schema_columns,
)
from ringflow.data.write import EVENT_NUMBER
from ringflow.event.schema import parquet_name
from ringflow.infer.shipped import MODEL_FILE
from ringflow.provenance.trace import Node, kind_of, model_header, records_of, sha256_of, walk
from ringflow.train.runs import HISTORY_FILE, LAST_MODEL_FILE, RUN_FILE

#: Names of the SPDX list are made of these.
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_LICENSES = "https://spdx.org/licenses/"

Record = dict[str, Any]


class Wanted(NamedTuple):
    """What to write, and where."""

    prov: Path | None = None
    crate: bool = False
    croissant: bool = False
    card: bool = False
    out: Path | None = None
    license: str | None = None

    def require(self, path: Path) -> None:
        """Refuse what cannot be written of this path, before any work."""
        options = {"--crate": self.crate, "--croissant": self.croissant, "--card": self.card}
        asked = [name for name, wanted in options.items() if wanted]
        if not asked:
            for name, value in (("--out", self.out), ("--license", self.license)):
                if value is not None:
                    raise UsageError(f"{name} {value} is for {', '.join(options)}; give one of them")
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

    def write(self, node: Node) -> list[Path]:
        """Write what is wanted, the card before the crate, which counts it among its files; the paths of what was written."""
        made, folder = [], node.path or Path()
        out = self.out or folder

        def put(path: Path, text: str) -> None:
            with write_errors(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)
            made.append(path)

        with records_of(folder):
            if self.prov is not None:
                put(self.prov, _json(prov_document(node)))
            if self.card and node.kind == "dataset":
                put(out / CARD_FILE, dataset_card(read_manifest(folder), self.license))
            elif self.card:
                put(out / CARD_FILE, model_card(node, model_header(folder / MODEL_FILE), self.license))
            if self.croissant:
                put(out / CROISSANT_FILE, _json(croissant(read_manifest(folder), str(node.sha256), self.license)))
            if self.crate:
                # Names in a description count from the folder it lies in.
                base = "" if out.resolve() == folder.resolve() else f"{folder.resolve().as_uri()}/"
                put(out / CRATE_FILE, _json(crate(node, folder, base, self.license)))
        return made


def _json(value: Record) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"


# W3C PROV

_PREFIX = "rf"
_ACTIVITIES = ("run", "study")
_MAKINGS = {
    "candidates": "reconstruction",
    "dataset": "production",
    "model": "conversion of a model",
    "report": "evaluation",
}


def prov_document(node: Node) -> Record:
    """A trace as PROV-JSON (https://www.w3.org/submissions/prov-json/): entities, activities, software agents.

    Files are entities, runs and studies are activities, and every other making (a production, a reconstruction, an export, an
    evaluation) is an activity between what was made and what it was made of.
    """
    document: dict[str, Record] = defaultdict(dict, prefix={_PREFIX: "urn:x-ringflow:"})

    def relate(relation: str, **ends: str) -> None:
        roles = {f"prov:{role}": name for role, name in ends.items()}
        if roles not in document[relation].values():
            document[relation][f"_:{relation}{len(document[relation])}"] = roles

    def associate(activity: str, step: Node) -> None:
        """The version of the software that did it, as far as it is recorded."""
        version, code = step.facts.get("ringflow"), step.facts.get("code") or {}
        if version is None and not code:
            return
        commit = str(code.get("commit", ""))
        agent = f"{_PREFIX}:software-{version or 'unknown'}" + (f"-{commit[:12]}" if commit else "")
        told = {f"{_PREFIX}:commit": commit, f"{_PREFIX}:changed": code.get("dirty")}
        label = {"prov:type": _qualified("SoftwareAgent"), "prov:label": f"ringflow {version or ''}".strip()}
        document["agent"][agent] = label | {name: value for name, value in told.items() if value}
        relate("wasAssociatedWith", activity=activity, agent=agent)

    steps = [step for step in walk(node) if step.state != "not recorded"]
    for step in steps:
        here = f"{_PREFIX}:{step.id}"
        is_activity = step.kind in _ACTIVITIES
        document["activity" if is_activity else "entity"][here] = _attributes(step)
        if is_activity:
            associate(here, step)
    for step in steps:
        here = f"{_PREFIX}:{step.id}"
        for how, other in step.sources:
            there, made = f"{_PREFIX}:{other.id}", f"{here}-made"
            if other.state == "not recorded":
                continue
            if how == "part of":
                relate("hadMember", collection=there, entity=here)
            elif step.kind in _ACTIVITIES and other.kind in _ACTIVITIES:
                relate("wasInformedBy", informed=here, informant=there)
            elif step.kind in _ACTIVITIES:
                relate("used", activity=here, entity=there)
            elif other.kind in _ACTIVITIES:
                relate("wasGeneratedBy", entity=here, activity=there)
            else:
                if made not in document["activity"]:
                    label = f"{_MAKINGS.get(step.kind, 'making')} of {step.name}"
                    document["activity"][made] = {"prov:label": label}
                    relate("wasGeneratedBy", entity=here, activity=made)
                    associate(made, step)
                relate("used", activity=made, entity=there)
                relate("wasDerivedFrom", generatedEntity=here, usedEntity=there)
    return dict(document)


def _attributes(step: Node) -> Record:
    attributes: Record = {"prov:label": f"{step.kind} {step.name}", f"{_PREFIX}:kind": step.kind}
    if step.kind in ("dataset", "candidates", "shard"):
        attributes["prov:type"] = _qualified("Collection")
    if step.sha256:
        attributes[f"{_PREFIX}:sha256"] = step.sha256
    for name, value in flat(step.facts):
        if value not in (None, [], ()):
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
            attributes[f"{_PREFIX}:{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"] = text
    return attributes


def _qualified(name: str) -> Record:
    return {"$": f"prov:{name}", "type": "prov:QUALIFIED_NAME"}


# RO-Crate

_CRATE, _PROFILE = "https://w3id.org/ro/crate/1.1", "https://w3id.org/ro/wfrun/process/0.5"
_FORMATS = {
    ".parquet": "application/vnd.apache.parquet",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".toml": "application/toml",
    ".md": "text/markdown",
}
_ABOUT = {
    SETTINGS_FILE: "resolved settings",
    RUN_FILE: "code, versions, seeds and data of the run",
    HISTORY_FILE: "figures of the training and of every validation",
    MODEL_FILE: "the best network, by its validation",
    LAST_MODEL_FILE: "the newest network",
    "pruned.safetensors": "the network before it was trained again",
    MANIFEST_FILE: "what the dataset holds, with the hash of every shard, and where it came from",
    CARD_FILE: "card",
}


def crate(node: Node, folder: Path, base: str = "", license: str | None = None) -> Record:
    """A run or a dataset as an RO-Crate 1.1 (https://w3id.org/ro/crate/1.1): files with hashes, and the action that made them.

    The action follows the profile Process Run Crate: the software is its instrument, datasets, networks and settings are its
    objects, the files are its results. `base` goes before the names of files that do not lie beside it.
    """
    facts, settings = node.facts, node.facts.get("settings") or {}
    if node.kind == "dataset":
        what = f"{facts['sample']} in the {facts['detector']} detector"
        making, title = "Production", f"Dataset {node.name}: {what}"
        about = f"{facts['events']} events of {what}, {facts['shards']} shards."
    else:
        training = facts.get("training") or {}
        length = f", {training['events']} events in {training['steps']} steps" if training.get("steps") else ""
        making, title = "Training", f"Run {node.name}: a particle-flow network"
        about = f"A network trained on {settings.get('data', 'data that are not recorded')}{length}."
    files = list(_crate_files(node, folder, base))
    used = [_used(how, other) for how, other in node.sources if other.state != "not recorded"]
    for name, value in flat(settings):
        if value is not None:
            plain = value if isinstance(value, bool | int | float | str) else str(value)
            used.append(_entity("PropertyValue", f"#setting-{name}", name, value=plain))
    code, packages = facts.get("code") or {}, facts.get("packages") or {}
    changed = ", source changed since" if code.get("dirty") else ""
    version = str(facts.get("ringflow") or "unknown") + (f", commit {code['commit']}{changed}" if code else "")
    software = _entity("SoftwareApplication", "#ringflow", "ringflow", softwareVersion=version)
    software["softwareRequirements"] = [f"{name}=={package}" for name, package in packages.items()]
    action = _entity("CreateAction", f"#{node.id}", f"{making} of {node.name}", description=about)
    action |= {"result": _ids(files), "object": _ids(used), "instrument": {"@id": software["@id"]}}
    root = _entity("Dataset", "./", title, description=about, datePublished=f"{datetime.now(UTC):%Y-%m-%d}")
    root |= {"conformsTo": {"@id": _PROFILE}, "hasPart": _ids(files), "mentions": {"@id": action["@id"]}}
    profile = _entity("CreativeWork", _PROFILE, "Process Run Crate", version="0.5")
    descriptor = {"@id": CRATE_FILE, "@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": {"@id": _CRATE}}
    graph = [descriptor, root, profile, software, action, *files, *used]
    if license is not None:
        root["license"] = {"@id": _LICENSES + license}
        told = f"The licence {license} of the SPDX list"
        graph.append(_entity("CreativeWork", _LICENSES + license, license, description=told))
    return {"@context": [f"{_CRATE}/context", {"sha256": "https://schema.org/sha256"}], "@graph": graph}


def _entity(kind: str, id: str, name: str, **more: Any) -> Record:
    return {"@id": id, "@type": kind, "name": name, **more}


def _ids(entities: Sequence[Record]) -> list[Record]:
    return [{"@id": entity["@id"]} for entity in entities]


def _used(how: str, other: Node) -> Record:
    """What it was made of, which lies elsewhere."""
    about = f"{other.kind}: {how}" + (f"; {other.note}" if other.note else "")
    known = {"identifier": f"seed {other.facts['seed']}"} if "seed" in other.facts else {}
    known = {"sha256": other.sha256} if other.sha256 else known
    return _entity("CreativeWork", f"#{other.id}", other.name, description=about, **known)


def _crate_files(node: Node, folder: Path, base: str) -> Iterator[Record]:
    """What lies in the folder and belongs to it. Hashes and sizes of shards are those of the manifest."""

    def file(name: str, about: str, sha256: str | None, size: int) -> Record:
        kind, known = _FORMATS.get(Path(name).suffix, "application/octet-stream"), {"sha256": sha256} if sha256 else {}
        told = {"description": about, "encodingFormat": kind, "contentSize": str(size)}
        return _entity("File", base + name, name, **told, **known)

    for name, about in _ABOUT.items():
        if (path := inside(folder, name)).is_file():
            yield file(name, about, sha256_of(path), path.stat().st_size)
    for shard in read_manifest(folder).shards if node.kind == "dataset" else ():
        yield file(shard.file, f"events {shard.first_event} to {shard.last_event}", shard.sha256, shard.bytes)


# Croissant

_CROISSANT, _PARQUET = "http://mlcommons.org/croissant/1.0", "application/x-parquet"
#: Terms of Croissant's own vocabulary, in the context that its specification gives (appendix 1).
_TERMS = """citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes isLiveDataset
jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source subField
transform"""
_CONTEXT: Record = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}


def croissant(manifest: Manifest, sha256: str, license: str | None = None) -> Record:
    """A dataset as Croissant 1.0: shards with their hashes, columns with type and meaning; to lie beside the shards."""
    rule = manifest.split_rule
    splits = ", ".join(f"{split} {list(getattr(rule, split))}" for split in SPLITS)
    files = []
    for shard in manifest.shards:
        about = {"description": f"Events {shard.first_event} to {shard.last_event}.", "contentUrl": shard.file}
        about |= {"contentSize": f"{shard.bytes} B", "encodingFormat": _PARQUET, "sha256": shard.sha256}
        files.append(_entity("cr:FileObject", shard.file, shard.file, **about))
    together = _entity("cr:FileSet", "shards", "shards", description="All shards, in the order of their events.")
    together |= {"encodingFormat": _PARQUET, "includes": "shard-*.parquet"}
    # Every column of a collection is a list, in the same order within the collection.
    fields = [_field(EVENT_NUMBER, "int64", "number of the event; decides its split")]
    for name, described in schema_columns(manifest.columns).items():
        for column in described:
            unit = "" if column.unit == "1" else f" [{column.unit}]"
            index = f" (index into {column.points_to}, -1: none)" if column.points_to else ""
            told = f"{column.meaning}{unit}{index}"
            fields.append(_field(parquet_name(name, column.name), column.dtype, told, repeated=True))
    events = _entity("cr:RecordSet", "events", "events", description="One record per event.")
    events |= {"key": {"@id": f"events/{EVENT_NUMBER}"}, "field": fields}
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _CROISSANT,
        "name": f"{manifest.sample}_{manifest.detector}",
        "description": f"{manifest.num_events} events of {manifest.sample} in the {manifest.detector} detector: "
        f"{', '.join(manifest.columns)}. Units are GeV, mm, ns, tesla and radians. "
        f"Splits by event_number modulo {rule.modulus}: {splits}.",
        "version": f"1.0.0+{sha256[:12]}",
        "keywords": ["particle physics", "particle flow", "calorimetry"],
        "isLiveDataset": False,
        "distribution": [*files, together],
        "recordSet": [events],
        **({} if license is None else {"license": _LICENSES + license}),
    }


def _field(column: str, dtype: str, meaning: str, **more: Any) -> Record:
    told = {"description": meaning, "dataType": "sc:Integer" if dtype.startswith("int") else "sc:Float", **more}
    source = {"fileSet": {"@id": "shards"}, "extract": {"column": column}}
    return _entity("cr:Field", f"events/{column}", column, **told, source=source)


# The card of a network

#: Figures of a validation that the card shows, and what people call them.
FIGURES = {
    "jet_iqr_over_median": "width of jets, IQR / median",
    "jet_median": "median of the jet response",
    "jet_matched_fraction": "jets found",
    "met_iqr_over_median": "width of the missing pT, IQR / median",
    "visible_energy_resolution": "width of the visible energy, IQR / median",
    "particle_f1": "particle F1",
    "particle_efficiency": "particle efficiency",
    "particle_fake_rate": "particle fake rate",
    "loss": "loss",
}


def model_card(run: Node, header: Record, license: str | None = None) -> str:
    """README.md of a run, with the YAML on top that the Hub reads; equal records give equal cards."""
    card, settings = header["card"], header.get("settings") or {}
    facts, chosen = run.facts, run.facts.get("settings") or {}
    code, training = facts.get("code") or {}, card.get("training") or {}
    named = [entry["dataset"] for entry in card.get("data") or () if isinstance(entry, Mapping) and "dataset" in entry]
    head = {
        "library_name": "ringflow",
        "license": license.lower() if license else None,
        "tags": json.dumps(["particle-physics", "particle-flow", "calorimetry"]),
        "datasets": json.dumps(named) if named else None,
    }
    by_sample, table = measured(card), ""
    if by_sample:
        used = [name for name in FIGURES if any(name in figures for figures in by_sample.values())]
        results = [_results(sample, figures) for sample, figures in by_sample.items()]
        index = json.dumps([{"name": run.name, "results": results}], indent=1, ensure_ascii=False)
        # JSON is YAML, and no value in it can be read as something else.
        head |= {"metrics": json.dumps(used), "model-index": textwrap.indent(index, "  ").strip()}
        rows = [["figure", *by_sample], ["---"] * (1 + len(by_sample))]
        for name in used:
            values = [figures.get(name) for figures in by_sample.values()]
            rows.append([FIGURES[name], *("" if value is None else f"{value:.4g}" for value in values)])
        about = (
            "Of the validation events of its own training, by which the network was chosen; no test on other events."
        )
        table = f"## Figures\n\n{about}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"
    network = {name: settings.get(name) for name in ("backbone", "width", "layers")}
    network |= {"parameters": card.get("parameters"), "threshold": header.get("threshold")}
    changed = " (source changed since)" if code.get("dirty") else ""
    origin = {
        **{name: chosen.get(name) for name in ("data", "seed")},
        "events shown": training.get("events"),
        "steps": training.get("steps"),
        "ringflow": facts.get("ringflow"),
        "commit": f"{code['commit']}{changed}" if code else None,
        "torch": (facts.get("packages") or {}).get("torch"),
        **{f"{how} {it.kind} {it.name}": f"sha256 {it.sha256}" for how, it in run.sources if it.sha256},
    }
    detector = f" for the `{card['detector']}` detector" if card.get("detector") else ""
    return f"""---
{_lines(head)}---

# {run.name}

Particle flow{detector}: from tracks and {settings.get("calorimeter", "cluster")}s to particles.

{_lines(network, "- ")}
{table}## Use

```
ringflow reconstruct DATASET --model model.safetensors --out particles.parquet
ringflow evaluate DATASET --model model.safetensors --out report
```

## Origin

{_lines(origin, "- ")}
All settings are in `settings.toml`; `ringflow trace` verifies the rest, `ringflow reproduce` repeats it.
"""


def _lines(told: Mapping[str, object], mark: str = "") -> str:
    return "".join(f"{mark}{name}: {value}\n" for name, value in told.items() if value is not None)


def _results(sample: str, figures: Mapping[str, float]) -> Record:
    return {
        "task": {"type": "particle-flow", "name": "Particle flow"},
        "dataset": {"type": sample, "name": f"{sample}, validation events", "split": "validation"},
        "metrics": [{"type": name, "name": FIGURES[name], "value": value} for name, value in figures.items()],
    }


def measured(card: Record) -> dict[str, dict[str, float]]:
    """Figures of the validation by sample; of one sample, or where samples are not told apart, those of all events."""
    found: dict[str, dict[str, float]] = {}
    for name, value in (card.get("metrics") or {}).items():
        figure, _, sample = name.partition("/")
        if figure in FIGURES and isinstance(value, int | float):
            found.setdefault(sample, {})[figure] = float(value)
    together = found.pop("", None)
    if found or together is None:
        return found
    data = card.get("data")
    told = data[0] if isinstance(data, list) and len(data) == 1 else {}
    return {str(told.get("sample") or told.get("simulated") or "all"): together}
