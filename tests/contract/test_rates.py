"""Figures that stand in two places, because the launcher and the workloads do not import each other, are equal."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from primus_bootstrap.launch.detect.gpus import catalogue as gpu_catalogue
from primus_bootstrap.launch.estimate.rates import all_rates
from primus_bootstrap.launch.recipes import catalogue
from workloads.common.peaks import PEAKS
from workloads.train.flops import flops_per_token, parameters
from workloads.train.settings import ModelSettings

_VENDORS = {"amd": "AMD Instinct", "nvidia": "NVIDIA"}


@pytest.mark.parametrize("gpu", all_rates())
def test_the_rates_of_a_gpu_agree_with_its_peak_and_its_memory(gpu: str) -> None:
    """data/rates.yml, workloads/common/peaks.py and data/gpus.yml."""
    facts, rates = gpu_catalogue()["models"][gpu], all_rates()[gpu]
    (peak,) = [item.tflops for item in PEAKS if re.fullmatch(item.device, f"{_VENDORS[facts['vendor']]} {gpu}")]
    assert rates.bf16 == pytest.approx(peak, abs=0.05)
    assert rates.fp8 == pytest.approx(2 * peak, abs=0.2)
    assert 0.97 * facts["memory_gib"] < rates.memory_gib <= facts["memory_gib"]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_a_shape_counts_like_the_trainer(name: str) -> None:
    """recipes/model_shape.py and workloads/train/flops.py: parameters, and FLOPs of a token."""
    shape = catalogue.model(name)
    experts = {"experts": shape.experts.count, "experts_per_token": shape.experts.per_token} if shape.experts else {}
    width = shape.experts.ffn_width if shape.experts else shape.ffn_width
    model = ModelSettings(
        vocabulary=shape.vocabulary, layers=shape.layers, width=shape.width, heads=shape.heads, kv_heads=shape.kv_heads, ffn_width=width
    )
    model = replace(model, **experts)
    assert shape.parameters() == parameters(model)
    assert shape.flops_per_token(4096) == flops_per_token(model, 4096)
