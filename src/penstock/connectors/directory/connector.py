"""`directory`: new files of a directory or a bucket, each read once."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from penstock.connectors.api import About, Capabilities, Connector, Host, Lost, ShownBy, StreamState
from penstock.connectors.directory.files import Completeness, Found, Listing, Record, Verdict, ordered
from penstock.connectors.directory.options import DirectoryOptions
from penstock.connectors.directory.places import Place, place_of
from penstock.connectors.file.contents import Contents, algorithm_of, pump
from penstock.connectors.interceptors.api import BadBytes
from penstock.connectors.permissions import Permissions
from penstock.connectors.streams import until_draining
from penstock.core.errors import PenstockError
from penstock.core.types import Guarantee

log = logging.getLogger(__name__)

_FAILURES_SHOWN = 3
"""How many unreadable files one reason names."""


class Directory(Connector[DirectoryOptions]):
    about = About(
        name="directory",
        text="Reads each new file in a directory or a bucket once, and keeps, deletes or moves it.",
        options=DirectoryOptions,
        capabilities=Capabilities(source=Guarantee.EXACTLY_ONCE, resumes=True, own_event_times=False),
        example={"path": "/var/spool/orders", "pattern": "*.csv", "done": "delete"},
        shown_by=ShownBy(
            source="tests/application/test_kills_and_files.py::test_files_of_a_directory_are_read_once_and_deleted_when_they_are_delivered",
        ),
    )

    @classmethod
    def capabilities(cls, options: DirectoryOptions) -> Capabilities:
        """Files that are deleted or moved cannot have two readers."""
        claims = frozenset({f"the files in {options.path}"} if options.done != "keep" else ())
        return replace(cls.about.capabilities, claims=claims)

    @classmethod
    def check_permitted(cls, options: DirectoryOptions, permissions: Permissions) -> None:
        """Each file that is found is checked too, because it may be a link."""
        if options.folder is None:
            permissions.check_store(options.path)
        else:
            permissions.check_path(options.folder)
        super().check_permitted(options, permissions)

    async def run(self, host: Host) -> None:
        place = place_of(self.options, self.permissions.allows)
        await _Watch(self.options, place, host).run()


class _Watch:
    """One `run`: looks, reads what is new, and puts away what is complete."""

    def __init__(self, options: DirectoryOptions, place: Place, host: Host) -> None:
        self._options = options
        self._place = place
        self._host = host
        self._completeness = Completeness(options)
        self._record = Record(host.stream_names())
        self._reported: set[str] = set()
        """Streams of changed and vanished files: each is reported once."""
        self._has_finished = False

    async def run(self) -> None:
        """Raises Lost if the place cannot be listed, or a file cannot be read: it is looked at again later."""
        while not self._host.is_draining:
            listing = await self._listed()
            self._host.connected()
            complete = self._completeness.complete(listing, time.monotonic())
            verdicts = {file: self._verdict(file) for file in ordered(complete, self._options.order)}
            changed = [file for file, verdict in verdicts.items() if verdict is Verdict.CHANGED]
            await self._report_changed(changed)
            again = changed if self._options.changed == "again" else []
            to_read = [file for file, verdict in verdicts.items() if verdict is Verdict.READ or file in again]
            await self._read_all(to_read)
            are_away = await self._put_away([file for file, verdict in verdicts.items() if verdict is Verdict.DONE])
            await self._forget(listing)
            if not to_read and self._is_over(listing, complete) and are_away:
                return
            if not to_read and await until_draining(self._host, self._options.poll):
                return

    async def _listed(self) -> Listing:
        try:
            return await asyncio.to_thread(self._place.list)
        except OSError as error:
            raise Lost(f"{self._options.path} cannot be listed: {error.strerror or error}") from error

    def _verdict(self, file: Found) -> Verdict:
        return self._record.verdict(file, self._host.stream_state(file.stream))

    def _is_over(self, listing: Listing, complete: Sequence[Found]) -> bool:
        """With `once`: everything that is there was read. Files without a marker are not there yet."""
        is_waiting = self._options.finished == "stable" and len(complete) < len(listing.files)
        if not self._options.once or is_waiting or self._host.is_draining:
            return False
        if not self._has_finished:
            self._host.finished()
            self._has_finished = True
        return True

    # Reading.

    async def _read_all(self, files: Sequence[Found]) -> None:
        waiting, failures = iter(files), list[str]()

        async def work() -> None:
            for file in waiting:
                if self._host.is_draining:
                    return
                try:
                    await self._read(file)
                except OSError as error:
                    failures.append(f"{file.key}: {error.strerror or error}")
                except PenstockError as error:  # the store cannot be reached, or there is no room for another stream
                    failures.append(f"{file.key}: {error}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._options.parallel, len(files))):
                group.create_task(work())
        if failures:
            raise Lost("; ".join(failures[:_FAILURES_SHOWN]))

    async def _read(self, file: Found) -> None:
        with self._place.opened(file) as read_at:
            stream = await self._host.open_stream(file.stream, resume=True, metadata={"path": file.key})
            self._record.add(file.stream)
            algorithm = algorithm_of(file.key, self._options.compression)
            contents = Contents(read_at, self._options.chunk, algorithm, stream.position)
            try:
                if await pump(contents, stream, self._host):
                    self._host.count("files")
            except BadBytes:
                self._host.count("bad_files")
                log.error("%s: %s cannot be read to its end: see its dead letter", self._host.name, file.key)
            except (OSError, Lost):
                await stream.cut_off(f"{file.key} cannot be read any further")
                raise
            finally:
                await stream.close()

    # Files that are not what they were.

    async def _report_changed(self, files: Sequence[Found]) -> None:
        for file in files:
            await self._end_begun(self._record.others(file))
            if file.stream not in self._reported:
                self._reported.add(file.stream)
                self._host.count("changed_files")
                what = "is read again" if self._options.changed == "again" else "is not read again"
                log.error("%s: %s has changed since it was read, and %s", self._host.name, file.key, what)

    async def _end_begun(self, names: Sequence[str]) -> None:
        """Streams of files that will never be read on must not block the watermark."""
        for name in names:
            if self._host.stream_state(name) is StreamState.STARTED:
                stream = await self._host.open_stream(name, resume=True)
                await stream.finish()
                await stream.close()

    async def _forget(self, listing: Listing) -> None:
        if self._options.changed == "again":  # only the last version counts
            for file in listing.files:
                if self._host.stream_state(file.stream) is not StreamState.UNKNOWN:
                    self._drop(self._record.others(file))
        gone = self._record.gone(listing, time.monotonic(), self._options.forget_after)
        for name in gone:
            if self._host.stream_state(name) is StreamState.STARTED:
                self._host.count("vanished_files")
                log.error("%s: %s vanished before it was read to its end", self._host.name, name.rpartition("#")[0])
                await self._end_begun([name])
        self._drop(gone)

    def _drop(self, names: Sequence[str]) -> None:
        """Forget the streams that every pipeline has completed."""
        for name in names:
            if self._host.forget_stream(name) or self._host.stream_state(name) is StreamState.UNKNOWN:
                self._record.forget(name)

    # Files that every pipeline has completed.

    async def _put_away(self, files: Sequence[Found]) -> bool:
        """Whether none is left to put away."""
        if self._options.done == "keep":
            return True
        complete = [file for file in files if self._host.stream_state(file.stream) is StreamState.COMPLETE]
        for file in complete:
            try:
                is_away = await asyncio.to_thread(self._place.dispose, file)
            except OSError as error:
                raise Lost(
                    f"{file.key} was read, but cannot be {self._options.done}d: {error.strerror or error}"
                ) from error
            if is_away:
                self._host.count("files_put_away")
        return len(complete) == len(files)
