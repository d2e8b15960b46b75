"""Hostile clients against a worker process: fuzzing of all its ports, and attacks while a good client works.

`script/test --campaign hostile` runs both; `tests/security/test_hostile.py` a short form.
"""
