"""A dataset as Croissant 1.0 (http://mlcommons.org/croissant/1.0): shards with their hashes, columns with type and meaning."""

from __future__ import annotations

from typing import Any

from ringflow.data.manifest import SPLITS, Manifest, schema_columns
from ringflow.data.write import EVENT_NUMBER
from ringflow.event.schema import parquet_name

SPECIFICATION = "http://mlcommons.org/croissant/1.0"
_FORMAT = "application/x-parquet"
_SHARDS, _EVENTS = "shards", "events"
#: Terms of Croissant's own vocabulary, in the context that its specification gives (appendix 1).
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet"),
    *(
        "format",
        "includes",
        "isLiveDataset",
        "jsonPath",
        "key",
        "md5",
        "parentField",
        "path",
        "recordSet",
        "references",
    ),
    *("regex", "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
_CONTEXT: dict[str, Any] = {
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
    **{term: f"cr:{term}" for term in _TERMS},
}


def croissant(manifest: Manifest, sha256: str, license: str | None = None) -> dict[str, Any]:
    """The description of a dataset, to lie beside its shards."""
    files = [
        {
            "@type": "cr:FileObject",
            "@id": shard.file,
            "name": shard.file,
            "description": f"Events {shard.first_event} to {shard.last_event}.",
            "contentUrl": shard.file,
            "contentSize": f"{shard.bytes} B",
            "encodingFormat": _FORMAT,
            "sha256": shard.sha256,
        }
        for shard in manifest.shards
    ]
    together = {
        "@type": "cr:FileSet",
        "@id": _SHARDS,
        "name": _SHARDS,
        "description": "All shards, in the order of their events.",
        "encodingFormat": _FORMAT,
        "includes": "shard-*.parquet",
    }
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": SPECIFICATION,
        "name": f"{manifest.sample}_{manifest.detector}",
        "description": _description(manifest),
        "version": f"1.0.0+{sha256[:12]}",
        "keywords": ["particle physics", "particle flow", "calorimetry"],
        "isLiveDataset": False,
        "distribution": [*files, together],
        "recordSet": [_events(manifest)],
    }
    return described if license is None else {**described, "license": f"https://spdx.org/licenses/{license}"}


def _description(manifest: Manifest) -> str:
    rule = manifest.split_rule
    splits = ", ".join(f"{split} {list(getattr(rule, split))}" for split in SPLITS)
    return (
        f"{manifest.num_events} events of {manifest.sample} in the {manifest.detector} detector: "
        f"{', '.join(manifest.columns)}. "
        f"Units are GeV, mm, ns, tesla and radians. Splits by event_number modulo {rule.modulus}: {splits}."
    )


def _events(manifest: Manifest) -> dict[str, Any]:
    """One record per event; every column of a collection is a list, in the same order within the collection."""
    number = _field(EVENT_NUMBER, "int64", "number of the event; decides its split", repeated=False)
    columns = [
        _field(parquet_name(name, column.name), column.dtype, _meaning(column.meaning, column.unit, column.points_to))
        for name, described in schema_columns(manifest.columns).items()
        for column in described
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": _EVENTS,
        "name": _EVENTS,
        "description": "One record per event.",
        "key": {"@id": f"{_EVENTS}/{EVENT_NUMBER}"},
        "field": [number, *columns],
    }


def _field(column: str, dtype: str, meaning: str, *, repeated: bool = True) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{_EVENTS}/{column}",
        "name": column,
        "description": meaning,
        "dataType": "sc:Integer" if dtype.startswith("int") else "sc:Float",
        **({"repeated": True} if repeated else {}),
        "source": {"fileSet": {"@id": _SHARDS}, "extract": {"column": column}},
    }


def _meaning(meaning: str, unit: str, points_to: str | None) -> str:
    shown = "" if unit == "1" else f" [{unit}]"
    return meaning + shown + (f" (index into {points_to}, -1: none)" if points_to else "")
