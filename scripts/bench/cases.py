# SPDX-License-Identifier: GPL-2.0
"""Cases of the benchmark: traffic of lnet_lite, and its amount."""

from typing import NamedTuple


class Case(NamedTuple):
    """`count` operations, after `warm` operations that are not counted; `conc` at a time."""

    op: str
    size: int
    conc: int
    count: int
    warm: int

    def command(self, nid, count):
        # The pages are not adjacent: otherwise the number of adjacent pages, and so of gather elements, would be
        # random.
        return (
            f"traffic to={nid} op={self.op} size={self.size} conc={self.conc} count={count} "
            "shape=scatter tshape=scatter verify=off ask=0 timeout=120"
        )


# A ping is a small PUT and its ACK, both of them IMMEDIATE: two messages. A PUT is one message. A GET is two, of which
# the REPLY is the second.
CASES = {
    "ping x1": Case("put-ack", 200, 1, 300, 100),
    "ping x16": Case("put-ack", 200, 16, 1200, 300),
    "ping x64": Case("put-ack", 200, 64, 1600, 400),
    "PUT 4K x8": Case("put", 4096, 8, 500, 100),
    "GET 4K x8": Case("get", 4096, 8, 500, 100),
    "PUT 1M x8": Case("put", 1 << 20, 8, 48, 16),
    "GET 1M x8": Case("get", 1 << 20, 8, 48, 16),
}
# Cases of `make test`.
CHEAP = ("ping x1", "PUT 4K x8")
