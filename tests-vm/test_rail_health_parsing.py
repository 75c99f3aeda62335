# SPDX-License-Identifier: GPL-2.0
"""Parsing of lnetctl's output about NIs in rail_health.py."""

from rail_health import healths

NET = """net:
-     net type: lo
      local NI(s):
      -     nid: 0@lo
            status: up
            health stats:
                  fatal_error: 0
                  health value: 0
                  ping_count: 0
                  next_ping: 0
-     net type: o2ib1
      local NI(s):
      -     nid: 10.0.1.1@o2ib1
            status: down
            interfaces:
                  0: eth1
            health stats:
                  fatal_error: 1
                  health value: 900
                  ping_count: 3
                  next_ping: -7
"""
PEER = """peer:
-     primary nid: 10.0.0.2@o2ib
      peer ni:
      -     nid: 10.0.0.2@o2ib
            state: NA
            health stats:
                  health value: 1000
                  dropped: 57
                  ping_count: 0
                  next_ping: 0
      -     nid: 10.0.1.2@o2ib1
            state: NA
            health stats:
                  health value: 800
                  dropped: 57
                  ping_count: 1
                  next_ping: 812
"""


def test_own():
    shown = healths(NET)
    assert list(shown) == ["0@lo", "10.0.1.1@o2ib1"]
    assert shown["10.0.1.1@o2ib1"] == {
        "status": "down", "fatal_error": 1, "health value": 900, "ping_count": 3, "next_ping": -7,
    }  # fmt: skip


def test_peer_health_parsing():
    shown = healths(PEER)
    assert [ni["health value"] for ni in shown.values()] == [1000, 800]
    assert shown["10.0.1.2@o2ib1"]["next_ping"] == 812
