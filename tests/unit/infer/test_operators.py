"""Operations that the exported file spells out are as exact as those of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ringflow.infer.export import TRANSLATIONS


class Angles(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.atan2(y, x), torch.asinh(x), torch.hypot(x, y), torch.asinh(x.float())


@pytest.fixture(scope="module")
def answer() -> Any:
    import onnxruntime

    rows = {0: torch.export.Dim.DYNAMIC}
    example = torch.rand(2, 5, dtype=torch.float64)
    program = torch.onnx.export(
        Angles(),
        tuple(example),
        dynamo=True,
        dynamic_shapes={"x": rows, "y": rows},
        custom_translation_table=TRANSLATIONS,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    return lambda x, y: session.run(None, {"x": x, "y": y})


@pytest.mark.filterwarnings("ignore")
def test_all_directions(answer: Any):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 20_000)) * 10.0 ** rng.uniform(-4, 4, (2, 20_000))
    angle, asinh, length, small = answer(x, y)
    np.testing.assert_allclose(angle, np.arctan2(y, x), atol=1e-15, rtol=1e-14)
    np.testing.assert_allclose(asinh, np.arcsinh(x), atol=1e-15, rtol=1e-11)
    np.testing.assert_allclose(length, np.hypot(x, y), rtol=1e-14)
    assert small.dtype == np.float32
    np.testing.assert_allclose(small, np.arcsinh(x.astype(np.float32)), atol=1e-7, rtol=3e-7)


@pytest.mark.filterwarnings("ignore")
def test_the_axes_and_the_origin(answer: Any):
    x, y = (
        np.array(values) for values in ([1.0, -1.0, 0.0, 0.0, 0.0, 1.0, -1.0], [0.0, 0.0, 1.0, -1.0, 0.0, 1.0, -1.0])
    )
    np.testing.assert_allclose(answer(x, y)[0], np.arctan2(y, x), atol=1e-15)
