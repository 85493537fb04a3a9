"""`watch` in one process: scaled losses, compiled models, several optimizers, an exception, evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rank_records import records

HEAD = """
import sys, torch
from torch import nn
from tpdpdash.telemetry.watch_torch import watch
torch.manual_seed(0)
model = nn.Linear(8, 1)
inputs = torch.ones(4, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
def step(called, *optimizers):
    loss = called(inputs).mean()
    loss.backward()
    for each in optimizers or (optimizer,):
        each.step()
    return loss.item()
"""


def script(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run it as rank 0 of a run, without the sitecustomize."""
    environment = {**os.environ, "TPDPDASH_RUN_DIR": str(folder), "RANK": "0", "WORLD_SIZE": "1"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + code],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_losses_are_told_unscaled_summed_over_microbatches_and_without_evaluation(tmp_path: Path) -> None:
    code = """
watch(model, tokens_per_step=32)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
told = []
for _ in range(3):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(2):
        loss = model(inputs).mean() / 2
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        model(inputs)
    told.append(total)
print(told)
"""
    ended = script(tmp_path, code)
    assert ended.returncode == 0, ended.stderr
    steps = records(tmp_path, "step")
    assert [step["loss"] for step in steps] == pytest.approx(json.loads(ended.stdout))
    assert {step["tokens"] for step in steps} == {32}
    assert "other" in steps[1]["phase_s"], "an evaluation is no forward"
    assert records(tmp_path, "event")[-1]["name"] == "finished"


def test_several_optimizers_make_one_step(tmp_path: Path) -> None:
    code = """
other = torch.optim.SGD(model.parameters(), 0.01)
watch(model)
for _ in range(4):
    step(model, optimizer, other)
"""
    assert script(tmp_path, code).returncode == 0
    assert [step["step"] for step in records(tmp_path, "step")] == [1, 2, 3, 4]


def test_a_compiled_model_is_compiled_whole_and_its_steps_are_told(tmp_path: Path) -> None:
    code = """
watch(model)
compiled = torch.compile(model, backend="eager", fullgraph=True)
watch(compiled)
for _ in range(4):
    step(compiled)
"""
    ended = script(tmp_path, code)
    assert ended.returncode == 0, ended.stderr
    last = records(tmp_path, "step")[-1]
    assert last["step"] == 4
    assert {"forward", "backward", "optimizer"} <= set(last["phase_s"])


def test_an_exception_is_told_without_the_probes_lines_and_is_the_last_word(tmp_path: Path) -> None:
    code = """
class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given): return given.clone()
    @staticmethod
    def backward(ctx, gradient): raise ValueError("bad gradient")
watch(model)
Bad.apply(model(inputs)).mean().backward()
"""
    ended = script(tmp_path, code)
    assert ended.stderr.strip().endswith("ValueError: bad gradient")
    last = records(tmp_path, "event")[-1]
    assert (last["name"], last["error"]) == ("error", "ValueError: bad gradient")
    assert "watch_torch" not in str(last["traceback"])
    assert "in backward" in str(last["traceback"])


def test_outside_a_run_nothing_is_put_into_torch(tmp_path: Path) -> None:
    code = """
import os
del os.environ["TPDPDASH_RUN_DIR"]
plain = torch.autograd.backward, torch.distributed.Work.wait
watch(model)
assert (torch.autograd.backward, torch.distributed.Work.wait) == plain
assert not model._forward_hooks
"""
    ended = script(tmp_path, code)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "telemetry").exists()


def test_a_probe_that_breaks_says_so_and_the_script_goes_on(tmp_path: Path) -> None:
    code = """
del torch.utils.data.dataloader._BaseDataLoaderIter  # as another torch might
watch(model)
print(step(model))
"""
    ended = script(tmp_path, code)
    assert ended.returncode == 0, ended.stderr
    assert [event["name"] for event in records(tmp_path, "event")][:1] == ["probe_failed"]
