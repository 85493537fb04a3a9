"""Watch's cards: what a step costs now, against what was predicted."""

from __future__ import annotations

import numpy as np

from tpdpdash.compare.verdict import RECENT_STEPS
from tpdpdash.telemetry.analysis import usual
from tpdpdash.text import t
from tpdpdash.ui import parts, runs_view, watch_words
from tpdpdash.ui.live import Look
from tpdpdash.units import (
    UNKNOWN,
    format_count,
    format_difference,
    format_large,
    format_share,
    format_time,
    gib,
    with_error,
)

TREND_POINTS = 60


def _trend(values: np.ndarray) -> list[float]:
    known = values[np.isfinite(values)]
    return [float(v) for v in known[-TREND_POINTS:]]


def _against(measured: float | None, predicted: float | None) -> str:
    """ "+ 15 %" against the prediction, where both are known."""
    return format_difference(measured / predicted - 1) if measured and predicted else ""


def _predicted(written: str, look: Look) -> str:
    """ "predicted 20.9 ± 1.3 s"."""
    return t("predicted {figure}", figure=with_error(written, look.prediction.error_frac))


def metrics(look: Look) -> list[parts.Metric]:
    """The cards under the sentence."""
    expected, step_s, speed = look.prediction, look.band.max_s, look.tokens_per_s
    step, now_speed = usual(step_s, RECENT_STEPS), usual(speed, RECENT_STEPS)
    predicted_speed = expected.tokens_per_s
    return [
        parts.Metric(
            label=t("Step time"),
            value=format_time(step),
            unit=_against(step, expected.step_s),
            note=_predicted(format_time(expected.step_s), look) if expected.step_s else t("no prediction"),
            trend=_trend(step_s),
            help=t("Slowest rank, median of the last {n} steps.", n=RECENT_STEPS),
        ),
        parts.Metric(
            label=t("Tokens/s, all ranks"),
            value=format_large(now_speed),
            unit=_against(now_speed, predicted_speed),
            note=_predicted(format_large(predicted_speed), look) if predicted_speed else t("no prediction"),
            trend=_trend(speed),
        ),
        _loss_metric(look.loss),
        _memory_metric(look),
        _progress_metric(look, step),
    ]


def _loss_metric(loss: np.ndarray) -> parts.Metric:
    known = loss[np.isfinite(loss)]
    value = f"{known[-1]:.3f}" if len(known) else t(UNKNOWN)
    note = t("from {loss}", loss=f"{known[0]:.3f}") if len(known) > 1 else ""
    return parts.Metric(label=t("Loss"), value=value, note=note, trend=_trend(loss))


def _memory_metric(look: Look) -> parts.Metric:
    peak = look.telemetry.peak_memory_bytes
    if not np.isfinite(peak).any():
        return parts.Metric(label=t("Memory, worst rank"), value=t(UNKNOWN))
    by_rank = np.where(np.isnan(peak), -np.inf, peak).max(axis=1)
    worst = int(np.argmax(by_rank))
    capacity = look.prediction.capacity_bytes
    unit = t("of {n} GiB", n=f"{gib(capacity):,.1f}") if capacity else "GiB"
    trend = _trend(gib(np.where(np.isnan(peak), -np.inf, peak).max(axis=0)))
    note = t("rank {rank}", rank=worst) + (f" · {format_share(by_rank[worst] / capacity)}" if capacity else "")
    return parts.Metric(
        label=t("Memory, worst rank"), value=f"{gib(by_rank[worst]):,.2f}", unit=unit, note=note, trend=trend
    )


def _progress_metric(look: Look, step_s: float | None) -> parts.Metric:
    status = look.view.status
    done, total = watch_words.last_step(look.told), status.steps if status else None
    lasted = format_time(runs_view.duration_s(status))
    note = t("took {time}", time=lasted) if look.view.is_over else t("{time} so far", time=lasted)
    if total and done is not None and step_s and not look.view.is_over:
        note += " · " + t("{time} left", time=format_time(max(0, total - done) * step_s))
    return parts.Metric(
        label=t("Steps"),
        value=format_count(done),
        unit=t("of {total}", total=format_count(total)) if total else "",
        note=note,
    )
