"""What a row ran on and how it trained: cluster, precision, framework, batch."""

from __future__ import annotations

from functools import cache

from tpdpdash.cluster.catalogue import default_cluster
from tpdpdash.cluster.inline import with_links
from tpdpdash.cluster.spec import ClusterSpec
from tpdpdash.compare.cells import Cells, UnreadableRowError
from tpdpdash.compare.notes import is_megatron_command_line, network_gbit_per_device, option
from tpdpdash.faults import InvalidInputError
from tpdpdash.layout.frameworks import MEGATRON
from tpdpdash.training import FRAMEWORKS, Attention, GradientDtype, Optimizer, Precision, Training
from tpdpdash.units import ceil_div

MAX_DEVICES, MAX_PER_NODE, MAX_SEQUENCE, MAX_BATCH = 10_000_000, 4096, 100_000_000, 100_000_000
SEQ_LEN = 2048
"""Tokens of a sequence where none is stated: GPT-3's."""
DROPOUT = 0.1
"""Megatron's default for hidden and attention dropout, with which its runs of 2021-23 and its own tests train."""
BEFORE_FLASH = ("megatron-2022", "megatron-deepspeed")
"""Forks that never had fused attention."""
NVIDIA_RECIPES = ("nemo", "megatron-bridge")
"""Words in the framework's name."""
PRECISIONS: dict[str, Precision] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "fp32": "fp32",
    "tf32": "fp32",
    "float32": "fp32",
    "fp8": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
}
OPTIMIZERS: dict[str, Optimizer] = {"muon": "muon", "sgd": "sgd", "lion": "lion", "adam8bit": "adam8bit"}


def cluster_of(cells: Cells, num_devices: int) -> ClusterSpec | None:
    """The catalogue's device in nodes as stated, with the network that the row states. None: unknown hardware."""
    per_node = cells.whole("gpus_per_node", MAX_PER_NODE)
    found = _cluster(cells.text("hardware"), num_devices, per_node or 0, cells.text("interconnect_note"))
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
    """The framework family as stated; FSDP for an unknown one that shards weights, else Megatron-Core."""
    family = cells.word("framework_family") or cells.word("framework")
    if family in FRAMEWORKS:
        return family
    cells.infer("framework_family")
    shards = "fsdp" in cells.word("framework") or cells.word("zero_stage_or_fsdp") in ("3", "fsdp", "hsdp")
    return "fsdp2" if "fsdp2" in cells.word("framework") else "fsdp1" if shards else "megatron-core"


def training_of(cells: Cells, global_batch_size: int) -> Training:
    """Batch, precision, framework and habits of the row's time."""
    framework = framework_of(cells)
    precision = _precision(cells)
    seq_len = cells.whole("seq_len", MAX_SEQUENCE)
    if not seq_len:
        cells.infer("seq_len")
    attention = _attention(cells, framework)
    return Training(
        seq_len=seq_len or SEQ_LEN,
        global_batch_size=global_batch_size,
        precision=precision,
        gradient_dtype=_gradient_dtype(cells, framework, precision),
        fp8_recipe=_recipe(cells),  # type: ignore[arg-type]
        optimizer=_optimizer(cells),
        framework=framework,
        attention=attention,
        compiled=cells.flag("compiled") is not False,
        dropout=_dropout(cells, framework, attention),
        trainable="lora" if cells.word("task") == "lora" else "all",
    )


def _precision(cells: Cells) -> Precision:
    cell = cells.word("precision")
    if cell in PRECISIONS:
        return PRECISIONS[cell]
    if cell:
        raise UnreadableRowError("unknown_precision", "precision", cell)
    cells.infer("precision")
    return "bf16"


def _optimizer(cells: Cells) -> Optimizer:
    """Adam, unless the notes name another: Megatron's option, or BigScience's 8-bit Adam."""
    notes = cells.text("notes")
    if "8-bit optimizer" in notes and "section" not in notes:
        return "adam8bit"
    return OPTIMIZERS.get(option(notes, "optimizer") or "", "adamw")


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
    """As stated; 16-bit gradients are fp16 training's under DeepSpeed, InternEvo's, and those of NVIDIA's benchmark
    recipes (NeMo, Megatron-Bridge: grad_reduce_in_fp32 = false, to which two printed state sizes agree within 1 %);
    fp32 otherwise."""
    stated = cells.word("gradient_dtype")
    for dtype in ("fp32", "bf16", "fp16"):
        if stated == dtype:
            return dtype
    if framework == "internevo":
        return "bf16"
    if framework == "megatron-core" and any(recipe in cells.word("framework") for recipe in NVIDIA_RECIPES):
        cells.infer("gradient_dtype")
        return "bf16"
    return "fp16" if precision == "fp16" and "deepspeed" in framework else "fp32"


def _recipe(cells: Cells) -> str:
    stated = cells.word("fp8_recipe")
    return stated if stated in ("tensorwise", "rowwise", "delayed", "blockwise") else "tensorwise"
