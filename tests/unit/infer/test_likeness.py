from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ringflow.base.errors import InputFileError
from ringflow.data.read import Dataset
from ringflow.elements.batch import from_block
from ringflow.elements.frame import what_is_usual
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer.inputs import EventInput
from ringflow.infer.likeness import EVENTS, Likeness, likeness
from ringflow.infer.runtime import OnnxSession
from ringflow.infer.session import Session, open_session
from ringflow.infer.shipped import MODEL
from ringflow.models.file import load_model
from ringflow.recipes.simulate import simulate
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import SimulateSettings
from ringflow.sim.tracker import frame_of

KINDS = ("track", "cluster")
Change = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


class Given(EventInput):
    """Some blocks of a detector."""

    def __init__(self, blocks: Sequence[EventBlock], detector: str = "clic", field: float | None = 4.0) -> None:
        super().__init__(sum(map(len, blocks)), None)
        self._blocks, self._field, self.detector = blocks, field, detector
        self.taken = 0

    @property
    def field(self) -> float:
        if self._field is None:
            raise InputFileError("nobody told it")
        return self._field

    @property
    def identity(self) -> dict[str, Any]:
        return {}

    def record(self, reconstruction: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def _all(self, collections: Sequence[str]) -> Iterator[EventBlock]:
        for block in self._blocks:
            self.taken += len(block)
            yield block


def simulated(folder: Path, sample: str, detector: str, events: int) -> EventBlock:
    asked = [f"generator.sample={sample}", f"detector={detector}", f"production.events={events}"]
    simulate(SimulateSettings.resolve(None, [*asked, "production.keep_hits=false"]), folder)
    return concatenate(list(Dataset(folder).events(columns=list(KINDS))))


@pytest.fixture(scope="module")
def ttbar(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], EventBlock]:
    """Some events, by detector."""
    made: dict[str, EventBlock] = {}

    def block(detector: str) -> EventBlock:
        if detector not in made:
            made[detector] = simulated(tmp_path_factory.mktemp(detector) / "data", "ttbar", detector, 20)
        return made[detector]

    return block


@pytest.fixture(scope="module")
def shipped() -> Session:
    session = open_session()
    assert isinstance(session, Session)
    return session


@pytest.fixture(scope="module")
def telling(ttbar: Callable[[str], EventBlock]) -> Session:
    """The same network, of which the card tells what it saw."""
    session = open_session()
    assert isinstance(session, Session)
    session.card = {**session.card, "seen": what_is_usual(from_block(ttbar("clic")), KINDS)}
    return session


@pytest.fixture(params=["deviations", "quantiles"])
def session(request: pytest.FixtureRequest, shipped: Session, telling: Session) -> Session:
    return telling if request.param == "quantiles" else shipped


def changed(block: EventBlock, kind: str, **columns: Change | None) -> EventBlock:
    """The block with other values in some columns of a collection, or without them."""
    part = block[kind]
    there = dict(part.columns)
    for name, change in columns.items():
        before = there.pop(name)
        if change is not None:
            there[name] = change(before.astype(np.float64)).astype(before.dtype)
    return EventBlock(block.event_number, {**block.collections, kind: Collection(part.counts, there)})


def moved(block: EventBlock, factor: float) -> EventBlock:
    """With the face of the calorimeter elsewhere."""
    for axis in "xyz":
        block = changed(block, "track", **{f"calo_{axis}": lambda values: factor * values})
    return block


def test_the_own_detector_is_like(ttbar: Callable[[str], EventBlock], session: Session):
    found = likeness(session, Given([ttbar("clic")]))
    assert found == Likeness("like", 20)


@pytest.mark.parametrize("sample", ["gun_photon", "gun_k0l", "gun_muon", "gamma_gamma"])
def test_other_physics_is_no_difference(sample: str, session: Session, tmp_path: Path):
    block = simulated(tmp_path / "data", sample, "clic", 50)
    assert likeness(session, Given([block])) == Likeness("like", 50)


def test_few_elements_are_no_difference(ttbar: Callable[[str], EventBlock], session: Session):
    block = ttbar("clic")
    for event in range(len(block)):
        assert likeness(session, Given([block.take(event, event + 1)])) == Likeness("like", 1)
    nothing = {
        kind: Collection(np.zeros(1, np.int64), {name: values[:0] for name, values in block[kind].columns.items()})
        for kind in KINDS
    }
    assert likeness(session, Given([EventBlock(np.zeros(1, np.int64), nothing)])) == Likeness("like", 1)
    neutral = EventBlock(np.zeros(1, np.int64), {"track": nothing["track"], "cluster": block["cluster"].take(0, 1)})
    assert likeness(session, Given([neutral])) == Likeness("like", 1)
    assert likeness(session, Given([])) == Likeness("like", 0)


