#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""ro2iblnd against ko2iblnd by lnet_selftest: ratios, not figures to quote.

One run, one host, one pair of guests. The driver on both sides changes in the
order A B B A, so that drift of the host affects both alike. A pair is one
measurement of each driver, and the ratio is taken within the pair. The output
has the medians, the median ratio and its span, of messages per second and of
the CPU time of both QEMU processes per message. On a host with other work only
the CPU time is meaningful.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "scripts")]

import measure_latency  # noqa: E402
import lustre  # noqa: E402
from bench import judge  # noqa: E402
from bench.count import Counter  # noqa: E402
from bench.symbols import CALLS, CLASSES, LND  # noqa: E402
from lustre import KO, OURS  # noqa: E402

CELLS = [
    ("ping", 1),
    ("ping", 16),
    ("ping", 64),
    ("brw write size=4K", 8),
    ("brw read size=4K", 8),
    ("brw write size=1M", 8),
    ("brw read size=1M", 8),
]


def measure(guests, lnd, cells, seconds, options):
    """Measures all cells once with a driver in both guests. Returns a list of (rate, CPU per message). Nothing stays
    loaded."""
    a, b = (lustre.Node(guest, lnd) for guest in guests)
    for node in (a, b):
        node.up(options=options)
    answered, out = a.ping(b)
    if not answered:
        raise SystemExit(f"{lnd}: {out}")
    rates = []
    with lustre.Selftest(a, b) as session:
        for test, concurrency in cells:
            rates.append(session.measure(test, concurrency, seconds))
    for node in (a, b):
        left = node.unload()
        if left:
            raise SystemExit(f"{lnd}: still loaded: {left}")
    return rates


def compare(ours, ko, invert=False):
    """Returns columns: both medians, the median of the pairs' ratios, its span."""
    ratios = [k / o if invert else o / k for o, k in zip(ours, ko)]
    return (
        f"{statistics.median(ours):8.0f} {statistics.median(ko):8.0f}"
        f" {statistics.median(ratios):6.2f}  {min(ratios):4.2f}..{max(ratios):4.2f}"
    )


def row(test, concurrency, ours, ko):
    """Returns a line of the table, from all measurements of one cell."""
    rates = compare([m[0] for m in ours], [m[0] for m in ko])
    costs = compare([m[1] for m in ours], [m[1] for m in ko], invert=True)
    return f"{test:17} {concurrency:4} |{rates} |{costs}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lustre", default=os.environ.get("LUSTRE"), help="built Lustre tree (or LUSTRE=)")
    parser.add_argument(
        "--built",
        default=os.environ.get("RO2IBLND_MODULES", os.path.dirname(HERE)),
        help="folder of ro2iblnd.ko, built against that tree (or RO2IBLND_MODULES=)",
    )
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=2, help="per cell")
    parser.add_argument("--vcpus", type=int, default=1, help="per guest")
    parser.add_argument("--options", default="", help="for lnetctl net add, both drivers")
    parser.add_argument("--only", default="", metavar="PATTERN", help="run the cells whose name contains PATTERN")
    parser.add_argument("--count", action="store_true", help="executed instructions per message")
    parser.add_argument("--lines", action="store_true", help="with --count: also cache lines that move between CPUs of a guest")
    parser.add_argument("--storm", action="store_true", help="executed instructions per connection")
    parser.add_argument("--latency", action="store_true", help="percentiles of the latency of a message")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="with --count, --storm: N functions, by cost")
    parser.add_argument("--json", metavar="FILE", help="with --count, --storm: write all counts to the file")
    args = parser.parse_args()
    if not args.lustre:
        parser.error("no LUSTRE=/path/to/built/tree")
    try:
        tree = lustre.Tree(args.lustre, args.built)
    except lustre.Unusable as e:
        raise SystemExit(str(e)) from None
    cells = [cell for cell in CELLS if re.search(args.only, f"{cell[0]} x{cell[1]}")]
    if args.count:
        counted(tree, args, lambda *who: count(*who, cells, args), "LNet message")
        return

    if args.storm:
        counted(tree, args, lambda *who: storm(*who, args), "connection")
        return

    if args.latency:
        timed(tree, args)
        return

    seen = {OURS: [], KO: []}
    try:
        with tree.pair(vcpus=args.vcpus) as guests:
            run_pairs(guests, seen, cells, args)
    except KeyboardInterrupt:
        print("interrupted; what there is:")
    report(seen, cells, args)


