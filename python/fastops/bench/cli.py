"""The command line."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import peers, plots, results, tables
from .machine import this_machine, warning
from .results import FAILED, Row
from .roofs import Roofs
from .run import Options, cases, run_workload
from .suites import SUITES
from .workloads import Workload

PLOT = "plot"
QUICK_SECONDS, SECONDS = 0.5, 3.0
_MOST_THREADS_PER_CORE = 4  # with very many, OpenMP ends the process

DESCRIPTION = """\
Times fastops beside other ways to compute the same: in one process, in turns, from the same weights, and only after its
results have been found as good as PyTorch's by comparison with float64. Exits with 1 if they have not.

inference: the forward pass under torch.inference_mode().
training:  for networks, gradients set to None, forward, mean squared error, backward; no optimizer, so that it is the
           ops that are compared. For single activations, forward and backward.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; gives the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.suites[:1] == [PLOT]:
        return _draw(parser, options.suites[1:])
    chosen = _choose(parser, options)
    if options.list:
        print("\n".join(case for _, named in chosen for case in named))
        return 0
    run_options = Options(
        device=_device(parser, options.device),
        peers=_peers(parser, options.peers),
        seconds=options.seconds or (QUICK_SECONDS if options.quick else SECONDS),
    )
    earlier = _earlier(parser, options.out) if options.out else []
    torch.set_num_threads(options.threads)
    rows = _run(chosen, run_options, options.out, earlier)
    if options.out:
        _write_report(parser, "--out", options.out)
    return 1 if any(row.status == FAILED for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastops.bench",
        description=DESCRIPTION,
        epilog=f"`python -m fastops.bench {PLOT} DIR` draws the plots and the table of DIR/{results.FILE} again.\n\n"
        f"peers:\n{tables.legend(peers.PEERS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"{', '.join(SUITES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer cases, and less time for each")
    parser.add_argument("--threads", type=_threads, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or mps")
    parser.add_argument("--peers", help=f"comma-separated, of {', '.join(peers.PEERS)}; default: all installed")
    parser.add_argument(
        "--case", metavar="PATTERN", help="only cases with exactly this in their name; may have *, ? and []"
    )
    seconds = f"for each case, about; default: {SECONDS:g}, with --quick {QUICK_SECONDS:g}"
    parser.add_argument("--seconds", type=_seconds, help=seconds)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for CSV, tables and plots")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    return parser


Chosen = list[tuple[Workload, dict[str, str]]]


def _choose(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Chosen:
    """The workloads, each with its cases that are wanted."""
    for suite in options.suites:
        if suite not in SUITES:
            parser.error(f"unknown suite '{suite}': it must be one of {', '.join(SUITES)}")
    chosen: Chosen = []
    for suite in dict.fromkeys(options.suites or SUITES):
        for workload in SUITES[suite](options.quick):
            named = {
                case: mode
                for case, mode in cases(workload).items()
                if options.case is None or fnmatch.fnmatchcase(case, f"*{options.case}*")
            }
            if named:
                chosen.append((workload, named))
    if not chosen:
        parser.error(f"--case: no case has '{options.case}' in its name; --list names them")
    return chosen


def _device(parser: argparse.ArgumentParser, name: str) -> torch.device:
    available = [kind for kind in ("cpu", "cuda", "mps") if kind == "cpu" or getattr(torch, kind).is_available()]
    if name.partition(":")[0] not in available:
        parser.error(f"--device: '{name}' is not available here; it must be one of {', '.join(available)}")
    try:
        return torch.device(name)
    except RuntimeError as error:
        parser.error(f"--device: {str(error).splitlines()[0]}")


def _earlier(parser: argparse.ArgumentParser, folder: Path) -> list[Row]:
    """The results that are there; makes the folder, and tries it, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        return results.read(folder) if (folder / results.FILE).is_file() else []
    except (OSError, ValueError) as error:
        parser.error(f"--out: {error}")


def _peers(parser: argparse.ArgumentParser, names: str | None) -> list[str]:
    if names is None:
        return [peer for peer in peers.PEERS if peers.installed(peer)]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in peers.PEERS:
            parser.error(f"--peers: unknown peer '{name}': it must be one of {', '.join(peers.PEERS)}")
    return [peer for peer in peers.PEERS if peer in wanted]


def _run(chosen: Chosen, options: Options, folder: Path | None, earlier: list[Row]) -> list[Row]:
    """Runs the cases; prints and writes what comes out as soon as it does."""
    out = console()
    machine, roofs = this_machine(options.device), Roofs(options.device)
    out.print(f"{machine}\n\n{tables.legend(options.peers)}\n\n{tables.EXPLANATION}\n")
    if sentence := warning():
        out.print(f"[bold]{sentence}[/]\n")
    rows: list[Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as progress:
        task = progress.add_task("", total=sum(len(named) for _, named in chosen))
        for index, (workload, named) in enumerate(chosen):
            progress.update(task, description=next(iter(named)).rpartition("/")[0])
            rows += [row.on(machine) for row in run_workload(workload, list(named.values()), options, roofs)]
            progress.advance(task, len(named))
            if folder:
                results.write(folder, results.merged(earlier, rows))
            if index + 1 == len(chosen) or chosen[index + 1][0].suite != workload.suite:
                _print_suite(out, [row for row in rows if row.suite == workload.suite])
    for what, rate in roofs.measured().items():
        out.print(f"roof: {what}: {rate / 1e9:.1f} G{'flop' if 'multiply' in what else 'B'}/s")
    if folder:
        description = {**asdict(machine), "roofs": roofs.measured()}
        (folder / "machine.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return rows


def _print_suite(out: Console, rows: list[Row]) -> None:
    out.print(tables.rich_table(rows[0].suite, rows))
    for note in tables.notes(rows):
        out.print(f"  {note}", soft_wrap=True, markup=False)
    out.print()


def _draw(parser: argparse.ArgumentParser, folders: Sequence[str]) -> int:
    """Draws the plots and writes the table of results that are there."""
    if len(folders) != 1:
        parser.error(f"{PLOT} takes one folder with a {results.FILE}, but got {len(folders)}")
    folder = Path(folders[0])
    if not (folder / results.FILE).is_file():
        parser.error(f"{PLOT}: there is no {folder / results.FILE}; run with --out {folder} first")
    _write_report(parser, PLOT, folder)
    return 0


def _write_report(parser: argparse.ArgumentParser, argument: str, folder: Path) -> None:
    try:
        rows = results.read(folder)
        files = [folder / results.FILE, tables.write_markdown(folder, rows), *plots.draw(folder, rows)]
    except (OSError, ValueError) as error:
        parser.error(f"{argument}: {error}")
    console().print("\n".join(f"wrote {file}" for file in files))


def console() -> Console:
    """A console that does not squeeze the tables when the output goes to a file."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=160)


def _threads(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    most = _MOST_THREADS_PER_CORE * (os.cpu_count() or 1)
    if not 1 <= value <= most:
        raise argparse.ArgumentTypeError(f"must be an integer from 1 to {most}, but is {text}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, but is {text}")
    return value
