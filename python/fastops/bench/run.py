"""Runs the cases: prepares the peers, verifies them, times them, and makes the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from . import models, peers, verify
from .memory import bytes_kept_for_backward
from .peers import COMPILE, EAGER, FASTOPS, FASTOPS_COMPILE, ZENTORCH, UnavailableError
from .results import FAILED, UNAVAILABLE, Row
from .roofs import Roofs
from .timing import Timings, measure
from .workloads import INFERENCE, MODES, TRAINING, Contender, Network, Tensors, Workload, dtype_name


@dataclass(frozen=True)
class Options:
    """How to run: the peers beside fastops, on which device, and for about how long each case."""

    device: torch.device
    peers: Sequence[str]
    seconds: float

    @property
    def synchronize(self) -> Callable[[], None]:
        return getattr(torch, self.device.type).synchronize


class Problem(NamedTuple):
    """What all peers get for a workload, what should come out, and how far PyTorch eager is from it."""

    tensors: Tensors
    expected: list[Tensor]
    eager_errors: list[float]


class Entrant(NamedTuple):
    """A peer in a case: the function to time if it may be timed, and what is known before."""

    row: Row
    work: Callable[[], object] | None = None


def run_workload(workload: Workload, modes: Sequence[str], options: Options, roofs: Roofs) -> Iterator[Row]:
    """The rows of the workload's cases, verified and timed."""
    problem = _problem(workload, options)
    for mode in modes:
        with _gradients(mode):
            entrants = [_enter(peer, workload, mode, problem, options) for peer in (FASTOPS, *options.peers)]
            works = {entrant.row.peer: entrant.work for entrant in entrants if entrant.work}
            if FASTOPS in works:
                timings = measure(works, seconds=options.seconds, synchronize=options.synchronize)
                yield from (_timed(entrant.row, workload, timings, roofs) for entrant in entrants)
            else:
                yield from (_not_timed(entrant) for entrant in entrants)
        if {COMPILE, FASTOPS_COMPILE, ZENTORCH} & set(options.peers):
            torch.compiler.reset()  # or it would make the next model's shapes dynamic


def _gradients(mode: str) -> AbstractContextManager[object]:
    return torch.inference_mode() if mode == INFERENCE else nullcontext()


def _problem(workload: Workload, options: Options) -> Problem:
    tensors = workload.tensors()
    expected = verify.reference(workload, tensors)
    tensors = tensors.to(device=options.device)
    eager = workload.pytorch(options.device)
    return Problem(tensors, expected, verify.errors(workload.results(eager, tensors), expected))


def _enter(peer: str, workload: Workload, mode: str, problem: Problem, options: Options) -> Entrant:
    """Prepares a peer and verifies what it computes."""
    row = Row(
        suite=workload.suite,
        case=workload.case(mode),
        name=workload.name,
        size=workload.size_text,
        dtype=dtype_name(workload.dtype),
        mode=mode,
        peer=peer,
    )
    try:
        with torch.inference_mode(False):  # parameters are made and compared as outside of any mode
            contender = peers.prepare(peer, workload, mode, options.device)
        errors = verify.errors(_results(contender, workload, mode, problem.tensors), problem.expected[: _count(mode)])
    except UnavailableError as error:
        return Entrant(replace(row, status=UNAVAILABLE, note=str(error)))
    except Exception as error:
        # A compiler's failure is part of the comparison; one of fastops is a failure of the run.
        if peer == EAGER:
            raise
        status = FAILED if peer == FASTOPS else UNAVAILABLE
        return Entrant(replace(row, status=status, note=f"{type(error).__name__}: {_summary(error)}"))
    row = replace(row, error=max(errors))
    if reason := verify.complaint(errors, problem.eager_errors[: _count(mode)], workload.dtype):
        return Entrant(replace(row, status=FAILED if peer == FASTOPS else UNAVAILABLE, note=f"wrong result: {reason}"))
    if mode == TRAINING and peer in (FASTOPS, EAGER) and isinstance(workload, Network):
        row = replace(row, bytes_kept_for_backward=_bytes_kept(contender, workload, problem.tensors))
    step = workload.inference if mode == INFERENCE else workload.training_step
    return Entrant(row, step(contender, problem.tensors))


def _count(mode: str) -> int | None:
    """How many of the results a mode has: the output, or with all gradients."""
    return 1 if mode == INFERENCE else None


def _results(contender: Contender, workload: Workload, mode: str, tensors: Tensors) -> list[Tensor]:
    if mode == INFERENCE:
        return [workload.inference(contender, tensors)()]
    return workload.results(contender, tensors)


def _bytes_kept(contender: Contender, workload: Network, tensors: Tensors) -> int:
    models.set_dropout(contender.call, on=True)
    input = tensors.input.detach().requires_grad_(workload.input_gradient)
    return bytes_kept_for_backward(lambda: contender.call(input), [input, *contender.parameters])


def _summary(error: Exception) -> str:
    """The beginning of what an error says, which for compilers is long, in one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _not_timed(entrant: Entrant) -> Row:
    """The row of a peer when there is nothing right to compare it with."""
    if entrant.work is None:
        return entrant.row
    return replace(entrant.row, status=UNAVAILABLE, note="not timed, as fastops failed")


def _timed(row: Row, workload: Workload, timings: Timings, roofs: Roofs) -> Row:
    """The row with its times, if it has any."""
    if row.peer not in timings.seconds:
        return row
    time, speedup = timings.spread(row.peer), timings.ratio(row.peer, FASTOPS)
    row = replace(
        row,
        seconds=time.median,
        seconds_lower=time.lower,
        seconds_upper=time.upper,
        rounds=len(timings.seconds[row.peer]),
        calls_per_sample=timings.calls[row.peer],
        fastops_speedup=speedup.median,
        fastops_speedup_lower=speedup.lower,
        fastops_speedup_upper=speedup.upper,
    )
    roof = roofs.of(workload, row.mode)
    if roof is None:
        return row
    work, rate, what = roof
    return replace(row, percent_of_roof=100 * work / time.median / rate, roof=what)


def cases(workload: Workload) -> dict[str, str]:
    """The workload's cases: mode by name."""
    return {workload.case(mode): mode for mode in MODES}