def run_pairs(guests, seen, cells, args):
    """Runs all pairs, in the order A B, B A, A B, ..."""
    began = time.monotonic()
    for i in range(args.pairs):
        for lnd in (OURS, KO) if i % 2 == 0 else (KO, OURS):
            seen[lnd].append(measure(guests, lnd, cells, args.seconds, args.options))
        done = time.monotonic() - began
        left = done / (i + 1) * (args.pairs - i - 1)
        print(f"pair {i + 1} of {args.pairs}, {done:.0f} s, {left:.0f} s to go", file=sys.stderr, flush=True)


def report(seen, cells, args):
    """Prints the table of all complete pairs."""
    pairs = min(map(len, seen.values()))
    if not pairs:
        raise SystemExit("no pair is complete")
    load = os.getloadavg()[0]
    print(f"lnet_selftest, {pairs} pairs, {args.seconds} s each, {args.vcpus} CPUs per guest, load {load:.1f}")
    print("ratio > 1: ro2iblnd is better (more messages, less CPU)")
    print(f"{'':22} |{'messages/s':^37}|{'host CPU, us/message':^37}")
    head = f"{'ro2iblnd':>8} {'ko2iblnd':>8} {'ratio':>6}  {'span':10}"
    print(f"{'test':17} {'conc':>4} |{head} |{head}")
    for i, (test, concurrency) in enumerate(cells):
        print(row(test, concurrency, [m[i] for m in seen[OURS][:pairs]], [m[i] for m in seen[KO][:pairs]]))


# With --count: number of messages.
MESSAGES, OF_BULK = 1200, 120
# With --storm: number of connections, and seconds after which all are established, or closed.
STORM, SETTLED = 100, 15


def timed(tree, args):
    """Measures pairs of latencies in the order A B, B A, ..., and raw verbs after each."""
    seen, verbs = {OURS: [], KO: []}, []
    guests_have = {"tools": measure_latency.TOOLS, "modules": measure_latency.MODULES}
    with tree.pair(vcpus=args.vcpus, **guests_have) as guests:
        for i in range(args.pairs):
            for lnd in (OURS, KO) if i % 2 == 0 else (KO, OURS):
                seen[lnd].append(measure_latency.lnet(guests, lnd, args.options))
            verbs.append(measure_latency.raw(guests))
            print(f"pair {i + 1} of {args.pairs}", file=sys.stderr, flush=True)
    print(f"one GET at a time, {args.pairs} pairs, {args.vcpus} CPUs per guest, load {os.getloadavg()[0]:.1f}")
    print("ratio < 1: ro2iblnd is faster\n")
    print(measure_latency.table(seen, verbs))


def name_of(cell):
    return f"{cell[0].replace('size=', '')} x{cell[1]}"


def counted(tree, args, count_with, what):
    """Runs both drivers in one pair of guests, one after the other, and prints the tables."""
    with tempfile.TemporaryDirectory(prefix="ro2ib-bench") as directory:
        counter = Counter(directory, args.lines)
        with tree.pair(vcpus=args.vcpus, files=[counter.window], more=counter.options, **Counter.GUESTS) as guests:
            seen = {lnd: count_with(counter, guests, lnd) for lnd in (OURS, KO)}
    print(f"executed kernel instructions per {what}, both nodes, {args.vcpus} CPUs per guest, {args.options or 'defaults'}")
    print("ratio < 1: ro2iblnd executes less\n")
    print(beside(seen))
    for lnd, results in seen.items() if args.top else ():
        for name, result in results.items():
            print(f"\n{lnd}, {name}: instructions per {what} of its text\n{judge.top(result, args.top)}")
            print(f"and of the whole kernel\n{judge.top(result, args.top, everything=True)}")
            if args.lines:
                print("cache lines moved")
                print("\n".join(f"{n:10.2f}  {name}" for name, n in list(result["movers"].items())[: args.top]))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(seen, f, indent=1)


