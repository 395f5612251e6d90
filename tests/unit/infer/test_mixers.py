"""The bins of one event without sorted search: the same as those of the packed batch."""

from __future__ import annotations

import pytest
import torch

from ringflow.infer.export import FusedAttentionMixer, OneEventGraphMixer, for_one_event
from ringflow.models.attention import AttentionMixer, Layout
from ringflow.models.graph import GraphMixer
from ringflow.models.settings import ModelSettings

SETTINGS = ModelSettings.model_validate({"backbone": "graph", "width": 16, "heads": 2, "graph": {"bin_size": 4}})


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 33, 120])
@pytest.mark.parametrize("equal", [0, 3, 11])
def test_the_learned_graph_of_one_event(rows: int, equal: int):
    torch.manual_seed(rows)
    mixer = GraphMixer(SETTINGS).eval()
    exportable = for_one_event(mixer, SETTINGS, portable=True)
    assert isinstance(exportable, OneEventGraphMixer)
    query, key, value = torch.randn(3, rows, 2, 16)
    hashed = torch.randint(0, 1 << 18, (rows,))
    hashed[: min(equal, rows)] = 7  # elements that are alike stay together, up to a point
    query[: min(equal, rows)], key[: min(equal, rows)], value[: min(equal, rows)] = query[0], key[0], value[0]
    layout = Layout(torch.tensor([0, rows], dtype=torch.int32), torch.zeros(rows, dtype=torch.int64), rows)
    expected = mixer.attend(query, key, value, hashed, layout)
    torch.testing.assert_close(exportable.attend(query, key, value, hashed, layout), expected, atol=1e-6, rtol=1e-5)


def test_attention_is_spelled_out_only_for_other_runtimes():
    mixer = AttentionMixer(SETTINGS)
    assert for_one_event(mixer, SETTINGS, portable=True) is mixer
    fused = for_one_event(mixer, SETTINGS, portable=False)
    assert isinstance(fused, FusedAttentionMixer)
    torch.testing.assert_close(fused.state_dict(), mixer.state_dict(), atol=0.0, rtol=0.0)
