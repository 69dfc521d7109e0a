"""`python -m benchmarks NAME [--rounds N] [--threads N] [--json FILE]`."""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

from vitreous.base.machine import cores

NAMES = ("data", "explain", "infer", "int8", "load", "probe", "profile", "start", "train")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    benchmark = import_module(f"benchmarks.{sys.argv[1]}") if sys.argv[1:2] and sys.argv[1] in NAMES else None
    if hasattr(benchmark, "add_arguments"):
        benchmark.add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5, help="runs of every case, one after the other (default 5)")
    parser.add_argument("--threads", type=int, default=cores(), help="of every case (default: all cores)")
    parser.add_argument("--json", type=Path, help="write every sample and the machine to this file")
    asked = parser.parse_args()
    assert benchmark is not None  # the parser has seen to it
    own = {key: value for key, value in vars(asked).items() if key not in ("name", "json")}
    report = benchmark.run(**own)
    print(report.table())
    if asked.json:
        asked.json.write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
        print(f"every sample: {asked.json}", file=sys.stderr)


if __name__ == "__main__":
    main()