def count(counter, guests, lnd, cells, args):
    """Counts all cells once with a driver in both guests. Returns {name: result}. Nothing stays loaded."""
    a, b = (lustre.Node(guest, lnd) for guest in guests)
    for node in (a, b):
        node.up(options=args.options)
    answered, out = a.ping(b)
    if not answered:
        raise SystemExit(f"{lnd}: {out}")
    counter.learn(guests)
    results = {}
    with lustre.Selftest(a, b) as session:
        for cell in cells:
            messages = OF_BULK if "1M" in cell[0] else MESSAGES
            results[name_of(cell)] = session.count(*cell, counter, messages)
            print(f"{lnd} {name_of(cell)}: {results[name_of(cell)]['classes'][LND]:.0f}", file=sys.stderr, flush=True)
    for node in (a, b):
        left = node.unload()
        if left:
            raise SystemExit(f"{lnd}: still loaded: {left}")
    return results


def storm(counter, guests, lnd, args):
    """Counts with a driver in both guests while many connections are established at once, and closed at once. Returns
    {name: result}."""
    a, b = (lustre.Node(guest, lnd) for guest in guests)
    for node in (a, b):
        node.up(options=f"{args.options} --conns-per-peer {STORM}")
    counter.learn(guests)
    results = {}
    net = f"lctl --net {a.nid.partition('@')[2]}"

    def connected():
        return min(int(node.sh(f"{net} conn_list | grep -c @; true")) for node in (a, b)) == STORM

    def closed():
        return all(node.rdma_objects()["qp"] < STORM for node in (a, b))

    def counting(what, command, done):
        # No check in the window: a check takes more instructions than the measured work.
        a.sh(f"/files/window open; {command} >/dev/null; sleep {SETTLED}; /files/window close", 600)
        if not done():
            raise SystemExit(f"{lnd}: {what}: not all after {SETTLED} s")
        return counter.result(STORM)

    # Work that is done once, reads of the tools' file system, and the cost of the command and of the same seconds
    # without the measured work do not count.
    for name in ("first", "again"):
        connect = counting("connect", f"lnetctl ping {b.nid}", connected)
        no_connect = counting("ping", f"lnetctl ping {b.nid}", connected)
        close = counting("close", f"{net} del_peer", closed)
        no_close = counting("nothing to close", f"{net} del_peer", closed)
        results = {"connect": judge.without(connect, no_connect), "close": judge.without(close, no_close)}
        told = " ".join(f"{what} {sum(r['classes'].values()):.0f}" for what, r in results.items())
        print(f"{lnd} {name}: {told}", file=sys.stderr, flush=True)
    for node in (a, b):
        left = node.unload()
        if left:
            raise SystemExit(f"{lnd}: still loaded: {left}")
    return results


def beside(seen):
    """Returns a table in Markdown: per case and class ro2iblnd, ko2iblnd, and the ratio."""
    names = list(seen[OURS])

    def line(label, value, digits):
        row = f"| {label} |"
        for name in names:
            ours, ko = (value(seen[lnd][name]) for lnd in (OURS, KO))
            ratio = f"{ours / ko:.2f}" if ko else "-"
            row += f" {ours:.{digits}f} / {ko:.{digits}f} = {ratio} |"
        return row

    def but(result, *classes):
        return sum(n for k, n in result["classes"].items() if k not in classes)

    lines = [f"| ours / ko2iblnd | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    lines += [line(k, lambda r, k=k: r["classes"].get(k, 0), 0) for k in CLASSES]
    lines.append(line("all but provider, network, LNet", lambda r: but(r, *judge.AROUND), 0))
    lines.append(line("whole kernel", but, 0))
    lines += [line(k, lambda r, k=k: r["calls"].get(k, 0), 2) for k in CALLS if "out of line" not in k]
    if any(sum(r.get("lines", {}).values()) for r in seen[OURS].values()):
        lines += [line(f"cache lines: {k}", lambda r, k=k: r.get("lines", {}).get(k, 0), 1) for k in CLASSES]
        lines.append(line("cache lines: whole kernel", lambda r: sum(r.get("lines", {}).values()), 1))
    lines.append(f"| counted | {' | '.join('{} / {}'.format(*(seen[lnd][n]['messages'] for lnd in (OURS, KO))) for n in names)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
