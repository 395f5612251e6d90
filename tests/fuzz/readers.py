"""Every kind of file that ringflow reads: a good one, and its reader.

A reader returns what its users get, in a form that can be compared. Kinds that carry checksums (`checked`) never give anything
else than what was written; what the others hold is for their users to say.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import operator
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fixtures.fake_events import fake_block, write_fake_dataset
from fixtures.lhe_files import quarks, two_w, write_lhe
from fuzz.mutations import BYTES, DOCUMENT, TEXT, Mutation
from ringflow.event.block import EventBlock, cast

Ways = dict[str, Callable[[bytes, Mutation], bytes]]


@dataclass(frozen=True)
class Kind:
    """`make` writes something good into an empty folder and returns where; `file` is the one in it that is broken, the first
    that matches; `read` is given what `make` returned."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    file: str = ""
    ways: Ways = field(default_factory=lambda: TEXT)
    checked: bool = False
    #: Whether what was read from a broken one is right.
    right: Callable[[Any, Any], bool] = operator.eq
    #: Examples in the default run, in which a case of a slow reader counts, too.
    examples: int = 10


def _block_values(block: Any) -> list[Any]:
    found: list[Any] = [block.event_number.tobytes()]
    for name in sorted(block.collections):
        part = block[name]
        found += [
            (name, part.offsets.tobytes()),
            *((column, part[column].tobytes()) for column in sorted(part.columns)),
        ]
    return found


# --- datasets and candidates ------------------------------------------------------------------------------------------


def make_dataset(folder: Path) -> Path:
    return write_fake_dataset(folder / "dataset", events=6)


def read_dataset(path: Path) -> Any:
    from ringflow.data.read import Dataset

    return [_block_values(block) for block in Dataset(path).events()]


def _of_fewer_columns(found: Any, good: Any) -> bool:
    """A manifest says which columns of the shards there are; those are what they were."""
    return len(found) == len(good) and all(
        one[0] == other[0] and set(one) <= set(other) for one, other in zip(found, good, strict=True)
    )


def check_dataset(path: Path) -> Any:
    """What `check` reads: all of it, gate by gate. Its verdict may differ, what a reader gets may not."""
    from ringflow.data.check import check

    check(path)
    return read_dataset(path)


def make_packed(folder: Path) -> Path:
    from ringflow.data.read import Dataset

    path = make_dataset(folder)
    Dataset(path).packed(["track", "cluster"], split="train")
    return path


def read_packed(path: Path) -> Any:
    from ringflow.data.read import Dataset

    packed = Dataset(path).packed(["track", "cluster"], split="train")
    return [_block_values(packed[index]) for index in range(len(packed))]


def make_elements(folder: Path) -> Path:
    path = write_fake_dataset(folder / "dataset", events=20)
    read_elements(path)
    return path


def read_elements(path: Path) -> Any:
    """As a training takes them: stored when they are read for the first time."""
    from ringflow.data.chunks import DatasetChunks, to_tensors
    from ringflow.data.read import Dataset

    chunks = DatasetChunks([Dataset(path)], detector="fake", calorimeter="cluster", chunk_events=4, seed=1)
    try:
        return [to_tensors(chunks.chunk(index))["features"].numpy().tobytes() for index in range(2)]
    finally:
        chunks.close()


def make_columns(folder: Path) -> Path:
    """The columns of a dataset as text, for what a file holds whose checksums are right."""
    import pyarrow.parquet as pq

    path = write_fake_dataset(folder / "dataset", events=3)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"fake"', '"clic"'))
    shard = next(path.glob("shard-*.parquet"))
    pq.write_metadata(pq.read_schema(shard), folder / "schema.parquet")
    table = pq.read_table(shard)
    (folder / "columns.json").write_text(json.dumps(table.to_pydict()))
    return folder


def read_columns(folder: Path) -> Any:
    """`check`, the page of the display with its jets and matches, and what a network would be given."""
    from ringflow.data.check import check
    from ringflow.data.read import Dataset
    from ringflow.display.events import ReconstructedEvents
    from ringflow.elements.batch import from_block

    path = folder / "dataset"
    if not _write_columns(_json(folder / "columns.json"), path):
        return None
    check(path)
    dataset = Dataset(path)
    for block in dataset.events():
        from_block(block, "cluster", with_targets=True)
        from_block(block, "hit", with_targets=True)
    shown = ReconstructedEvents(dataset)
    return [json.dumps(shown.scene(index), allow_nan=False) for index in range(shown.num_events)]


