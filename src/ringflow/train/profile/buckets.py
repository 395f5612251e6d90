"""When gradients are handed over to be added up, and when their sums are there, while the backward runs (DDP)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ringflow.train.profile.records import Bucket
from ringflow.train.profile.watches import Watch


class _Handed(NamedTuple):
    size: int
    handed: Any
    there: list[Any]  # filled in by another thread


class Buckets:
    """Adds up gradients as torch does without it, bit for bit, and notes when."""

    def __init__(self, replicas: DistributedDataParallel, watch: Watch) -> None:
        self._watch = watch
        self._share = 1.0 / dist.get_world_size()
        self._under_way: list[_Handed] = []
        #: Bytes of all gradients.
        self.size = sum(weight.nbytes for weight in replicas.parameters() if weight.requires_grad)
        replicas.register_comm_hook(self, lambda self, bucket: self._hand_over(bucket))

    def _hand_over(self, bucket: Any) -> Future[Tensor]:
        gradients: Tensor = bucket.buffer().mul_(self._share)
        handed = _Handed(gradients.nbytes, self._watch.mark(), [])
        self._under_way.append(handed)

        def note(future: Future[list[Tensor]]) -> Tensor:
            handed.there.append(self._watch.mark())
            return future.value()[0]

        under_way: Future[list[Tensor]] = dist.all_reduce(gradients, async_op=True).get_future()
        return under_way.then(note)

    def take(self) -> tuple[Bucket, ...]:
        """Those of the backward that has just ended."""
        read = self._watch.read
        done = tuple(Bucket(handed.size, read(handed.handed), read(handed.there[0])) for handed in self._under_way)
        self._under_way.clear()
        return done
