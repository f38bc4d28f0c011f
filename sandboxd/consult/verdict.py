# SPDX-License-Identifier: GPL-3.0-or-later
"""What a classifier may answer, and every way in which it can fail to. Pure.

An answer counts only when it is exactly what was asked for and carries the nonce of its question, which nothing in the
command can know. Everything else is an `Outage`, and an outage never allows.

To add an outage: a member of `Outage`, a row in `OUTAGES`, and a row in tests/consult/test_consult_outages.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

MAX_REASON = 500  # characters of a reason that are kept
MAX_ANSWER = 16_000  # characters; a longer answer is not read


@unique
class Outage(Enum):
    """Why there is no verdict. The value is the reason code."""

    NO_PROVIDER = "classifier.no_provider"
    NO_KEY = "classifier.no_key"
    BAD_REQUEST = "classifier.bad_request"
    UNAUTHORIZED = "classifier.unauthorized"
    FORBIDDEN = "classifier.forbidden"
    NOT_FOUND = "classifier.not_found"
    TOO_LARGE = "classifier.too_large"
    RATE_LIMITED = "classifier.rate_limited"
    SERVER_ERROR = "classifier.server_error"
    UNAVAILABLE = "classifier.unavailable"
    OVERLOADED = "classifier.overloaded"
    STATUS = "classifier.status"
    REFUSED = "classifier.connection_refused"
    RESET = "classifier.connection_reset"
    DNS = "classifier.dns"
    CONNECTION = "classifier.connection"
    NO_RESPONSE = "classifier.no_response"
    BODY_STALLED = "classifier.body_stalled"
    BODY_SLOW = "classifier.body_slow"
    BODY_TOO_LONG = "classifier.body_too_long"
    NOT_JSON = "classifier.not_json"
    SCHEMA = "classifier.schema"
    EMPTY = "classifier.empty"
    REFUSAL = "classifier.refusal"
    MAX_TOKENS = "classifier.max_tokens"
    WRONG_NONCE = "classifier.wrong_nonce"
    INPUT_TOO_LONG = "classifier.input_too_long"
    BUDGET = "classifier.budget"
    DEADLINE = "classifier.deadline"
    WORKER_STARTING = "classifier.worker_starting"
    WORKER_DIED = "classifier.worker_died"
    WORKER_FAILED = "classifier.worker_failed"
    COMMAND_FAILED = "classifier.command_failed"


@dataclass(frozen=True, slots=True)
class About:
    """What to say of an outage. `again`: trying once more may help; `ours`: it says nothing about the provider's health."""

    text: str
    again: bool = False
    ours: bool = False


