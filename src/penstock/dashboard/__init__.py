"""The dashboard: pages in a browser that show a worker, or a cluster, while it runs.

    browser ──▶ server (login, same origin) ──▶ pages ──Session──▶ the worker's HTTP API, with the user's own token

It is a client like any other, in a process of its own: the worker decides what each user may see and do. Charts come
from the worker's own history, so they are there when the dashboard starts. NiceGUI does the work: pages are written in
Python, and its browser side comes as a package, with nothing to build or to copy.
"""