def _json(path: Path) -> Any:
    """What our own texts say; None if that is nothing."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None


def _write_columns(columns: Any, path: Path) -> bool:
    """A shard with these columns, and a manifest that has its hash; not if there can be no such table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shard = next(path.glob("shard-*.parquet"))
    schema = pq.read_schema(path.parent / "schema.parquet")
    arrays: dict[str, Any] = {}
    for name, values in columns.items() if isinstance(columns, dict) else ():
        for kind in [*([schema.field(name).type] if name in schema.names else []), None]:
            with suppress(pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
                arrays[name] = pa.array(values, kind)
                break
        else:
            return False
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(pa.table(arrays).replace_schema_metadata(schema.metadata), sink)
    except (pa.ArrowException, ValueError, IndexError, TypeError):
        return False
    content = sink.getvalue().to_pybytes()
    shard.write_bytes(content)
    manifest = path / "manifest.json"
    record = json.loads(manifest.read_bytes())
    record["shards"][0] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(record))
    return True


def make_candidates(folder: Path) -> Path:
    from ringflow.data.candidates import write_candidates
    from ringflow.data.read import Dataset

    dataset = Dataset(make_dataset(folder))
    blocks = (
        EventBlock(
            block.event_number, {"candidate": cast("candidate", block["target"].counts, block["target"].columns)}
        )
        for block in dataset.events()
    )
    path = folder / "made.parquet"
    write_candidates(path, dataset, blocks, reconstruction="made up", provenance={"seed": 1})
    return path


def read_candidates(path: Path) -> Any:
    from ringflow.data.candidates import read_candidates as read
    from ringflow.data.read import Dataset

    parts = read(path, Dataset(path.parent / "dataset"))
    return [(part.offsets.tobytes(), *(part[name].tobytes() for name in sorted(part.columns))) for part in parts]


# --- networks ---------------------------------------------------------------------------------------------------------


def make_model(folder: Path) -> Path:
    from fixtures.networks import random_network
    from ringflow.models.file import save_model

    save_model(folder / "model.safetensors", random_network(), card={"detector": "fake", "data": "made up"})
    return folder / "model.safetensors"


def read_model(path: Path) -> Any:
    from ringflow.models.file import load_model

    loaded = load_model(path)
    weights = {name: value.numpy().tobytes() for name, value in loaded.model.state_dict().items()}
    return weights, loaded.threshold, loaded.card


def make_described(folder: Path) -> Path:
    """What a model file says of itself as text, for a file whose hash is right."""
    from safetensors import safe_open

    from ringflow.models.settings import MODEL_KEY

    with safe_open(make_model(folder), framework="pt") as file:
        (folder / "description.json").write_text(file.metadata()[MODEL_KEY])
    return folder


def read_described(folder: Path) -> Any:
    from safetensors.torch import load_file, save

    from ringflow.models.settings import MODEL_KEY

    path, none = folder / "model.safetensors", "0" * 64
    if not isinstance(record := _json(folder / "description.json"), dict):
        return None
    record["sha256"] = none
    content = save(load_file(path), metadata={MODEL_KEY: json.dumps(record)})
    digest = hashlib.sha256(content).hexdigest()
    path.write_bytes(content.replace(none.encode(), digest.encode(), 1))
    return read_model(path)


def make_uncertainty(folder: Path) -> Path:
    from ringflow.models.uncertainty import UncertaintyHead, file_beside, save_uncertainty

    model = make_model(folder)
    save_uncertainty(file_beside(model), UncertaintyHead(4, 8), model, {"events": 3})
    return model


def read_uncertainty(model: Path) -> Any:
    from ringflow.models.uncertainty import file_beside, head_for

    weights = head_for(file_beside(model), model).state_dict()
    return {name: value.numpy().tobytes() for name, value in weights.items()}


def make_onnx(folder: Path) -> Path:
    from ringflow.infer.export import write_onnx
    from ringflow.models.file import load_model

    write_onnx(folder / "model.onnx", load_model(make_model(folder)))
    return folder / "model.onnx"


