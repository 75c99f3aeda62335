# SPDX-License-Identifier: GPL-2.0
"""Faults of a soak, drawn from a seed: the same seed has the same faults in the same order. The time of each depends on
the stalls of I/O after the faults before it."""

import random
from typing import Callable, NamedTuple

from . import fault_kinds

CLIENT, SERVER, BOTH = "client", "server", "both"
EITHER = (CLIENT, SERVER)


class Kind(NamedTuple):
    """Kind of fault. `where`: nodes that it may hit. `seconds`: range of its length. `numbers`: choices for its other
    argument."""

    event: Callable
    where: tuple
    seconds: tuple = ()
    numbers: tuple = ()


# Lengths shorter and longer than rxe's retries, than the 3 s for which the driver waits for a lost link, and than the
# 4.3 s after which the connection manager repeats a message.
KINDS = (
    Kind(fault_kinds.device, EITHER, (0.2, 6)),
    Kind(fault_kinds.interface, EITHER, (0.2, 8)),
    Kind(fault_kinds.carrier, EITHER, (0.2, 8)),
    Kind(fault_kinds.silence, (BOTH,), (0.2, 6)),
    Kind(fault_kinds.loss, (BOTH,), (5, 30)),
    Kind(fault_kinds.ni, EITHER, (0, 2)),
    Kind(fault_kinds.reload, EITHER),
    Kind(fault_kinds.conns_per_peer, EITHER, numbers=(1, 2, 4)),
    Kind(fault_kinds.checksums, EITHER, numbers=(0, 1)),
)
# Seconds of quiet between two faults. Few pauses are long.
PAUSE_MEAN, PAUSE_MOST = 4, 20


class Fault(NamedTuple):
    event: Callable
    where: str
    args: tuple
    pause: float

    def takes_ni_of(self, role):
        """Returns whether LNet deletes the NI of the node with that role."""
        return self.where == role and self.event in (fault_kinds.ni, fault_kinds.reload)

    def __str__(self):
        return f"{self.where}: {self.event.__name__}{''.join(f' {arg}' for arg in self.args)}"


def faults(seed):
    """Yields faults without end. Each kind comes once before any kind is repeated."""
    chance = random.Random(seed)
    while True:
        for kind in chance.sample(KINDS, len(KINDS)):
            args = ()
            if kind.seconds:
                args = (round(chance.uniform(*kind.seconds), 1),)
            if kind.numbers:
                args = (chance.choice(kind.numbers),)
            pause = round(min(chance.expovariate(1 / PAUSE_MEAN), PAUSE_MOST), 1)
            yield Fault(kind.event, chance.choice(kind.where), args, pause)
