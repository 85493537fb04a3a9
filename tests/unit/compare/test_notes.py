"""Free text of a row: network bandwidth and command line flags."""

import pytest

from tpdpdash.compare import notes


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("NVLink4 900GB/s in node; 400Gb/s per GPU NDR InfiniBand", 400),
        ("8x A100-80GB NVLink (NVSwitch) per node; 4x Omni-Path 100 Gb/s per node (Jean Zay)", 50),
        ("8-GPU nodes; 800 Gb/s per node between nodes", 100),
        ("DGX-H100: NVLink4 in node; 8x400Gb/s NDR InfiniBand", 400),
        ("8xH100 NVLink; EFA 3200 Gb/s per node", 400),
        ("NVLink in node; 400Gbps per node Ethernet/RoCE", 50),
        ("8 GPUs NVLink/host; RDMA backend 400 Gb/s per GPU (Meta Grand Teton); 96GB HBM2e 2.4TB/s", 400),
        ("4x V100 NVLink per node; Omni-Path 100 Gb/s (Jean Zay)", None),
        ("NVLink5 1.8TB/s in node; InfiniBand", None),
        ("one node", None),
        ("", None),
    ],
)
def test_network_bandwidth_is_read_where_its_owner_is_said(note, expected):
    assert notes.network_gbit_per_device(note, 8) == expected


def test_flags_and_options_of_a_command_line():
    text = "--deterministic-mode; --disable-bias-linear; expert-tensor-parallel=2; moe-layer-freq=([0]*4+[1]*9)"
    assert notes.has_flag(text, "disable-bias-linear")
    assert not notes.has_flag(text, "disable-bias")
    assert notes.expert_tp(text) == 2
    assert notes.expert_tp("expert TP=1; model TFLOPs") == 1
    assert notes.option(text, "moe-layer-freq") == "([0]*4+[1]*9)"
    assert notes.dense_layers_of(text) == (0, 1, 2, 3)
    assert notes.shard_group("Megatron-FSDP sharding group size 64, more") == 64
    assert notes.whole_option("recompute-num-layers=x", "recompute-num-layers") is None
    assert notes.shard_group("FSDP group size 128, replicated over 4") == 128
    assert notes.shard_group("LBS=4 GA=16; FSDP2 group 8") == 8


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("selective recompute modules=layernorm+moe_act. DDP", ("layernorm", "moe_act")),
        ("mlp+core_attn: recompute_modules=mlp,core_attn; fp8", ("mlp", "core_attn")),
        ("--moe-grouped-gemm; recompute-modules=[moe_act]; mtp-num-layers=1", ("moe_act",)),
        ("recompute RMSNorm + MLA up-projections; DualPipe", ("layernorm", "mla_up_proj", "moe_act")),
        ("baseline: core_attn recompute", ()),
    ],
)
def test_modules_of_selective_recompute_are_read(note, expected):
    assert notes.recompute_modules(note) == expected
