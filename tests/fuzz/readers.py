"""Every kind of file that ringflow reads: a good one, and its reader.

A reader returns what its users get, in a form that can be compared. Kinds that carry checksums (`checked`) never give anything
else than what was written; what the others hold is for their users to say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.fake_events import fake_block, write_fake_dataset
from fuzz.mutations import BYTES, DOCUMENT, TEXT, Mutation

Ways = dict[str, Callable[[bytes, Mutation], bytes]]


@dataclass(frozen=True)
class Kind:
    """`make` writes a good file, and what it needs beside it, into an empty folder and returns the path that is broken; `read`
    is given that path."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    ways: Ways = field(default_factory=lambda: TEXT)
    checked: bool = False
    #: Examples in the default run, in which a case of a slow reader counts, too.
    examples: int = 40


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


def check_dataset(path: Path) -> Any:
    """What `check` reads: all of it, gate by gate. Its verdict may differ, what a reader gets may not."""
    from ringflow.data.check import check_dataset as check

    check(path)
    return read_dataset(path)


def make_candidates(folder: Path) -> Path:
    from ringflow.data.candidates import write_candidates
    from ringflow.data.read import Dataset

    dataset = Dataset(make_dataset(folder))
    path = folder / "made.parquet"
    write_candidates(path, dataset, dataset.events(), reconstruction="made up", provenance={"seed": 1})
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


def make_onnx(folder: Path) -> Path:
    from ringflow.infer.export import write_onnx
    from ringflow.models.file import load_model

    write_onnx(folder / "model.onnx", load_model(make_model(folder)))
    return folder / "model.onnx"


def read_onnx(path: Path) -> Any:
    from ringflow.infer.runtime import OnnxSession

    part = OnnxSession(path).candidates(fake_block(0, 2))
    return part.offsets.tobytes(), [part[name].tobytes() for name in sorted(part.columns)]


# --- events of others -------------------------------------------------------------------------------------------------


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


def read_hepmc(path: Path) -> Any:
    from ringflow.sim.hepmc import HepMCGenerator

    generator = HepMCGenerator(path, 1, (1500.0, 2300.0))
    return generator.generate(0, generator.num_available).pdg.tolist()


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
    from ringflow.sim.geometry import load_detector

    return load_detector(str(path)).model_dump_json()


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

    dataset = make_dataset(folder)
    return train_alone(dataset, folder / "run", (*TINY, "length.events=20", "length.validate_every=20"))


def read_run(path: Path) -> Any:
    """What goes on from it, and what tells of it."""
    from ringflow.train.checkpoint import read_checkpoint
    from ringflow.train.runs import read_history, settings_of

    read_settings(settings_of(path) or path)
    read_history(path)
    found = read_checkpoint(path)
    return found and {name: value.numpy().tobytes() for name, value in found.tensors.items()}


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


def below(make: Callable[[Path], Path], *parts: str) -> Callable[[Path], Path]:
    """Make a folder, of which this file is broken; the first in order, if the last part is a pattern."""

    def file(folder: Path) -> Path:
        return min(make(folder).glob("/".join(parts)))

    return file


def above(read: Callable[[Path], Any], levels: int = 1) -> Callable[[Path], Any]:
    """Read the folder that a file lies in."""
    return lambda path: read(path.parents[levels - 1])


KINDS: dict[str, Kind] = {
    "manifest": Kind(below(make_dataset, "manifest.json"), above(check_dataset), DOCUMENT, checked=True),
    "shard": Kind(below(make_dataset, "shard-*.parquet"), above(check_dataset), BYTES, checked=True),
    "candidates": Kind(make_candidates, read_candidates, BYTES, checked=True),
    "model": Kind(make_model, read_model, TEXT, checked=True),
    "onnx": Kind(make_onnx, read_onnx, BYTES, checked=True, examples=15),
    "hepmc": Kind(make_hepmc, read_hepmc),
    "packed hepmc": Kind(make_packed_hepmc, read_hepmc, BYTES),
    "edm4hep": Kind(make_edm4hep, read_edm4hep, BYTES, examples=15),
    "phoenix": Kind(make_phoenix, read_phoenix, DOCUMENT),
    "settings": Kind(make_settings, read_settings),
    "detector": Kind(make_detector, read_detector, examples=20),
    "profile": Kind(make_profile, read_profile),
    "space": Kind(make_space, read_space),
    "study": Kind(below(make_study, "study.toml"), above(read_study), examples=20),
    "journal": Kind(below(make_study, "*.log"), above(read_study), DOCUMENT, examples=20),
    "study origin": Kind(below(make_study, "origin.json"), above(read_study), DOCUMENT, examples=20),
    "checkpoint": Kind(below(make_run, "checkpoints/*/tensors.safetensors"), above(read_run, 3), BYTES, checked=True),
    "training state": Kind(below(make_run, "checkpoints/*/*.json"), above(read_run, 3), DOCUMENT, checked=True),
    "history": Kind(below(make_run, "history.jsonl"), above(read_run), DOCUMENT),
    "request": Kind(make_request, read_request, DOCUMENT),
    "binary request": Kind(lambda folder: make_request(folder).with_name("binary"), read_request, BYTES),
}