OUTAGES: dict[Outage, About] = {
    Outage.NO_PROVIDER: About("no classifier is configured (`classifier.provider`)", ours=True),
    Outage.NO_KEY: About("there is no API key (`classifier.api_key_file`, or the environment of the daemon)"),
    Outage.BAD_REQUEST: About("the server does not accept the request (400)"),
    Outage.UNAUTHORIZED: About("the server does not accept the API key (401)"),
    Outage.FORBIDDEN: About("the API key may not use this model (403)"),
    Outage.NOT_FOUND: About("the server does not know the model or the address (404)"),
    Outage.TOO_LARGE: About("the server finds the request too large (413)", ours=True),
    Outage.RATE_LIMITED: About("the server limits the rate (429)", again=True),
    Outage.SERVER_ERROR: About("the server failed (5xx)", again=True),
    Outage.UNAVAILABLE: About("the server is unavailable (503)", again=True),
    Outage.OVERLOADED: About("the server is overloaded (529)", again=True),
    Outage.STATUS: About("the server answered with an unexpected status"),
    Outage.REFUSED: About("the server refuses the connection", again=True),
    Outage.RESET: About("the server broke the connection off", again=True),
    Outage.DNS: About("the server's name cannot be resolved", again=True),
    Outage.CONNECTION: About("the server cannot be reached", again=True),
    Outage.NO_RESPONSE: About("the server did not answer in time"),
    Outage.BODY_STALLED: About("the server stopped in the middle of its answer"),
    Outage.BODY_SLOW: About("the server's answer came too slowly"),
    Outage.BODY_TOO_LONG: About("the server's answer was too long"),
    Outage.NOT_JSON: About("the answer is not JSON"),
    Outage.SCHEMA: About("the answer does not have the form that was asked for"),
    Outage.EMPTY: About("the answer is empty"),
    Outage.REFUSAL: About("the model refuses to answer"),
    Outage.MAX_TOKENS: About("the model did not come to an end"),
    Outage.WRONG_NONCE: About("the answer does not carry the nonce of its question"),
    Outage.INPUT_TOO_LONG: About("the command is too long to be classified (`classifier.max_input`)", ours=True),
    Outage.BUDGET: About("the session's budget for the classifier is used up", ours=True),
    Outage.DEADLINE: About("there was no verdict before the deadline"),
    Outage.WORKER_STARTING: About("the classifier's process is still starting", ours=True),
    Outage.WORKER_DIED: About("the classifier's process ended; it is started again"),
    Outage.WORKER_FAILED: About("the classifier's process does not work"),
    Outage.COMMAND_FAILED: About("the classifier command failed"),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """No verdict. `retry_after`: seconds that the server or the breaker asks to wait, 0 = unknown."""

    outage: Outage
    detail: str = ""
    retry_after: float = 0.0

    def __str__(self) -> str:
        text = OUTAGES[self.outage].text
        if self.detail:
            text += f": {self.detail}"
        return f"{text}; try again in {self.retry_after:.0f} s" if self.retry_after >= 1 else text


@unique
class Category(Enum):
    """What speaks against a command. `NONE` for one against which nothing speaks."""

    NONE = "none"
    DESTRUCTIVE = "destructive"
    EXFILTRATION = "exfiltration"
    CREDENTIAL = "credential"
    PRIVILEGE = "privilege"
    PERSISTENCE = "persistence"
    OUTSIDE_SCOPE = "outside_scope"
    REMOTE_CODE = "remote_code"
    SHARED_SYSTEM = "shared_system"
    EVASION = "evasion"
    INJECTION = "injection"
    UNCLEAR = "unclear"


# A person's words do not make these harmless.
NEVER_ALLOWED = frozenset((Category.EVASION, Category.INJECTION, Category.UNCLEAR))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A valid answer. `user_message`: the id of the user message that names this action, "" = none."""

    allow: bool
    category: Category = Category.NONE
    reason: str = ""
    user_message: str = ""


_KEYS = frozenset(("reasoning", "verdict", "category", "user_message", "nonce"))


def read_first(text: str, nonce: str) -> bool | Failure:
    """Stage 1: whether `text` is `allow NONCE` (True) or `block NONCE` (False), and nothing else."""
    words = text.split()
    if not words:
        return Failure(Outage.EMPTY)
    if len(words) != 2 or words[0] not in ("allow", "block"):
        return Failure(Outage.SCHEMA, "stage 1 is not two words")
    if words[1] != nonce:
        return Failure(Outage.WRONG_NONCE)
    return words[0] == "allow"


def read_second(text: str, nonce: str, user_messages: frozenset[str]) -> Verdict | Failure:
    """Stage 2: the strict object. `user_messages` are the ids that exist.

    Whoever allows what speaks against itself must name the user message that asks for it.
    """
    data = strict_object(text)
    if isinstance(data, Failure):
        return data
    if data.get("nonce") != nonce:
        return Failure(Outage.WRONG_NONCE)
    return read_verdict(data, user_messages, _KEYS)


def strict_object(text: str) -> dict[str, Any] | Failure:
    """One JSON object without repeated keys, and nothing around it."""
    if not text.strip():
        return Failure(Outage.EMPTY)
    if len(text) > MAX_ANSWER:
        return Failure(Outage.SCHEMA, "the answer is too long")
    try:
        data = json.loads(text, object_pairs_hook=_pairs, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Failure(Outage.SCHEMA, f"not one JSON object ({str(error)[:80]})")
    return data if isinstance(data, dict) else Failure(Outage.SCHEMA, "not an object")


def read_verdict(data: dict[str, Any], user_messages: frozenset[str], keys: frozenset[str]) -> Verdict | Failure:
    """The verdict of an object that has exactly `keys`."""
    if data.keys() != keys:
        wrong = ", ".join(sorted(map(str, data.keys() ^ keys)))
        return Failure(Outage.SCHEMA, f"missing or unknown keys: {wrong[:120]}")
    word, reason, named = data["verdict"], data["reasoning"], data["user_message"]
    if word not in ("allow", "block") or not isinstance(reason, str):
        return Failure(Outage.SCHEMA, "`verdict` or `reasoning` is not as asked")
    try:
        category = Category(data["category"])
    except ValueError:
        return Failure(Outage.SCHEMA, "unknown category")
    if named is not None and not (isinstance(named, str) and named in user_messages):
        return Failure(Outage.SCHEMA, "`user_message` names no message")
    allow = word == "allow"
    if allow and category is not Category.NONE and (named is None or category in NEVER_ALLOWED):
        return Failure(Outage.SCHEMA, f"allows what it calls `{category.value}`")
    if not allow and category is Category.NONE:
        category = Category.UNCLEAR
    return Verdict(allow, category, " ".join(reason.split())[:MAX_REASON], named or "")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key stands twice")
    return data


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
