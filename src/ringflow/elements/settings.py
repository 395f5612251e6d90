"""Settings of clustering. Free of torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ringflow.base.config import Settings

NotNegative = Annotated[float, Field(ge=0)]
#: One number for all calorimeters, or one each for ECAL, HCAL and yoke.
Each = NotNegative | tuple[NotNegative, NotNegative, NotNegative]


class ClusteringSettings(Settings):
    """Tower sizes at the front of each calorimeter and what becomes a cluster; mm and GeV."""

    ecal_tower: float = Field(gt=0)
    hcal_tower: float = Field(gt=0)
    yoke_tower: float = Field(gt=0)
    #: A pre-cluster below this energy is a fragment: it joins the nearest larger one within `fragment_distance`.
    fragment_energy: Each
    fragment_distance: Each
    #: A hadronic pre-cluster continues an electromagnetic one that is at most so far away and has hits from `rear_layer` on.
    link_distance: float = Field(ge=0)
    rear_layer: int = Field(ge=0)
    #: Pieces whose centre is this near to the helix of a track become one cluster: those in the ECAL alone (which may be
    #: photons), those in the HCAL, those in the yoke; 0: tracks play no part.
    follow_distance: Each = 0.0
    #: They do so from the nearest on, as long as the sum is not above the momentum by more than so many standard deviations.
    follow_excess: float = Field(default=2.0, ge=0)
    #: What begins in a calorimeter and is smaller in the end is noise: its hits belong to no cluster.
    min_energy: Each
    min_hits: int = Field(ge=1)
    #: The time of a whole cluster is off by so much (ns), however many hits it has: clocks, and what calibration leaves.
    time_floor: float = Field(default=0.0, ge=0)


def each(value: Each) -> tuple[float, float, float]:
    """The numbers of ECAL, HCAL and yoke."""
    return value if isinstance(value, tuple) else (value, value, value)
