"""The manifest of a dataset: what is in the folder, and by which rule events are split.

A dataset is a folder:

    manifest.json        written last; without it there is no dataset
    README.md            the dataset card
    settings.toml        the settings of a simulated one, for `ringflow simulate --settings`
    shard-00000.parquet  one row per event
    packed/              caches for training, see read.py; can be deleted at any time
    .production/         only while a production is unfinished

Nothing in it depends on the time of day, the host or the number of workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
import pydantic

from ringflow.base.errors import DatasetError, RingflowError, UsageError
from ringflow.base.log import printable
from ringflow.base.rundir import SETTINGS_FILE, leads_inside, write_atomic
from ringflow.event.schema import COLLECTIONS, SCHEMA_VERSION, Column, parquet_name

MANIFEST_FILE = "manifest.json"
CARD_FILE = "README.md"
#: Descriptions for others, as `ringflow trace` writes them.
CRATE_FILE, CROISSANT_FILE = "ro-crate-metadata.json", "croissant.json"
PACKED_FOLDER = "packed"
#: How the name of an EDM4hep file ends, and what the provenance of a dataset made of such files says its source is.
ROOT_SUFFIX, EDM4HEP = ".root", "EDM4hep"
PRODUCTION_FOLDER = ".production"
#: What a dataset folder may hold beside its shards.
KNOWN_FILES = frozenset(
    {MANIFEST_FILE, CARD_FILE, SETTINGS_FILE, CRATE_FILE, CROISSANT_FILE, PACKED_FOLDER, PRODUCTION_FOLDER}
)

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

#: Collection -> its columns, in schema order: what a dataset has.
Columns = dict[str, tuple[str, ...]]


def _require_printable(text: str) -> str:
    if not text.isprintable():  # what moves a terminal's cursor is no name
        raise ValueError("has characters that cannot be printed")
    return text


# A manifest may come from anybody. What becomes a path has the form of ours, and numbers fit into the columns they count.
Name = Annotated[str, pydantic.AfterValidator(_require_printable)]
ShardFile = Annotated[str, pydantic.Field(pattern=r"^shard-[0-9]{5,12}\.parquet$")]
Sha256 = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
#: Of a split rule.
Remainder = Annotated[int, pydantic.Field(ge=0, lt=2**31)]


class _Record(pydantic.BaseModel):
    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class SplitRule(_Record):
    """An event belongs to the split whose remainders hold `event_number % modulus`."""

    modulus: int = pydantic.Field(default=10, ge=1, lt=2**31)
    train: tuple[Remainder, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    valid: tuple[Remainder, ...] = (8,)
    test: tuple[Remainder, ...] = (9,)

    @pydantic.model_validator(mode="after")
    def _parts(self) -> Self:
        """What is learned from is not what is tested with."""
        given = [remainder for split in SPLITS for remainder in {*getattr(self, split)}]
        if len({*given}) < len(given):
            raise ValueError("a remainder belongs to two splits")
        return self

    def select(self, event_number: npt.NDArray[np.int64], split: str) -> npt.NDArray[np.bool_]:
        """Mask of the events in a split."""
        if split not in SPLITS:
            raise UsageError(f"unknown split {split!r}; choose from {', '.join(SPLITS)}")
        return np.isin(event_number % self.modulus, np.array(getattr(self, split), dtype=np.int64))

    def count(self, event_number: npt.NDArray[np.int64]) -> dict[str, int]:
        """Events in each split."""
        return {split: int(self.select(event_number, split).sum()) for split in SPLITS}

    def count_between(self, first: int, last: int) -> dict[str, int]:
        """The same for all numbers from the first to the last."""

        def until(number: int, remainder: int) -> int:
            return (number - remainder) // self.modulus

        remainders = {split: [r for r in {*getattr(self, split)} if r < self.modulus] for split in SPLITS}
        return {split: sum(until(last, r) - until(first - 1, r) for r in given) for split, given in remainders.items()}


class Shard(_Record):
    """One Parquet file: which events it holds, its size and hash, and the number of objects per collection."""

    file: ShardFile
    first_event: Count
    last_event: Count
    num_events: int = pydantic.Field(ge=1, lt=2**63)
    bytes: Count
    sha256: Sha256
    counts: dict[str, Count]
    splits: dict[str, Count]

    @pydantic.model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.last_event - self.first_event + 1 < self.num_events:
            raise ValueError(f"{self.num_events} events have no room from {self.first_event} to {self.last_event}")
        return self


class Manifest(_Record):
    """Everything one can know about a dataset without opening a shard."""

    schema_version: int
    detector: Name
    sample: Name
    num_events: Count
    columns: Columns = pydantic.Field(min_length=1)
    split_rule: SplitRule
    splits: dict[str, Count]
    shards: tuple[Shard, ...] = pydantic.Field(min_length=1)
    provenance: dict[str, Any]

    @pydantic.model_validator(mode="after")
    def _adds_up(self) -> Self:
        """What it says of the same thing in two places is the same, and its columns are those of the schema."""
        for name, present in self.columns.items():
            known = [column.name for column in COLLECTIONS.get(name, ())]
            if not present or [column for column in known if column in present] != list(present):
                raise ValueError(f"{name!r} has columns that are not those of the schema, in its order")
        for shard in self.shards:
            if shard.counts.keys() != self.columns.keys() or shard.splits.keys() != set(SPLITS):
                raise ValueError(f"{shard.file} does not count the collections and splits that there are")
            all_there = shard.num_events == shard.last_event - shard.first_event + 1
            if all_there and shard.splits != self.split_rule.count_between(shard.first_event, shard.last_event):
                raise ValueError(f"the splits of {shard.file} are not those of split_rule")
        for earlier, later in pairwise(self.shards):
            if later.first_event <= earlier.last_event:
                raise ValueError(f"the events of {later.file} do not come after those of {earlier.file}")
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise ValueError("a shard is there twice")
        if self.num_events != sum(shard.num_events for shard in self.shards):
            raise ValueError(f"num_events is {self.num_events}, which is not the sum over the shards")
        if self.splits != {split: sum(shard.splits[split] for shard in self.shards) for split in SPLITS}:
            raise ValueError(f"splits are {self.splits}, which is not the sum over the shards")
        return self

    @property
    def counts(self) -> dict[str, int]:
        """Objects per collection in the whole dataset."""
        return {name: sum(shard.counts[name] for shard in self.shards) for name in self.columns}

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self.shards)


def make_manifest(
    *,
    detector: str,
    sample: str,
    columns: Columns,
    shards: Sequence[Shard],
    provenance: Mapping[str, Any],
    split_rule: SplitRule | None = None,
) -> Manifest:
    """The manifest of finished shards, given in the order of their events."""
    return Manifest(
        schema_version=SCHEMA_VERSION,
        detector=detector,
        sample=sample,
        num_events=sum(shard.num_events for shard in shards),
        columns=columns,
        split_rule=split_rule or SplitRule(),
        splits={split: sum(shard.splits[split] for shard in shards) for split in SPLITS},
        shards=tuple(shards),
        provenance=dict(provenance),
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the card and the manifest; from now on the folder is a dataset."""
    write_atomic(folder / CARD_FILE, dataset_card(manifest))
    write_atomic(folder / MANIFEST_FILE, to_json(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Read and validate the manifest of a dataset folder."""
    if not folder.is_dir():
        raise DatasetError(instead_of_dataset(folder))
    path = inside(folder, MANIFEST_FILE)
    if not path.is_file():
        if (folder / PRODUCTION_FOLDER).is_dir():
            raise DatasetError(f"the production of {folder} is unfinished; run the same command again")
        found = min((found.parent for found in folder.glob(f"*/{MANIFEST_FILE}")), default=None)
        where = "the folder that has one" if found is None else f"a folder that has one, such as {found}"
        raise DatasetError(f"{folder} is not a dataset: it has no {MANIFEST_FILE}; give {where}")
    content = read_json(path, DatasetError, "make the dataset again")
    if (version := content.get("schema_version")) != SCHEMA_VERSION:
        shown = str(version)[:20] if isinstance(version, int) else repr(version)[:20]
        raise DatasetError(f"{path} has schema version {shown}, this ringflow reads {SCHEMA_VERSION}; make it again")
    try:
        return Manifest.model_validate_json(
            path.read_bytes()
        )  # which takes lists for tuples, and nothing else for numbers
    except pydantic.ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))[:100]
        reason = problem["msg"].removeprefix("Value error, ")
        at = f" at {field!r}" if field else ""
        raise DatasetError(f"{path} is damaged{at} ({reason[:300]}); make the dataset again") from None


def inside(folder: Path, name: str) -> Path:
    """A file or folder of a dataset; an error if it is a link to somewhere else, which nobody meant to open or to change."""
    path = folder / name
    if path.is_symlink() and not leads_inside(path, folder):
        raise DatasetError(f"{path} is a link out of its folder; put a copy in its place, or remove it")
    return path


def read_json(path: Path, error: type[RingflowError], then: str) -> dict[str, Any]:
    """A JSON object in a file; if there is none, an error that says what to do then."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise error(f"{path} is not readable JSON; {then}") from None
    if not isinstance(found, dict):
        raise error(f"{path} holds no JSON object; {then}")
    return found


def reason_of(error: Exception) -> str:
    """What a library says of a file it cannot read, as part of a line; it may name bytes of the file."""
    return printable(" ".join(str(error).split()) or type(error).__name__)[:200]


def is_generated(path: Path) -> bool:
    """Whether a file is one of a generator, by its name."""
    return any(mark in path.name for mark in (".hepmc", ".lhe", ".slcio"))


def instead_of_dataset(path: Path) -> str:
    """What to do with something that is no folder where events are wanted."""
    out = f"data/{path.name.split('.')[0]}"
    if path.name.endswith(".slcio"):
        return f"{path} is an LCIO file; make an EDM4hep file of it first: lcio2edm4hep {path} {path.stem}.edm4hep.root"
    if is_generated(path):
        return f"{path} holds generated particles; simulate them first: ringflow simulate --hepmc {path} --out {out}"
    if path.suffix == ROOT_SUFFIX and path.is_file():
        return f"{path} is a file, not a dataset; make one of it first: ringflow convert {path} --out {out}"
    return f"no dataset at {path}; give the folder that `ringflow simulate --out` or `ringflow convert --out` made"


def after_check(path: Path, *, passed: bool) -> str:
    """What to do after a check, which depends on what the dataset holds and on who made it."""
    try:
        manifest = read_manifest(path)
    except DatasetError:
        return f"make {path} again, by the command that made it and --overwrite"
    compared = {"target", "candidate"} & set(manifest.columns)
    use = f"ringflow evaluate {path} --out report" if compared else f"ringflow display {path}"
    if passed:
        return use
    if (path / SETTINGS_FILE).is_file():
        return f"ringflow simulate --settings {path / SETTINGS_FILE} --out {path} --overwrite"
    again = "ringflow convert --overwrite" if manifest.provenance.get("source") == EDM4HEP else f"write {path} again"
    return f"{use}, if the events are like that where they come from; else {again}"


def manifest_hash(folder: Path) -> str:
    """Fingerprint of a dataset: two datasets with equal manifests have equal shards."""
    return hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()


def to_json(record: _Record) -> str:
    """Deterministic, readable JSON."""
    return json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


_SIZE_CATEGORIES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))


