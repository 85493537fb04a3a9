"""The sentence for each fault code, room by room. Nothing else stands here.

A sentence may use {field}, {value} and whatever Fault.values holds; {nearest} is the nearest legal value or values.
"""

from __future__ import annotations

FAULT_TEXTS: dict[str, str] = {
    # any room
    "missing": "{field} is missing",
    "not_whole_number": "{field} must be a whole number, not {value}",
    "not_number": "{field} must be a number, not {value}",
    "not_text": "{field} must be text, not {value}",
    "not_true_false": "{field} must be true or false, not {value}",
    "not_list": "{field} must be a list, not {value}",
    "not_table": "{field} must be a table of keys, not {value}",
    "out_of_range": "{field} is {value}; it must lie between {low} and {high}; nearest legal value: {nearest}",
    "unknown_key": "{field} is not a key here; nearest: {nearest}",
    "unknown_choice": "{field} is {value}; it must be one of {choices}; nearest: {nearest}",
    "not_divisible": "{field} is {value}; it must be divisible by {divisor_name} = {divisor}; nearest: {nearest}",
    "conflicting_keys": "{field} cannot be given together with {other}",
    # the cluster file of `tpdpdash calibrate`
    "too_few_measurements": "{field}: {value} measurements are too few for figures",
    "trust_not_finished": "run {value} is {state}: only a finished run is trusted",
    "trust_no_job": "run {value} is not of a Job: nothing was estimated of it",
    "trust_not_measured": "run {value}: no figures of this machine are there to correct; `tpdpdash calibrate` measures",
    "trust_not_in_file": "run {value} has corrected nothing",
    "trust_too_few_steps": "run {value} is too short: {needed} steps are needed",
    "measured_file_unwritable": "{value} cannot be written: {reason}",
    "no_measurements": "run {value} has no measurements: {reason}",
    "measured_here": "figures of this machine were measured on {date} (run {run});"
    " `tpdpdash calibrate --forget` goes back",
    "measured_elsewhere": "the cluster file was measured on {date} on {device} with {cores} cores; here is {here} with"
    " {here_cores}: it is ignored; measure again with `tpdpdash calibrate`",
    "measured_file_wrong": "{value} is ignored: {reason}; measure again with `tpdpdash calibrate`",
    # files
    "file_missing": "{field}: there is no file {value}",
    "file_too_large": "{field}: the file has {size} bytes; the limit is {limit}",
    "file_unreadable": "{field}: {value} cannot be read: {reason}",
    "not_toml": "{field}: not TOML: {reason}",
    "unknown_framework": "{field} {value} is not known; its habits are taken from the nearest, {nearest}",
    # model
    "no_model": "{field} is missing: give model.preset, model.config, or the fields {needed}",
    "name_empty": "{field}: a name is needed",
    "name_too_long": "{field} is {value}: {length} characters; the limit is {limit} (and {byte_limit} bytes)",
    "name_characters": "{field} is {value}: a name may hold letters, digits, '.', '_' and '-', but not {wrong}",
    "name_edges": "{field} is {value}: a name may not begin with '.' or '-', nor end with '.'",
    "name_reserved": "{field} is {value}: that name is reserved for a device on Windows",
    "does_not_divide": "{field} is {value}; it must divide {dividend_name} = {dividend}; nearest: {nearest}",
    "file_empty": "{field}: the file is empty",
    "not_utf8": "{field}: not {encoding} text: byte {position} cannot be read",
    "not_json": "{field}: not JSON: line {line}, column {column}: {reason}",
    "nested_too_deep": "{field}: objects are nested too deep",
    "file_is_html": "{field}: this is an HTML page, not a config.json: was the download an error page?",
    "file_is_xml": "{field}: this is XML, not a config.json",
    "file_is_pickle": "{field}: this is a pickle file, not a config.json; pickle is never loaded",
    "file_is_safetensors": "{field}: this is a safetensors file of weights, not a config.json",
    "file_is_zip": "{field}: this is a zip archive (PyTorch weights are), not a config.json",
    "file_is_gzip": "{field}: this is a gzip archive, not a config.json",
    "file_is_gguf": "{field}: this is a GGUF file of weights, not a config.json",
    "file_is_hdf5": "{field}: this is an HDF5 file, not a config.json",
    "file_is_git_lfs": "{field}: this is a Git LFS pointer, not the file itself: fetch it with git lfs pull",
    "differing_keys": "{field} is {value}, but {other} = {other_value} says the same with another value",
    "unknown_architecture": "{field} is {value}: an unknown architecture (decoder-only transformers are supported); "
    "nearest: {nearest}",
    "unsupported_value": "{field} is {value}: not supported; only {needed} is",
    "unsupported_layers": "{field} is {value}: layers of these kinds, or in this order, are not supported",
    "nested_config": "{field}: a wrapper inside a wrapper is not supported",
    "not_a_model": "{field} is {value}: neither a preset, nor a file that ends in .json or a folder with a "
    "config.json, nor a hub id of the form organisation/name",
    "hub_unreachable": "{field} is {value}: no preset and no file of that name, and the Hugging Face hub cannot be "
    "reached ({reason}): download its config.json and give the path",
    "hub_gated": "{field} is {value}: the hub asks for a login for this model (`hf auth login`), or give the path of "
    "its config.json",
    "hub_no_model": "{field} is {value}: the Hugging Face hub has no such model, or it is private",
    "hub_no_config": "{field} is {value}: this model has no config.json on the Hugging Face hub",
    # model: notices
    "duplicate_key": "{field} stands twice; the last value, {value}, counts",
    "default_assumed": "{field} is not given: {value}, the default of this architecture, is assumed",
    "decoder_assumed": "{field} is not given: read as {value}, an assumption",
    "remote_code_ignored": "{field} points to code of the model's own: it is never run",
    "prediction_layers_left_out": "{field} is {value}: no part of the parameters; see training.mtp_num_layers",
    "wrapper_decides": "{field} is {value}, but the config around it decides: {used} counts",
    "language_model_only": "{field}: only the language model is counted; vision and audio parts are left out",
    # cluster
    "ambiguous_device": "{field} {value} is not unambiguous: choose one of {candidates}, or give its figures",
    "unknown_device": "{field} {value} is not in the catalogue (nearest: {nearest}): give its figures as a table: "
    "{figures}",
    "missing_figure": "{field} is missing: a described device needs {figures}",
    "assumed_figures": "{field}: assumed, because not given: {value}",
    "assumed_network": "{field} is not given: more than one node would be planned with an assumed {value} per device",
    "no_bandwidth": "{field} is {value} with {nodes} nodes of {devices_per_node} devices, which must send over it: "
    "give a bandwidth above 0",
    "uneven_nodes": "{field}: uneven GPUs per node ({value}) are not supported; nearest: {nearest}",
    "mixed_devices": "{field}: different GPUs here ({found}); planned with the smallest, {value}",
    "partial_nvlink": "{field}: NVLink does not join all GPUs here; planned with {used} between them",
    "more_than_detected": "{field} is {value}, but only {high} are visible here; nearest legal value: {nearest}",
    "detected_device_unknown": "{field}: the GPU here, {value} (memory: {memory}), is not in the catalogue "
    "(nearest: {nearest}): describe it with its figures: {figures}",
    "unified_memory_device": "{field}: the GPU here, {value}, has unified memory: its driver reports none of its own; "
    "{available} of the host's are available now: describe it with its figures: {figures}",
    "no_gpu": "The NVIDIA driver is here, but it shows no GPU",
    "no_driver": "No NVIDIA driver here (libnvidia-ml.so.1 is not found): the CPU is used, or describe a cluster",
    "driver_not_loaded": "The NVIDIA driver is installed but not loaded: load it (modprobe nvidia) or reboot",
    "driver_version_mismatch": "NVIDIA driver and library version mismatch, as after an update: reboot, or reload the "
    "driver's modules; jobs that run already go on",
    "driver_no_permission": "NVML: insufficient permissions for user {user}: look at the access rights of /dev/nvidia*",
    "driver_failed": "NVML did not start: {reason}",
    "gpu_lost": "GPU {value} is lost (fallen off the bus): reset it or reboot; the others work",
    "gpu_unreachable": "GPU {value} does not answer: {reason}; the others work",
    # layout
    "rank_order_empty": "{field} is empty; give an order of {names}",
    "rank_order_unknown_name": "{field} is {value}: {token} is no degree; use {names}; nearest: {nearest}",
    "rank_order_repeated_name": "{field} is {value}: {token} stands there more than once",
    "rank_order_missing_name": "{field} is {value}: it leaves out {token}, whose degree is {degree}",
    "rank_order_pp_not_last": "{field} is {value}: with pp not last, dense and expert layers need the same data "
    "parallel size, but they have {dp} and {expert_dp}; nearest: {nearest}",
    "rank_order_splits_pipelines": "{field} is {value}: dense layers have pipelines of stride {stride}, experts of "
    "stride {expert_stride}; nearest: {nearest}",
    "world_not_divisible": "{field} is {value}: the world size {world_size} is not divisible by {product} ({degrees}); "
    "nearest: {nearest}; smallest world size for these degrees: {min_world_size}, next: {nearest_world_size}",
    "dp_not_world": "{field} is {value}: the world size {world_size} over tp·cp·pp = {product} leaves dp {nearest}",
    "expert_grid_not_divisible": "{field} is {value}: the world size {world_size} is not divisible by the expert grid "
    "{product} ({degrees}); nearest: {nearest}",
    "mesh_product": "{field} is {value}, but the mesh has {degrees} = {product} ranks",
    "mesh_ep_not_divisor": "{field} is {value}; it must divide dp_shard·cp·tp = {product}; nearest: {nearest}",
    "heads_not_divisible": "{field} is {value}; it must divide the {heads} attention heads; legal: {legal}; nearest: "
    "{nearest}; pp that uses as many devices: {pp_instead}",
    "kv_heads_not_divisible": "{field} is {value}; it must divide the {kv_heads} key/value heads, for this framework "
    "keeps no copies of them; legal: {legal}; nearest: {nearest}",
    "kv_heads_not_replicable": "{field} is {value}; it must divide the {kv_heads} key/value heads or be a multiple of "
    "them; legal: {legal}; nearest: {nearest}",
    "ffn_not_divisible": "{field} is {value}; it must divide ffn_hidden_size = {ffn_hidden_size}; legal: {legal}; "
    "nearest: {nearest}",
    "shared_ffn_not_divisible": "{field} is {value}; it must divide the shared experts' width "
    "{shared_ffn_hidden_size}; legal: {legal}; nearest: {nearest}",
    "no_experts": "{field} is {value}, but the model has no experts; nearest: {nearest}",
    "experts_not_divisible": "{field} is {value}; it must divide the {experts} experts; nearest: {nearest}",
    "expert_ffn_not_divisible": "{field} is {value}; it must divide moe_ffn_hidden_size = {moe_ffn_hidden_size}; "
    "nearest: {nearest}",
    "experts_need_sequence_parallel": "{field} is {value}; with ep {ep} and tp {tp} the experts need it; nearest: "
    "{nearest}",
    "degree_not_in_framework": "{field} is {value}, but {framework} has no such parallelism; nearest: {nearest}",
    "shard_size_not_divisor": "{field} is {value}; it must divide dp = {dp}; nearest: {nearest}",
    "zero_with_pipeline": "{field} is {value}; {framework} runs a pipeline (pp {pp}) with ZeRO 0 or 1 only; nearest: "
    "{nearest}",
    "zero_not_in_framework": "{field} is {value}; {framework} has ZeRO 0 and 1 only; nearest: {nearest}",
    "context_heads_not_divisible": "{field} is {value}: with tp {tp} each rank of an all-to-all needs whole heads "
    "of {heads} ({kv_heads} for keys and values); possible: {legal}; nearest: {nearest}",
    "packed_longer_than_sequence": "{field} is {value}: longer than training.seq_len = {seq_len}; nearest: {nearest}",
    "precision_not_on_device": "{field} is {value}, which {device} does not support; legal: {legal}; nearest: "
    "{nearest}",
    "layers_not_divisible": "{field} is {value}; it must divide the {units} layers; nearest: {nearest}, or give "
    "layers_per_stage, for instance {split}",
    "stage_pin_without_pipeline": "{field} is {value}, but pp is 1: there is one stage, which has all layers",
    "stage_layers_left_over": "{field} is {value}: the {left} layers left over do not divide over the {stages_left} "
    "stages left over; nearest: {nearest}",
    "more_stages_than_layers": "{field} is {value}, but the model has {num_layers} layers; nearest: {nearest}",
    "stage_entries_not_pp": "{field} is {value}: {entries} entries for pp = {pp} stages; for instance {nearest}",
    "stage_layers_do_not_sum": "{field} is {value}: the sum is {total}, but the model has {num_layers} layers; for "
    "instance {nearest}",
    "stage_without_layers": "{field} is {value}: stage {stage} has no layer; for instance {nearest}",
    "schedule_not_in_framework": "{field} is {value}, which {framework} does not have; use one of {choices}; nearest: "
    "{nearest}",
    "split_without_pipeline": "{field} is {value}, which needs a pipeline, but pp is {pp}; nearest: {nearest}",
    "v_needs_two_chunks": "{field} is {value}; {schedule} runs two chunks a rank, down the V and back; nearest: "
    "{nearest}",
    "paired_few_microbatches": "{field} is {value} with pp {pp}: it needs {least} microbatches, two a stage, but there "
    "are {microbatches}; nearest: {nearest}; or global_batch_size {nearest_batch}",
    "mirror_not_even": "{field} is {value}: it runs half of the microbatches from each end, so pp = {pp} and the "
    "{microbatches} microbatches must both be even; nearest: {nearest}",
    "rounds_not_even": "{field} is {value}: torch deals the {microbatches} microbatches over {rounds} rounds, which "
    "must divide them; nearest: {nearest}; or global_batch_size {nearest_batch}",
    "interleaved_without_pipeline": "{field} is {value}, which needs a pipeline, but pp is {pp}; nearest: {nearest}",
    "pipeline_without_schedule": "{field} is {value}, but pp is {pp}; nearest: {nearest}",
    "chunks_without_interleaving": "{field} is {value}, but schedule is {schedule}: several chunks need interleaved; "
    "nearest: {nearest}",
    "interleaved_needs_chunks": "{field} is {value}; an interleaved schedule needs at least 2; nearest: {nearest}",
    "chunks_not_divisible": "{field} is {value}; it must divide the {layers} layers of stage {stage}; nearest: "
    "{nearest}",
    "interleaved_few_microbatches": "{field} is {value} with pp {pp}: it needs as many microbatches as stages, but "
    "there "
    "are {microbatches}; nearest: {nearest}; or global_batch_size {nearest_batch}",
    "group_size_out_of_range": "{field} is {value}; it must lie between pp = {low} and the {high} microbatches; "
    "nearest: {nearest}",
    "group_remainder": "{field} is {value}: {microbatches} microbatches leave {remainder}, which must be 0 or at least "
    "pp = {pp}; nearest: {nearest}; or global_batch_size {nearest_batch}",
    "fewer_microbatches_than_stages": "{field} is {value}, but there are {microbatches} microbatches, and this "
    "framework hangs with fewer than stages; nearest: {nearest}; or global_batch_size {nearest_batch}",
    "batch_not_divisible": "{field} is {value}; it must be a multiple of micro_batch_size·dp = {micro_batch_size}·{dp} "
    "= {multiple}; nearest: {nearest}; dp that fits: {nearest_dp}",
    "sequence_not_divisible": "{field} is {value}; with cp {cp} and tp {tp} it must be a multiple of {multiple}; "
    "nearest: {nearest}",
    "sequence_beyond_positions": "{field} is {value}, but the model's position table has {rows} rows; nearest: "
    "{nearest}",
    "recompute_layers_unused": "{field} is {value}, but recompute is {recompute}: it goes with full recomputation "
    "only; nearest: recompute {nearest}",
    "tp_leaves_domain": "{field} is {value}: each tensor parallel group of {tp} ranks lies in {domains} NVLink domains "
    "of {domain_size} and sends over the network; nearest: {nearest}",
    "kv_weights_copied": "{field} is {value}, but the model has {kv_heads} key/value heads: their weights are held "
    "{copies} times",
    "vocabulary_padded": "{field} is {value}: {framework} pads it to {padded}, {added} rows more",
    "interleaving_needs_overlap": "{field} is {value} with an interleaved schedule: Megatron needs "
    "--overlap-p2p-communication",
    "order_fixed_by_experts": "{field} is {value}: pp must stay last, for with ep {ep} dense layers have {dp} replicas "
    "and experts {expert_dp}",
    "few_microbatches": "{field} is {value}: with {microbatches} microbatches on {stages} stages of {chunks} chunks "
    "the pipeline idles more than half of its working time",
    "shards_nothing": "{field} is {value}: states are sharded over one rank, though dp is {dp}",
    "upload_names_file": "{field} is {value}, a file that did not come along: drop that file itself first",
    "upload_own_figures": "{field} gives figures of its own, for which this screen has no input: `tpdpdash plan` takes "
    "the file",
    "upload_key_left_out": "{field} is {value} in the file, for which this screen has no input: it is {used} here",
    "setting_unused": "{field} is {value}, which changes nothing here: it goes with {needs}",
    # search
    "out_of_memory": "does not fit {value}: the closest layout needs {peak} of {capacity}",
    # compare
    "csv_is_markup": "{field}: this is HTML or XML, not CSV: was the download an error page?",
    "csv_broken": "{field}: not CSV: line {line}: {reason}",
    "csv_duplicate_column": "{field}: column {value} stands twice",
    "csv_missing_column": "{field}: column {value} is missing: without it or a preset as model_name no row has a model",
    "csv_nothing_measured": "{field}: no column holds a measured figure: at least one of {columns} is needed",
    "ragged_row": "more cells than columns: {value}",
    "bad_value": "{field} cannot be {value}",
    "no_architecture": "{field} is not stated: no transformer can be built from the row",
    # run
    "run_name_illegal": "{field}: {value} is not the name of a run",
    "run_unknown": "{field}: there is no run {value}",
    "no_log": "{field} {value}: there is no such log",
    "run_ambiguous": "{field}: {value} could be {candidates}",
    "run_alive": "{field} {value} is {state}: stop it first",
    "run_may_live": "{field} {value} may still live on {host}: it wrote no end, and was heard of less than {hours} "
    "hours ago",
    "run_not_removed": "{field} {value} was not removed whole: {reason}",
    "archive_exists": "{field}: {value} exists already and holds something else; nothing was changed",
    "archive_failed": "{field} {value} was not archived, and nothing was removed: {reason}",
    "archive_unknown": "{field}: {value} is neither a file nor a run in {folder}",
    "archive_ambiguous": "{field}: {value} could be {candidates}",
    "archive_torn": "{field}: {value} is not whole, and nothing was restored: {reason}",
    "archive_foreign": "{field}: {value} is not restored, for it holds what no run's archive does, or a link that "
    "leaves the run's folder: {reason}",
    "archive_not_restored": "{field}: {value} was not restored, and nothing is left of it: {reason}",
    "run_exists": "{field}: {value} is in the history already; nothing was changed",
    "profile_run_over": "{field} {value} is {state}: only a run that goes on can be profiled",
    "profile_rank_unknown": "{field}: there is no rank {value}: the last one is {last}",
    "profile_no_rank": "{field} names no rank",
    "profile_too_many_ranks": "{field} names {value} ranks; at most {limit} are profiled at once, for all others wait",
    "profile_ranks_unreadable": "{field} is {value}: it must be ranks with commas between them, such as 0,3",
    "profile_step_past": "{field} is {value}, which is over: the run is in step {newest}",
    "profile_no_step_left": "{field} {value} is in its last step: there is none left to profile",
    "profile_not_asked": "{field} {value} could not be asked: {reason}",
    "profile_unreadable": "{field}: {value} cannot be read: {reason}",
    "nothing_told": "{field} {value}: no rank has told anything yet",
    "not_written": "{field}: {value} was not written: {reason}",
    "no_script": "{field}: {value} is neither a Python file, -m MODULE nor a program that is found here",
    "script_or_job": "{field}: a script after -- runs as it is: {value} belongs to a Job",
    "run_not_started": "the run was not started: {value}: {reason}",
    "rank_killed": "rank {rank} was killed ({signal}): usually by the kernel because the machine ran out of memory "
    "(host memory, not the GPU's)",
    "rank_crashed": "rank {rank} crashed in native code ({signal})",
    "rank_signalled": "rank {rank} was ended by {signal}",
    "rank_raised": "rank {rank}: {error}",
    "rank_exited": "rank {rank} ended with exit code {exit_code}",
    "rank_left_early": "rank {rank} ended before the others, which lost their connection to it",
    "rank_silent": "rank {rank} fell silent (it hung, or its process was held), and the others waited for it in vain",
    "rank_lost_peers": "rank {rank} lost another rank, or waited for it in vain: {error}",
    "rank_gone": "rank {rank} ended first; how is not known, for torchrun could write nothing: is the disk full?",
    "agent_killed": "torchrun's agent was killed ({signal}); its ranks ended with it",
    "agent_killed_on_node": "torchrun's agent was killed ({signal}) on {error}; all ranks ended with it",
    "agent_failed": "torchrun failed: {error}",
    "job_ended_by_slurm": "Slurm ended the batch job: {error} (TIMEOUT: its time limit; PREEMPTED: for another job)",
    "batch_job_ended": "the batch job ended as {error} before its own supervisor could say why",
    "not_submitted": "{field} {value}: not submitted: {reason}",
    "slurm_silent": "{field} {value}: Slurm does not answer here: {reason}",
    "slurm_deals_devices": "{field}: under Slurm it is Slurm that says who has which devices, and whether they are "
    "shared: leave it out; OverSubscribe of the partition, or sbatch's own variables, share nodes",
    "hosts_need_nodes": "{field} is {value}: --engine hosts needs the number of machines, this one included: 2 or more",
    "slurm_no_partition": "{field}: there is no partition {value}; it must be one of {choices}; nearest: {nearest}",
    "supervisor_failed": "the supervisor failed: {error}",
    "preflight_world_size": "{world_size} ranks do not fit one machine with {devices} devices ({nodes} nodes asked)",
    "preflight_partition": "partition {partition} is not up",
    "preflight_nodes": "{nodes} nodes with {each} {kind} each were asked for; partition {partition} has {num_nodes} "
    "with {has}",
    "preflight_devices": "{ranks} ranks on {asked} were asked for; this machine has: {here}: rehearse "
    'it (--rehearse), or give cluster.device = "local"',
    "claims_unreadable": "which runs hold the devices is not known: {value}: {reason}",
    "devices_held_by_run": "{value}: run {run} holds it: wait, stop that run, show this one other devices "
    "(CUDA_VISIBLE_DEVICES), or share (--share-devices)",
    "devices_held_by_process": "{value}: process {pid} ({name}, user {user}) computes there and holds {memory}: wait, "
    "show this run other devices (CUDA_VISIBLE_DEVICES), or share (--share-devices)",
    "devices_held_by_unseen_process": "{value}: process {pid}, which cannot be seen from here, computes there and "
    "holds {memory}: wait, show this run other devices (CUDA_VISIBLE_DEVICES), or share (--share-devices)",
    "preflight_fits": "it does not fit: {needed} of {available} on each device",
    "preflight_memory": "the ranks need more memory than is free here: {needed} of {available}",
    "preflight_platform": "runs need Linux; this is {platform}",
    "preflight_torch": "torch is not installed here",
    "preflight_runs_folder": "{path} cannot be written to",
    "preflight_disk": "{path}: {free} are free; {needed} are needed",
    # worker
    "builtin_no_context_parallel": "{field} is {value}: the built-in worker has no context parallelism; "
    "nearest: {nearest}",
    "builtin_no_expert_parallel": "{field} is {value}: the built-in worker has no expert parallelism; "
    "nearest: {nearest}",
    "builtin_uneven_rounds": "{field} is {value}: torch interleaves in {rounds} rounds of equal size, into which "
    "{microbatches} microbatches do not divide; nearest: {nearest}",
    "builtin_group_size": "{field} is {value}: torch runs {microbatches} microbatches on pp {pp} in groups of "
    "{nearest}; nearest: {nearest}",
    "builtin_no_offload": "{field} is {value}: the built-in worker keeps everything on the device; nearest: {nearest}",
    "builtin_no_experts": "{field} is {value}: the built-in worker builds dense layers only; nearest: {nearest}",
    "builtin_no_mla": "{field} is {value}: the built-in worker has no multi-head latent attention; nearest: {nearest}",
    "builtin_no_learned_positions": "{field} is {value}: the built-in worker uses rotary positions; nearest: {nearest}",
    "builtin_only_rmsnorm": "{field} is {value}: the built-in worker builds RMSNorm only; nearest: {nearest}",
    "builtin_precision": "{field} is {value}: the built-in worker runs {choices}; nearest: {nearest}",
    "builtin_optimizer": "{field} is {value}: the built-in worker has {choices}; nearest: {nearest}",
    "builtin_only_full_training": "{field} is {value}: the built-in worker trains all weights; nearest: {nearest}",
    "builtin_only_two_norms": "{field} is {value}: the built-in worker builds two norms a layer; nearest: {nearest}",
    "builtin_only_final_norm": "{field} is {value}: the built-in worker ends with a norm; nearest: {nearest}",
    "builtin_only_gated_mlp": "{field} is {value}: the built-in worker builds gated MLPs only; nearest: {nearest}",
    "builtin_no_bias": "{field} is {value}: the built-in worker has biases on query, key and value only; "
    "nearest: {nearest}",
    "builtin_qk_norm": "{field} is {value}: the built-in worker knows none and head; nearest: {nearest}",
    "builtin_no_window": "{field} is {value}: the built-in worker attends to all tokens before; nearest: {nearest}",
    "builtin_no_other_value_head": "{field} is {value}: the built-in worker's value heads are as wide as its query "
    "heads; nearest: {nearest}",
    "builtin_no_extra_parameters": "{field} is {value}: the built-in worker does not build them; nearest: {nearest}",
    "builtin_vocabulary_not_divisible": "{field} is {value}: the built-in worker does not pad the vocabulary, which "
    "must be divisible by tp = {tp}; nearest: {nearest}",
    "builtin_tied_over_stages": "{field} is {value}: with pp = {pp} the built-in worker cannot share the embedding "
    "between the first and the last stage; nearest: {nearest}",
    "builtin_odd_head": "{field} is {value}: rotary positions need an even width; nearest: {nearest}",
    "builtin_only_core_attention": "{field} is {value}: the built-in worker recomputes core_attn only, where "
    "recompute is selective; nearest: {nearest}",
    "builtin_no_graphs": "{field} is {value}: the built-in worker launches each operator; nearest: {nearest}",
    "builtin_no_fp8_inputs": "{field} is {value}: the built-in worker keeps them as they are; nearest: {nearest}",
    "builtin_not_deterministic": "{field} is {value}: the built-in worker has no such mode; nearest: {nearest}",
    "builtin_no_packing": "{field} is {value}: the built-in worker packs no sequences; nearest: {nearest}",
    "builtin_full_fp32": "{field} is {value}: the built-in worker multiplies fp32 in full; nearest: {nearest}",
    "builtin_no_prediction": "{field} is {value}: the built-in worker predicts the next token only; nearest: {nearest}",
    "builtin_no_launch_blocking": "{field} is {value}: the built-in worker's launches do not wait; nearest: {nearest}",
    "builtin_no_dropout": "{field} is {value}: the built-in worker has no dropout; nearest: {nearest}",
    "builtin_world_size": "{field} is {value}; the layout needs {needed} ranks: start so many processes, one a device "
    "(torchrun --nproc-per-node {needed} on one machine)",
    "builtin_no_device": "{field} is {value}; this machine shows {available} CUDA devices to the worker",
    "builtin_bytes": "{field} is {value}; text is read one token a byte, which needs {nearest} or more",
    "builtin_short_text": "{field}: {value} has {size} bytes; one sequence needs {needed}",
    # screens
    "start_token_needed": "Only the holder of the start token can launch or stop; open the address printed at start",
    "sequence_shortened": "{model} has a table of {value} positions: {field} is {value} now, it was {asked}",
    "address_not_read": "{field}={value} in the address cannot be read: {used} is taken instead",
    "address_layout_not_possible": "{field}={value} in the address is not possible here; the best layout is shown",
    "unknown_layout_code": "{field} is {value}; a chosen layout is written like tp4-pp2-dp8",
    "cannot_listen": "{field}: cannot listen on port {value}: {reason}",
    "upload_missing": "{field}: the uploaded model {value} is not kept here; drop the file again",
}
