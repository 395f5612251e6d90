"""A trained network ready to reconstruct: blocks of events in, candidates out.

session = open_session(Path("runs/first/model.safetensors"))
candidates = session.reconstruct(block)
candidates["px"], candidates.counts
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.rundir import temporary_folder
from ringflow.elements.batch import TRACK, ElementBatch, from_block
from ringflow.elements.features import essential_columns
from ringflow.elements.frame import FrameSettings
from ringflow.event.block import Collection, EventBlock, require_finite
from ringflow.infer import shipped
from ringflow.infer.runtime import ERRORS, ROW, Description, OnnxSession, Reconstructor, collection
from ringflow.models.file import LoadedModel, load_model
from ringflow.models.model import DecodedElements, Model, decode
from ringflow.models.uncertainty import UncertaintyHead, errors_of, head_for

#: Elements computed at a time, so that memory stays small; an event is never cut.
ELEMENTS_AT_ONCE = 8192
#: What can compute a network.
ENGINES = ("torch", "onnx")


class Session(Reconstructor):
    """A network on a device."""

    def __init__(
        self, loaded: LoadedModel, device: torch.device | str = "cpu", uncertainty: UncertaintyHead | None = None
    ) -> None:
        super().__init__(loaded.model.kinds, loaded.threshold, loaded.card, has_errors=uncertainty is not None)
        self.model = loaded.model.to(device)
        self.uncertainty = None if uncertainty is None else uncertainty.to(device)
        self._device = torch.device(device)

    @property
    def description(self) -> Description:
        """What an exported file of it would say."""
        from ringflow.infer.export import describe

        return describe(LoadedModel(self.model, self.threshold, self.card))

    def candidates(self, block: EventBlock) -> Collection:
        """Many events at a time."""
        require_finite(block, {kind: essential_columns(kind) for kind in self.kinds})
        elements = self.model.see(from_block(block, self.kinds[1]).to(self._device))
        return candidates(self.model, elements, self.threshold, self.uncertainty)


def open_session(
    model: Path | None = None,
    device: torch.device | str = "cpu",
    engine: str | None = None,
    threads: int = 1,
    uncertainty: Path | None = None,
    detector: str | None = None,
) -> Reconstructor:
    """A session of a model file or of the model that comes with the package, computed by an engine of `ENGINES`, for events of
    a detector.

    Unless an engine is named, ONNX files are run as such and others by torch. `threads` are events that ONNX computes at a
    time. With a file of uncertainties, which must be of this model, candidates get those too.
    """
    path, engine = choose_engine(model, engine)
    if engine == "torch":
        loaded = load_for(path, detector)
        return Session(loaded, device, None if uncertainty is None else head_for(uncertainty, path))
    if uncertainty is not None:
        raise UsageError(f"uncertainties ({uncertainty}) are computed by torch; use --engine torch")
    if torch.device(device).type != "cpu":
        raise UsageError(f"the engine onnx computes on the cpu, not on {device}; use --engine torch there")
    with as_onnx(path, detector) as exported:
        return OnnxSession(exported, threads)


def load_for(path: Path, detector: str | None) -> LoadedModel:
    """A model file; one that can see elements relative to any detector is told which, and refused if that is none of ours."""
    loaded = load_model(path)
    if not loaded.model.is_bound:
        loaded.model.bind(known_frame(detector, path))
    return loaded


def known_frame(detector: str | None, model: Path) -> FrameSettings:
    """How a model that can see elements relative to any detector sees one of ours."""
    from ringflow.sim.geometry import detector_names, load_detector
    from ringflow.sim.tracker import frame_of

    if detector is None or detector not in detector_names():
        unknown = "which detector events are of" if detector is None else f"the detector {detector!r}"
        named = model.stem if model.parent == shipped.WEIGHTS else model
        raise UsageError(
            f"{model.name} does not know {unknown}; make a model that does: "
            f"ringflow adapt DATASET --model {named} --out {model.stem}_{detector or 'adapted'}.safetensors"
        )
    return frame_of(load_detector(detector))


def choose_engine(model: Path | None, engine: str | None) -> tuple[Path, str]:
    """The file that is meant and what computes it, if that goes together."""
    if model is None and not shipped.is_there():
        raise InputFileError(
            "this installation comes without a model; give --model FILE, or train one: "
            "ringflow train clic_tiny --out runs/first"
        )
    path = model or shipped.MODEL
    engine = engine or ("onnx" if path.suffix == ".onnx" else "torch")
    if engine not in ENGINES:
        raise UsageError(f"no engine named {engine!r}; choose from {', '.join(ENGINES)}")
    if engine == "torch" and path.suffix == ".onnx":
        raise UsageError(f"{path} is an ONNX file, which torch does not run; use --engine onnx")
    return path, engine


@contextmanager
def as_onnx(path: Path, detector: str | None = None) -> Iterator[Path]:
    """A model as an ONNX file for events of a detector: itself, or an export that is there as long as the context."""
    if path.suffix == ".onnx":
        yield path
        return
    from ringflow.infer.export import require_onnx, write_onnx

    require_onnx()
    loaded = load_for(path, detector)
    say("exporting the model to ONNX for this run; `ringflow export` keeps the file")
    with temporary_folder("onnx") as folder:
        exported = folder / "model.onnx"
        write_onnx(exported, loaded)
        yield exported


@torch.inference_mode()
def candidates(
    model: Model, batch: ElementBatch, threshold: float, uncertainty: UncertaintyHead | None = None
) -> Collection:
    """Candidates of packed elements on the model's device; `cluster` counts calorimeter elements, clusters or hits."""
    was_training = model.training
    model.eval()
    parts = [_part(model, batch, events, threshold, uncertainty) for events in _portions(batch)]
    model.train(was_training)
    names = ROW if uncertainty is None else (*ROW, *ERRORS)
    event = np.concatenate([np.zeros(0, np.int64), *(events for events, _ in parts)])
    rows = [np.zeros((0, len(names))), *(rows for _, rows in parts)]
    return collection(np.bincount(event, minlength=batch.num_events), rows, names)


