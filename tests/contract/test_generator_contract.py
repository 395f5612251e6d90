"""What every generator promises, whatever makes its events. A new generator inherits `GeneratorContract`."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyhepmc
import pytest

from fixtures.lhe_files import quarks, two_w, write_lhe
from ringflow.event.particles import lookup
from ringflow.sim.generator import GeneratedEvents, Generator, make_generator
from ringflow.sim.settings import GeneratorSettings

RADIUS, HALF_LENGTH = 1486.0, 2190.0
FLOATS = ("px", "py", "pz", "energy", "x", "y", "z", "time")


def digest(events) -> str:
    """Hash of everything in a block."""
    names = ["event_number", "counts", "pdg", "px", "py", "pz", "energy", "x", "y", "z", "time", "interaction"]
    return hashlib.sha256(b"".join(getattr(events, name).tobytes() for name in names)).hexdigest()


def event_of(events: GeneratedEvents, row: int) -> dict[str, np.ndarray]:
    ends = np.cumsum(events.counts)
    part = slice(ends[row] - events.counts[row], ends[row])
    return {name: getattr(events, name)[part] for name in ("pdg", "interaction", *FLOATS)}


def make(settings: GeneratorSettings) -> Generator:
    return make_generator(settings, RADIUS, HALF_LENGTH)


class GeneratorContract:
    """Inherit it and say which settings make the generator; the first five events must exist."""

    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls, tmp_path_factory: pytest.TempPathFactory) -> GeneratorSettings:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def generator(cls, settings: GeneratorSettings) -> Generator:
        return make(settings)

    def test_columns_fit_together(self, generator: Generator) -> None:
        events = generator.generate(0, 5)
        assert events.event_number.tolist() == [0, 1, 2, 3, 4]
        assert events.event_number.dtype == events.counts.dtype == np.int64
        assert events.pdg.dtype == np.int32
        assert events.interaction.dtype == np.int16
        assert (events.counts > 0).all()
        for name in FLOATS:
            column = getattr(events, name)
            assert column.dtype == np.float64
            assert len(column) == len(events.pdg) == events.counts.sum()
            assert np.isfinite(column).all()

    def test_particles_are_on_their_mass_shell(self, generator: Generator) -> None:
        events = generator.generate(0, 5)
        mass = np.sqrt(np.clip(events.energy**2 - events.px**2 - events.py**2 - events.pz**2, 0, None))
        assert np.abs(mass - lookup(events.pdg, "mass")).max() < 0.02

    def test_particles_start_inside_the_cylinder_and_in_time(self, generator: Generator) -> None:
        events = generator.generate(0, 5)
        assert np.hypot(events.x, events.y).max() <= RADIUS
        assert np.abs(events.z).max() <= HALF_LENGTH
        assert events.time.min() >= 0

    def test_an_event_does_not_depend_on_what_was_asked_before(self, generator: Generator) -> None:
        block, alone = generator.generate(0, 5), generator.generate(3, 1)
        assert alone.event_number.tolist() == [3]
        for name, column in event_of(alone, 0).items():
            assert np.array_equal(column, event_of(block, 3)[name]), name

    def test_a_fresh_generator_makes_the_same_event_and_prints_nothing(
        self, generator: Generator, settings: GeneratorSettings, capfd: pytest.CaptureFixture[str]
    ) -> None:
        generator.generate(0, 5)
        assert digest(make(settings).generate(2, 2)) == digest(generator.generate(2, 2))
        assert capfd.readouterr() == ("", "")

    def test_another_process_makes_the_same_event(self, generator: Generator, settings: GeneratorSettings) -> None:
        code = f"""
import hashlib, sys
from ringflow.sim.generator import make_generator
from ringflow.sim.settings import GeneratorSettings
{inspect.getsource(digest)}
settings = GeneratorSettings.model_validate_json(sys.argv[1])
print(digest(make_generator(settings, {RADIUS}, {HALF_LENGTH}).generate(1, 3)))
"""
        command = [sys.executable, "-c", code, settings.model_dump_json()]
        there = subprocess.run(command, capture_output=True, text=True, check=True)
        assert there.stdout.split() == [digest(generator.generate(1, 3))]
        assert there.stderr == ""

    def test_another_seed_makes_another_event(self, generator: Generator, settings: GeneratorSettings) -> None:
        other = make(settings.model_copy(update={"seed": settings.seed + 1}))
        assert digest(other.generate(0, 2)) != digest(generator.generate(0, 2))

    def test_no_events_can_be_asked_for(self, generator: Generator) -> None:
        events = generator.generate(2, 0)
        assert len(events) == len(events.counts) == len(events.pdg) == len(events.energy) == 0

    def test_ends_where_it_says(self, generator: Generator) -> None:
        available = generator.num_available
        if available is None:
            assert generator.generate(10**8, 1).event_number.tolist() == [10**8]
        else:
            assert generator.generate(available - 1, 5).event_number.tolist() == [available - 1]
            assert len(generator.generate(available + 3, 2)) == 0


class TestGun(GeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls) -> GeneratorSettings:
        return GeneratorSettings(sample="gun_pion", seed=3)


class TestCollision(GeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls) -> GeneratorSettings:
        return GeneratorSettings(sample="ttbar", seed=3)


@pytest.mark.heavy  # Pythia takes seconds to start where photons collide; `tests/unit/sim/test_pythia.py` looks at it
class TestOverlay(GeneratorContract):
    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls) -> GeneratorSettings:
        return GeneratorSettings(sample="ttbar_pu10", seed=3)


class TestHepMC(GeneratorContract):
    """A file whose events hold an undecayed tau, so that the seed has something to decide."""

    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls, tmp_path_factory: pytest.TempPathFactory) -> GeneratorSettings:
        path: Path = tmp_path_factory.mktemp("hepmc") / "taus.hepmc3"
        with pyhepmc.open(path, "w") as file:
            for number in range(7):
                file.write(cls._tau_pair(energy=40.0 + number))
        return GeneratorSettings(hepmc=path, seed=3)

    @staticmethod
    def _tau_pair(energy: float) -> pyhepmc.GenEvent:
        momentum = (energy**2 - 1.77693**2) ** 0.5
        event, vertex = pyhepmc.GenEvent(pyhepmc.Units.GEV, pyhepmc.Units.MM), pyhepmc.GenVertex()
        for sign in (1, -1):
            vertex.add_particle_in(pyhepmc.GenParticle((0, 0, sign * energy, energy), 11 * sign, 4))
            vertex.add_particle_out(pyhepmc.GenParticle((sign * momentum, 0, 0, energy), 15 * sign, 1))
        event.add_vertex(vertex)
        return event


class TestLHE(GeneratorContract):
    """A file of quarks, whose showers the seed decides."""

    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls, tmp_path_factory: pytest.TempPathFactory) -> GeneratorSettings:
        events = [(quarks if number % 2 else two_w)(100.0, phi=0.4 * number) for number in range(7)]
        return GeneratorSettings(hepmc=write_lhe(tmp_path_factory.mktemp("lhe") / "events.lhe", *events), seed=3)