def read_onnx(path: Path) -> Any:
    from ringflow.infer.runtime import OnnxSession

    part = OnnxSession(path).candidates(fake_block(0, 2))
    return part.offsets.tobytes(), [part[name].tobytes() for name in sorted(part.columns)]


def make_external(folder: Path) -> Path:
    """Where the values of a tensor lie, for an exported file whose hash is right."""
    from onnx import load

    path = make_onnx(folder)
    (folder / "weights.bin").write_bytes(_largest(load(path)).raw_data)
    (folder / "where.json").write_text(json.dumps({"location": "weights.bin", "offset": "0"}))
    return folder


def read_external(folder: Path) -> Any:
    from onnx import TensorProto, load

    from ringflow.infer.runtime import with_hash

    if not isinstance(where := _json(folder / "where.json"), dict):
        return None
    proto = load(folder / "model.onnx")
    tensor = _largest(proto)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    with suppress(ValueError):  # no text
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
    next(entry for entry in proto.metadata_props if entry.key == "ringflow_sha256").value = "0" * 64
    path = folder / "external.onnx"
    path.write_bytes(with_hash(proto.SerializeToString()))
    return read_onnx(path)


def _largest(proto: Any) -> Any:
    return max(proto.graph.initializer, key=lambda tensor: len(tensor.raw_data))


# --- events of others -------------------------------------------------------------------------------------------------


_CYLINDER = (1500.0, 2300.0)


def make_hepmc(folder: Path) -> Path:
    import pyhepmc
    from pyhepmc import GenEvent, GenParticle, GenVertex, Units

    path = folder / "events.hepmc3"
    with pyhepmc.open(path, "w") as file:
        for number in range(3):
            event = GenEvent(Units.GEV, Units.MM)
            event.event_number = number
            vertex, decay = GenVertex((0, 0, 0, 0)), GenVertex((1, 0, 0, 1))
            for sign, pdg in ((1, 11), (-1, -11)):
                vertex.add_particle_in(GenParticle((0, 0, sign * 50.0, 50.0), pdg, 4))
            tau = GenParticle((20.0, 0, 0, 20.1), 310, 2)
            vertex.add_particle_out(GenParticle((-20.0, 0, 0, 20.0), 22, 1))
            vertex.add_particle_out(tau)
            decay.add_particle_in(tau)
            for sign in (1, -1):
                decay.add_particle_out(GenParticle((10.0, sign * 1.0, 0, 10.06), sign * 211, 1))
            event.add_vertex(vertex)
            event.add_vertex(decay)
            file.write(event)
    return path


def make_packed_hepmc(folder: Path) -> Path:
    import pyarrow as pa

    path = make_hepmc(folder)
    packed = path.with_suffix(".hepmc3.zst")
    packed.write_bytes(pa.compress(path.read_bytes(), codec="zstd", asbytes=True))
    return packed


