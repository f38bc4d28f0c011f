# SPDX-License-Identifier: GPL-3.0-or-later
"""One thread writes the record, many statements a commit.

Statements wait in a queue; the thread takes what has gathered after SOON, or at once where somebody waits, and commits it. A
batch without a durable entry is committed with `synchronous=NORMAL`: safe against a crash of this process, a power cut may
cost the last moments. A batch with one is committed with FULL, and its callers are told when it is on disk (SQLite, "PRAGMA
synchronous").
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from sandboxd.errors import Exhausted, Unavailable
from sandboxd.record.schema import connect

log = logging.getLogger("sandboxd.record")

BATCH = 512  # entries a commit
SOON = 0.003  # seconds before what gathers is encoded: by then whoever wrote it is done with what could not wait
LINGER = 0.2  # seconds that entries which are in no hurry wait for more of their kind, so that encoding disturbs nobody
MAX_WAITING = 20_000  # entries; beyond, no new command is taken
FIX = "see the disk of the state directory"

Statement = tuple[str, tuple[object, ...]]


@dataclass(slots=True, eq=False)
class Entry:
    """`statement` is made on the writer's thread, so that encoding costs the caller nothing."""

    statement: Callable[[], Statement] | None
    durable: bool = False
    lazy: bool = False
    done: Future[None] = field(default_factory=Future)


class Writer:
    """The thread and its queue. `error` is why the last commit failed, "" when all is well."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._backlog: list[Entry] = []
        self._wanted = threading.Event()  # set while anything but lazy entries may wait in the queue
        self._urgent = threading.Event()  # set while somebody waits for an entry in the queue
        self._closed = False
        self.error = ""
        self._thread = threading.Thread(target=self._run, name="sandboxd-record", daemon=True)
        self._thread.start()

    def put(self, statement: Callable[[], Statement], *, durable: bool = False, lazy: bool = False) -> Future[None]:
        """Queue a statement. The future is done when it is committed (durable: on disk), or failed. `lazy`: it may wait for
        others, at most LINGER; anything that is not, a flush included, takes it along."""
        entry = Entry(statement, durable, lazy and not durable)
        entry.done.set_running_or_notify_cancel()  # a caller that stops waiting does not take the entry back
        if self._closed:
            entry.done.set_exception(Unavailable("the record is closed"))
        else:
            self._queued(entry)
        return entry.done

    def check(self) -> None:
        """Raises Exhausted when the disk does not keep up: nothing runs that cannot be recorded."""
        if self._queue.qsize() + len(self._backlog) > MAX_WAITING:
            raise Exhausted(
                f"the record does not keep up: {self.error or 'slow disk'}", fix="see the disk of the state directory"
            )

    def flush(self) -> None:
        """Wait until everything queued so far has been tried."""
        if self._closed:
            return
        entry = Entry(None)
        self._queued(entry)
        entry.done.result()

    def close(self) -> None:
        """Write what is queued, then end the thread; idempotent."""
        if not self._closed:
            self._closed = True
            self._queued(None)
        self._thread.join()

    def _run(self) -> None:
        connection = connect(self._path)
        try:
            going = True
            while going:
                going = self._round(connection)
        finally:
            connection.close()

    def _round(self, connection: sqlite3.Connection) -> bool:
        """One batch; False when it was the last."""
        batch, going = self._gather()
        entries = self._backlog + [entry for entry in batch if entry.statement is not None]
        self._backlog = []
        if entries:
            self._commit(connection, entries)
        for entry in batch:
            if entry.statement is None:
                entry.done.set_result(None)
        if not going and self._backlog:
            log.error("the record lost %d entries: %s", len(self._backlog), self.error)
        return going

    def _gather(self) -> tuple[list[Entry], bool]:
        entry = self._queue.get()
        if entry is not None and entry.lazy:
            self._wanted.wait(LINGER)
        if entry is not None and entry.statement is not None and not entry.durable:
            self._urgent.wait(SOON)
        self._wanted.clear()
        self._urgent.clear()
        batch: list[Entry] = []
        while entry is not None:
            batch.append(entry)
            if len(batch) >= BATCH:
                return batch, True
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _queued(self, entry: Entry | None) -> None:
        """Put it into the queue, and see that the thread does not wait longer than it may."""
        self._queue.put(entry)
        if entry is None or entry.durable or entry.statement is None:
            self._urgent.set()
        if entry is None or not entry.lazy:
            self._wanted.set()

    def _commit(self, connection: sqlite3.Connection, entries: list[Entry]) -> None:
        durable = any(entry.durable for entry in entries)
        try:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                written = [entry for entry in entries if _execute(connection, entry)]
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self._failed(entries, error)
            return
        self.error = ""
        for entry in written:
            entry.done.set_result(None)

    def _failed(self, entries: list[Entry], error: sqlite3.Error) -> None:
        """The batch is not written: whoever waits for the disk is told, the rest is tried again with the next batch."""
        if str(error) != self.error:
            log.error("the record cannot be written: %s", error)
        self.error = str(error)
        for entry in entries:
            if entry.done.done():
                continue
            if entry.durable:
                entry.done.set_exception(Unavailable(f"the record cannot be written: {error}", fix=FIX))
            else:
                self._backlog.append(entry)


def _execute(connection: sqlite3.Connection, entry: Entry) -> bool:
    """Run one statement. One that cannot be made or is refused costs itself only; a failing disk costs the batch."""
    assert entry.statement is not None
    try:
        text, values = entry.statement()
        connection.execute(text, tuple(map(_storable, values)))
    except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError) as error:
        return _refuse(entry, error)
    except sqlite3.Error:
        raise
    except Exception as error:  # whatever an odd value does to the encoder
        return _refuse(entry, error)
    return True


def _storable(value: object) -> object:
    """Text as SQLite can hold it: a byte of a file name that is no UTF-8 appears as `\udc80` (in JSON, that is itself)."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def _refuse(entry: Entry, error: Exception) -> bool:
    log.error("an entry of the record cannot be written", exc_info=error)
    entry.done.set_exception(Unavailable(f"the record refused an entry: {error}"))
    return False