def schema_columns(columns: Columns) -> dict[str, tuple[Column, ...]]:
    """The schema's description of the columns a dataset has."""
    return {name: tuple(c for c in COLLECTIONS[name] if c.name in present) for name, present in columns.items()}


def dataset_card(manifest: Manifest, license: str | None = None) -> str:
    """Markdown with YAML front matter; equal manifests give equal cards. A licence is stated if one is given (SPDX)."""
    size = next((name for limit, name in _SIZE_CATEGORIES if manifest.num_events < limit), "n>1M")
    title = f'"{manifest.sample} in the {manifest.detector} detector"'.replace("\\", "")
    counts = [f"| {name} | {count} | {count / manifest.num_events:.1f} |" for name, count in manifest.counts.items()]
    rule, first = manifest.split_rule, manifest.shards[0].file
    splits = [f"| {s} | {', '.join(map(str, getattr(rule, s)))} | {manifest.splits[s]} |" for s in SPLITS]
    collection, columns = next(iter(manifest.columns.items()))
    column = parquet_name(collection, columns[0])
    lines = [
        "---",
        f"pretty_name: {title}",
        *([f"license: {license.lower()}"] if license else []),
        "tags: [particle-physics, particle-flow, calorimetry]",
        f"size_categories: [{size}]",
        "configs:",
        "- config_name: default",
        '  data_files: "shard-*.parquet"',
        "---",
        "",
        f"# {manifest.sample}, detector {manifest.detector}",
        "",
        f"{manifest.num_events} events in {len(manifest.shards)} Parquet shards, {manifest.bytes / 1e6:.1f} MB,",
        f"schema version {manifest.schema_version}. Units: GeV, mm, ns, tesla, radians.",
        "",
        *("| collection | objects | per event |", "|---|---|---|", *counts, ""),
        *("## Splits", "", f"By `event_number % {rule.modulus}`:", ""),
        *("| split | remainders | events |", "|---|---|---|", *splits, ""),
        *("## Provenance", ""),
        *("Settings, seeds, versions and the hash of every shard are in `manifest.json`. In short:", ""),
        *(*_facts(manifest), ""),
        *("## Reading", ""),
        "Every column is a list per event; objects of one collection have the same order in all its columns.",
        *("", "```python", "import awkward, pandas", ""),
        f'events = awkward.from_parquet("{first}")   # events.{column}',
        f'frame = pandas.read_parquet("{first}", columns=["event_number", "{column}"])',
        *("", "from ringflow.data.read import Dataset", ""),
        f'train = Dataset(".").to_awkward(split="train", columns=["{collection}"])   # train.{collection}.{columns[0]}',
        *("```", ""),
        *("## Columns", ""),
        *("| column | type | unit | meaning |", "|---|---|---|---|"),
        "| event_number | int64 | 1 | number of the event; decides its split |",
        *_described(manifest),
    ]
    return "\n".join(lines) + "\n"


def _facts(manifest: Manifest) -> Iterator[str]:
    for key, value in manifest.provenance.items():
        if isinstance(value, dict) and key in ("code", "seeds"):
            yield f"- {key}: {', '.join(f'{name} {fact}' for name, fact in value.items())}"
        elif isinstance(value, str | int | float):
            yield f"- {key}: {value}"


def _described(manifest: Manifest) -> Iterator[str]:
    for name, described in schema_columns(manifest.columns).items():
        for column in described:
            meaning = column.meaning + (f" (index into {column.points_to}, -1: none)" if column.points_to else "")
            yield f"| {parquet_name(name, column.name)} | list of {column.dtype} | {column.unit} | {meaning} |"