def make_gzipped_hepmc(folder: Path) -> Path:
    path = make_hepmc(folder)
    packed = path.with_suffix(".hepmc3.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return packed


def make_hepmc2(folder: Path) -> Path:
    import pyhepmc

    path = folder / "events.hepmc2"
    with pyhepmc.open(make_hepmc(folder)) as events, pyhepmc.open(path, "w", format="hepmc2") as file:
        for event in events:
            file.write(event)
    return path


def make_lhe(folder: Path) -> Path:
    return write_lhe(folder / "events.lhe", quarks(50.0), two_w(100.0))


@cache
def _shower(beams: Any) -> Any:
    from ringflow.sim.lhe import PartonShower

    return PartonShower(beams, _CYLINDER)


@cache
def _decayer() -> Any:
    from ringflow.sim.pythia import Decayer

    return Decayer(_CYLINDER)


def read_hepmc(path: Path) -> Any:
    from ringflow.sim.hepmc import HepMCGenerator

    generator = HepMCGenerator(path, 1, _CYLINDER)
    generator._decayer = _decayer()  # Pythia takes a tenth of a second to begin
    return generator.generate(0, generator.num_available).pdg.tolist()


def read_lhe(path: Path) -> Any:
    import ringflow.sim.hepmc

    with patch.object(
        ringflow.sim.hepmc, "PartonShower", lambda beams, _: _shower(beams)
    ):  # a quarter of a second each
        return read_hepmc(path)


def make_edm4hep(folder: Path) -> Path:
    from fixtures.edm4hep_files import Content, write_frame

    return write_frame(folder / "events.root", Content())


def read_edm4hep(path: Path) -> Any:
    from ringflow.data.edm4hep.read import open_edm4hep

    return [_block_values(block) for block in open_edm4hep(path).events()]


def make_phoenix(folder: Path) -> Path:
    track = {"pos": [[0, 0, 0], [100, 5, 2], [900, 80, 20]], "dparams": [0.0, 0.1, 0.5, 1.2, 0.1], "color": "0xff0000"}
    cluster = {"energy": 4.2, "phi": 0.3, "eta": -0.5}
    hits = [{"type": "Point", "pos": [1000.0, 10.0, 20.0], "energy": 0.1}]
    event = {
        "event number": 1,
        "run number": 2,
        "Tracks": {"tracks": [track, track], "Model": [track]},
        "CaloClusters": {"clusters": [cluster]},
        "Hits": {"ECAL": hits},
        "Jets": {"Model": [{"eta": 0.1, "phi": 0.2, "energy": 30.0}]},
        "MissingEnergy": {"Model": [{"etx": 1.0, "ety": 2.0}]},
        "Vertices": {"vertices": [{"x": 0, "y": 0, "z": 0}]},
    }
    path = folder / "event.json"
    path.write_text(json.dumps({"event 1": event}))
    return path


def read_phoenix(path: Path) -> Any:
    from ringflow.display.source import open_source

    source = open_source(path)
    return [json.dumps(source.scene(index), allow_nan=False) for index in range(source.num_events)], source.about


def make_links(folder: Path) -> Path:
    link = {"reconstruction": "target", "candidate": 0, "elements": [[0, 0.5], [1, -0.2]]}
    event = {"index": 0, "event_number": 0, "links": [link], "graph": [{"layer": 0, "edges": [[0, 1, 0.3]]}]}
    record = {"source": "dataset", "model": {"file": "m", "sha256": "0" * 64}, "events": [event]}
    path = folder / "links.json"
    path.write_text(json.dumps(record))
    return path


def read_links(path: Path) -> Any:
    from ringflow.display.events import LinkFile

    for event in LinkFile.read(path).events:
        event.require(path, {"target": 2}, 4)
        json.dumps(event.in_scene(), allow_nan=False)


def make_metrics(folder: Path) -> Path:
    make_dataset(folder)
    from ringflow.data.manifest import manifest_hash

    report = folder / "report"
    report.mkdir()
    described = {"dataset": "dataset", "manifest_sha256": manifest_hash(folder / "dataset")}
    (report / "metrics.json").write_text(json.dumps({"samples": {"fake": described}}))
    return report


def read_metrics(report: Path) -> Any:
    from ringflow.display.source import open_source

    return json.dumps(open_source(report).scene(0), allow_nan=False)


def make_scaling(folder: Path) -> Path:
    row = {"engine": "local", "workers": 1, "events_per_step": 8.0, "seconds_per_step": 0.5, "step_spread": 0.01}
    row |= {"events_per_second": 16.0}
    rows = [row, {**row, "workers": 2}, {**row, "workers": 2, "engine": "apart"}]
    sums = [{"bytes": size, "seconds": 1e-5 + 1e-9 * size} for size in (1000, 100_000)]
    same = {"parameters": 1000, "num_elements": 50, "processor": "x", "accelerator": None}
    record = {"benchmark": "scaling", **same, "all_reduce": sums, "rows": rows}
    path = folder / "record.json"
    path.write_text(json.dumps(record))
    return path


def read_scaling(path: Path) -> Any:
    from ringflow.launch.scaling import check_against, read_measured

    return repr(read_measured([path])), check_against(path)


# --- what people write ------------------------------------------------------------------------------------------------


def make_settings(folder: Path) -> Path:
    from ringflow.base.config import write
    from ringflow.train.settings import TrainSettings

    write(TrainSettings.resolve("clic_tiny"), folder / "settings.toml")
    return folder / "settings.toml"


def read_settings(path: Path) -> Any:
    from ringflow.train.settings import TrainSettings

    return TrainSettings.resolve(path).model_dump_json()


def make_detector(folder: Path) -> Path:
    from ringflow.sim.geometry import DETECTORS

    return Path(shutil.copy(DETECTORS / "clic.toml", folder / "own.toml"))


def read_detector(path: Path) -> Any:
    """The tables of the simulation, too, and what an electron leaves."""
    from ringflow.sim.blocks import Shot, simulate_shot
    from ringflow.sim.geometry import load_detector

    found = load_detector(str(path))
    shot = Shot(str(path), (11,), 2.0, (-0.7, 0.7), 2, seed=1)
    return found.model_dump_json(), [_block_values(block) for block in simulate_shot(shot)]


def make_constants(folder: Path) -> Path:
    from ringflow.baseline.rules import CONSTANTS

    return Path(shutil.copy(CONSTANTS / "clic.toml", folder / "own.toml"))


def read_constants(path: Path) -> Any:
    from ringflow.baseline.rules import load_constants, reconstruct_block

    load_constants.cache_clear()
    part = reconstruct_block(fake_block(0, 2), load_constants(str(path)))
    return [part[name].tobytes() for name in sorted(part.columns)]


def make_profile(folder: Path) -> Path:
    from ringflow.data.edm4hep import profile

    return Path(shutil.copy(Path(profile.__file__).parent / "profiles" / "cld.toml", folder / "own.toml"))


def read_profile(path: Path) -> Any:
    from ringflow.data.edm4hep.profile import load_profile

    return load_profile(path).model_dump_json()


def make_space(folder: Path) -> Path:
    from ringflow.tune.space import space_path

    return Path(shutil.copy(space_path("network"), folder / "space.toml"))


def read_space(path: Path) -> Any:
    from ringflow.tune.space import read_space as read

    return repr(read(path))


# --- runs and studies -------------------------------------------------------------------------------------------------


def make_study(folder: Path) -> Path:
    from fixtures.synthetic_study import make_study as make

    return make(folder / "study", trials=3)


def read_study(path: Path) -> Any:
    from ringflow.tune.folder import StudyFolder

    study = StudyFolder(path)
    record = study.record()
    return len(record.trials), study.settings.model_dump_json(), study.space, study.training, study.origin


def make_run(folder: Path) -> Path:
    from fixtures.tiny_training import TINY, train_alone

    dataset = write_fake_dataset(folder / "dataset", events=60)
    return train_alone(dataset, folder / "run", (*TINY, "length.events=20", "length.validate_every=20"))


def read_run(path: Path) -> Any:
    """What goes on from it, and what tells of it."""
    from ringflow.train.checkpoint import read_checkpoint
    from ringflow.train.runs import read_history, settings_of

    read_settings(settings_of(path) or path)
    read_history(path)
    found = read_checkpoint(path)
    return found and {name: value.numpy().tobytes() for name, value in found.tensors.items()}


def _traced(path: Path) -> Any:
    from ringflow.provenance.trace import show, to_json, trace

    found = trace(path)
    show(found)
    json.dumps(to_json(found))


def make_asked(folder: Path) -> Path:
    """A question of PanDA: the points so far, and a space."""
    space = {"optimizer.rate": {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-2}}}
    asked = {"points": [[{"optimizer.rate": 1e-3}, 0.5], [{"optimizer.rate": 2e-3}, None]], "opt_space": space}
    path = folder / "asked.json"
    path.write_text(json.dumps(asked))
    return path


