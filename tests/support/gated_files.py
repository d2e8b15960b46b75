"""A disk that stalls: real files whose fsync takes as long as a gate is shut."""

import os
import threading

from penstock.store.files import RealFile, RealFiles


class GatedFile(RealFile):
    """Set the gate first: it is shut when the module is imported."""

    gate = threading.Event()

    def sync(self) -> None:
        self.gate.wait()
        super().sync()


class GatedFiles(RealFiles):
    def open(self, name: str) -> RealFile:
        return GatedFile(self._open(name))

    def create(self, name: str) -> RealFile:
        return GatedFile(self._open(name, os.O_CREAT | os.O_EXCL))
