"""Decays in flight: which particles decay inside the detector, into what, how often [PDG, Review of Particle Physics].

Short-lived particles (K0S, hyperons, charm) are decayed by the generator; these live long enough to reach the detector.
Channels are for the positive (or neutral) parent; neutrinos are written as 12 whatever their flavour, since they leave.
"""

from __future__ import annotations

NEUTRINO = 12

#: |PDG| of the parent -> (probability, daughters). The probabilities of a parent are normalised where they are used.
CHANNELS: dict[int, tuple[tuple[float, tuple[int, ...]], ...]] = {
    13: ((1.0, (11, NEUTRINO, NEUTRINO)),),
    111: ((1.0, (22, 22)),),
    211: ((1.0, (-13, NEUTRINO)),),
    321: (
        (0.6356, (-13, NEUTRINO)),
        (0.2067, (211, 111)),
        (0.0558, (211, 211, -211)),
        (0.0507, (111, -11, NEUTRINO)),
        (0.0335, (111, -13, NEUTRINO)),
        (0.0176, (211, 111, 111)),
    ),
    130: (
        (0.2028, (211, 11, NEUTRINO)),
        (0.2027, (-211, -11, NEUTRINO)),
        (0.1352, (211, 13, NEUTRINO)),
        (0.1352, (-211, -13, NEUTRINO)),
        (0.1952, (111, 111, 111)),
        (0.1254, (211, -211, 111)),
    ),
}
