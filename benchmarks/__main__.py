"""`python -m benchmarks NAME [--rounds N] [--threads N] [--json FILE]`."""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

from benchmarks import harness

NAMES = ("data", "load")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--rounds", type=int, default=5, help="runs of every case, one after the other (default 5)")
    parser.add_argument("--threads", type=int, default=harness.cores(), help="of every case (default: all cores)")
    parser.add_argument("--json", type=Path, help="write every sample and the machine to this file")
    asked = parser.parse_args()
    report = import_module(f"benchmarks.{asked.name}").run(rounds=asked.rounds, threads=asked.threads)
    print(report.table())
    if asked.json:
        asked.json.write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
        print(f"every sample: {asked.json}", file=sys.stderr)


if __name__ == "__main__":
    main()
