"""Action lists whose backward is cut in two: the zero-bubble family and DualPipe.

torch: torch.distributed.pipelining.schedules 2.13; tests hold the lists to its own.
"""

from __future__ import annotations

from tpdpdash.schedule.action import Action, RankOrder


def zero_bubble_actions(pp: int, num_microbatches: int, depth: int) -> list[list[Action]]:
    """ZB-H1 (depth 1) and ZB-H2 (depth 2) of arXiv:2401.10241, figures 3 and 4.

    Rank r runs depth·(p − r − 1) forwards, then forward, input gradient and weight gradient in turn, where weight
    gradients lag by depth·r microbatches: the later the rank, the fewer forwards ahead and the more weight gradients
    behind, always depth·(p − 1) + 1 microbatches in all. Depth 1 equals torch's ScheduleInterleavedZeroBubble with one
    stage a rank.
    """
    return [_lagging(num_microbatches, depth * (pp - rank - 1), depth * rank) for rank in range(pp)]


def _lagging(num_microbatches: int, ahead: int, behind: int) -> list[Action]:
    order = RankOrder()
    ahead = min(ahead, num_microbatches)
    for _ in range(ahead):
        order.forward(0)
    for microbatch in range(num_microbatches):
        if microbatch < num_microbatches - ahead:
            order.forward(0)
        order.input_gradient(0)
        if microbatch >= behind:
            order.weight_gradient()
    for _ in range(num_microbatches):
        order.weight_gradient()
    return order.actions


def zb_v_actions(pp: int, num_microbatches: int) -> list[list[Action]]:
    """ZB-V of arXiv:2405.15362: two chunks in a V. Equals torch's ScheduleZBVZeroBubble: laid out for 2p − 1
    microbatches at least, of which those that there are not are dropped."""
    m = num_microbatches
    laid_out = max(2 * pp - 1, m)
    return [[a for a in _zb_v_rank(pp, laid_out, rank) if a.microbatch < m] for rank in range(pp)]


def _zb_v_rank(pp: int, m: int, rank: int) -> list[Action]:
    order, left = RankOrder(), pp - rank
    for _ in range(2 * left - 1):
        order.forward(0)
    for _ in range(rank):
        order.forward(1)
        order.forward(0)
    for _ in range(left):
        order.forward(1)
        _whole(order, 1)
    for turn in range(m - pp):
        if turn < m - (2 * pp - 1 - rank):
            order.forward(0)
        _whole(order, 0)
        order.forward(1)
        _whole(order, 1)
    for _ in range(rank):
        order.input_gradient(0)
        order.input_gradient(1)
    for _ in range(left):
        order.input_gradient(0)
        order.weight_gradient(0)
    for chunk in (1, 0):
        for _ in range(rank):
            order.weight_gradient(chunk)
    return order.actions


def _whole(order: RankOrder, chunk: int) -> None:
    """An input gradient and its own weight gradient."""
    order.input_gradient(chunk)
    order.weight_gradient()


def dualpipe_v_actions(pp: int, num_microbatches: int) -> list[list[Action]]:
    """DualPipe-V: two chunks in a V, forwards and backwards in pairs. Equals torch's ScheduleDualPipeV."""
    return [_dualpipe_rank(pp, num_microbatches, rank) for rank in range(pp)]


def dualpipe_actions(pp: int, num_microbatches: int) -> list[list[Action]]:
    """DualPipe: half of the microbatches run from each end through a model copy of their own.

    Ranks h and p − 1 − h together are rank h of a DualPipe-V over p / 2 ranks and half of the microbatches, once for
    each copy. Chunk = copy; the second copy's microbatches follow the first's in number. Source: DeepSeek-V3
    (arXiv:2412.19437) figure 5; github.com/deepseek-ai/DualPipe dualpipe.py.
    """
    half, each = pp // 2, num_microbatches // 2
    ranks = []
    for rank in range(pp):
        turned = rank >= half
        own = _dualpipe_rank(half, each, min(rank, pp - 1 - rank))
        ranks.append([_of_copy(action, turned, each) for action in own])
    return ranks


def _of_copy(action: Action, turned: bool, each: int) -> Action:
    copy = 1 - action.chunk if turned else action.chunk
    return action._replace(chunk=copy, microbatch=action.microbatch + copy * each)


def _dualpipe_rank(pp: int, m: int, rank: int) -> list[Action]:
    """The eight phases of DualPipe, by the names of its code's comments."""
    order, after = RankOrder(), pp - rank - 1
    for _ in range(2 * after):  # nF0
        order.forward(0)
    for _ in range(rank + 1):  # nF0F1
        order.forward(0)
        order.forward(1)
    for _ in range(after):  # nB1W1F1
        _whole(order, 1)
        order.forward(1)
    for turn in range(m - 2 * pp + rank + 1):  # nF0B1F1B0
        if turn == 0 and rank == pp - 1:  # the middle of the V has nothing to hide yet
            order.forward(0)
            order.backward(1)
        else:
            order.pair(0, 1)
        order.pair(1, 0)
    for _ in range(after):  # nB1F1B0
        order.backward(1)
        order.pair(1, 0)
    for turn in range(2 * rank + 2):  # nB1B0: the later half leaves weight gradients for the drain
        chunk = 1 - turn % 2
        if turn > rank:
            order.input_gradient(chunk)
        else:
            order.backward(chunk)
    for _ in range(after):  # nWB0
        order.weight_gradient()
        order.input_gradient(0)
    for _ in range(rank + 1):  # nW
        order.weight_gradient()
    return order.actions
