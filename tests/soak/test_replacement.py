"""The agent replaced under load: no pod notices (I11)."""

import contextlib
import itertools
import re
import socket
import threading

import pytest

from agents import PATIENCE, network
from nodes import until

BLUE = {"blue.yaml": network(v4="10.64.0.0/20", v6="fd00:64::/116", block=20, block6=116, cooldown=0)}
CALLERS = 4


class Runtime:
    """Containers that come and go through the plugin, in threads, until the context ends."""

    def __init__(self, node):
        self.calls = 0
        self.failures = []
        self._node = node
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CALLERS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, caller):
        for number in itertools.count():
            for verb in ("ADD", "DEL"):
                try:
                    answer = self._node.run(verb, f"pod-{caller}-{number}")
                except Exception as error:
                    answer = error
                if answer is not None and getattr(answer, "ok", False):
                    self.calls += 1
                else:
                    self.failures.append(answer)
            if self._over.is_set() or self.failures:
                return


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kept", [False, True], ids=["the shim waits", "the socket stays"])
def test_no_call_fails_while_the_agent_is_replaced(make_node, kept, times):
    """SIGTERM and a new one. The socket is made anew by each, or is one that the service manager keeps."""
    node = make_node(BLUE)
    with contextlib.ExitStack() as stack:
        listener = None
        if kept:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(node.socket))
            listener.listen(1000)
        node.start(listener=listener)
        with Runtime(node) as runtime:
            for _ in range(times):
                enough = runtime.calls + 2 * CALLERS
                until(lambda enough=enough: runtime.calls > enough or runtime.failures, "nobody is served")
                node.stop()
                node.start(listener=listener)
        assert runtime.failures == []
        assert runtime.calls > times * CALLERS
        until(lambda: node.status().spool.waiting == 0, "DELs are left in the spool")
        assert node.leases() == []


def test_the_end_is_an_orderly_one_while_somebody_reads_metrics(make_node):
    """A scraper keeps its connection open for hours; a supervisor must not take the end for a crash."""
    node = make_node(BLUE, flags=["--http", "127.0.0.1:0"])
    node.start()
    (port,) = re.findall(r'"event":"serving http".*"port":(\d+)', node.log())
    with socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE) as scraper:
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert scraper.recv(15) == b"HTTP/1.1 200 OK"
        node.stop()