def _portions(batch: ElementBatch) -> Iterator[torch.Tensor]:
    """Consecutive events that have elements, in portions of about `ELEMENTS_AT_ONCE`."""
    counts = batch.counts_B.cpu()
    events = torch.nonzero(counts).squeeze(1)
    before = counts[events].cumsum(0) - counts[events]
    for portion in torch.unique(before // ELEMENTS_AT_ONCE):
        yield events[before // ELEMENTS_AT_ONCE == portion]


def _part(
    model: Model, batch: ElementBatch, events: torch.Tensor, threshold: float, uncertainty: UncertaintyHead | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Event and columns of every candidate of some events."""
    part = batch.take(events)
    prediction, known = model.predict_with_state(part)
    found = decode(prediction, part, threshold)
    event = part.event_N[found.row]
    rows = candidate_rows(found, part, event)
    if uncertainty is not None:
        errors = errors_of(uncertainty, known, prediction, found, part.charge_N[found.row] != 0)
        rows = torch.cat([rows, torch.stack([errors[name] for name in ERRORS], dim=1).double()], dim=1)
    return events.numpy()[event.cpu().numpy()], rows.cpu().numpy()


def candidate_rows(found: DecodedElements, part: ElementBatch, event: torch.Tensor) -> torch.Tensor:
    """Label, charge, four-momentum and the indices of track and calorimeter element within the event."""
    is_track = part.kind_N == TRACK
    tracks_B = torch.zeros_like(part.counts_B).index_add(0, part.event_N, is_track.long())
    place = found.row - part.offsets_B[event]
    on_track = is_track[found.row]
    track = torch.where(on_track, place, -1)
    element = torch.where(on_track, -1, place - tracks_B[event])
    columns = (found.label, found.charge, *found.momentum.unbind(1), track, element)
    return torch.stack([column.double() for column in columns], dim=1)
