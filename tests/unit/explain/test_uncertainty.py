"""Uncertainties: as wide as the errors are, whatever their tails; calibrated; and of one model only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ringflow.base.errors import InputFileError, UsageError
from ringflow.explain.uncertainty import ONE_SIGMA, Sample, calibrate, fit, pull_width, pull_width_error, pulls
from ringflow.models.file import save_model
from ringflow.models.uncertainty import (
    QUANTITIES,
    SAID,
    UncertaintyHead,
    file_beside,
    found_beside,
    head_for,
    load_uncertainty,
    residuals,
    save_uncertainty,
)

KNOWN = 2


def made_up(rows: int, seed: int, tails: float = 0.05) -> tuple[Sample, torch.Tensor]:
    """Errors whose width depends on what is known, with some far tails; and that width."""
    draw = torch.Generator().manual_seed(seed)
    known = torch.randn(rows, KNOWN, generator=draw)
    label = torch.randint(1, 4, (rows,), generator=draw)
    width = torch.stack([0.1 * torch.exp(known[:, 0]), 0.01 * torch.exp(0.5 * known[:, 1])], dim=1)[:, [0, 1, 1, 0]]
    width = width * label[:, None] ** 0.5
    far = torch.rand(rows, 1, generator=draw) < tails
    residual = width * torch.randn(rows, len(QUANTITIES), generator=draw) * torch.where(far, 50.0, 1.0)
    said = torch.zeros(rows, SAID)
    said[torch.arange(rows), SAID - 8 + label] = 1.0
    inputs = torch.cat([known, said], dim=1).half()
    return Sample(inputs, residual, label, label == 1, torch.ones(rows, 4)), width


def test_widths_follow_what_is_known_and_forget_the_tails() -> None:
    head = fit(made_up(20_000, 1)[0], hidden=16, epochs=60)
    sample, width = made_up(8_000, 3)
    assert np.abs((np.abs(pulls(head, sample)) < 1.0).mean(0) - ONE_SIGMA).max() < 0.03
    calibrate(head, made_up(8_000, 2)[0])
    with torch.no_grad():
        said = head.half_widths(sample.inputs.float(), sample.on_track, sample.label)
    # A few far ones push the 68 % quantile of all outwards by a little: 1.07 instead of 1.
    ratio = (said / width).numpy()
    assert np.abs(np.median(ratio, axis=0) - 1.07).max() < 0.06
    assert (np.quantile(ratio, 0.84, axis=0) - np.quantile(ratio, 0.16, axis=0)).max() < 0.3
    pull = pulls(head, sample)
    for label in (1, 2, 3):
        assert np.abs(pull_width(pull[(sample.label == label).numpy()]) - 1.0).max() < 0.06


def test_a_calibration_corrects_every_class_by_itself() -> None:
    sample, _ = made_up(6_000, 1, tails=0.0)
    head = UncertaintyHead(KNOWN, 8)
    factor = torch.tensor([0.0, 5.0, 0.2, 1.0])[sample.label][:, None]
    wrong = Sample(sample.inputs, sample.residual * factor, sample.label, sample.on_track, sample.momentum)
    calibrate(head, wrong)
    pull = pulls(head, wrong)
    for label in (1, 2, 3):
        assert pull_width(pull[(sample.label == label).numpy()]) == pytest.approx(np.ones(4), abs=1e-3)
    # A class that is not there has the factor of its kind of element.
    assert torch.equal(head.scale_KCQ[0, 5], head.scale_KCQ[0, 6])
    assert not torch.equal(head.scale_KCQ[0, 5], head.scale_KCQ[1, 5])


def test_pull_width_is_half_of_the_central_interval() -> None:
    draw = np.random.default_rng(1)
    assert pull_width(draw.normal(3.0, 2.0, (200_000, 1)))[0] == pytest.approx(2.0, rel=0.02)
    assert np.isnan(pull_width(np.zeros((0, 4)))).all()
    assert np.isnan(pull_width_error(np.zeros((0, 4)))).all()


def test_the_error_of_a_width_is_what_it_scatters() -> None:
    draw = np.random.default_rng(1)
    skewed = draw.exponential(1.0, (2000, 500)) + draw.normal(0.0, 0.3, (2000, 500))
    scatter = pull_width(skewed).std()
    assert pull_width_error(skewed).mean() == pytest.approx(scatter, rel=0.12)


def test_residuals_are_relative_and_go_around() -> None:
    def momentum(pt: float, eta: float, phi: float, energy: float) -> torch.Tensor:
        return torch.tensor([[pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), energy]], dtype=torch.float64)

    found = residuals(momentum(10.0, 0.5, 3.1, 20.0), momentum(11.0, 0.4, -3.1, 19.0))[0]
    expected = [np.log(1.1), -0.1, 2 * np.pi - 6.2, np.log(0.95)]
    assert found.numpy() == pytest.approx(expected, abs=1e-6)


def test_a_file_belongs_to_one_model(tmp_path: Path, small_model: Callable[..., Any]) -> None:
    model, other = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    save_model(model, small_model().model)
    save_model(other, small_model("mlp").model)
    head = UncertaintyHead(KNOWN, 8)
    head.scale_KCQ.fill_(3.0)
    path = file_beside(model)
    assert path.name == "model.uncertainty.safetensors"
    assert found_beside(model) is None
    save_uncertainty(path, head, model, {"data": ["ttbar"]})
    assert found_beside(model) == path
    again = head_for(path, model)
    inputs = torch.randn(5, KNOWN + SAID)
    label = torch.tensor([1, 2, 3, 4, 5])
    assert torch.equal(again.half_widths(inputs, label == 1, label), head.half_widths(inputs, label == 1, label))
    assert load_uncertainty(path).card == {"data": ["ttbar"]}
    with pytest.raises(UsageError, match="belongs to another model"):
        head_for(path, other)
    path.rename(file_beside(other))
    assert found_beside(other) is None  # that of a model that was there before


def test_broken_files_are_told_in_one_line(tmp_path: Path, small_model: Callable[..., Any]) -> None:
    with pytest.raises(InputFileError, match="no file of uncertainties at"):
        load_uncertainty(tmp_path / "none.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(InputFileError, match="cannot be read as a file of uncertainties"):
        load_uncertainty(broken)
    model = tmp_path / "model.safetensors"
    save_model(model, small_model().model)
    with pytest.raises(InputFileError, match="holds weights without a description"):
        load_uncertainty(model)
