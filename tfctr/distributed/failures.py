"""How a rank ends that cannot go on: with one message, and so that the job ends too."""

import os
import select
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import NoReturn

import tensorflow as tf

# What Horovod says when a rank is gone: it has ended, or its connection broke.
_LOST = ("Horovod has been shut down", "gloo/transport")
# The launcher stops all ranks once one has failed, and names the first that has ended.
# So the one that failed gets ahead of those that lost it.
_SECONDS_TO_BE_NAMED = 2
_STDOUT, _STDERR = 1, 2


def end_with_job(rank: int, size: int) -> None:
    """Makes this rank end when the job fails, and the job when this rank fails.

    An error that nobody catches ends the rank at once, with a last message. Python
    would first wait for the threads that feed the training, and those may wait for
    other ranks. What `sys.excepthook` is now, is called before.
    """
    hook = sys.excepthook

    def end(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> NoReturn:
        try:
            lost = is_lost_rank(error)
            # What TensorFlow tells of a lost rank buries the error of that rank.
            if not lost or hook is not sys.__excepthook__:
                hook(kind, error, trace)
            print(_last_words(rank, size, trace, lost), file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            if lost:
                time.sleep(_SECONDS_TO_BE_NAMED)
        finally:
            os._exit(1)

    sys.excepthook = end
    threading.Thread(target=_end_with_launcher, daemon=True).start()


def is_lost_rank(error: BaseException) -> bool:
    """Returns whether a collective has failed because another rank is gone."""
    return isinstance(error, tf.errors.OpError) and any(
        words in str(error) for words in _LOST
    )


def _last_words(rank: int, size: int, trace: TracebackType | None, lost: bool) -> str:
    restart = (
        "then restart with horovodrun: training goes on from its newest checkpoint, if "
        "it writes any."
    )
    if not lost:
        return (
            f"tfctr: rank {rank} of {size} has failed, by the error above, and ends "
            f"the job. Mend its cause, {restart}"
        )
    frames = traceback.extract_tb(trace)
    place = f", at {frames[0].filename}:{frames[0].lineno}" if frames else ""
    return (
        f"tfctr: rank {rank} of {size} waits for a rank that is gone{place}. That one "
        "has failed, which this log tells, or was killed, or has ended since it had "
        "fewer steps. If Horovod tells of missing ranks instead: they stalled, or "
        f"called other collectives. Mend the cause, {restart}"
    )


def _end_with_launcher() -> None:
    """Ends this process once nobody can read what it prints.

    Where the launcher ends an ssh connection, nobody tells the rank at its other end.
    One that waits for no other rank would go on, and keep its memory and its files.
    """
    poll = select.poll()
    outputs = {_STDOUT, _STDERR}
    for output in outputs:
        poll.register(output, 0)  # Of errors it tells unasked.
    while outputs:
        for output, event in poll.poll():
            if event & select.POLLNVAL:  # The script has closed it.
                return
            poll.unregister(output)
            outputs.remove(output)
    os._exit(1)
