# SPDX-License-Identifier: GPL-2.0
"""o2ib messages as bytes: valid ones and, with changed fields, wrong ones.

They follow the protocol's tables, not the driver, so that both must agree. The native byte order is little-endian here.
order=">" makes messages of a big-endian peer.
"""

import ipaddress
import itertools
import struct

MAGIC = 0x0BE91B91
V1, V2 = 0x11, 0x12
CONNREQ, CONNACK = 0xC0, 0xC1
NOOP, IMMEDIATE = 0xD0, 0xD1
PUT_REQ, PUT_NAK, PUT_ACK, PUT_DONE = 0xD2, 0xD3, 0xD4, 0xD5
GET_REQ, GET_DONE = 0xD6, 0xD7
ACK, PUT, GET, REPLY, HELLO = range(5)
MSG_SIZE = 4096
HDR_LEN = 48
LNET_HDR_LEN = 72

# Reject reasons
RACE, NO_RESOURCES, FATAL, UNCOMPAT, STALE, FRAGS, QUEUE_SIZE, SRV_ID, EARLY = range(1, 10)
CONSUMER_DEFINED = 28  # the CM's own reject reason, which means: see the private data

PING_PORTAL, PING_BITS = 0, 0x8000000000000000


def nid(address, lnd=5, net=0):
    """Returns the 64 bit form of an address such as 10.0.0.1."""
    a, b, c, d = (int(x) for x in address.split("."))
    return lnd << 48 | net << 32 | a << 24 | b << 16 | c << 8 | d


def checksum(data):
    total = 0
    for byte in data:
        total = ((total << 1 | total >> 31) + byte) & 0xFFFFFFFF
    return total or 1


def message(
    kind, src, dst, body=b"", srcstamp=0, dststamp=0, credits=0, version=V2, magic=MAGIC,
    nob=None, cksum=0, order="<",
):  # fmt: skip
    """Returns one message. cksum: a number, or True for the right checksum."""
    nob = HDR_LEN + len(body) if nob is None else nob

    def build(sum_):
        head = struct.pack(order + "IHBBII", magic, version, kind, credits, nob, sum_)
        return head + struct.pack(order + "QQQQ", src, srcstamp, dst, dststamp) + body

    if cksum is True:
        cksum = checksum(build(0))
    return build(cksum)


def params(depth=8, frags=257, size=MSG_SIZE, order="<"):
    return struct.pack(order + "HHI", depth, frags, size)


def lnet_header(kind, src, dst, payload=0, command=b"", pid=12345):
    """Returns an LNet header, which is always little-endian."""
    return struct.pack("<QQIIII", dst, src, pid, pid, kind, payload) + command.ljust(40, b"\0")


def put_command(portal=PING_PORTAL, bits=0, hdr_data=0, offset=0):
    return b"\xff" * 16 + struct.pack("<QQII", bits, hdr_data, portal, offset)


def get_command(portal=PING_PORTAL, bits=PING_BITS, sink=0, offset=0, wmd=(1, 1)):
    return struct.pack("<QQQIII", *wmd, bits, portal, offset, sink)


def descriptor(key, frags, count=None, order="<"):
    """Returns an RDMA descriptor. frags: [(length, address)]; count: the value of nfrags."""
    data = struct.pack(order + "II", key, len(frags) if count is None else count)
    return data + b"".join(struct.pack(order + "IQ", *f) for f in frags)


def done(cookie, status, order="<"):
    return struct.pack(order + "Qi", cookie, status)


def parse(data):
    """Returns the header of a message, and its body, as a dict."""
    magic, version, kind, credits, nob, cksum = struct.unpack_from("<IHBBII", data)
    src, srcstamp, dst, dststamp = struct.unpack_from("<QQQQ", data, 16)
    return {
        "magic": magic, "version": version, "kind": kind, "credits": credits, "nob": nob,
        "cksum": cksum, "src": src, "srcstamp": srcstamp, "dst": dst, "dststamp": dststamp,
        "body": data[HDR_LEN:nob],
    }  # fmt: skip


def parse_params(body):
    depth, frags, size = struct.unpack_from("<HHI", body)
    return {"depth": depth, "frags": frags, "size": size}


def reject(why, incarnation=0, depth=8, frags=257, size=MSG_SIZE, version=V2, magic=MAGIC, order="<"):
    return struct.pack(order + "IHBBQHHI", magic, version, why, 0, incarnation, depth, frags, size)


def parse_reject(data):
    magic, version, why, _pad, incarnation, depth, frags, size = struct.unpack_from("<IHBBQHHI", data)
    return {
        "magic": magic, "version": version, "why": why, "incarnation": incarnation,
        "depth": depth, "frags": frags, "size": size,
    }  # fmt: skip


def gid(address):
    """Returns the GID of an IPv4 address on RoCE."""
    return bytes(10) + b"\xff\xff" + ipaddress.IPv4Address(address).packed


NUMBERS = itertools.count(77)


def cm_request(here, there, address, port, service, data):
    """Returns a REQ of the InfiniBand CM (volume 1, 12.6.5) with the RDMA CM's header (annex A11), from the GID of
    `here`. The header has `address` and `port`."""
    number = next(NUMBERS)
    mad = struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, number, 0x10, 0, 0)
    req = struct.pack(">IIQQII", number, 0, 0x1060000 + service, 0x42, 0, 0)
    # An RC queue pair of that number, timeouts of four seconds, 7 retries.
    req += struct.pack(">IIII", number << 8 | 1, 1, 20 << 3, 5 << 8 | 20 << 3 | 7)
    req += struct.pack(">HBBHH", 0xFFFF, 3 << 4 | 7, 15 << 4, 0, 0) + gid(here) + gid(there)
    req += struct.pack(">IBBBB", 3, 0, 64, 8, 18 << 3) + bytes(44)
    addresses = b"".join(bytes(12) + ipaddress.IPv4Address(a).packed for a in (address, there))
    req += struct.pack(">BBH", 0, 4 << 4, port) + addresses + data.ljust(56, b"\0")
    assert len(mad + req) == 256
    return mad + req
