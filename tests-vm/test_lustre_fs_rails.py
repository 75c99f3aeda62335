# SPDX-License-Identifier: GPL-2.0
"""A file system over two rails, of which one goes away and comes back. Run by `make test-lustre-fs LUSTRE=...`.

Each node has an NI on each of two nets, and LNet's Multi-Rail uses both. Data has to be right, no I/O may fail, and
Lustre must not notice: no connection to a target is lost, no request waits for its timeout. The removal of a device is
an exception: Lustre's memory that a transfer is writing to goes back with an error, because LNet cannot restart the
transfer. When the rail is back both rails carry messages again. The table has the stalls of I/O. Only nodes with
ro2iblnd lose a rail.
"""

import time

import pytest
from lustre import OURS
from lustrefs import fault_kinds, loads
from nodes import until
from test_lustre import names
from test_lustre_fs import AFTER, BEFORE, BOTH, CLIENT, LONG, PAIRINGS, SERVER, Measure, beds, prober, pytestmark, tree, until_time  # noqa: F401

# Seconds. LNet tries a rail that it avoids once a second, and restores its health step by step.
AGAIN = 120
RAILS = {"rails": 2}
SHORT = ((fault_kinds.interface, CLIENT), (fault_kinds.carrier, SERVER))
FAULTS = [
    pytest.param(event, where, marks=[] if (event, where) in SHORT else LONG)
    for event, where in (
        (fault_kinds.interface, CLIENT),
        (fault_kinds.interface, SERVER),
        (fault_kinds.carrier, CLIENT),
        (fault_kinds.carrier, SERVER),
        (fault_kinds.device, CLIENT),
        (fault_kinds.device, SERVER),
        (fault_kinds.silence, BOTH),
    )
]


@pytest.fixture(scope="module", params=PAIRINGS, ids=names)
def pairing(request):
    """Returns the drivers of the client and of the server."""
    return request.param


@pytest.fixture
def bed(beds, pairing, request):  # noqa: F811
    with beds.mounted(request, pairing, **RAILS) as taken:
        yield taken


def both_carry(node):
    """Returns the seconds until both rails carry messages."""
    began = time.monotonic()

    def both():
        start = node.sent()
        time.sleep(1)
        return all(now > was + 5 for now, was in zip(node.sent(), start))

    until(both, "both rails carry messages", timeout=AGAIN, pause=0)
    return time.monotonic() - began


@pytest.mark.parametrize(("event", "where"), FAULTS, ids=lambda x: getattr(x, "__name__", x))
def test_one_of_two(beds, bed, event, where):  # noqa: F811
    """One rail goes away and comes back under verified I/O."""
    node = None if where == BOTH else bed.role(where)
    if node is not None and node.lnd != OURS:
        pytest.skip(f"the {where} has {node.lnd}")
    what = event.__doc__ if where == BOTH else f"{where}: {event.__doc__}"
    with Measure(beds, bed, f"one of two rails; {what}") as row:
        with loads.Load(bed) as load:
            both_carry(bed.client)
            until_time(bed, load, BEFORE)
            began = bed.client.clock()
            event(bed, node)
            gone = bed.client.clock()
            back = both_carry(bed.client)
            until_time(bed, load, AFTER)
        row.load(load)
        row.stall, row.after = load.longest(began), load.stalled_after(gone)
        row.note = f"both rails carry messages {back:.1f} s later"
        lost, late = row.log.lost(), row.log.timed_out()
    if bed.pairing == (OURS, OURS) and event is not fault_kinds.device:
        assert lost == late == 0, f"{lost} connections to targets lost, {late} requests timed out"


def test_unmount(beds, pairing):  # noqa: F811
    """Unmounting and unloading at the end leave nothing behind."""
    if beds.bed is None or beds.bed.pairing != pairing or beds.options != RAILS:
        pytest.skip("the last row failed, and its guests are gone")
    beds.bed.down()
    beds.discard()
