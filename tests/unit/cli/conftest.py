"""Local time is UTC here, or what a test says."""

import time

import pytest


@pytest.fixture(autouse=True)
def zone(monkeypatch, request):
    monkeypatch.setenv("TZ", getattr(request, "param", "UTC"))
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
