# SPDX-License-Identifier: GPL-2.0
"""Control of the hostile peer in a guest. See hostile_peer.c and wire.py."""

from . import wire

ADDRESS = "10.0.0.3"
PROGRAM = "/files/hostile_peer"
STAMP = 0x1122334455667788


def reject_in(answer):
    """Returns the reject in the answer to a request. None if the peer gave no reason."""
    assert int(answer["status"]) == wire.CONSUMER_DEFINED, answer
    data = bytes.fromhex(answer.get("private", ""))
    return wire.parse_reject(data) if any(data) else None


class HostilePeer:
    """Hostile peer at 10.0.0.3, an address of its own in the guest."""

    def __init__(self, guest):
        self.guest = guest
        self.nid = wire.nid(ADDRESS)
        # This address is beside that of the guest's honest NI. rxe makes a GID of it.
        guest.run(f"ip addr add {ADDRESS}/24 dev eth0")
        self.job = guest.spawn(f"{PROGRAM} serve")
        guest.check("n=0; while [ ! -S /tmp/hostile_peer.sock ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done; [ -S /tmp/hostile_peer.sock ]", 120)
        self.names = 0

    def stop(self):
        """Stops the peer. The kernel frees its objects."""
        if self.guest.alive() and self.job.poll() is None:
            self.job.kill()
            self.job.wait(60)
            self.guest.check("rm -f /tmp/hostile_peer.sock")

    def do(self, *words, timeout=150, ok=True):
        out = self.guest.check(" ".join([PROGRAM, *(str(w) for w in words)]), timeout)
        answer = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        if ok:
            assert answer.get("rc") == "0", f"hostile {words}: {out}"
        return answer

    def name(self):
        self.names += 1
        return f"c{self.names}"

    def connreq(self, to, **change):
        """Returns a valid CONNREQ for the NI at address `to`, with changes by keywords."""
        fields = {"srcstamp": STAMP, "src": self.nid, "dst": wire.nid(to), "kind": wire.CONNREQ}
        body = change.pop("body", None)
        if body is None:
            limits = {k: change.pop(k) for k in ("depth", "frags", "size") if k in change}
            body = wire.params(**limits, order=change.get("order", "<"))
        fields.update(change)
        return wire.message(fields.pop("kind"), fields.pop("src"), fields.pop("dst"), body, **fields)

    def ask(self, dst, data, sport=0, recvs=64, ms=100000):
        """Sends a connection request. Returns (name, answer)."""
        name = self.name()
        return name, self.do("connect", name, ADDRESS, sport, dst, 987, data.hex() or "-", recvs, ms)

    def again(self, dst, data, seconds, ms):
        """Connects, and closes at once, for `seconds`, until an attempt does not end like that within `ms`. Returns the
        number of connections, and the event that came in place of one."""
        words = ("again", seconds, ADDRESS, 0, dst, 987, data.hex() or "-", 0, ms)
        answer = self.do(*words, timeout=2 * seconds + 60)
        return int(answer["made"]), answer.get("event")

    def make_up(self, dst, address, port, data, origin=ADDRESS):
        """Sends a connection request as if the CM of this node had made it, for an address other than its own. Or as if
        the CM of `origin` had, which then gets the answer."""
        self.do("mad", ADDRESS, dst, wire.cm_request(origin, dst, address, port, 987, data).hex())

    def event(self, name, ms):
        """Returns the next event of a connection, as for rejected()."""
        return self.do("event", name, ms, timeout=ms / 1000 + 60)

    def rejected(self, dst, data, **options):
        """Returns the reject of a connection request as a dict. None if it gets none."""
        name, answer = self.ask(dst, data, **options)
        self.do("close", name)
        if answer["event"] != "RDMA_CM_EVENT_REJECTED":
            assert answer["event"] in ("none", "RDMA_CM_EVENT_UNREACHABLE"), answer
            return None
        return reject_in(answer)

    def connect(self, dst, recvs=64, **change):
        """Returns a connection that the victim takes for a valid one."""
        name, answer = self.ask(dst, self.connreq(dst, **change), recvs=recvs)
        assert answer["event"] == "RDMA_CM_EVENT_ESTABLISHED", answer
        return Conn(self, name, dst, bytes.fromhex(answer["private"]), change.get("srcstamp", STAMP))


class Conn:
    """Established connection to a victim."""

    def __init__(self, hostile, name, victim, ack, stamp):
        self.hostile, self.name = hostile, name
        self.ack = wire.parse(ack)
        self.params = wire.parse_params(self.ack["body"])
        self.me, self.you = hostile.nid, wire.nid(victim)
        self.stamp, self.victim_stamp = stamp, self.ack["srcstamp"]

    def message(self, kind, body=b"", **change):
        fields = {"srcstamp": self.stamp, "dststamp": self.victim_stamp, "src": self.me, "dst": self.you}
        fields.update(change)
        return wire.message(kind, fields.pop("src"), fields.pop("dst"), body, **fields)

    def send_raw(self, data, count=1):
        return self.hostile.do("send", self.name, count, data.hex())

    def send(self, kind, body=b"", count=1, **change):
        return self.send_raw(self.message(kind, body, **change), count)

    def ping_get(self, sink=0, **change):
        """Returns the LNet header of a ping's GET."""
        command = wire.get_command(sink=sink, **{k: change.pop(k) for k in ("bits", "portal", "wmd") if k in change})
        return wire.lnet_header(wire.GET, self.me, self.you, command=command, **change)

    def recv(self, ms=60000):
        """Returns the next message as a dict, or None if there is none or the connection is gone."""
        answer = self.hostile.do("recv", self.name, ms)
        return wire.parse(bytes.fromhex(answer["data"])) if "data" in answer else None

    def recv_until(self, kind, ms=60000):
        """Returns the next message of a kind. Skips others (NOOPs, for example)."""
        for _ in range(32):
            m = self.recv(ms)
            assert m is not None, f"no message {kind:#x}"
            if m["kind"] == kind:
                return m
        raise AssertionError(f"no message {kind:#x} among many")

    def region(self, size):
        """Provides memory for the victim to write to. Returns (address, rkey)."""
        answer = self.hostile.do("region", self.name, size)
        return int(answer["addr"]), int(answer["rkey"])

    def touched(self):
        return int(self.hostile.do("touched", self.name)["touched"])

    def is_closed(self, ms=120000):
        """Waits for the victim to close the connection. Returns whether it does."""
        answer = self.hostile.do("event", self.name, ms, timeout=ms / 1000 + 60)
        return answer["event"] == "RDMA_CM_EVENT_DISCONNECTED"

    def is_up(self):
        """Returns whether the victim answers a ping on this connection."""
        body = self.ping_get(sink=272)
        self.send(wire.IMMEDIATE, body)
        return self.recv_until(wire.IMMEDIATE) is not None

    def close(self):
        self.hostile.do("close", self.name)
