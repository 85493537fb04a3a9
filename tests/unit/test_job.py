"""The Job document: read, written, resolved, and every fault of it at once."""

import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tpdpdash.cluster.detection import Detection, HostMemory
from tpdpdash.cost.adapters import TARGETS
from tpdpdash.faults import InvalidInputError
from tpdpdash.job import Job, job_from_tables, parse_job, read_job, write_job
from tpdpdash.text import fault_text
from tpdpdash.training import LORA_TARGETS

GPT3 = """
[model]
preset = "gpt3-175b"
[cluster]
device = "A100-SXM4-80GB"
nodes = 128
[training]
seq_len = 2048
global_batch_size = 1536
[layout]
tp = 8
pp = 8
"""
SMALL = """
[model]
num_layers = 4
hidden_size = 64
num_attention_heads = 8
ffn_hidden_size = 128
vocab_size = 256
[training]
seq_len = 32
global_batch_size = 8
"""


def this_machine() -> Detection:
    """A machine with two cores and no GPU."""
    host = HostMemory(total_bytes=16 * 2**30, available_bytes=12 * 2**30, cores=2)
    return Detection(devices=(), driver_version=None, problem=None, host=host)


def faults_of(text: str) -> dict[str, str]:
    """Code of each fault by its field."""
    with pytest.raises(InvalidInputError) as caught:
        parse_job(text, detect=this_machine).layout()
    return {fault.field: fault.code for fault in caught.value.faults}


def test_a_written_job_reads_back_as_the_same_job():
    job = parse_job(GPT3)
    assert parse_job(write_job(job)) == job
    resolved = job.resolved()
    assert parse_job(write_job(resolved)) == resolved
    assert resolved.resolved() == resolved


def test_a_preset_is_written_by_name_and_a_changed_one_inline():
    assert tomllib.loads(write_job(parse_job(GPT3)))["model"] == {"preset": "gpt3-175b"}
    changed = parse_job(GPT3.replace('"gpt3-175b"', '"gpt3-175b"\nnum_layers = 48'))
    table = tomllib.loads(write_job(changed))["model"]
    assert table["num_layers"] == 48
    assert "preset" not in table
    assert parse_job(write_job(changed)).model == changed.model


LAYOUT_DEFAULTS = {
    **{"tp": 1, "cp": 1, "pp": 1, "ep": 1, "etp": 1, "dp": 16, "rank_order": "tp-cp-ep-dp-pp", "micro_batch_size": 1},
    **{"schedule": "none", "num_model_chunks": 1, "microbatch_group_size_per_vp_stage": 1},
    **{"zero_stage": 1, "dp_shard_size": 16, "sequence_parallel": False},
    **{"recompute": "none", "recompute_num_layers": None, "recompute_method": "uniform"},
    **{"layers_per_stage": (32,), "account_for_embedding": False, "account_for_loss": False},
    **{"overlap_grad_reduce": True, "overlap_param_gather": True, "overlap_tp": False, "overlap_ep": False},
    **{"offload_optimizer": False, "offload_activations": False},
}
TRAINING_DEFAULTS = {
    **{
        "seq_len": 2048,
        "global_batch_size": 240,
        "steps": None,
        "tokens": None,
        "checkpoint_s": 0.0,
        "checkpoint_interval_steps": None,
        "precision": "bf16",
    },
    **{"optimizer": "adamw", "optimizer_states": "fp32", "gradient_dtype": "fp32", "fp8_recipe": "tensorwise"},
    **{"framework": "megatron-core", "attention": "flash", "compiled": True, "dropout": 0.0},
    **{"recompute_modules": (), "trainable": "all", "lora_rank": 16, "lora_targets": ()},
    **{
        "cuda_graphs": "none",
        "deterministic": False,
        "mtp_num_layers": None,
        "launch_blocking": False,
        "fused_accumulation": True,
        "fp8_activation_inputs": False,
        "expert_load_cv": 0.1,
    },
    **{"packed_seq_len": None, "tf32": None, "fp8_attention": False, "optimizer_offload_fraction": 1.0},
    **{"expert_dispatcher": None, "fp8_dispatch": False, "cp_comm_type": None},
}


def llama(**layout: int | str) -> Job:
    """Llama-3-8B on 16 GPUs; where dp is given, it gives the size."""
    cluster = {"device": "A100-SXM4-80GB", **({} if "dp" in layout else {"nodes": 2})}
    training = {"seq_len": 2048, "global_batch_size": 240}
    tables = {"model": {"preset": "llama-3-8b"}, "cluster": cluster, "training": training, "layout": layout}
    return job_from_tables(tables)


