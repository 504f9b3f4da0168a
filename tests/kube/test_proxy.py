"""The proxy fails as it is told to, between a plain HTTP client and a real API server."""

import http.client
import itertools
import json
import ssl

import pytest

from kube.line import Line
from kube.proxy import Proxy
from nodes import until

MAPS = "/api/v1/namespaces/default/configmaps"
BROKEN = (ConnectionResetError, BrokenPipeError, ssl.SSLError, http.client.HTTPException)
"""What a client finds when its connection breaks, depending on what it is at."""
_numbers = itertools.count()


@pytest.fixture
def proxy(api_server):
    with Proxy(api_server) as proxy:
        yield proxy


@pytest.fixture
def client(api_server, proxy):
    with Client(api_server, proxy.port) as client:
        yield client


@pytest.fixture
def name():
    """A name that no other test uses."""
    return f"proxied-{next(_numbers)}"


class Client:
    """A plain client that keeps its connection, as long as that lasts."""

    def __init__(self, server, port):
        tls = ssl.create_default_context(cafile=str(server.ca_file))
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=10)
        self._headers = {"Authorization": f"Bearer {server.admin_token}", "Content-Type": "application/json"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()

    def begin(self, method, path, body=None):
        """The response, of which only the head has been read."""
        self._connection.request(method, path, None if body is None else json.dumps(body), self._headers)
        return self._connection.getresponse()

    def ask(self, method, path, body=None):
        """(status, decoded body)."""
        response = self.begin(method, path, body)
        return response.status, json.loads(response.read())

    def watch(self, **selected):
        """An open watch of the ConfigMaps with this name."""
        [(field, value)] = selected.items()
        listed = self.ask("GET", MAPS)[1]["metadata"]["resourceVersion"]
        query = f"?watch=1&resourceVersion={listed}&fieldSelector=metadata.{field}%3D{value}"
        response = self.begin("GET", MAPS + query)
        assert response.status == 200
        return response


def event(response):
    """The next (type, object) of a watch; None at its end."""
    line = response.readline()
    if not line:
        return None
    found = json.loads(line)
    return found["type"], found["object"]


def made(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def names(server):
    return [found["metadata"]["name"] for found in server.request("GET", MAPS)[1]["items"]]


def test_what_nobody_wished_otherwise_passes(api_server, proxy, client, name):
    assert client.ask("POST", MAPS, made(name, a="1"))[0] == 201
    assert client.ask("GET", f"{MAPS}/{name}")[1]["data"] == {"a": "1"}
    big = "x" * 200_000
    assert client.ask("PUT", f"{MAPS}/{name}", made(name, a=big))[0] == 200
    assert client.ask("GET", f"{MAPS}/{name}")[1]["data"] == {"a": big}
    assert client.ask("DELETE", f"{MAPS}/{name}")[0] == 200
    assert client.ask("GET", f"{MAPS}/{name}")[0] == 404
    assert [(asked.method, asked.status) for asked in proxy.asked] == [
        ("POST", 201),
        ("GET", 200),
        ("PUT", 200),
        ("GET", 200),
        ("DELETE", 200),
        ("GET", 404),
    ]
    assert proxy.accepted == 1


def test_kubectl_goes_through_it(api_server, proxy):
    path = api_server.write_kubeconfig("proxied", api_server.admin_token, url=proxy.url)
    assert "default" in api_server.kubectl("--kubeconfig", str(path), "get", "namespaces", "-o", "name")
    assert any(asked.target.startswith("/api/v1/namespaces?") for asked in proxy.asked)


@pytest.mark.parametrize(("status", "reason"), [(500, "InternalError"), (410, "Expired"), (503, "ServiceUnavailable")])
def test_it_answers_for_the_server_as_often_as_told(api_server, proxy, client, name, status, reason):
    proxy.answer(status, method="POST", path="/configmaps$", times=2)
    for _ in range(2):
        got, body = client.ask("POST", MAPS, made(name))
        assert (got, body["kind"], body["code"], body["reason"]) == (status, "Status", status, reason)
    assert name not in names(api_server)
    assert client.ask("GET", MAPS)[0] == 200
    assert client.ask("POST", MAPS, made(name))[0] == 201


def test_429_says_when_to_come_back(proxy, client):
    proxy.answer(429, retry_after=7, times=None)
    for _ in range(3):
        response = client.begin("GET", MAPS)
        assert (response.status, response.headers["Retry-After"]) == (429, "7")
        response.read()
    proxy.heal()
    assert client.ask("GET", MAPS)[0] == 200


def test_a_lost_answer_is_of_a_write_that_has_happened(api_server, proxy, client, name):
    proxy.lose_answers(method="POST")
    with pytest.raises(BROKEN):
        client.ask("POST", MAPS, made(name))
    assert name in names(api_server)
    assert [asked.status for asked in proxy.asked] == [None]


def test_a_lost_request_is_of_a_write_that_has_not_happened(api_server, proxy, client, name):
    proxy.lose_requests(method="POST")
    with pytest.raises(BROKEN):
        client.ask("POST", MAPS, made(name))
    assert name not in names(api_server)


def test_a_list_can_be_empty_and_otherwise_as_it_should_be(client, proxy, name):
    assert client.ask("POST", MAPS, made(name))[0] == 201
    proxy.empty_lists(path="/configmaps")
    status, body = client.ask("GET", MAPS)
    assert (status, body["kind"], body["items"]) == (200, "ConfigMapList", [])
    assert int(body["metadata"]["resourceVersion"]) > 0
    assert client.ask("GET", MAPS)[1]["items"] != []


def test_a_watch_passes_events_as_they_come_and_ends_when_told(api_server, proxy, client, name):
    watch = client.watch(name=name)
    assert [path.startswith(f"{MAPS}?watch=1") for path in proxy.watches] == [True]
    api_server.request("POST", MAPS, made(name, a="1"))
    assert event(watch)[0] == "ADDED"
    api_server.request("PUT", f"{MAPS}/{name}", made(name, a="2"))
    assert event(watch)[1]["data"] == {"a": "2"}
    assert proxy.end_watches("/pods") == 0
    assert proxy.end_watches("/configmaps") == 1
    assert event(watch) is None
    assert client.ask("GET", f"{MAPS}/{name}")[0] == 200
    assert proxy.accepted == 1


def test_a_watch_is_told_410_within_its_stream(api_server, proxy, client, name):
    watch = client.watch(name=name)
    api_server.request("POST", MAPS, made(name))
    assert event(watch)[0] == "ADDED"
    assert proxy.inject_gone("/configmaps") == 1
    kind, status = event(watch)
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


def test_events_come_in_the_wrong_order(api_server, proxy, client, name):
    watch = client.watch(name=name)
    proxy.swap_events(path=name)
    api_server.request("POST", MAPS, made(name, a="1"))
    for number in "23":
        api_server.request("PUT", f"{MAPS}/{name}", made(name, a=number))
    assert [event(watch)[1]["data"]["a"] for _ in range(3)] == ["2", "1", "3"]


def test_an_event_is_torn_and_its_watch_with_it(api_server, proxy, client, name):
    watch = client.watch(name=name)
    proxy.tear_events(path=name)
    api_server.request("POST", MAPS, made(name, a="x" * 1000))
    with pytest.raises(BROKEN):
        watch.read()
    with Client(api_server, proxy.port) as another:
        assert another.ask("GET", f"{MAPS}/{name}")[0] == 200


def test_an_answer_is_torn(api_server, proxy, client, name):
    proxy.tear_answers(path="/configmaps")
    with pytest.raises(BROKEN):
        client.ask("POST", MAPS, made(name, a="x" * 1000))
    assert name in names(api_server)


def test_a_watch_ends_at_the_server_when_its_client_hangs_up(api_server, proxy, name):
    with Client(api_server, proxy.port) as client:
        client.watch(name=name).close()
        assert len(proxy.watches) == 1
    until(lambda: not proxy.watches)


def test_a_server_that_dies_takes_its_watches_along(api_server, proxy, client, name):
    watch = client.watch(name=name)
    api_server.stop()
    try:
        with pytest.raises(BROKEN):
            assert watch.read()
        with Client(api_server, proxy.port) as another, pytest.raises(BROKEN):
            another.ask("GET", MAPS)
    finally:
        api_server.start()
    with Client(api_server, proxy.port) as another:
        assert another.ask("GET", MAPS)[0] == 200


def test_a_line_before_it_breaks_by_itself(api_server, proxy):
    with Line("127.0.0.1", proxy.port) as line, Client(api_server, line.port) as client:
        assert client.ask("GET", MAPS)[0] == 200
        line.cut()
        with pytest.raises(BROKEN):
            client.ask("GET", MAPS)
