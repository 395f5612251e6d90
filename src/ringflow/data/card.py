"""The dataset card: a README.md inside every dataset, made from its manifest alone."""

from __future__ import annotations

from collections.abc import Iterator

from ringflow.data.manifest import SPLITS, Manifest
from ringflow.data.write import schema_columns
from ringflow.event.schema import parquet_name

_SIZE_CATEGORIES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))


def dataset_card(manifest: Manifest, license: str | None = None) -> str:
    """Markdown with YAML front matter; equal manifests give equal cards. A licence is stated if one is given (SPDX)."""
    return (
        "\n".join([*_front_matter(manifest, license), *_overview(manifest), *_reading(manifest), *_columns(manifest)])
        + "\n"
    )


def _front_matter(manifest: Manifest, license: str | None) -> Iterator[str]:
    size = next((name for limit, name in _SIZE_CATEGORIES if manifest.num_events < limit), "n>1M")
    yield from (
        "---",
        f'pretty_name: "{manifest.sample} in the {manifest.detector} detector"'.replace("\\", ""),
        *([f"license: {license.lower()}"] if license else []),
        "tags: [particle-physics, particle-flow, calorimetry]",
        f"size_categories: [{size}]",
        "configs:",
        "- config_name: default",
        '  data_files: "shard-*.parquet"',
        "---",
        "",
    )


def _overview(manifest: Manifest) -> Iterator[str]:
    yield f"# {manifest.sample}, detector {manifest.detector}"
    yield ""
    yield f"{manifest.num_events} events in {len(manifest.shards)} Parquet shards, {manifest.bytes / 1e6:.1f} MB,"
    yield f"schema version {manifest.schema_version}. Units: GeV, mm, ns, tesla, radians."
    yield ""
    yield "| collection | objects | per event |"
    yield "|---|---|---|"
    for name, count in manifest.counts.items():
        yield f"| {name} | {count} | {count / manifest.num_events:.1f} |"
    yield ""
    yield "## Splits"
    yield ""
    rule = manifest.split_rule
    yield f"By `event_number % {rule.modulus}`:"
    yield ""
    yield "| split | remainders | events |"
    yield "|---|---|---|"
    for split in SPLITS:
        remainders = ", ".join(map(str, getattr(rule, split)))
        yield f"| {split} | {remainders} | {manifest.splits[split]} |"
    yield ""
    yield "## Provenance"
    yield ""
    yield "Settings, seeds, versions and the hash of every shard are in `manifest.json`. In short:"
    yield ""
    for key, value in manifest.provenance.items():
        if isinstance(value, str | int | float) or (isinstance(value, dict) and key in ("code", "seeds")):
            shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
            yield f"- {key}: {shown}"
    yield ""


def _reading(manifest: Manifest) -> Iterator[str]:
    collection, columns = next(iter(manifest.columns.items()))
    column = parquet_name(collection, columns[0])
    yield "## Reading"
    yield ""
    yield "Every column is a list per event; objects of one collection have the same order in all its columns."
    yield ""
    yield "```python"
    yield "import awkward, pandas"
    yield ""
    yield f'events = awkward.from_parquet("{manifest.shards[0].file}")   # events.{column}'
    yield f'frame = pandas.read_parquet("{manifest.shards[0].file}", columns=["event_number", "{column}"])'
    yield ""
    yield "from ringflow.data.read import Dataset"
    yield ""
    yield f'train = Dataset(".").to_awkward(split="train", columns=["{collection}"])   # train.{collection}.{columns[0]}'
    yield "```"
    yield ""


def _columns(manifest: Manifest) -> Iterator[str]:
    yield "## Columns"
    yield ""
    yield "| column | type | unit | meaning |"
    yield "|---|---|---|---|"
    yield "| event_number | int64 | 1 | number of the event; decides its split |"
    for name, described in schema_columns(manifest.columns).items():
        for column in described:
            meaning = column.meaning + (f" (index into {column.points_to}, -1: none)" if column.points_to else "")
            yield f"| {parquet_name(name, column.name)} | list of {column.dtype} | {column.unit} | {meaning} |"
