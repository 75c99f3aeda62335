# SPDX-License-Identifier: GPL-2.0
"""Choice of a rail by LNet, and the reason why it avoids the other rail.

LNet takes the net whose NIs, its own and the peer's, have the higher health, and sends nothing new over the other net.
Each failed message costs a tenth of the health, each received message restores it. So LNet does not use a rail on which
messages fail repeatedly, and lnetctl shows its state: the maximal `health value` is 1000.
"""

import re
import time

from lustre import KO, OURS
from lustrefs import rxe_mr_errors

WHOLE = 1000
NI = re.compile(r"^\s*-\s+nid: (\S+)$", re.MULTILINE)
FIELD = re.compile(r"^\s*(status|fatal_error|health value|ping_count|next_ping): (-?\w+)$", re.MULTILINE)
# Tries of a ping that may break the connection of ko2iblnd.
TRIES = 5


def healths(shown):
    """Returns the fields of each NID in `lnetctl net show -v 3` or `lnetctl peer show -v 3`: a dict of dicts."""
    _head, *parts = NI.split(shown)
    told = ({k: int(v) if v.lstrip("-").isdigit() else v for k, v in FIELD.findall(part)} for part in parts[1::2])
    return dict(zip(parts[::2], told))


class Rail:
    """Rail of two nodes, observed while LNet does not use it."""

    def __init__(self, nodes, number):
        self.nodes, self.nids = nodes, [rail_nid(node, number) for node in nodes]
        self.before = [rxe_mr_errors.count(node) for node in nodes]
        self.samples = []

    def look(self):
        """Takes a sample: for each node its own NI, and its peer's."""
        sample = []
        for node, own, other in zip(self.nodes, self.nids, reversed(self.nids)):
            shown = node.sh("lnetctl net show -v 3; echo ,; lnetctl peer show -v 3").split("\n,\n")
            sample.append((healths(shown[0])[own], healths(shown[1]).get(other, {})))
        self.samples.append(sample)

    def told(self):
        """Returns all data about the rail, for an analysis."""
        text = [f"refused {self.before}, then {[rxe_mr_errors.count(node) for node in self.nodes]}"]
        for sample in self.samples[-10:]:
            text += [f"{node.guest.name} ({node.lnd}): {own}, its peer {peer}" for node, (own, peer) in zip(self.nodes, sample)]
        for node in self.nodes:
            recovering = "lnetctl debug recovery -l; lnetctl debug recovery -p; lnetctl stats show; cut -d' ' -f1 /proc/uptime"
            text.append(f"{node.guest.name}: {node.guest.run(recovering)[1]}")
        return "\n".join(text)

    def assert_avoided(self):
        """Checks that LNet avoids the rail because ko2iblnd's messages over it fail: its device refuses its
        registrations, which are counted. The part of ro2iblnd works: the NI is up and healthy, no registration of it
        was refused, and ko2iblnd's messages over the rail are answered."""
        now = [rxe_mr_errors.count(node) for node in self.nodes]
        marred = False
        for node, was, count, looks in zip(self.nodes, self.before, now, zip(*self.samples)):
            marred |= any(peer.get("health value", WHOLE) < WHOLE for _own, peer in looks)
            if node.lnd == OURS:
                assert count == was, f"{node.guest.name}: {count - was} of its registrations were refused\n{self.told()}"
                last = looks[-1][0]
                assert last["status"] == "up" and last["fatal_error"] == 0, self.told()
                assert any(own["health value"] == WHOLE for own, _peer in looks), self.told()
            else:
                assert count > was, f"no registration was refused\n{self.told()}"
        assert marred, f"LNet finds the rail healthy\n{self.told()}"
        self.assert_works()

    def assert_works(self):
        """Checks that a ping works. ko2iblnd's GET has no data, so it needs no region. ro2iblnd answers it."""
        for node, own, other in zip(self.nodes, self.nids, reversed(self.nids)):
            if node.lnd != KO:
                continue
            for _ in range(TRIES):
                status, out = node.guest.run(f"lnetctl ping --timeout 15 --source {own} {other}", 45)
                if status == 0 and "errno" not in out:
                    break
                time.sleep(1)
            else:
                raise AssertionError(f"{own} gets no answer from {other}: {out}\n{self.told()}")


def rail_nid(node, number):
    return f"10.0.{number}.{node.guest.number}@o2ib{number or ''}"
