"""Configurations as they are published: every key of theirs is understood, and the parts have as many parameters as the
model.

Of LongRoPE's lists of factors the lengths are those of the models, the numbers are not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.families import read_model

PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "published_configs.json").read_text())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_has_the_parameters_of_its_model(name: str) -> None:
    model = Decoder(read_model(PUBLISHED[name]["config"]), torch.float32, "meta")
    assert round(model.parameter_count / 1e6, 2) == PUBLISHED[name]["millions"]


def test_each_norm_head_of_baichuan_2_is_found() -> None:
    assert all(read_model(PUBLISHED[name]["config"]).head_unit for name in ("Baichuan2-7B", "Baichuan2-13B"))
