# SPDX-License-Identifier: GPL-2.0
"""What happens to the nodes in a soak, drawn from a seed: the same faults in the same order for the same seed. When
each of them comes depends on how long I/O stood still after those before it."""

import random
from typing import Callable, NamedTuple

from . import events

CLIENT, SERVER, BOTH = "client", "server", "both"
EITHER = (CLIENT, SERVER)


class Kind(NamedTuple):
    """`where`: who may be hit. `seconds`: how long it may last. `numbers`: what else is drawn for it."""

    event: Callable
    where: tuple
    seconds: tuple = ()
    numbers: tuple = ()


# Shorter and longer than what rxe repeats for, than the 3 s that a lost link is waited for, and than the 4.3 s after
# which the connection manager says something again.
KINDS = (
    Kind(events.device, EITHER, (0.2, 6)),
    Kind(events.interface, EITHER, (0.2, 8)),
    Kind(events.carrier, EITHER, (0.2, 8)),
    Kind(events.silence, (BOTH,), (0.2, 6)),
    Kind(events.loss, (BOTH,), (5, 30)),
    Kind(events.ni, EITHER, (0, 2)),
    Kind(events.reload, EITHER),
    Kind(events.conns_per_peer, EITHER, numbers=(1, 2, 4)),
    Kind(events.checksums, EITHER, numbers=(0, 1)),
)
# Seconds of quiet between two of them; few pauses are long.
PAUSE_MEAN, PAUSE_MOST = 4, 20


class Fault(NamedTuple):
    event: Callable
    where: str
    args: tuple
    pause: float

    def takes_ni_of(self, role):
        """Whether LNet deletes the NI of the node with that role."""
        return self.where == role and self.event in (events.ni, events.reload)

    def __str__(self):
        return f"{self.where}: {self.event.__name__}{''.join(f' {arg}' for arg in self.args)}"


def faults(seed):
    """Without end. All kinds come before any comes again."""
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
