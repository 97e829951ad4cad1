"""python -m shardlab COMMAND: what this machine can do, and chapters on many machines"""

from __future__ import annotations

import argparse
import sys

from shardlab.export import export_command as export
from shardlab.machine_report import doctor_command as doctor
from shardlab.plan import plan_command as plan
from shardlab.preflight import preflight_command as preflight


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m shardlab", description=__doc__, allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor.add_parser(commands)
    export.add_parser(commands)
    preflight.add_parser(commands)
    plan.add_parser(commands)
    arguments = parser.parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