def test_every_key_that_is_absent_takes_the_default_of_the_design():
    assert asdict(llama().training) == TRAINING_DEFAULTS
    assert asdict(llama().layout()) == LAYOUT_DEFAULTS


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tp": 2}, {"etp": 2, "dp": 8, "dp_shard_size": 8, "sequence_parallel": True}),
        ({"pp": 2}, {"schedule": "1f1b", "microbatch_group_size_per_vp_stage": 2, "layers_per_stage": (16, 16)}),
        ({"pp": 2, "num_model_chunks": 2}, {"schedule": "interleaved"}),
        ({"pp": 3, "dp": 5}, {"layers_per_stage": (11, 11, 10)}),
        ({"recompute": "full"}, {"recompute_num_layers": None}),
    ],
)
def test_defaults_that_follow_from_other_keys(given, expected):
    layout = asdict(llama(**given).layout())
    assert {key: layout[key] for key in expected} == expected


def test_chunks_without_a_pipeline_are_a_fault_of_the_key_that_was_given():
    with pytest.raises(InvalidInputError) as caught:
        llama(num_model_chunks=2).layout()
    assert [fault.field for fault in caught.value.faults] == ["layout.num_model_chunks"]


def test_dp_gives_a_world_that_usual_nodes_do_not_make_and_says_so():
    job = llama(tp=2, dp=5)
    assert (job.cluster.nodes, job.cluster.devices_per_node, job.layout().world_size) == (2, 5, 10)
    assert [(notice.code, notice.field) for notice in job.notices] == [("assumed_figures", "cluster.devices_per_node")]
    assert llama(tp=2, dp=8).notices == ()


def test_layout_keys_that_are_absent_take_the_defaults():
    layout = parse_job(GPT3).layout()
    assert (layout.dp, layout.etp, layout.schedule, layout.zero_stage) == (16, 8, "1f1b", 1)
    assert layout.layers_per_stage == (12,) * 8
    assert layout.sequence_parallel
    assert layout.world_size == 1024


def test_dp_gives_the_size_where_nodes_is_absent():
    job = parse_job(GPT3.replace("nodes = 128", "").replace("pp = 8", "pp = 8\ndp = 4"))
    assert job.cluster.world_size == 256
    part_of_a_node = parse_job(GPT3.replace("nodes = 128", "").replace("tp = 8\npp = 8", "tp = 2\ndp = 2"))
    assert (part_of_a_node.cluster.nodes, part_of_a_node.cluster.devices_per_node) == (1, 4)


def test_a_dp_that_the_cluster_does_not_have_is_refused_with_the_right_one():
    with pytest.raises(InvalidInputError) as caught:
        parse_job(GPT3 + "dp = 5\n").layout()
    nearest = {fault.field: fault.values["nearest"] for fault in caught.value.faults}
    assert nearest["layout.dp"] == 16


def test_on_this_machines_cpu_the_world_is_what_the_layout_multiplies_to():
    job = parse_job(SMALL + "[layout]\ntp = 2\npp = 2\ndp = 2\n", detect=this_machine)
    assert job.world_follows_layout
    assert job.cluster.world_size == 2, "a search takes the cores"
    resolved = job.resolved()
    assert resolved.cluster.world_size == resolved.layout().world_size == 8
    usable = resolved.cluster.device.usable_bytes * 8
    assert usable == pytest.approx(12 * 2**30), "ranks share the memory of the machine"


def test_a_given_size_of_this_machine_is_kept():
    text = SMALL + "[cluster]\nnodes = 1\ndevices_per_node = 4\n[layout]\ntp = 2\n"
    job = parse_job(text, detect=this_machine)
    assert not job.world_follows_layout
    assert job.layout().dp == 2


def test_b61_types_of_the_layout_are_told_all_at_once():
    tables = {**tomllib.loads(SMALL), "layout": {"tp": 1.5, "pp": "two", "cp": None}}
    with pytest.raises(InvalidInputError) as caught:
        job_from_tables(tables, detect=this_machine)
    assert [(fault.field, fault.code) for fault in caught.value.faults] == [
        ("layout.tp", "not_whole_number"),
        ("layout.pp", "not_whole_number"),
        ("layout.cp", "missing"),
    ]


