"""What kind of work an operator or a kernel is, by its name: torch's own names, and those of the libraries' kernels."""

from __future__ import annotations

import re
from functools import lru_cache

KINDS = ("gemm", "attention", "communication", "elementwise", "other")
"""Kinds of work. elementwise: whatever else reads and writes tensors: norms, reductions, copies, updates. other: views,
allocations, operators of other libraries."""
_GEMM = re.compile(
    r"gemm|cutlass|cublas|nvjet|xmma|triton_tem|aten::(_\w+_)?(b|add|baddb|addb)?mm|aten::(mv|addmv|dot)$"
    r"|mkldnn_linear|convolution",
    re.IGNORECASE,
)
_ATTENTION = re.compile(r"flash|fmha|scaled_dot_product|efficient_attention|cudnn.*sdp", re.IGNORECASE)
_COMMUNICATION = re.compile(r"^(gloo:|mpi:|c10d::|_c10d_functional::)|nccl", re.IGNORECASE)
_BOOKKEEPING = re.compile(
    r"^aten::(t|transpose|permute|as_strided|view|_unsafe_view|reshape|_reshape_alias|expand|expand_as|detach|alias|slice"
    r"|select|split|split_with_sizes|chunk|unbind|narrow|unsqueeze|squeeze|view_as|resolve_conj|resolve_neg|empty|resize_"
    r"|empty_like|empty_strided|new_empty|new_empty_strided|flatten|unflatten|contiguous|movedim|diagonal|unfold|real|imag"
    r"|conj|view_as_real|view_as_complex|tensor_split|linear|matmul|einsum|to|_to_copy|item|_local_scalar_dense|set_|result_type|lift_fresh)$"
)
_ENCLOSING = re.compile(r"autograd::|torch::autograd::")


@lru_cache(maxsize=8192)
def kind_of(name: str, *, is_kernel: bool = False) -> str:
    """The kind of work of an operator or a kernel, by its name."""
    for kind, known in (("communication", _COMMUNICATION), ("attention", _ATTENTION), ("gemm", _GEMM)):
        if known.search(name):
            return kind
    if is_kernel or (name.startswith("aten::") and not _BOOKKEEPING.match(name)):
        return "elementwise"
    return "other"


@lru_cache(maxsize=8192)
def is_operator(name: str) -> bool:
    """Whether an event of the host is an operator or a message. Others only enclose some: autograd's nodes and engine,
    modules, optimizers, CUDA's calls; their own time is Python, or waiting."""
    return kind_of(name) == "communication" or ("::" in name and not _ENCLOSING.match(name))
