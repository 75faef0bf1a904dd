"""Operations and bytes of a computation, counted as torch runs it: on real tensors, or on `meta` ones at no cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


@dataclass(frozen=True, slots=True)
class Counts:
    """The operations of a computation.

    Attributes:
        macs: multiply-accumulates of matrix products and convolutions: half of torch's counted operations.
        moved_bytes: tensors read and written by its operations, weights not among them.
        kernels: operations that computed something (views do not).
    """

    macs: int
    moved_bytes: int
    kernels: int


def counted(computation: Callable[[], Tensor], weights: Sequence[Tensor] = ()) -> tuple[Counts, Tensor]:
    """Run a computation and count it; `weights` are the tensors whose bytes are not feature maps.

    An agent's lanes may ask at once: each waits for its turn.
    """
    flops, traffic = FlopCounterMode(display=False, custom_mapping=_ATTENTION), _Traffic(weights)
    with _TURN, flops, traffic:
        result = computation()
    return Counts(flops.get_total_flops() // 2, traffic.moved_bytes, traffic.kernels), result


def _attention_flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


_ATTENTION: Final = {  # torch counts that of GPUs alone
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops
}


# torch makes an operator's Python object when a mode first sees it, and keeps a bare pointer to it (torch/_ops.py).
# Of two threads' objects one is freed, which may be the one pointed to.
_TURN: Final = RLock()


class _Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what each operation reads and writes."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights = {id(tensor): tensor for tensor in weights}  # kept, so that no other tensor gets such an id
        self.moved_bytes = 0
        self.kernels = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if func.is_view:
            if any(id(tensor) in self._weights for tensor in read):
                self._weights.update((id(tensor), tensor) for tensor in written)  # a weight seen another way
        else:
            self.kernels += 1
            moved = [tensor for tensor in (*read, *written) if id(tensor) not in self._weights]
            self.moved_bytes += sum(tensor.numel() * tensor.element_size() for tensor in moved)
        return result