@pytest.mark.parametrize(
    ("training", "field"),
    [("seq_len = 32\nglobal_batch_size = 0", "global_batch_size"), ("seq_len = 0\nglobal_batch_size = 8", "seq_len")],
)
def test_b64_zero_sizes_are_out_of_range(training, field):
    text = SMALL.replace("seq_len = 32\nglobal_batch_size = 8", training)
    assert faults_of(text) == {f"training.{field}": "out_of_range"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("packed_seq_len = 0", "out_of_range"),
        ("optimizer_offload_fraction = 1.5", "out_of_range"),
        ("mtp_num_layers = 17", "out_of_range"),
        ('expert_dispatcher = "deepep"', "unknown_choice"),
        ("tf32 = 1", "not_true_false"),
        ('fp8_dispatch = "yes"', "not_true_false"),
    ],
)
def test_a_wrong_value_of_a_training_key_is_a_fault_of_that_key(line, code):
    text = SMALL.replace("global_batch_size = 8", f"global_batch_size = 8\n{line}")
    assert faults_of(text) == {f"training.{line.split()[0]}": code}


def test_sequences_that_are_packed_are_no_longer_than_what_they_are_packed_into():
    text = SMALL.replace("global_batch_size = 8", "global_batch_size = 8\npacked_seq_len = 33")
    with pytest.raises(InvalidInputError) as caught:
        parse_job(text, detect=this_machine).layout()
    fault = next(f for f in caught.value.faults if f.field == "training.packed_seq_len")
    assert (fault.code, fault.values["nearest"]) == ("packed_longer_than_sequence", 32)


def test_b64_a_sequence_of_a_billion_tokens_is_beyond_the_limit():
    assert faults_of(SMALL.replace("seq_len = 32", "seq_len = 1000000000")) == {"training.seq_len": "out_of_range"}


def test_b63_a_batch_that_does_not_divide_names_the_nearest():
    text = SMALL.replace("global_batch_size = 8", "global_batch_size = 10") + "[layout]\ndp = 4\nmicro_batch_size = 3\n"
    with pytest.raises(InvalidInputError) as caught:
        parse_job(text, detect=this_machine).layout()
    (fault,) = caught.value.faults
    assert 12 in fault.values["nearest"]


def test_faults_of_all_tables_come_together():
    text = """
name = 5
colour = "blue"
[model]
preset = "gpt3-175"
[cluster]
device = "H900"
nodes = 0
[training]
seq_len = "long"
[layout]
tp = 0
"""
    fields = set(faults_of(text))
    told = {"name", "colour", "model.preset", "cluster.nodes", "training.seq_len", "training.global_batch_size"}
    assert told | {"layout.tp"} <= fields
    assert any(field.startswith("cluster.device") for field in fields)


def test_a_preset_and_a_config_together_are_refused():
    text = GPT3.replace('preset = "gpt3-175b"', 'preset = "gpt3-175b"\nconfig = "config.json"')
    assert faults_of(text) == {"model.preset": "conflicting_keys"}


@pytest.mark.parametrize("text", ["[model", "a = 1\na = 2", "\x00", "a = " + "9" * 5000])
def test_what_is_not_toml_is_one_fault(text):
    assert faults_of(text) == {"job": "not_toml"}
    assert faults_of("x = " + "[" * 5000) == {"job": "nested_too_deep"}


def test_a_number_that_python_does_not_write_is_one_line():
    with pytest.raises(InvalidInputError) as caught:
        parse_job(GPT3.replace("tp = 8", "tp = 0x" + "f" * 5000))
    (fault,) = caught.value.faults
    assert fault.field == "layout.tp"
    assert "too many digits" in fault_text(fault)


@pytest.mark.parametrize("name", ["model", "cluster", "training", "layout"])
@pytest.mark.parametrize("value", ["x", 1, [{"tp": 1}]])
def test_what_stands_in_place_of_a_table_is_one_fault(name, value):
    with pytest.raises(InvalidInputError) as caught:
        job_from_tables({**tomllib.loads(GPT3), name: value})
    assert [(fault.code, fault.field) for fault in caught.value.faults] == [("not_table", name)]


def test_a_job_without_a_model_says_how_to_give_one():
    assert faults_of(GPT3.replace('[model]\npreset = "gpt3-175b"', "")) == {"model": "no_model"}


@pytest.mark.parametrize("config", ["../../etc/passwd", "/dev/zero", "nothing", "", "a\\nb"])
def test_a_wrong_config_is_a_fault_of_its_own_key(config):
    assert set(faults_of(GPT3.replace('preset = "gpt3-175b"', f'config = "{config}"'))) == {"model.config"}


