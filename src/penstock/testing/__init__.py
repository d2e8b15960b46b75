"""Test support for connectors and other extensions. Penstock itself imports nothing from here; some modules need
pytest.
"""
