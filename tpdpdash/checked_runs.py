"""The short runs with which a calibration checks its own figures: small models in the layouts that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from tpdpdash.cluster.detection import HostMemory
from tpdpdash.cluster.local import cpu_cluster
from tpdpdash.cluster.measured import MeasuredFile
from tpdpdash.job import Job
from tpdpdash.layout.layout import LayoutPins
from tpdpdash.model.spec import ModelSpec
from tpdpdash.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """One short run of the built-in worker in fp32."""

    tp: int = 1
    """Tensor parallel degree."""
    pp: int = 1
    """Pipeline parallel degree."""
    dp: int = 1
    """Data parallel degree."""
    hidden_size: int
    """Hidden size."""
    ffn_hidden_size: int
    """FFN size."""
    num_layers: int
    """Layers."""
    vocab_size: int
    """Vocabulary."""
    seq_len: int
    """Tokens of a sequence."""
    global_batch_size: int
    """Sequences of a step, each a microbatch."""

    @classmethod
    def of(cls, sizes: Sequence[int]) -> CheckedRun:
        """The run whose `sizes` these are. Raises ValueError."""
        return cls(**dict(zip((field.name for field in fields(cls)), sizes, strict=True)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """All fields in their order, as a measurement holds them."""
        return astuple(self)

    @property
    def num_ranks(self) -> int:
        """Ranks that it runs on."""
        return self.tp * self.pp * self.dp

    @property
    def layout_name(self) -> str:
        """tp2, pp2, dp2; 1 rank is tp1."""
        return next((f"{k}{v}" for k, v in (("pp", self.pp), ("dp", self.dp)) if v > 1), f"tp{self.tp}")

    def job(self, *, cores: int, measured: MeasuredFile | None = None) -> Job:
        """The job on a machine of as many cores, by its measured figures."""
        host = HostMemory(total_bytes=None, available_bytes=None, cores=cores)
        heads = 4
        return Job(
            name="check",
            model=ModelSpec(
                name="check",
                num_layers=self.num_layers,
                hidden_size=self.hidden_size,
                num_attention_heads=heads,
                num_kv_heads=heads,
                head_dim=self.hidden_size // heads,
                ffn_hidden_size=self.ffn_hidden_size,
                vocab_size=self.vocab_size,
            ),
            cluster=cpu_cluster(host, ranks=self.num_ranks, measured=measured),
            training=Training(
                seq_len=self.seq_len,
                global_batch_size=self.global_batch_size,
                precision="fp32",
                framework="builtin",
            ),
            pins=LayoutPins(tp=self.tp, pp=self.pp, dp=self.dp),
        )


LAYOUTS = ({"tp": 1}, {"tp": 2}, {"pp": 2}, {"dp": 2})
SIZES = (
    {"hidden_size": 256, "ffn_hidden_size": 688, "num_layers": 4, "vocab_size": 1024, "seq_len": 128},
    {"hidden_size": 128, "ffn_hidden_size": 344, "num_layers": 4, "vocab_size": 1024, "seq_len": 128},
)
"""Steps of a half and a fifth of a second on a core of 2020."""
TINY_SIZE = {"hidden_size": 32, "ffn_hidden_size": 64, "num_layers": 2, "vocab_size": 64, "seq_len": 16}


def checked_runs(*, tiny: bool = False) -> tuple[CheckedRun, ...]:
    """Every layout of every size; all of them run on two ranks."""
    sizes = (TINY_SIZE,) if tiny else SIZES
    return tuple(CheckedRun(**size, **layout, global_batch_size=8) for size in sizes for layout in LAYOUTS)