def test_the_width_of_a_head_follows_a_changed_width_where_it_followed():
    wider = parse_job(GPT3.replace('"gpt3-175b"', '"gpt3-175b"\nhidden_size = 24576')).model
    assert (wider.head_dim, wider.num_kv_heads) == (256, 96)
    fewer = parse_job(GPT3.replace('"gpt3-175b"', '"gpt3-175b"\nnum_attention_heads = 48')).model
    assert (fewer.head_dim, fewer.num_kv_heads) == (256, 48)
    grouped = parse_job(GPT3.replace('"gpt3-175b"', '"llama-3-8b"\nnum_attention_heads = 64')).model
    assert (grouped.head_dim, grouped.num_kv_heads) == (64, 8)
    apart = parse_job(GPT3.replace('"gpt3-175b"', '"qwen3-0.6b"\nhidden_size = 2048')).model
    assert apart.head_dim == 128, "the preset gives it, and it is not hidden_size / heads"


def test_a_hostile_name_of_an_inline_model_is_shown_escaped():
    job = parse_job(
        SMALL.replace("[model]", '[model]\nname = "a\\u001b[31m\\n' + "x" * 5000 + '"'), detect=this_machine
    )
    assert job.model.name.isprintable()
    assert len(job.model.name) <= 100


def test_a_config_is_looked_up_beside_the_job_file(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "vocab_size": 100}'
    )
    path = tmp_path / "job.toml"
    path.write_text('[model]\nconfig = "config.json"\n[training]\nseq_len = 16\nglobal_batch_size = 4\n')
    assert read_job(path, detect=this_machine).model.hidden_size == 64


def test_files_that_cannot_be_read_are_said_to_be_so(tmp_path):
    for name, content, code in [
        ("missing.toml", None, "file_missing"),
        ("binary.toml", b"\xff\xfe\x00", "not_utf8"),
        ("large.toml", b"#" * (2**20 + 1), "file_too_large"),
    ]:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidInputError) as caught:
            read_job(path)
        assert [fault.code for fault in caught.value.faults] == [code]
    with pytest.raises(InvalidInputError) as caught:
        read_job(tmp_path)
    assert [fault.code for fault in caught.value.faults] == ["file_unreadable"]
    with pytest.raises(InvalidInputError) as caught:
        read_job(Path("/dev/zero"))  # has no size and no end
    assert [fault.code for fault in caught.value.faults] == ["file_too_large"]


def test_an_unknown_framework_is_a_notice_with_the_nearest():
    job = parse_job(GPT3.replace("seq_len", 'framework = "fsdp3"\nseq_len'))
    assert [(n.code, n.values["nearest"]) for n in job.notices] == [("unknown_framework", "fsdp2")]


def test_changing_a_table_changes_the_job():
    job = parse_job(GPT3)
    assert parse_job(write_job(replace(job, name="other"))).name == "other"


@pytest.mark.parametrize("name", ["../../etc/passwd", "a; touch pwned #", "$(id)", "a\nb", "x" * 300, ".", "CON", "a "])
def test_b43_b45_b47_a_name_that_is_no_folder_name_is_refused(name):
    tables = {"name": name, **tomllib.loads(GPT3)}
    with pytest.raises(InvalidInputError) as caught:
        job_from_tables(tables)
    assert {fault.field for fault in caught.value.faults} == {"name"}


def test_a_hostile_model_name_gives_the_job_a_harmless_one():
    job = parse_job(GPT3.replace('"gpt3-175b"', '"gpt3-175b"\nname = "<script>alert(1)</script>"'))
    assert job.name == "script-alert-1-script"
    assert parse_job(write_job(job)).name == job.name


def test_an_adapter_on_a_layer_that_no_model_has_is_a_fault_with_the_nearest_name():
    text = GPT3.replace("seq_len = 2048", 'seq_len = 2048\ntrainable = "lora"\nlora_targets = ["q_proj", "v_porj"]')
    with pytest.raises(InvalidInputError) as caught:
        parse_job(text)
    (fault,) = caught.value.faults
    assert (fault.field, fault.value, fault.values["nearest"]) == ("training.lora_targets", "v_porj", "v_proj")


def test_the_names_of_adapters_are_those_that_the_cost_room_prices():
    assert set(LORA_TARGETS) == set(TARGETS)
