"""python -m shardlab doctor: what this machine can do, on one screen"""

from __future__ import annotations

import argparse


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser("doctor", help="what this machine can do")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from shardlab.machine_report import report  # imports torch

    for name, text in report.lines():
        print(f"{name:<18} {text}")
    return 0