def read_asked(path: Path) -> Any:
    from ringflow.tune.panda import read_asked as read
    from ringflow.tune.panda import space_of

    asked = read(path)
    return repr(asked), repr(space_of(asked, None, path))


# --- requests ---------------------------------------------------------------------------------------------------------


def make_request(folder: Path) -> Path:
    from fixtures.serving import request_body

    tables = {"track": np.ones((2, 3), np.float32), "cluster": np.ones((1, 2), np.float32)}
    inputs = [
        {"name": name, "shape": list(table.shape), "datatype": "FP32", "data": table.tolist()}
        for name, table in tables.items()
    ]
    path = folder / "request.json"
    path.write_text(json.dumps({"id": "1", "inputs": inputs, "outputs": [{"name": "element_label"}]}))
    (folder / "binary").write_bytes(request_body(tables)[0])
    return path


def read_request(path: Path) -> Any:
    from ringflow.infer.serve.protocol import RequestError, TensorSpec, parse

    inputs = [TensorSpec("track", "FP32", (-1, 3)), TensorSpec("cluster", "FP32", (-1, 2))]
    try:
        request = parse(path.read_bytes(), None, inputs, ["element_label", "element_charge"], 1000)
    except RequestError as error:  # what its client is told
        if not 400 <= error.status_code < 500:
            raise
        return None
    return {name: table.shape for name, table in request.inputs.items()}


