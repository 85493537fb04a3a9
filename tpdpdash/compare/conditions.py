"""What a row ran on and how it trained: cluster, precision, framework, batch."""

from __future__ import annotations

import re
from functools import cache

from tpdpdash.cluster.catalogue import default_cluster, matching_devices
from tpdpdash.cluster.inline import with_links
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.compare.cell_words import PRECISIONS, precision_of, zero_stage_of
from tpdpdash.compare.cells import Cells
from tpdpdash.compare.notes import (
    has_flag,
    is_deepseek_recipe,
    is_megatron_command_line,
    network_gbit_per_device,
    option,
)
from tpdpdash.compare.recipes import (
    cuda_graphs_of,
    dispatcher_of,
    expert_load_cv_of,
    mtp_layers_of,
    recompute_modules_of,
    runs_fp8_attention,
)
from tpdpdash.faults import InvalidInputError
from tpdpdash.layout.frameworks import MEGATRON, framework_by_words
from tpdpdash.training import (
    FRAMEWORKS,
    Attention,
    GradientDtype,
    Optimizer,
    Precision,
    StateDtype,
    Trainable,
    Training,
)
from tpdpdash.units import ceil_div

MAX_DEVICES, MAX_PER_NODE, MAX_SEQUENCE, MAX_BATCH = 10_000_000, 4096, 100_000_000, 100_000_000
SEQ_LEN = 2048
"""Tokens of a sequence where none is stated: GPT-3's."""
FINE_TUNING = ("sft", "lora")
SQUAD_TOKENS = 256
"""Tokens of a question of SQuAD with its paragraph. Assumed: paragraphs have some 140 words (arXiv:1606.05250)."""
DROPOUT = 0.1
"""Megatron's default for hidden and attention dropout, with which its runs of 2021-23 and its own tests train."""
BEFORE_FLASH = ("megatron-2022", "megatron-deepspeed")
"""Forks that never had fused attention."""
NVIDIA_RECIPES = ("nemo", "megatron-bridge")
"""Words in the framework's name."""
USUAL_DEVICES = ("V100-SXM2-32GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "GH200-96GB")
"""What is meant by a chip's name alone: the board on which clusters have it."""
_COUNT = re.compile(
    r"^\d+\s*[x\u00d7*]\s*(?=[a-z])|^\d+\s+(?=[a-z])|\s[x\u00d7]\s*\d+$|(?<=\d)[x\u00d7*]\d+$|\s*\bgpus?$|(?<=[\dx])s$",
    re.IGNORECASE,
)
"""Devices that are counted beside their name: "8x H100", "8xH100", "H100 x 8", "64 H100s", "H100 GPUs"."""
OPTIMIZERS: dict[str, Optimizer] = {"muon": "muon", "sgd": "sgd", "lion": "lion", "adam8bit": "adam8bit"}


def cluster_of(cells: Cells, num_devices: int) -> ClusterSpec | None:
    """The catalogue's device in nodes as stated, with the network that the row states. None: unknown hardware."""
    per_node, hardware = cells.whole("gpus_per_node", MAX_PER_NODE), cells.text("hardware")
    meant = matching_devices(hardware)
    if not meant:
        hardware = _COUNT.sub(" ", hardware).strip()
        meant = matching_devices(hardware)
    usual = [device for device in meant if device in USUAL_DEVICES]
    if len(usual) == 1 and len(meant) > 1:
        cells.infer("hardware")
        hardware = usual[0]
    found = _cluster(hardware, num_devices, per_node or 0, cells.text("interconnect_note"))
    if found is not None and not per_node:
        cells.infer("gpus_per_node")
    return found


@cache
def _cluster(hardware: str, num_devices: int, per_node: int, note: str) -> ClusterSpec | None:
    try:
        usual = default_cluster(hardware, 1, per_node or None) if hardware else None
    except InvalidInputError:  # not in the catalogue, or ambiguous there: the caller predicts memory only
        usual = None
    if usual is None:
        return None
    size = min(num_devices, usual.devices_per_node)
    rate = network_gbit_per_device(note, usual.devices_per_node)
    cluster = default_cluster(hardware, ceil_div(num_devices, size), size)
    if not rate:
        return cluster
    linked, faults = with_links(cluster, {"network_gbit_per_s": rate})
    return cluster if faults else linked


def framework_of(cells: Cells) -> str:
    """The framework family as stated; else by the words of the framework's name; torch's for an unknown one that
    shards weights or calls its replicas DDP, else Megatron-Core."""
    name = cells.word("framework")
    family = cells.word("framework_family") or name
    if family in FRAMEWORKS:
        return family
    cells.infer("framework_family")
    known = framework_by_words(f"{family} {name}")
    sharding = cells.word("zero_stage_or_fsdp")
    shards = sharding == "3" or zero_stage_of(sharding) == 3
    return known or ("fsdp1" if shards else "fsdp2" if "ddp" in sharding else "megatron-core")


def training_of(cells: Cells, global_batch_size: int) -> Training:
    """Batch, precision, framework and habits of the row's time."""
    framework = framework_of(cells)
    precision = _precision(cells)
    seq_len = cells.whole("seq_len", MAX_SEQUENCE)
    if not seq_len:
        cells.infer("seq_len")
    attention = _attention(cells, framework)
    trainable = _trainable(cells)
    return Training(
        seq_len=seq_len or SEQ_LEN,
        packed_seq_len=_packed_seq_len(cells, framework, seq_len or SEQ_LEN),
        global_batch_size=global_batch_size,
        precision=precision,
        gradient_dtype=_gradient_dtype(cells, framework, precision),
        fp8_recipe=_recipe(cells),  # type: ignore[arg-type]
        optimizer=_optimizer(cells),
        optimizer_states=_optimizer_states(cells),
        framework=framework,
        attention=attention,
        compiled=cells.flag("compiled") is not False,
        dropout=_dropout(cells, framework, attention),
        cuda_graphs=cuda_graphs_of(cells),
        mtp_num_layers=mtp_layers_of(cells),
        expert_dispatcher=dispatcher_of(cells),
        fp8_attention=runs_fp8_attention(cells),
        fp8_dispatch=precision == "fp8" and is_deepseek_recipe(cells.text("notes")),
        deterministic=has_flag(cells.text("notes"), "deterministic-mode"),
        launch_blocking="CUDA_LAUNCH_BLOCKING=1" in cells.text("interconnect_note"),
        fused_accumulation=not has_flag(cells.text("notes"), "no-gradient-accumulation-fusion"),
        expert_load_cv=expert_load_cv_of(cells),
        recompute_modules=recompute_modules_of(cells),
        fp8_activation_inputs=precision == "fp8" and is_deepseek_recipe(cells.text("notes")),
        trainable=trainable,
        lora_targets=_lora_targets(cells, framework) if trainable == "lora" else (),
    )


def _packed_seq_len(cells: Cells, framework: str, seq_len: int) -> int | None:
    """NVIDIA's benchmark recipes for fine-tuning pack SQuAD's short sequences (packed_sequence = performance_mode in
    NeMo's recipes, packed_sequence_specs in Megatron-Bridge's)."""
    if cells.word("task") not in FINE_TUNING or not is_nvidia_recipe(cells, framework):
        return None
    cells.infer("packed_seq_len")
    return min(SQUAD_TOKENS, seq_len)


def _trainable(cells: Cells) -> Trainable:
    """Adapters where the task says so; where only the model's name does, that is an inference."""
    if cells.word("task") == "lora":
        return "lora"
    if "lora" in cells.word("model_name").split():
        cells.infer("task")
        return "lora"
    return "all"


def _lora_targets(cells: Cells, framework: str) -> tuple[str, ...]:
    """Queries, keys and values alone in NVIDIA's benchmark recipes (peft.target_modules = ["linear_qkv"]), whose rows
    state their task; elsewhere all linear layers, Megatron-Bridge's default."""
    if not is_nvidia_recipe(cells, framework) or "task" in cells.inferred:
        return ()
    cells.infer("lora_targets")
    return ("linear_qkv",)


def _precision(cells: Cells) -> Precision:
    """As stated; noted where other words stand beside it, or none that is known."""
    cell = cells.word("precision")
    if cell not in PRECISIONS:
        cells.infer("precision")
    return precision_of(cell) or "bf16"


def _optimizer(cells: Cells) -> Optimizer:
    """Adam, unless the notes name another: Megatron's option, or BigScience's 8-bit Adam."""
    notes = cells.text("notes")
    if "8-bit optimizer" in notes and "section" not in notes:
        return "adam8bit"
    return OPTIMIZERS.get(option(notes, "optimizer") or "", "adamw")


def _optimizer_states(cells: Cells) -> StateDtype:
    """16-bit moments where the notes say so, and in NeMo AutoModel, whose recipes load 16-bit weights and hand them to
    torch's optimizer; fp32 elsewhere."""
    if "bf16 Adam moments" in cells.text("notes"):
        return "bf16"
    if "automodel" in cells.word("framework"):
        cells.infer("optimizer_states")
        return "bf16"
    return "fp32"


def _attention(cells: Cells, framework: str) -> Attention:
    """As stated (a column, or Megatron's options); naive in Megatron before 2023, fused everywhere else."""
    stated, notes = cells.word("attention_impl"), cells.text("notes")
    if stated in ("naive", "flash"):
        return "naive" if stated == "naive" else "flash"
    if is_megatron_command_line(notes):
        unfused = option(notes, "attention-backend") == "unfused" or option(notes, "transformer-impl") == "local"
        return "naive" if unfused else "flash"
    cells.infer("attention_impl")
    return "naive" if framework in BEFORE_FLASH or _is_plain_gpt(cells, framework) else "flash"


def _is_plain_gpt(cells: Cells, framework: str) -> bool:
    """Megatron-LM's own GPT: plain MLP, ungrouped heads. Fused attention was an option there before TE."""
    heads = cells.text("num_heads")
    ungrouped = cells.text("num_kv_heads") in ("", heads)
    return framework in MEGATRON and cells.flag("gated_ffn") is False and ungrouped


def _dropout(cells: Cells, framework: str, attention: Attention) -> float:
    """Megatron trains with dropout where attention is not fused (2021-23), or its command line does not turn it off."""
    notes = cells.text("notes")
    if framework not in MEGATRON:
        return 0.0
    if is_megatron_command_line(notes):
        return 0.0 if option(notes, "hidden-dropout") == "0.0" else DROPOUT
    return DROPOUT if attention == "naive" else 0.0


def _gradient_dtype(cells: Cells, framework: str, precision: Precision) -> GradientDtype:
    """As stated; 16-bit gradients are those of fp16 training under Megatron, which turns fp32 on for bf16 alone,
    InternEvo's, DeepSpeed's own (engine.py, get_data_types: the model's under ZeRO unless grad_accum_dtype says
    otherwise, as Megatron-DeepSpeed does), and those of NVIDIA's benchmark recipes (NeMo, Megatron-Bridge:
    grad_reduce_in_fp32 = false, to which two printed state sizes agree within 1 %); fp32 otherwise."""
    stated = cells.word("gradient_dtype")
    for dtype in ("fp32", "bf16", "fp16"):
        if stated == dtype:
            return dtype
    if framework == "internevo" or (framework == "deepspeed" and precision == "bf16"):
        return "bf16"
    if is_nvidia_recipe(cells, framework):
        cells.infer("gradient_dtype")
        return "bf16"
    return "fp16" if precision == "fp16" and (framework in MEGATRON or "deepspeed" in framework) else "fp32"


def is_nvidia_recipe(cells: Cells, framework: str) -> bool:
    """Whether a row is a run of NVIDIA's benchmark recipes for Megatron-Core."""
    return framework == "megatron-core" and any(recipe in cells.word("framework") for recipe in NVIDIA_RECIPES)


def _recipe(cells: Cells) -> str:
    stated = cells.word("fp8_recipe")
    return stated if stated in ("tensorwise", "rowwise", "delayed", "blockwise") else "tensorwise"
