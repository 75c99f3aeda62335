#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Executed instructions per LNet message: two guests under lnet_lite, QEMU counts.

The result is a count, not a time: a busy host changes the wait and nothing else. Instructions are those of both nodes.
"LND" is the driver and the kernel crate, in any module; "all but around" leaves out provider, network and LNet. Case
names: see cases.py.
"""

import argparse
import json
import os
import sys

# A directory that python runs as a program is not a package yet.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bench import ROOT, judge  # noqa: E402
from bench.cases import CASES, CHEAP  # noqa: E402
from bench.count import Unusable  # noqa: E402
from bench.measure import Bench  # noqa: E402
from bench.symbols import disassembly, readable, reads  # noqa: E402
from vm import build_env  # noqa: E402

# Suffixes of the name of a case.
LOOKED_AT, LOGGED = "traced", "logged"
# The driver checks this mask before it writes to the debug log.
MASKS = "ro2ib_dk_debug"
# Number of windows of a case before it counts as having grown.
TRIES = 3


def check(bench, made_with, cases, kdir):
    """Compares the cases with the baseline and returns (passed, failed)."""
    base = judge.load()
    limit, why = judge.limit(base, made_with, kdir)
    if why:
        print(why)
    passed = failed = 0
    for name in cases:
        results = []
        for _ in range(TRIES):
            results += bench.measure(name)
            good, lines = judge.verdict(name, base["cases"][name], judge.best(results), limit)
            if good:
                break
        print("\n".join(lines), flush=True)
        passed += good
        failed += not good
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help=f"one of: {', '.join(CASES)} (default: all)")
    parser.add_argument("--check", action="store_true", help=f"compare with the baseline; default: {', '.join(CHEAP)}")
    parser.add_argument("--save", action="store_true", help="save the result as the new baseline")
    parser.add_argument("--times", type=int, default=1, help="windows per case; the smallest result is shown")
    parser.add_argument("--top", type=int, default=0, metavar="N", help="show N functions of the driver, by cost")
    parser.add_argument("--all", type=int, default=0, metavar="N", help="show N functions of the kernel, by cost")
    parser.add_argument("--diff", action="store_true", help="also show the functions that grew since the baseline")
    parser.add_argument("--cut", default="", metavar="FUNCTION", help="show executions of each instruction")
    parser.add_argument("--trace", action="store_true", help="repeat each case with all trace events enabled")
    parser.add_argument("--dk", action="store_true", help="repeat each case with LNet's debug log enabled")
    parser.add_argument("--json", metavar="FILE", help="write all counts to the file")
    built = os.environ.get("RO2IBLND_MODULES", os.path.join(ROOT, ".bench"))
    parser.add_argument("--built", default=built, help="folder of the built modules")
    args = parser.parse_args()
    if (args.trace or args.dk) and (args.check or args.save):
        parser.error("--trace and --dk cannot be combined with --check or --save")
    unknown = [name for name in args.case if name not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    if not os.path.exists(f"{args.built}/ro2iblnd.ko"):
        parser.error(f"no {args.built}/ro2iblnd.ko: make bench-module")
    if (args.check or args.save) and judge.has_hooks(f"{args.built}/ro2iblnd.ko"):
        parser.error("this module has hooks for tests (TEST_MODULES=1, KUNIT_TESTS=1): make bench-module")
    cases = args.case or (CHEAP if args.check else list(CASES))
    env = build_env()
    try:
        with Bench(args.built) as bench:
            made_with = judge.toolchain(env, bench.release, args.built)
            if args.check:
                passed, failed = check(bench, made_with, cases, env["KDIR"])
                print(f"{passed} passed, {failed} failed")
                return 1 if failed else 0
            results = {}
            if args.trace:
                # Fails before the first measurement if the kernel has no trace points.
                bench.look(False)
            for name in cases:
                results[name] = judge.best(bench.measure(name, args.times))
                if args.trace:
                    bench.look(True)
                    results[f"{name} {LOOKED_AT}"] = judge.best(bench.measure(name, args.times))
                    bench.look(False)
                if args.dk:
                    bench.tell(True)
                    results[f"{name} {LOGGED}"] = judge.best(bench.measure(name, args.times))
                    bench.tell(False)
    except Unusable as e:
        print(f"bench: {e}")
        return 1
    print(", ".join(f"{k} {v}" for k, v in made_with.items()))
    print(judge.table(results))
    for name, result in results.items() if args.dk else ():
        print(
            f"{name}: {reads(f'{args.built}/ro2iblnd.ko', MASKS, result['where']):.2f} looks at the masks of the debug log per message"
        )
    for most, everything in ((args.top, False), (args.all, True)):
        for name, result in results.items() if most else ():
            print(f"\n{name}: instructions per message of {'everything' if everything else 'the LND'}")
            print(judge.top(result, most, everything))
    if args.cut:
        for name, result in results.items():
            for symbol, short in readable(result["where"]).items():
                if args.cut in (symbol, short):
                    print(f"\n{name}: {short}")
                    print("\n".join(disassembly(f"{args.built}/ro2iblnd.ko", symbol, result["where"][symbol])))
    if args.diff:
        base = judge.load()["cases"]
        for name in cases:
            print("\n".join(judge.verdict(name, base[name], results[name], 0)[1]))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
    if args.save:
        judge.save(results, made_with)
    return 0


if __name__ == "__main__":
    sys.exit(main())