@pytest.mark.parametrize(("tracks", "verdict"), [(9, "like"), (10, "hopeless")])
def test_few_strange_elements_say_nothing(
    tracks: int, verdict: str, ttbar: Callable[[str], EventBlock], session: Session
):
    block = changed(moved(ttbar("clic"), 1.5), "track", num_hits=lambda hits: 0 * hits + 228).take(0, 1)
    first = {name: values[:tracks] for name, values in block["track"].columns.items()}
    few = EventBlock(block.event_number, {**block.collections, "track": Collection(np.array([tracks]), first)})
    assert likeness(session, Given([few])).verdict == verdict


@pytest.mark.parametrize(
    ("detector", "field", "verdict"), [("cld", 2.0, "hopeless"), ("ild", 3.5, "hopeless"), ("sid", 5.0, "unlike")]
)
def test_another_detector_is_not(
    detector: str, field: float, verdict: str, ttbar: Callable[[str], EventBlock], session: Session
):
    found = likeness(session, Given([ttbar(detector)], detector, field))
    assert found.verdict == verdict
    assert found.differences[0] == f"the model was trained for the detector 'clic', the events are of '{detector}'"
    assert f"the magnetic field is {field:g} T instead of 4 T" in found.differences
    [face] = [line for line in found.differences if "enter the calorimeter elsewhere" in line]
    radius = load_detector(detector).face_radius
    here = float(face.rpartition("here at radius ")[2].split()[0])
    assert radius < here < radius / math.cos(math.pi / 8)
    assert any("track num hits" in line and "usual 1" in line for line in found.differences) == (detector == "ild")


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.01, "like"), (1.02, "unlike"), (1.05, "hopeless"), (0.98, "unlike"), (0.6, "unlike"), (0.1, "hopeless")],
)
def test_where_the_calorimeter_begins_decides(
    factor: float, verdict: str, ttbar: Callable[[str], EventBlock], shipped: Session
):
    assert likeness(shipped, Given([moved(ttbar("clic"), factor)])).verdict == verdict


@pytest.mark.parametrize(("field", "verdict"), [(3.7, "like"), (3.0, "unlike"), (None, "like")])
def test_another_field_is_said(field: float | None, verdict: str, ttbar: Callable[[str], EventBlock], shipped: Session):
    assert likeness(shipped, Given([ttbar("clic")], field=field)).verdict == verdict


def test_features_that_were_never_like_this_are_said(ttbar: Callable[[str], EventBlock], session: Session):
    some = changed(ttbar("clic"), "track", num_hits=lambda hits: np.where(np.arange(len(hits)) % 5 < 2, 228, hits))
    found = likeness(session, Given([some]))
    assert found.verdict == "unlike"
    assert found.differences[0].startswith("track num hits: 40% outside of what it saw (usual 1")
    all_of_them = likeness(session, Given([changed(ttbar("clic"), "track", num_hits=lambda hits: 0 * hits + 228)]))
    assert all_of_them.verdict == "hopeless"
    assert "100% outside" in all_of_them.differences[0]
    assert all_of_them.differences[0].endswith("here 228)")


def test_features_that_are_not_there_are_said(ttbar: Callable[[str], EventBlock], session: Session):
    block = ttbar("clic")
    without = [name for name in block["cluster"].columns if name not in ("energy", "x", "y", "z", "eta", "phi")]
    found = likeness(session, Given([changed(block, "cluster", **dict.fromkeys(without))]))
    assert found.verdict == "unlike"
    assert "of 49 features that it saw are not there: cluster scale, cluster parts" in found.differences[0]
    assert likeness(session, Given([changed(block, "track", dedx=None, time=None)])).verdict == "like"


def test_what_it_never_saw_is_said(ttbar: Callable[[str], EventBlock], telling: Session):
    seen = {name: of for name, of in telling.card["seen"]["quantiles"].items() if name != "track_dedx"}
    session = Session(load_model(MODEL))
    session.card = {**telling.card, "seen": {"quantiles": seen}}
    found = likeness(session, Given([ttbar("clic")]))
    assert (found.verdict, found.differences) == ("hopeless", ("track dedx: it never saw any",))


