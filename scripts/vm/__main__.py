# SPDX-License-Identifier: GPL-2.0
"""Guests from the command line. Run as: python3 scripts/vm <command>

kunit FILE.ko...   run the KUnit suites of modules
run COMMAND        boot one guest (or two with --pair), run a shell command in the first
check              check that two guests exchange RDMA at full MTU
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from vm import Guest, pair, run_kunit, setup_two_links, splats  # noqa: E402


def check():
    """Runs rping between two guests, in chunks larger than one packet."""
    with pair(tools=("rping",)) as (a, b):
        print(f"booted in {a.boot_seconds:.1f} s and {b.boot_seconds:.1f} s")
        print(a.check("rdma link; cat /sys/class/net/eth0/mtu"), end="")
        server = a.spawn("rping -s -a 10.0.0.1 -C 20 -S 16384 -V")
        print(b.check("sleep 1; rping -c -a 10.0.0.1 -C 20 -S 16384 -V && echo rping ok", 120), end="")
        server.wait()
        bad = splats(a.dmesg()) + splats(b.dmesg())
        print("\n".join(bad) or "no splats")
        return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    p = commands.add_parser("kunit")
    p.add_argument("modules", nargs="+")
    p.add_argument("--before", action="append", default=[], help="module to load first")
    p.add_argument("--two-links", action="store_true", help="boot with two links, rxe0 and rxe1")
    p.add_argument("--vcpus", type=int, default=2)
    p.add_argument("--append", default="", help="kernel parameters")
    p = commands.add_parser("run")
    p.add_argument("command")
    p.add_argument("--pair", action="store_true", help="boot a second guest, too")
    p.add_argument("--two-links", action="store_true")
    p.add_argument("--file", action="append", default=[], help="file to copy into /files of the guest")
    p.add_argument("--tool", action="append", default=[], help="program to copy into the guest")
    p.add_argument("--timeout", type=float, default=300)
    p.add_argument("--vcpus", type=int, default=2)
    p.add_argument("--append", default="", help="kernel parameters")
    commands.add_parser("check")
    args = parser.parse_args()

    if args.what == "check":
        return check()
    if args.what == "kunit":
        return run_kunit(args.modules, args.before, args.two_links, vcpus=args.vcpus, append=args.append)
    options = {"files": args.file, "tools": args.tool, "vcpus": args.vcpus, "append": args.append}
    if args.pair:
        with pair(**options) as (a, _b):
            status, out = a.run(args.command, args.timeout)
    else:
        with Guest(**options) as a:
            if args.two_links:
                setup_two_links(a)
            status, out = a.run(args.command, args.timeout)
    print(out, end="")
    return status


sys.exit(main())