KINDS: dict[str, Kind] = {
    "manifest": Kind(make_dataset, check_dataset, "manifest.json", DOCUMENT, checked=True, right=_of_fewer_columns),
    "shard": Kind(make_dataset, check_dataset, "shard-*.parquet", BYTES, checked=True),
    "columns": Kind(make_columns, read_columns, "columns.json", DOCUMENT),
    "packed": Kind(make_packed, read_packed, "packed/*.arrow", BYTES, checked=True),
    "elements": Kind(make_elements, read_elements, "packed/elements-*/*", BYTES, checked=True),
    "candidates": Kind(make_candidates, read_candidates, "", BYTES, checked=True),
    "model": Kind(make_model, read_model, "", TEXT, checked=True),
    "description": Kind(make_described, read_described, "description.json", DOCUMENT),
    "uncertainty": Kind(make_uncertainty, read_uncertainty, "*.uncertainty.safetensors", TEXT, checked=True),
    "onnx": Kind(make_external, lambda folder: read_onnx(folder / "model.onnx"), "model.onnx", BYTES, checked=True),
    "external onnx": Kind(make_external, read_external, "where.json", DOCUMENT, examples=5),
    "hepmc": Kind(make_hepmc, read_hepmc),
    "zstandard hepmc": Kind(make_packed_hepmc, read_hepmc, "", BYTES),
    "gzip hepmc": Kind(make_gzipped_hepmc, read_hepmc, "", BYTES),
    "hepmc2": Kind(make_hepmc2, read_hepmc),
    "lhe": Kind(make_lhe, read_lhe),
    "edm4hep": Kind(make_edm4hep, read_edm4hep, "", BYTES),
    "phoenix": Kind(make_phoenix, read_phoenix, "", DOCUMENT),
    "links": Kind(make_links, read_links, "", DOCUMENT),
    "report": Kind(make_metrics, read_metrics, "metrics.json", DOCUMENT),
    "settings": Kind(make_settings, read_settings),
    "detector": Kind(make_detector, read_detector),
    "baseline": Kind(make_constants, read_constants),
    "profile": Kind(make_profile, read_profile),
    "space": Kind(make_space, read_space),
    "scaling": Kind(make_scaling, read_scaling, "", DOCUMENT),
    "panda": Kind(make_asked, read_asked, "", DOCUMENT),
    "study": Kind(make_study, read_study, "study.toml"),
    "journal": Kind(make_study, read_study, "*.log", DOCUMENT),
    "study origin": Kind(make_study, read_study, "origin.json", DOCUMENT),
    "run": Kind(make_run, read_run, "run.json", DOCUMENT),
    "run settings": Kind(make_run, read_run, "settings.toml"),
    "checkpoint": Kind(make_run, read_run, "checkpoints/*/tensors.safetensors", BYTES, checked=True),
    "training state": Kind(make_run, read_run, "checkpoints/*/*.json", DOCUMENT, checked=True),
    "history": Kind(make_run, read_run, "history.jsonl", DOCUMENT),
    "traced dataset": Kind(make_dataset, _traced, "manifest.json", DOCUMENT),
    "traced run": Kind(make_run, _traced, "run.json", DOCUMENT),
    "traced model": Kind(make_model, _traced),
    "traced onnx": Kind(make_external, lambda folder: _traced(folder / "model.onnx"), "model.onnx", BYTES),
    "traced candidates": Kind(make_candidates, _traced, "", BYTES),
    "traced study": Kind(make_study, _traced, "origin.json", DOCUMENT),
    "traced report": Kind(make_metrics, _traced, "metrics.json", DOCUMENT),
    "request": Kind(make_request, read_request, "", DOCUMENT),
    "binary request": Kind(lambda folder: make_request(folder).with_name("binary"), read_request, "", BYTES),
}