def test_what_was_constant_leaves_hope(ttbar: Callable[[str], EventBlock], telling: Session):
    session = Session(load_model(MODEL))
    quantiles = {**telling.card["seen"]["quantiles"], "cluster_muon_share": [0.0] * 11}
    session.card = {**telling.card, "seen": {"quantiles": quantiles}}
    assert likeness(session, Given([ttbar("clic")])).verdict == "like"
    behind = changed(ttbar("clic"), "cluster", muon_energy=lambda energy: energy + 1.0)
    found = likeness(session, Given([behind]))
    assert found.verdict == "unlike"
    assert found.differences[0].startswith("cluster muon share: 100% outside of what it saw (usual 0, here ")


def test_the_name_alone_is_no_difference(
    ttbar: Callable[[str], EventBlock], shipped: Session, capsys: pytest.CaptureFixture[str]
):
    found = likeness(shipped, Given([ttbar("clic")], "mine"))
    assert found.verdict == "like"
    found.warn()
    assert capsys.readouterr().err == "the model was trained for the detector 'clic', the events are of 'mine'\n"


def test_what_is_said_of_others_is_loud(capsys: pytest.CaptureFixture[str]):
    Likeness("like", 5).warn()
    assert capsys.readouterr().err == ""
    Likeness("unlike", 5, ("this", "that")).warn("ttbar")
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("ttbar: WARNING: ")
    assert said[1:] == ["  this", "  that"]


def test_a_network_relative_to_a_detector_is_compared_with_that(
    ttbar: Callable[[str], EventBlock], telling: Session, small_model: Callable[..., Any]
):
    """It is like the detector that it was told, and like no other, whatever it has learned on."""
    loaded = small_model()
    loaded.model.settings = loaded.model.settings.model_copy(update={"features": "relative"})
    loaded.model.bind(frame_of(load_detector("cld")))
    usual = what_is_usual(loaded.model.see(from_block(ttbar("cld"))), KINDS)
    card = {"detector": "clic,cld", "seen": usual, "settings": {"model": {"features": "relative"}}}
    session = Session(replace(loaded, card=card))
    assert likeness(session, Given([ttbar("cld")], "cld", 2.0)) == Likeness("like", 20)
    # Where tracks are said to enter on a cylinder before flat sides, they do not lie elsewhere for that.
    track = ttbar("cld")["track"]
    x, y, z = (track[f"calo_{axis}"] for axis in "xyz")
    face = frame_of(load_detector("cld"))
    scale = np.where(np.abs(z) < face.z - 1.0, face.radius / np.hypot(x, y), 1.0)
    inside = changed(ttbar("cld"), "track", calo_x=lambda x: x * scale, calo_y=lambda y: y * scale)
    assert likeness(session, Given([inside], "cld", 2.0)).verdict == "unlike"
    loaded.model.bind(face.model_copy(update={"entry_sides": 0}))
    assert "enter the calorimeter" not in likeness(session, Given([inside], "cld", 2.0)).summary()
    loaded.model.bind(face)
    found = likeness(session, Given([ttbar("ild")], "ild", 3.5))  # its endcaps lie behind those of the other
    assert found.verdict == "hopeless"
    assert found.differences[0] == "the model was trained for the detector 'cld', the events are of 'ild'"


def test_an_exported_network_tells_what_it_can(
    ttbar: Callable[[str], EventBlock], small_onnx: Callable[..., Path], telling: Session
):
    session = OnnxSession(small_onnx())
    only_a_name = likeness(session, Given([ttbar("clic")]))
    assert only_a_name.differences == ("the model was trained for the detector 'fake', the events are of 'clic'",)
    session.card, session.detector = telling.card, "clic"
    assert likeness(session, Given([ttbar("clic")])).verdict == "like"
    many_hits = changed(ttbar("clic"), "track", num_hits=lambda hits: 0 * hits + 228)
    assert likeness(session, Given([many_hits])).verdict == "hopeless"


def test_a_network_that_has_learned_nothing_knows_nothing(
    ttbar: Callable[[str], EventBlock], small_model: Callable[..., Any]
):
    assert likeness(Session(replace(small_model(), card={})), Given([ttbar("clic")])).differences == ()


@pytest.mark.parametrize("quantiles", [3, {"track_eta": 3}, {"track_eta": ["x"]}, {"track_eta": []}])
def test_a_card_that_makes_no_sense_is_one_line(
    quantiles: object, ttbar: Callable[[str], EventBlock], small_model: Callable[..., Any]
):
    session = Session(replace(small_model(), card={"seen": {"quantiles": quantiles}}))
    with pytest.raises(InputFileError, match=r"the model does not say what it has seen .*; train it again"):
        likeness(session, Given([ttbar("clic")]))


def test_only_the_first_events_are_read(ttbar: Callable[[str], EventBlock], shipped: Session):
    given = Given([ttbar("clic")] * 10)
    assert likeness(shipped, given).events == EVENTS
    assert given.taken < 10 * 20
