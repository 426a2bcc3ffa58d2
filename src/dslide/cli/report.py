"""dslide report: a page with charts of runs, to open in a browser."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, written by dslide train --out")
    target = "page to write; a report that is there is replaced (default: report.html)"
    parser.add_argument("--out", metavar="FILE", default="report.html", help=target)


def run(arguments: argparse.Namespace) -> None:
    from dslide.report import write_report

    write_report(arguments.runs, arguments.out)
    print(f"wrote {arguments.out}; open it in a browser")
