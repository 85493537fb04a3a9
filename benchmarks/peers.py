"""Peers beside us, where they are installed: the same layout through their public call.

llm-analysis is on PyPI (`pip install llm-analysis`). Calculon and SimuMax are not; PyPI's `calculon` is another
program.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import time

PEER = "llm_analysis"


def peer_lines() -> list[str]:
    """A table of the peers that are installed, or how to get them."""
    if importlib.util.find_spec(PEER) is None:
        return ["peers: none installed; `pip install llm-analysis` puts one beside us"]
    return [
        f"peers{'':37s} one layout",
        f"  {'llm-analysis, GPT-3 175B, tp 8, pp 8':40s} {_llm_analysis_s() * 1e3:8.2f} ms",
    ]


def _llm_analysis_s() -> float:
    """Seconds of one estimate of GPT-3 175B (tp 8, pp 8, dp 16, full recompute) by llm-analysis."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        analysis, config = (importlib.import_module(f"{PEER}.{name}") for name in ("analysis", "config"))
        logging.disable(logging.CRITICAL)
        times = []
        for _ in range(20):
            start = time.perf_counter()
            analysis.LLMAnalysis(
                config.get_model_config_by_name("megatron-lm-175b"),
                config.get_gpu_config_by_name("a100-sxm-80gb"),
                config.get_dtype_config_by_name("w16a16e16"),
                config.ParallelismConfig(tp_size=8, pp_size=8, dp_size=16, sp_size=8),
            ).training(
                batch_size_per_gpu=1,
                global_batch_size=1536,
                seq_len=2048,
                total_num_tokens=300e9,
                activation_recomputation=analysis.ActivationRecomputation.FULL,
                ds_zero=analysis.DSZeRO.STAGE_1,
            )
            times.append(time.perf_counter() - start)
        logging.disable(logging.NOTSET)
    return min(times)
