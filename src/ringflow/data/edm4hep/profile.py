"""Profiles: which collections of an EDM4hep file hold what, and the few facts about a detector that no file tells.

A profile is a TOML file; those in `profiles/` come with the package. A collection named for tracks or clusters must be in the
file, all others are taken where they are there. Lengths are mm, the field tesla. Free of torch.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ringflow.base.config import Settings
from ringflow.base.errors import UsageError
from ringflow.base.words import did_you_mean

PROFILES = Path(__file__).parent / "profiles"

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]
#: What light from the collision needs to a hit can be in its time, or not.
FROM_COLLISION, FLIGHT_SUBTRACTED = "from the collision", "flight subtracted"
Subsystem = Literal["ecal_barrel", "ecal_endcap", "hcal_barrel", "hcal_endcap", "yoke_barrel", "yoke_endcap"]


class LayerBits(Settings):
    """Which bits of a cell identifier hold the layer, and the number that the innermost layer has."""

    offset: int = Field(ge=0, le=63)
    width: int = Field(ge=1, le=32)
    first: int


class TrackSource(Settings):
    """Tracks; their states are looked for at the interaction point and at the calorimeter."""

    collection: str
    dedx_collection: str | None = None  # of RecDqdx; without it the tracks' own dEdx
    mip_dedx: Positive | None = None  # dE/dx of a minimum-ionising particle in the file's unit; without it none is read


class ClusterSource(Settings):
    """Clusters, of one collection or of several one after the other."""

    collections: Names
    # Whose energy each number in subdetectorEnergies is.
    subdetectors: tuple[Literal["ecal", "hcal", "muon", "other"], ...] | None = None


class HitSource(Settings):
    """Calorimeter hits of one collection."""

    collection: str
    subsystem: Subsystem
    endcap_from: Positive | None = None  # |z| from which hits of a barrel's collection lie in the endcap
    layer: LayerBits | None = None


class CalorimeterLayers(Settings):
    """Number of layers, so that layers count through the whole calorimeter."""

    ecal: int = Field(ge=1)
    hcal: int = Field(ge=1)


class TruthSource(Settings):
    """Generator particles, and the links from what was measured to them, in either direction."""

    particles: str
    time_unit: Positive | None = None  # of the particles' times in ns; 1 unless given
    track_links: str | None = None
    cluster_links: str | None = None
    hit_links: str | None = None
    # From hits to simulated hits, whose contributions know the particles; used where there are no hit_links.
    simulated_hit_links: Names | None = None
    simulated_hits: Names | None = None
    contributions: Names | None = None
    # From reconstructed particles, for files that link nothing else; their tracks and clusters inherit it.
    candidate_links: str | None = None

    @property
    def collections(self) -> list[str]:
        """What particles and their links are read from."""
        names = (self.particles, self.track_links, self.cluster_links, self.hit_links, self.candidate_links)
        return [name for name in names if name]


class Profile(Settings):
    """How to read the files of one detector."""

    name: str
    description: str
    detector: str  # name for datasets; decides which rules and models fit
    field: Positive
    face_radius: Positive  # of the calorimeter in the barrel, at the middle of a side
    face_z: Positive  # of the calorimeter in the endcaps
    sides: int | None = Field(default=None, ge=3, le=64)  # of the barrel, one across x; round unless given
    half_length: Positive | None = None  # of the barrel; up to face_z unless given
    # |z|, smallest and largest radius of the endcaps, first the innermost; one at face_z down to the beam unless given.
    endcaps: tuple[tuple[Positive, NotNegative, Positive], ...] | None = None
    event_header: str | None = None
    tracks: TrackSource | None = None
    clusters: ClusterSource | None = None
    hits: tuple[HitSource, ...] | None = None
    hit_times: Literal["from the collision", "flight subtracted"] | None = None  # from the collision unless given
    layers: CalorimeterLayers | None = None
    truth: TruthSource | None = None
    candidates: str | None = None  # reconstructed particles, for example Pandora's
    ignored_columns: tuple[str, ...] | None = None  # of the schema, such as track_num_hits: filled with stand-ins

    def of_collections(self, there: Collection[str]) -> Profile:
        """The same for a file that has these collections: without what it has not, links aside."""
        hits = tuple(source for source in self.hits or () if source.collection in there)
        truth = self.truth if self.truth is not None and self.truth.particles in there else None
        candidates = self.candidates if self.candidates in there else None
        return self.model_copy(update={"hits": hits or None, "truth": truth, "candidates": candidates})

    @property
    def optional(self) -> tuple[str, ...]:
        """Collections that are taken where they are there, truth aside."""
        hits = (source.collection for source in self.hits or ())
        return (*hits, *((self.candidates,) if self.candidates else ()))

    @property
    def required(self) -> tuple[str, ...]:
        """Collections without which a file is not one of this profile."""
        tracks = (self.tracks.collection,) if self.tracks else ()
        return (*tracks, *(self.clusters.collections if self.clusters else ()))


def profile_names() -> list[str]:
    """Profiles that come with the package."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def load_profile(name_or_toml: str | Path) -> Profile:
    """Profile by name, or from a TOML file of the same form."""
    known = profile_names()
    if str(name_or_toml) in known:
        return Profile.resolve(PROFILES / f"{name_or_toml}.toml")
    if str(name_or_toml).endswith(".toml"):
        return Profile.resolve(Path(name_or_toml))
    hint = did_you_mean(str(name_or_toml), known)
    raise UsageError(f"unknown profile '{name_or_toml}': {hint}known are {', '.join(known)}, or give a TOML file")
