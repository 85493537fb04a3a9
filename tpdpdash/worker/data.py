"""What the built-in worker trains on: synthetic tokens by seed, or a text file, one token a byte.

Sequence i of step n is the same for every layout; a replica reads its own part of the global batch.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tpdpdash.faults import Fault, InvalidInputError

NUM_BYTES = 256
"""Tokens of a byte vocabulary."""
SKEW = 3.0
"""Token = ⌊V · u^SKEW⌋ with u uniform: low ids are frequent, so that there is something to learn and the loss falls."""

SEED_STRIDE = 1_000_003
"""Distance between the sequences of one seed and of the next; a prime."""


class SyntheticTokens:
    """Independent tokens from a skewed distribution over the vocabulary."""

    __slots__ = ("_seed", "_seq_len", "_vocab_size")

    def __init__(self, *, vocab_size: int, seq_len: int, seed: int) -> None:
        self._vocab_size, self._seq_len, self._seed = vocab_size, seq_len, seed

    def sequence(self, index: int) -> torch.Tensor:
        """Sequence `index` of the run: seq_len + 1 tokens, int64, on the CPU."""
        # The CPU generator takes 32 bits of a seed: sequences of one run stay distinct, other runs start elsewhere.
        generator = torch.Generator().manual_seed((self._seed * SEED_STRIDE + index) % 2**32)
        uniform = torch.rand(self._seq_len + 1, generator=generator, dtype=torch.float64)
        return (self._vocab_size * uniform**SKEW).long()


class TextTokens:
    """Consecutive windows of a file's bytes, from the start again at its end."""

    __slots__ = ("_content", "_num_windows", "_seq_len")

    def __init__(self, path: Path, *, vocab_size: int, seq_len: int) -> None:
        """Raises InvalidInputError: the file is unreadable or too short, or the vocabulary has no 256 tokens."""
        try:
            content = path.read_bytes()
        except OSError as wrong:
            raise InvalidInputError(
                [Fault(code="file_unreadable", field="text", value=str(path), values={"reason": str(wrong)})]
            ) from wrong
        faults = []
        if vocab_size < NUM_BYTES:
            values = {"nearest": NUM_BYTES}
            faults.append(Fault(code="builtin_bytes", field="model.vocab_size", value=vocab_size, values=values))
        if len(content) < seq_len + 1:
            values = {"size": len(content), "needed": seq_len + 1}
            faults.append(Fault(code="builtin_short_text", field="text", value=str(path), values=values))
        if faults:
            raise InvalidInputError(faults)
        self._content = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._seq_len = seq_len
        self._num_windows = (len(content) - 1) // seq_len

    def sequence(self, index: int) -> torch.Tensor:
        """Sequence `index` of the run: seq_len + 1 tokens, int64, on the CPU."""
        start = index % self._num_windows * self._seq_len
        return self._content[start : start + self._seq_len + 1].long()


Tokens = SyntheticTokens | TextTokens


def replica_batch(
    tokens: Tokens, *, step: int, global_batch_size: int, dp: int, dp_rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one replica in step `step` (from 1), each (global_batch_size / dp, sequence)."""
    share = global_batch_size // dp
    first = (step - 1) * global_batch_size + dp_rank * share
    sequences = torch.stack([tokens.sequence(first + i) for i in range(share)])
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
