"""What each key of a Job is called on the screens: one word a key, for tables, notes, pins and inputs."""

from __future__ import annotations

from collections.abc import Mapping

from tpdpdash.text import t

KEY_WORDS: Mapping[str, str] = {
    "model.num_layers": "Layers",
    "model.hidden_size": "Hidden size",
    "model.ffn_hidden_size": "MLP size",
    "model.num_attention_heads": "Attention heads",
    "model.num_kv_heads": "KV heads",
    "model.head_dim": "Head width",
    "model.vocab_size": "Vocabulary",
    "training.seq_len": "Sequence length",
    "training.global_batch_size": "Global batch",
    "training.precision": "Precision",
    "training.framework": "Framework",
    "training.steps": "Steps",
    "training.mtp_num_layers": "Multi-token prediction",
    "training.packed_seq_len": "Packed sequences",
    "training.cuda_graphs": "CUDA graphs",
    "training.deterministic": "Deterministic",
    "training.fp8_activation_inputs": "8-bit activation inputs",
    "training.tf32": "TF32",
    "training.fp8_attention": "8-bit attention",
    "training.fp8_dispatch": "8-bit dispatch",
    "training.expert_dispatcher": "Dispatcher",
    "training.optimizer_offload_fraction": "Optimizer share in host memory",
    "training.cp_comm_type": "CP messages",
    "training.launch_blocking": "Waiting launches",
    "training.optimizer": "Optimizer",
    "training.optimizer_states": "Optimizer states",
    "training.gradient_dtype": "Gradients",
    "training.fp8_recipe": "8-bit scaling",
    "training.attention": "Attention",
    "training.compiled": "Compiled",
    "training.fused_accumulation": "Fused accumulation",
    "training.expert_load_cv": "Spread over experts",
    "training.lora_rank": "LoRA rank",
    "training.dropout": "Dropout",
    "training.trainable": "Trained parameters",
    "training.recompute_modules": "Recomputed modules",
    "cluster.device": "Device",
    "cluster.nodes": "Nodes",
    "cluster.devices_per_node": "Devices in a node",
    "layout.tp": "TP",
    "layout.cp": "CP",
    "layout.ep": "EP",
    "layout.etp": "ETP",
    "layout.pp": "PP",
    "layout.dp": "DP",
    "layout.rank_order": "Rank order",
    "layout.micro_batch_size": "Micro-batch",
    "layout.num_model_chunks": "Chunks",
    "layout.microbatch_group_size_per_vp_stage": "Microbatch group",
    "layout.schedule": "Schedule",
    "layout.zero_stage": "ZeRO",
    "layout.dp_shard_size": "Shard size",
    "layout.recompute": "Recompute",
    "layout.layers_per_stage": "Layers per stage",
    "layout.sequence_parallel": "Sequence parallel",
    "layout.offload_optimizer": "Optimizer in host memory",
    "layout.offload_activations": "Activations in host memory",
    "layout.overlap_grad_reduce": "Gradients overlap",
    "layout.overlap_param_gather": "Parameters overlap",
    "layout.overlap_tp": "TP messages overlap",
    "layout.overlap_ep": "Expert messages overlap",
}


def key_word(key: str) -> str:
    """The key in the reader's language; the last part of a key that has no word."""
    return t(KEY_WORDS[key]) if key in KEY_WORDS else key.rpartition(".")[2]


def layout_word(key: str) -> str:
    """The same for a key of [layout] without its table: tp, zero_stage."""
    return key_word(f"layout.{key}")
