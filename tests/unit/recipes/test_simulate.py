"""The door of `simulate`: what is refused before anything is made, and what the record of a production says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures.fake_events import fake_block
from ringflow.base.errors import FailureError, InputFileError, RingflowError, UsageError
from ringflow.recipes import simulate as recipe
from ringflow.recipes.simulate import simulate
from ringflow.sim.blocks import without_hits
from ringflow.sim.generator import block_seed
from ringflow.sim.settings import SimulateSettings

EVENT = """E {number} 1 3
U GEV MM
P 1 0 11 0 0 50 50 0.000511 4
P 2 0 -11 0 0 -50 50 0.000511 4
V -1 0 [1,2]
P 3 -1 22 10 0 0 10 0 1
"""


def settings(*overrides: str) -> SimulateSettings:
    return SimulateSettings.resolve(None, overrides)


def hepmc_file(path: Path, events: int) -> Path:
    listing = "".join(EVENT.format(number=number) for number in range(events))
    path.write_text(
        f"HepMC::Version 3.02.05\nHepMC::Asciiv3-START_EVENT_LISTING\n{listing}HepMC::Asciiv3-END_EVENT_LISTING\n"
    )
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake events in the place of simulated ones."""

    class Quick:
        def __init__(self, settings: SimulateSettings) -> None:
            self._settings = settings

        def block(self, index: int) -> object:
            size = self._settings.production.block_events
            block = fake_block(index * size, size, self._settings.generator.seed)
            return block if self._settings.production.keep_hits else without_hits(block)

        def close(self) -> None:
            pass

    monkeypatch.setattr(recipe, "SimulatedBlocks", Quick)


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["generator.sample=tbar"], UsageError, "unknown sample 'tbar'; did you mean 'ttbar'"),
        (["generator.sample=ttbar@91"], UsageError, "ttbar cannot be made at 91 GeV; give an energy from 340 to 3000"),
        (["generator.sample=ttbar", "detector=clik"], UsageError, "unknown detector 'clik'.*did you mean 'clic'"),
        ([], UsageError, "give a sample or a HepMC file"),
        (["generator.hepmc=nowhere.hepmc3"], InputFileError, "nowhere.hepmc3: no such HepMC file"),
        (["generator.sample=ttbar", "detector=nowhere.toml"], RingflowError, "nowhere.toml"),
    ],
)
def test_what_does_not_exist_is_refused_at_the_door(
    tmp_path: Path, overrides: list[str], kind: type[RingflowError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        simulate(settings(*overrides), tmp_path / "d")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "no HepMC", "HepMC::Asciiv3-START_EVENT_LISTING\n"])
def test_a_broken_hepmc_file_leaves_nothing_behind(tmp_path: Path, content: str) -> None:
    path = tmp_path / "events.hepmc3"
    path.write_text(content)
    with pytest.raises(InputFileError, match=r"events\.hepmc3"):
        simulate(settings(f"generator.hepmc={path}"), tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["events.hepmc3"]


@pytest.mark.usefixtures("quick")
def test_a_file_is_taken_whole_and_known_by_its_content(tmp_path: Path) -> None:
    path = hepmc_file(tmp_path / "mine.hepmc3", 5)
    with pytest.raises(UsageError, match=r"mine\.hepmc3 has 5 events, 6 were asked for; ask for fewer"):
        simulate(settings(f"generator.hepmc={path}", "production.events=6"), tmp_path / "d")
    assert not (tmp_path / "d").exists()
    assert simulate(settings(f"generator.hepmc={path}"), tmp_path / "d")["events"] == 5
    text = (tmp_path / "d" / "manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["sample"] == manifest["provenance"]["inputs"][0]["file"] == "mine.hepmc3"
    assert str(tmp_path) not in text
    path.write_text(path.read_text().replace("22 10 0 0 10", "22 11 0 0 11"))
    with pytest.raises(UsageError, match="was made with"):
        simulate(settings(f"generator.hepmc={path}"), tmp_path / "d")


TTBAR = ("generator.sample=ttbar", "production.events=30")


@pytest.mark.usefixtures("quick")
def test_the_summary_and_settings_that_ask_for_the_same_again(tmp_path: Path) -> None:
    summary = simulate(settings(*TTBAR), tmp_path / "d")
    expected = {name: round(len(part) / 30, 2) for name, part in fake_block(0, 30).collections.items()}
    assert (summary["path"], summary["events"], summary["shards"]) == (str(tmp_path / "d"), 30, 1)
    assert summary["mean_counts"] == expected
    assert summary["bytes"] == (tmp_path / "d" / "shard-00000.parquet").stat().st_size
    assert summary["events_per_second"] > 0
    read = SimulateSettings.resolve(tmp_path / "d" / "settings.toml", ["production.workers=2"])
    assert simulate(read, tmp_path / "d")["events_per_second"] == 0
    same = settings(*TTBAR, "generator.sample=ttbar@380")
    assert simulate(same, tmp_path / "d")["events_per_second"] == 0
    simulate(settings(*TTBAR, "generator.sample=ttbar@5e2"), tmp_path / "high")
    assert json.loads((tmp_path / "high" / "manifest.json").read_text())["sample"] == "ttbar@500"
    for override in (
        "generator.seed=2",
        "generator.sample=ttbar@500",
        "generator.sample=qq",
        "detector=cld",
        "production.block_events=10",
    ):
        refused = override.split("=")[0] + "=.*choose another folder, or replace it with --overwrite"
        with pytest.raises(UsageError, match=refused):
            simulate(settings(*TTBAR, override), tmp_path / "d")


@pytest.mark.usefixtures("quick")
def test_without_hits_nothing_points_to_hits(tmp_path: Path) -> None:
    simulate(settings(*TTBAR, "production.keep_hits=false"), tmp_path / "d")
    columns = json.loads((tmp_path / "d" / "manifest.json").read_text())["columns"]
    assert list(columns) == ["track", "cluster", "particle", "target", "cluster_link"]
    assert "hit_target" not in columns["particle"]


def test_a_million_events_do_not_fit_everywhere(tmp_path: Path) -> None:
    with pytest.raises(FailureError, match="B are free"):
        simulate(settings("generator.sample=ttbar", f"production.events={10**11}"), tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_every_block_has_a_seed_of_its_own() -> None:
    seeds = {block_seed(seed, index) for seed in range(20) for index in range(200)}
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert block_seed(1, 2) != block_seed(2, 1)
