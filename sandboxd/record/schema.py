# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of the record, their version, and how a file is opened.

To change the schema: append a script to MIGRATIONS (never edit one that was released) and a row to
tests/record/test_record_schema.py. The number of scripts is the version; each runs in one transaction.
"""

from __future__ import annotations

import os
import sqlite3

from sandboxd.errors import ConfigError

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, parent TEXT NOT NULL, workspace TEXT NOT NULL, mode TEXT NOT NULL, profile TEXT NOT NULL,
        at REAL NOT NULL
    );
    CREATE TABLE decisions (
        row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, session TEXT NOT NULL, execution TEXT NOT NULL,
        text TEXT NOT NULL, cwd TEXT NOT NULL, mode TEXT NOT NULL, at REAL NOT NULL, behavior TEXT NOT NULL,
        step TEXT NOT NULL, reason TEXT NOT NULL, document TEXT NOT NULL, analysis TEXT NOT NULL
    );
    CREATE INDEX decisions_by_session ON decisions (session, row);
    CREATE INDEX decisions_by_execution ON decisions (execution);
    CREATE TABLE executions (
        row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, session TEXT NOT NULL, decision TEXT NOT NULL,
        profile TEXT NOT NULL, enforcement TEXT, started REAL, finished REAL, end TEXT, code INTEGER, result TEXT,
        owner TEXT NOT NULL
    );
    CREATE INDEX executions_by_session ON executions (session, row);
    CREATE INDEX executions_open ON executions (owner) WHERE end IS NULL;
    CREATE TABLE approvals (
        row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, execution TEXT NOT NULL, session TEXT NOT NULL,
        verdict TEXT NOT NULL, scope TEXT NOT NULL, who TEXT NOT NULL, rule TEXT NOT NULL, reason TEXT NOT NULL,
        latency REAL NOT NULL, at REAL NOT NULL
    );
    CREATE INDEX approvals_by_session ON approvals (session, row);
    """,
    """
    CREATE TABLE asked (
        id TEXT PRIMARY KEY, execution TEXT NOT NULL, session TEXT NOT NULL, at REAL NOT NULL, owner TEXT NOT NULL
    );
    CREATE INDEX asked_by_owner ON asked (owner);
    """,
    "ALTER TABLE decisions ADD COLUMN timings TEXT NOT NULL DEFAULT '[]'",
)
VERSION = len(MIGRATIONS)
BUSY = 5000  # milliseconds to wait for another process that writes


def prepare(path: str) -> None:
    """Make or migrate the file; it belongs to its user alone (0600).

    Raises ConfigError when it cannot be made, is no record, or was written by a newer sandboxd.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the record cannot be opened: {error.strerror}", origin=path, fix="see `daemon.state`") from error
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    connection = connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        _migrate(connection, path)
    except sqlite3.DatabaseError as error:
        fix = "move the file away; a new one is made" if "not a database" in str(error) else "see the disk and its quota"
        raise ConfigError(f"the record cannot be used: {error}", origin=path, fix=fix) from error
    finally:
        connection.close()


def connect(path: str) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread (one at a time)."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA busy_timeout = {BUSY}")
    return connection


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > VERSION:
            raise ConfigError(
                f"the record has schema {found}, this sandboxd knows up to {VERSION}",
                origin=path,
                fix="run the newer sandboxd, or move the file away",
            )
        for script in MIGRATIONS[found:]:
            for statement in script.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
