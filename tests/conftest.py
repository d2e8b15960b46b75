"""What all tests share."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: those that start and kill processes come last."""
    items.sort(key=lambda item: item.get_closest_marker("process") is not None)
