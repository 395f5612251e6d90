"""Lines to draw: the file of `ringflow explain --links`, read, checked and found in what is shown.

    {"source": "data/ttbar", "model": {"file": "clic.safetensors", "sha256": ...}, "events": [
        {"index": 3, "event_number": 3,
         "links": [{"reconstruction": "model", "candidate": 0, "elements": [[137, 0.43], [12, -0.05]]}, ...],
         "graph": [{"layer": 0, "edges": [[5, 9, 0.31], ...]}, ...]}, ...]}

Elements count the tracks of an event first, then its clusters (or hits, as the network takes them).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pydantic

from ringflow.base.errors import InputFileError
from ringflow.base.provenance import describe_input

#: Edges of a layer that are shown at most: more are one grey area.
MOST_EDGES = 3000

_Count = pydantic.NonNegativeInt


class _LinkPart(pydantic.BaseModel):
    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class _Link(_LinkPart):
    reconstruction: str
    candidate: _Count
    elements: tuple[tuple[_Count, float], ...]


class _Layer(_LinkPart):
    layer: _Count
    edges: tuple[tuple[_Count, _Count, float], ...]


class _Model(_LinkPart):
    file: str
    sha256: str


class EventLinks(_LinkPart):
    """What a file says about one event."""

    index: _Count
    event_number: int
    links: tuple[_Link, ...]
    graph: tuple[_Layer, ...] = ()

    def in_scene(self) -> dict[str, Any]:
        """As a scene has them; of every layer the strongest edges, the strongest first."""
        found = self.model_dump(mode="json", include={"links", "graph"})
        for layer in found["graph"]:
            layer["edges"] = sorted(layer["edges"], key=lambda edge: -edge[2])[:MOST_EDGES]
        return found

    def require(self, path: Path, candidates: Mapping[str, int], elements: int) -> None:
        """Refuse what points to nothing: `candidates` says how many every reconstruction made."""
        event = f"event {self.event_number}"
        for link in self.links:
            if link.reconstruction not in candidates:
                raise InputFileError(f"{path} is about {link.reconstruction!r}, which is not shown; give --model")
            if link.candidate >= (there := candidates[link.reconstruction]):
                raise InputFileError(
                    f"{path} has candidate {link.candidate} of {event}, but {link.reconstruction!r} makes {there} "
                    "(counted from 0); show the same source and --model that `ringflow explain` was given"
                )
        named = [element for link in self.links for element, _ in link.elements]
        named += [element for layer in self.graph for edge in layer.edges for element in edge[:2]]
        if max(named, default=-1) >= elements:
            raise InputFileError(
                f"{path} has element {max(named)} of {event}, which has {elements} (counted from 0); "
                "make it anew of what is shown"
            )


class LinkFile(_LinkPart):
    """All of a file."""

    source: str
    model: _Model
    events: tuple[EventLinks, ...]

    @classmethod
    def read(cls, path: Path) -> LinkFile:
        """Read a file; whatever else it holds is not looked at."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise InputFileError(f"cannot read {path}: {error.strerror}; give a file of `ringflow explain`") from None
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            reason = f"{place}: {first['msg']}" if place else first["msg"]
            raise InputFileError(f"{path} is not a file of `ringflow explain --links`: {reason}") from None

    def notes(self, path: Path, shown: Path, model: Path) -> tuple[str, ...]:
        """What people should know if it was made of something else, or by another network."""
        notes = []
        if self.model.sha256 != describe_input(model)["sha256"]:
            notes.append(f"{path} was made with another model ({self.model.file}) than {model}; lines may be wrong")
        made_of = Path(self.source)
        same = made_of.resolve() == shown.resolve() if made_of.exists() else made_of.name == shown.name
        if not same:
            notes.append(f"{path} was made of {self.source}, not of {shown}; lines may be wrong")
        return tuple(notes)
