"""How a run of a mixture of experts was tuned: CUDA graphs, overlap of expert messages, balance of the router. As the
notes say it; where they are silent, as the recipes of its release set it."""

from __future__ import annotations

import re

from tpdpdash.compare.architecture import num_experts_of
from tpdpdash.compare.cells import Cells
from tpdpdash.compare.notes import recompute_modules
from tpdpdash.training import EXPERT_LOAD_CV, CudaGraphs, Dispatcher

_GRAPHS = re.compile(r"cuda_graph=(\w+)/")
_GRAPH_WORDS: dict[str, CudaGraphs] = {"full_iteration": "step", "none": "none", "transformer_engine": "modules"}
_OVERLAP = re.compile(r"moe_a2a_overlap|EP overlap on|DualPipe")
_BALANCED = re.compile(r"(?:force|forced|fake)[- ]balanced|balanced gate")
_BRIDGE = re.compile(r"^mbridge-(\d+)\.(\d+)")
_FLEX = re.compile(r"hybridep|deepep", re.IGNORECASE)
_PREDICTION_DEPTH = re.compile(r"MTP depth (\d)")
FIRST_DEEPSEEK_MODULES = ("mla_up_proj", "layernorm", "moe", "mlp")
"""recompute_modules of NeMo's nemo/collections/llm/recipes/deepseek_v3.py, 2025."""
PREDICTING, NVIDIA_SOURCES = "deepseek-v3", ("mbridge", "dgxc")
STEP_GRAPHS_SINCE = (26, 6)
"""Megatron-Bridge release from which its recipes for NVL72 racks capture the whole step and overlap expert
messages."""
RACK = "NVL72"


def cuda_graphs_of(cells: Cells) -> CudaGraphs:
    """What is captured; nothing where neither notes nor release say."""
    notes = cells.text("notes")
    found = _GRAPHS.search(notes)
    if found:
        return _GRAPH_WORDS.get(found[1], "modules")
    if "partial CUDA graphs" in notes:
        return "modules"
    if not num_experts_of(cells) or _names_recipe(notes):
        return "none"
    cells.infer("cuda_graphs")
    return "step" if _captures_steps(cells) or _drops_tokens_in_graphs(cells) else "none"


def overlaps_experts(cells: Cells) -> bool:
    """Whether expert messages run beside computation. Recipes that name none have none; of those that are not named
    Megatron-Bridge's overlap where pipelines interleave on nodes of eight (DeepSeek-V3 and Qwen3-235B on H100 and
    B200), or steps are captured."""
    notes = cells.text("notes")
    if _OVERLAP.search(notes):
        return True
    if not num_experts_of(cells) or _names_recipe(notes) or "EP overlap off" in notes:
        return False
    cells.infer("overlap_ep")
    interleaves = (cells.whole("vpp", 512) or 1) > 1 and (cells.whole("pp", 4096) or 1) > 1
    in_nodes = RACK not in cells.text("hardware")
    return _captures_steps(cells) or (_release(cells) is not None and interleaves and in_nodes)


def mtp_layers_of(cells: Cells) -> int:
    """Multi-token prediction modules: as the notes say ("MTP depth 1", "w/ MTP", "w/o MTP"); one in NVIDIA's recipes
    for DeepSeek-V3, where they are silent (mtp_num_layers = 1)."""
    notes = cells.text("notes")
    depth = _PREDICTION_DEPTH.search(notes)
    if depth:
        return int(depth[1])
    if "w/ MTP" in notes or "w/o MTP" in notes:
        return int("w/ MTP" in notes)
    if not (cells.word("model_family").startswith(PREDICTING) and cells.text("source_id").startswith(NVIDIA_SOURCES)):
        return 0
    cells.infer("mtp_num_layers")
    return 1


def is_first_deepseek_recipe(cells: Cells) -> bool:
    """Whether a run is one of NeMo's first recipe for DeepSeek-V3 (2025), and does not say what it recomputes."""
    is_nemo = cells.text("source_id").startswith("dgxc") and cells.word("model_family").startswith(PREDICTING)
    return is_nemo and not cells.word("recompute")


def recompute_modules_of(cells: Cells) -> tuple[str, ...]:
    """What selective recompute covers: as the notes say, or NeMo's first recipe for DeepSeek-V3."""
    if is_first_deepseek_recipe(cells):
        cells.infer("recompute_modules")
        return FIRST_DEEPSEEK_MODULES
    return recompute_modules(cells.text("notes"))


def dispatcher_of(cells: Cells) -> Dispatcher | None:
    """How tokens reach their experts: as the notes say; every copy by itself where a recipe's settings are listed
    without a dispatcher (moe_token_dispatcher_type = "alltoall"); else as the framework has it."""
    notes = cells.text("notes")
    if _FLEX.search(notes):
        return "flex"
    return "alltoall" if num_experts_of(cells) and _names_recipe(notes) else None


def runs_fp8_attention(cells: Cells) -> bool:
    """Whether attention's products run in 8 bits: in Megatron-Bridge's mxfp8 recipes that capture whole steps, for
    gpt-oss and on GB300 for DeepSeek-V3 (fp8_dot_product_attention)."""
    if not _captures_steps(cells) or cells.word("precision") != "mxfp8":
        return False
    family = cells.word("model_family")
    found = family.startswith("gpt-oss") or (family.startswith(PREDICTING) and "GB300" in cells.text("hardware"))
    if found:
        cells.infer("fp8_attention")
    return found


def expert_load_cv_of(cells: Cells) -> float:
    """0 where the benchmark forces an even spread; else the default of a trained router."""
    if num_experts_of(cells) and _BALANCED.search(cells.text("notes")):
        return 0.0
    return EXPERT_LOAD_CV


def _names_recipe(notes: str) -> bool:
    """Whether the notes list a recipe's settings, so that what they do not name is off."""
    return re.search(r"\brecipe [A-Z0-9_]+_CONFIG", notes) is not None


def _release(cells: Cells) -> tuple[int, int] | None:
    """(year, month) of a Megatron-Bridge release."""
    found = _BRIDGE.match(cells.text("source_id"))
    return (int(found[1]), int(found[2])) if found else None


def _drops_tokens_in_graphs(cells: Cells) -> bool:
    """Whether experts have a fixed capacity, so that shapes are static and the whole step is captured: first recipes
    of Megatron-Bridge for Qwen3 on Blackwell (cuda_graph_scope = "full_iteration" with moe_token_drop)."""
    on_blackwell = re.match(r"G?B[23]00", cells.text("hardware")) is not None
    return "tokendrop" in cells.text("notes") and cells.word("model_family").startswith("qwen3") and on_blackwell


def _captures_steps(cells: Cells) -> bool:
    release = _release(cells)
    return release is not None and release >= STEP_GRAPHS_SINCE and RACK in cells.text("hardware")
