"""What a row says in free text: the network's bandwidth, and flags of the training framework's command line."""

from __future__ import annotations

import re

from tpdpdash.training import RECOMPUTE_MODULES

_RATE = r"(\d+(?:\.\d+)?)\s*(?:Gb/s|Gbps|Gbit/s)"
_CARDS = re.compile(rf"(?<![\w.])(\d+)\s*x\s*(?:[A-Za-z][A-Za-z-]*\s+)?{_RATE}")
_PER_DEVICE = re.compile(rf"{_RATE}\s*(?:RDMA\s+)?per\s+(?:GPU|device|accelerator)")
_PER_NODE = re.compile(rf"{_RATE}\s*per\s+(?:node|VM|host|server)")

_DEEPSEEK_WORDS = (("layernorm", r"recompute [^;]*RMSNorm"), ("mla_up_proj", r"recompute [^;]*MLA up-proj"))


def network_gbit_per_device(note: str, devices_per_node: int) -> float | None:
    """Network bandwidth of one device, one direction [Gbit/s], where a note on the interconnect states it.

    "400 Gb/s per GPU" as it is; "8x200Gb/s" and "800 Gb/s per node" are shared by the node's devices. A bandwidth
    whose owner is not said ("Omni-Path 100 Gb/s") is not read. NVLink is written in GB/s, which never matches.
    """
    each = _PER_DEVICE.search(note)
    if each:
        return float(each[1])
    cards = _CARDS.search(note)
    if cards:
        return float(cards[1]) * float(cards[2]) / devices_per_node
    node = _PER_NODE.search(note)
    return float(node[1]) / devices_per_node if node else None


def has_flag(notes: str, flag: str) -> bool:
    """Whether a switch of a command line (--disable-bias-linear) stands in the notes."""
    return re.search(rf"(?<![\w-])--{re.escape(flag)}(?![\w=-])", notes) is not None


def option(notes: str, name: str) -> str | None:
    """The value of name=value in the notes (position-embedding-type=rope), up to the next semicolon or blank."""
    found = re.search(rf"(?<![\w-])(?:--)?{re.escape(name)}=([^;\s]+)", notes)
    return found[1] if found else None


def whole_option(notes: str, name: str) -> int | None:
    """A whole number of name=value."""
    value = option(notes, name)
    return int(value) if value is not None and value.isdecimal() else None


def expert_tp(notes: str) -> int | None:
    """Tensor parallel degree inside experts, as Megatron's option or in words ("expert TP=1")."""
    words = re.search(r"expert TP=(\d+)", notes)
    return int(words[1]) if words else whole_option(notes, "expert-tensor-parallel")


def shard_group(notes: str) -> int | None:
    """Ranks over which FSDP shards, in words: "sharding group size 64", "FSDP group size 128", "FSDP2 group 8"."""
    words = re.search(r"(?:sharding|FSDP\d?) group (?:size )?(\d+)", notes)
    return int(words[1]) if words else None


def tp_overlap(notes: str) -> bool | None:
    """Whether tensor parallel messages overlap, in words: "tp-comm-overlap on", "no TP/PP comm overlap". None: not
    said."""
    if re.search(r"\bno TP(?:/\w+)? comm(?:unication)? overlap", notes):
        return False
    return True if re.search(r"\btp-comm-overlap on\b|--tp-comm-overlap\b", notes) else None


def is_megatron_command_line(notes: str) -> bool:
    """Whether the notes list Megatron's own flags: what they do not name is then at Megatron's default."""
    return has_flag(notes, "no-gradient-accumulation-fusion") or option(notes, "transformer-impl") is not None


def dense_layers_of(notes: str) -> tuple[int, ...]:
    """Dense layers of Megatron's moe-layer-freq=([0]*4+[1]*9): here the first four."""
    pattern = option(notes, "moe-layer-freq") or ""
    kinds: list[int] = []
    for kind, times in re.findall(r"\[(\d)\]\*(\d{1,4})", pattern):
        kinds += [int(kind)] * int(times)
    return tuple(layer for layer, kind in enumerate(kinds) if kind == 0)


def recompute_modules(notes: str) -> tuple[str, ...]:
    """What selective recompute covers: Megatron's option (recompute-modules=[moe_act], modules=layernorm+moe_act), or
    in words, as DeepSeek's report says "recompute RMSNorm + MLA up-projections", where SwiGLU's output goes too
    (arXiv:2412.19437 §3.2.3, §3.3.3)."""
    named = re.search(r"recompute[-_ ]modules=\[?([\w+,]+)", notes)
    if named:
        return tuple(name for name in re.split(r"[+,]", named[1]) if name in RECOMPUTE_MODULES)
    found = tuple(name for name, pattern in _DEEPSEEK_WORDS if re.search(pattern, notes))
    return (*found, "moe_act") if is_deepseek_recipe(notes) else found


def is_deepseek_recipe(notes: str) -> bool:
    """Whether recompute is described in the words of DeepSeek-V3's report, which keeps SwiGLU's inputs in 8 bits."""
    return all(re.search(pattern, notes) for _, pattern in _DEEPSEEK_WORDS)


def offloads_activations(notes: str) -> bool:
    """Whether activations live in host memory: "activation CPU offload of 20 layers"."""
    return re.search(r"activation (?:CPU )?offload(?:ing)? of \d+ layers", notes) is not None
