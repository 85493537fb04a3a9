"""The layout of a row: what it states, completed where it is silent."""

from __future__ import annotations

from math import gcd
from typing import Any

from tpdpdash.compare.cell_words import is_hybrid, recompute_of, zero_stage_of
from tpdpdash.compare.cells import Cells
from tpdpdash.compare.conditions import MAX_DEVICES, is_nvidia_recipe
from tpdpdash.compare.degrees import Degrees
from tpdpdash.compare.notes import (
    expert_tp,
    has_flag,
    is_megatron_command_line,
    offloads_activations,
    option,
    shard_group,
    tp_overlap,
    whole_option,
)
from tpdpdash.compare.recipes import is_first_deepseek_recipe, overlaps_experts
from tpdpdash.layout.frameworks import DEEPSPEED_ENGINES, MEGATRON, replicates
from tpdpdash.layout.layout import SCHEDULES, Layout, LayoutPins
from tpdpdash.layout.microbatch_rules import least_group_size
from tpdpdash.layout.resolve import draft_layout
from tpdpdash.layout.schedules import SCHEDULE_FACTS
from tpdpdash.layout.stages import cost_balanced_stage_layers
from tpdpdash.model.counts import layer_parameters
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training
from tpdpdash.units import ceil_div

MAX_CHUNKS = 512
SCHEDULE_WORDS = {
    "zbv": "zb-v",
    "zbvzerobubble": "zb-v",
    "zb-1": "zb-1p",
    "interleavedzerobubble": "zb-1p",
    "zb-2": "zb-2p",
    "1f1b-i": "interleaved",
    "interleaved1f1b": "interleaved",
    "loopedbfs": "interleaved",
    "dualpipev": "dualpipe-v",
}
"""Other names of schedules, torch.distributed.pipelining's among them."""
WHOLE_SEQUENCES = DEEPSPEED_ENGINES | {"internevo"}
"""Frameworks whose tensor parallelism divides no sequence unless told to: Megatron-DeepSpeed's --sequence-parallel is
off, InternEvo's tensor mode is "mtp" (configs/7B_sft.py)."""


def layout_of(cells: Cells, degrees: Degrees, model: ModelSpec, training: Training, devices_per_node: int) -> Layout:
    """The complete layout: what the row states, what its framework does by habit, and design defaults for the rest."""
    given: dict[str, Any] = {name: getattr(degrees, name) for name in ("tp", "cp", "pp", "dp", "micro_batch_size")}
    given |= _expert_pins(cells, degrees, model)
    given |= _pipeline_pins(cells, degrees, model, training.framework)
    given |= _group_pins(cells, degrees, given, training.framework)
    given |= _shard_pins(cells, degrees, training, devices_per_node)
    given |= _recompute_pins(cells, given["num_model_chunks"], ceil_div(model.num_layers, degrees.pp))
    given |= _overlap_pins(cells, degrees, training)
    return draft_layout(LayoutPins(**given), model, training, degrees.num_devices).layout


