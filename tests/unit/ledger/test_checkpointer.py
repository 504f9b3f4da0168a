"""The checkpointer's thread ends when it is told to, at whatever moment that is."""

import threading

from allotment.ledger.checkpointer import Checkpointer


class Counted(threading.Event):
    """An event that knows how often it was set."""

    def __init__(self):
        super().__init__()
        self.sets = threading.Semaphore(0)

    def set(self):
        super().set()
        self.sets.release()


class SetTooLate(Counted):
    """Set in the very moment after somebody waited for it in vain."""

    def __init__(self, stop, last):
        super().__init__()
        self.stopper = threading.Thread(target=stop, daemon=True)
        self.last = last  # of what `stop` sets
        self.asked = threading.Event()

    def wait(self, timeout=None):
        if not self.asked.is_set():
            self.stopper.start()
            self.asked.set()
            for _ in range(2):  # by whom woke the thread, and by who stops it
                self.last.sets.acquire()
        return False


class NoDatabase:
    def checkpoint(self):
        return 0


def test_a_stop_that_comes_between_waiting_and_working_is_heard(tmp_path):
    """It was not: one agent in some hundreds never ended after SIGTERM, and had to be killed."""
    checkpointer = Checkpointer(lambda *_: None, tmp_path)
    checkpointer._written = Counted()
    late = checkpointer._stopping = SetTooLate(checkpointer.stop, checkpointer._written)
    checkpointer.wake(NoDatabase(), 1000)
    assert late.asked.wait(10)
    late.stopper.join(10)
    assert not late.stopper.is_alive()