def _expert_pins(cells: Cells, degrees: Degrees, model: ModelSpec) -> dict[str, Any]:
    """Expert degrees. A Megatron command line splits experts over TP unless it says otherwise; recipes do not, where
    they spread experts over ranks. A degree that does not divide experts and ranks is cut down to one that does."""
    if not model.is_moe:
        return {}
    notes, spread = cells.text("notes"), degrees.tp * degrees.cp * degrees.dp
    stated = cells.whole("ep", MAX_DEVICES)
    if not stated:
        cells.infer("ep")
        stated = model.num_experts if "DeepEP" in notes else 1
    etp = expert_tp(notes)
    if etp is None and degrees.tp > 1:
        cells.infer("etp")
    etp = etp or (1 if stated > 1 and not is_megatron_command_line(notes) else degrees.tp)
    etp = gcd(etp, spread)
    ep = gcd(stated, model.num_experts, spread // etp)
    if ep != stated:
        cells.infer("ep")
    return {"ep": ep, "etp": etp}


def _pipeline_pins(cells: Cells, degrees: Degrees, model: ModelSpec, framework: str) -> dict[str, Any]:
    """Schedule, chunks and layer split. Layers that divide over the stages only with embedding and loss counted as a
    layer each are split so (Megatron's account-for flags, BigScience's and the zero-bubble paper's habit). nanotron
    splits by its own rule."""
    if degrees.pp == 1:
        return {"num_model_chunks": 1}
    chunks = cells.whole("vpp", MAX_CHUNKS) or 1
    stated = cells.word("schedule").removeprefix("schedule")
    schedule = SCHEDULE_WORDS.get(stated, stated)
    if schedule == "interleaved" and chunks == 1:
        cells.infer("vpp")
        chunks = _likely_chunks(model.num_layers, degrees.pp)
    if (
        schedule not in SCHEDULES
        or schedule == "none"
        or (schedule == "1f1b" and chunks > 1)
        or (schedule == "interleaved" and chunks == 1)
    ):
        cells.infer("schedule")
        schedule = "interleaved" if chunks > 1 else "1f1b"
    own = SCHEDULE_FACTS[schedule].num_model_chunks
    if own is not None and chunks != own:  # a V has two chunks, others one, whatever the row says
        cells.infer("vpp")
        chunks = own
    pins: dict[str, Any] = {"num_model_chunks": chunks, "schedule": schedule}
    ends = _end_layers(cells.text("notes"), model.num_layers, degrees.pp)
    if ends:
        return pins | ends
    if framework == "nanotron":
        cells.infer("layers_per_stage")
        block = layer_parameters(model, moe=False)
        head = model.vocab_size * model.hidden_size / (block.qkv + block.attention_output + block.mlp)
        return pins | {"layers_per_stage": cost_balanced_stage_layers(model.num_layers, degrees.pp, head)}
    if model.mtp_num_layers:
        cells.infer("layers_per_stage")
        return pins | _around_prediction(model, degrees.pp)
    if model.num_layers % degrees.pp:
        cells.infer("layers_per_stage")
        if (model.num_layers + 2) % degrees.pp == 0:
            pins |= {"account_for_embedding": True, "account_for_loss": True}
    return pins


def _around_prediction(model: ModelSpec, pp: int) -> dict[str, int]:
    """The last stage has as many layers fewer as the loss and the prediction modules with their heads are, as
    Megatron-Bridge's layouts have it (DeepSeek-V3's "Et*4|(t*4|)*14tmL"); the default where that leaves none."""
    end = 1 + 2 * model.mtp_num_layers
    last = (model.num_layers + end) // pp - end
    return {"last_stage_layers": last} if (model.num_layers + end) % pp == 0 and last > 0 else {}


def _group_pins(cells: Cells, degrees: Degrees, pipeline: dict[str, Any], framework: str) -> dict[str, int]:
    """How many microbatches Megatron interleaves at a time: as many as there are stages, or, where it refuses that for
    the microbatches left over, the next that it takes."""
    m = degrees.global_batch_size // (degrees.micro_batch_size * degrees.dp)
    if framework not in MEGATRON or pipeline.get("schedule") != "interleaved" or m < degrees.pp:
        return {}
    group = least_group_size(m, degrees.pp)
    if group == degrees.pp:
        return {}
    cells.infer("microbatch_group_size_per_vp_stage")
    return {"microbatch_group_size_per_vp_stage": group}


def _end_layers(notes: str, num_layers: int, pp: int) -> dict[str, int]:
    """Layers of the first and last stage, as Megatron's options give them. Where one alone is given and the rest does
    not divide over the other stages, the other end has as many."""
    first = whole_option(notes, "decoder-first-pipeline-num-layers")
    last = whole_option(notes, "decoder-last-pipeline-num-layers")
    given = {name: n for name, n in (("first_stage_layers", first), ("last_stage_layers", last)) if n}
    if len(given) == 1 and pp > 2 and (num_layers - sum(given.values())) % (pp - 1):
        return dict.fromkeys(("first_stage_layers", "last_stage_layers"), sum(given.values()))
    return given


def _likely_chunks(num_layers: int, pp: int) -> int:
    """Chunks of an interleaved schedule that does not say how many: as few as divide a stage's layers, 2 or more."""
    each = max(1, num_layers // pp)
    return next((chunks for chunks in range(2, each + 1) if each % chunks == 0), 1)


def _shard_pins(cells: Cells, degrees: Degrees, training: Training, devices_per_node: int) -> dict[str, Any]:
    """ZeRO stage, the ranks that it shards over (HSDP: a node unless said), and what lives in host memory. Megatron
    with DeepSpeed's ZeRO-3 keeps its checkpoints there, as its example script does (--checkpoint-in-cpu)."""
    cell, notes = cells.word("zero_stage_or_fsdp"), cells.text("notes")
    zero = zero_stage_of(cell)
    if zero is None and any(letter.isdigit() for letter in cell):
        zero = cells.whole("zero_stage_or_fsdp", 3)
    if zero is None:  # no word, or none that says which ("yes")
        cells.infer("zero_stage_or_fsdp")
        zero = _usual_zero(cells.word("framework"), training.framework)
    pins: dict[str, Any] = {"zero_stage": zero}
    instances = whole_option(notes, "num-distributed-optimizer-instances") or 1
    size = cells.whole("dp_shard_size", MAX_DEVICES) or shard_group(notes)
    if not size and is_hybrid(cell):
        cells.infer("dp_shard_size")
        size = devices_per_node
    size = min(size or degrees.dp // instances, degrees.dp)
    if size > 0 and degrees.dp % size == 0:
        pins["dp_shard_size"] = size
    if "full CPU offload" in notes:
        pins["offload_optimizer"] = True
    if offloads_activations(notes):
        pins["offload_activations"] = True
    elif zero == 3 and "megatron" in cells.word("framework") and "deepspeed" in cells.word("framework"):
        cells.infer("offload_activations")
        pins["offload_activations"] = True
    return pins


def _usual_zero(name: str, family: str) -> int:
    """The ZeRO stage of a framework that is told nothing."""
    if replicates(name):
        return 0
    return 3 if family in ("fsdp1", "fsdp2", "jax") else 1


def _recompute_pins(cells: Cells, chunks: int, stage_layers: int) -> dict[str, Any]:
    """Form and method of recompute. Megatron's block method counts the layers of a model chunk, each of which is a
    TransformerBlock of its own (transformer_block.py, _checkpointed_forward), a layout those of a stage."""
    stated = recompute_of(cells.word("recompute"))
    if stated is None:  # no word, or none that says which ("partial")
        cells.infer("recompute")
        stated = "selective" if is_first_deepseek_recipe(cells) else "none"
    pins: dict[str, Any] = {"recompute": stated}
    notes = cells.text("notes")
    method, layers = option(notes, "recompute-method"), whole_option(notes, "recompute-num-layers")
    if pins["recompute"] == "full" and method in ("uniform", "block"):
        number = layers or 1
        if method == "block" and chunks > 1:
            number = min(chunks * number, stage_layers)
        pins |= {"recompute_method": method, "recompute_num_layers": number}
    return pins


def _overlap_pins(cells: Cells, degrees: Degrees, training: Training) -> dict[str, Any]:
    """Sequence parallelism and overlap. A Megatron command line overlaps only what it names; NVIDIA's recipes overlap
    tensor parallel messages (tp_comm_overlap) wherever there are any."""
    pins: dict[str, Any] = {}
    sequence = cells.flag("sequence_parallel")
    if sequence is None:
        cells.infer("sequence_parallel")
        if training.framework in WHOLE_SEQUENCES:
            pins["sequence_parallel"] = False
    else:
        pins["sequence_parallel"] = sequence
    if overlaps_experts(cells):
        pins["overlap_ep"] = True
    notes = cells.text("notes")
    overlap = tp_overlap(notes) if cells.flag("async_tp") is None else cells.flag("async_tp")
    if overlap is None and degrees.tp > 1 and is_nvidia_recipe(cells, training.framework):
        cells.infer("overlap_tp")
        overlap = True
    if overlap is not None:
        pins["overlap_tp"] = overlap
    if is_megatron_command_line(notes):
        pins["overlap_grad_reduce"] = has_flag(notes, "overlap-grad-reduce")
        pins["overlap_param_gather"] = has_flag(notes, "overlap-param-gather")
    return pins
