# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets out of text that is kept or sent. Pure; the work is linear in the text, and small for clean text.

What is found is replaced by `[redacted:kind]`. A reference (`$TOKEN`, `${TOKEN}`, `$(pass show x)`) is no secret and
stays readable. This catches what looks like a secret; it is no proof that nothing else is one.

To add a kind of token: a row in TOKENS (one of its hints stands in every such token) and rows in
tests/record/test_redact.py.
"""

from __future__ import annotations

import re

# kind, hints, pattern of the whole secret. A pattern is tried only where one of its hints occurs.
TOKENS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "private_key",
        ("-----BEGIN ",),
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    ("aws_key", ("AKIA", "ASIA", "ABIA", "ACCA"), r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"),
    (
        "github_token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,})",
    ),
    ("gitlab_token", ("glp", "gld", "glr", "glc", "gls", "glf"), r"\bgl(?:pat|dt|rt|ptt|cbt|soat|ft)-[A-Za-z0-9_.-]{16,}"),
    ("slack_token", ("xox", "xapp-"), r"\bxox[abeoprs]-[A-Za-z0-9-]{8,}|\bxapp-\d-[A-Za-z0-9-]{8,}"),
    ("slack_webhook", ("hooks.slack.com",), r"\bhttps://hooks\.slack\.com/services/[A-Za-z0-9/]{8,}"),
    (
        "api_key",
        ("sk-", "k_live_", "k_test_"),
        r"\bsk-[A-Za-z0-9_-]{16,}|\b[srp]k_(?:live|test)_[A-Za-z0-9]{10,}",
    ),
    ("google_key", ("AIza", "ya29."), r"\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}"),
    (
        "registry_token",
        ("npm_", "pypi-", "dckr_pat_"),
        r"\bnpm_[A-Za-z0-9]{30,}|\bpypi-[A-Za-z0-9_-]{30,}|\bdckr_pat_[A-Za-z0-9_-]{20,}",
    ),
    ("token", ("hf_", "dop_v1_", "hvs."), r"\bhf_[A-Za-z0-9]{20,}|\bdop_v1_[a-f0-9]{32,}|\bhvs\.[A-Za-z0-9_-]{20,}"),
    ("sendgrid_key", ("SG.",), r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("jwt", ("eyJ",), r"\beyJ[A-Za-z0-9_-]{8,600}\.eyJ[A-Za-z0-9_-]{8,6000}\.[A-Za-z0-9_-]*"),
)
MIN_KNOWN = 6  # characters; a shorter known secret would blot out ordinary words

# A value is quoted, or runs to the next space or shell separator. What begins with `$` or a backtick is a reference.
_VALUE = r"(?:\"(?![$`]|\[redacted)[^\"\n]+\"|'(?!\$|\[redacted)[^'\n]+'|(?![$`=\"'\[<{(*])[^\s\"'`;&|<>()]+)"
_NAME = (
    r"(?:passw(?:or)?d|passphrase|client_?secret|secrets?(?:[_-]?key)?|token|(?:api|access|private|auth|account)[_-]?key"
    r"|credentials?)"
)
_NAME_HINTS = ("passw", "passphrase", "secret", "token", "key", "credential")

_TOKENS = tuple((kind, hints, re.compile(pattern, re.DOTALL)) for kind, hints, pattern in TOKENS)
_HEADER = re.compile(
    r"((?:authorization|x-api-key)[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?:(?:bearer|basic|token|digest)\s+)?)(?![$\[])[^\s\"'$]+"
    r"|(\bbearer\s+)(?!\[)[A-Za-z0-9+/._~-]{16,}=*",
    re.IGNORECASE,
)
_URL = re.compile(r"(://[^\s/:@\"'$]{0,100}:)(?![$\[])[^\s/@\"']{1,200}(?=@)")
_USER = re.compile(r"((?:^|\s)(?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"'$]{1,100}:)(?![$\[])[^\s\"']+")
_NAMED = re.compile(rf"({_NAME}[0-9]{{0,2}}(?:[\"']?\s{{0,9}}:\s{{0,9}}|[\"']?=|\s=\s)){_VALUE}", re.IGNORECASE)
_OPTION = re.compile(rf"(--[\w-]{{0,40}}?{_NAME}\s+)(?!-){_VALUE}", re.IGNORECASE)


def redact(text: str, secrets: tuple[str, ...] = ()) -> str:
    """`text` with everything that looks like a secret, and every one of the known `secrets`, blotted out."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_KNOWN and secret in text:
            text = text.replace(secret, "[redacted:known]")
    for kind, hints, pattern in _TOKENS:
        if any(hint in text for hint in hints):
            text = pattern.sub(f"[redacted:{kind}]", text)
    lowered = text.lower()
    if "authorization" in lowered or "bearer" in lowered or "x-api-key" in lowered:
        text = _HEADER.sub(lambda match: f"{match[1] or match[2]}[redacted:header]", text)
    if "://" in text and "@" in text:
        text = _URL.sub(r"\1[redacted:password]", text)
    if "-u" in text or "-user" in text:
        text = _USER.sub(r"\1[redacted:password]", text)
    if any(hint in lowered for hint in _NAME_HINTS):
        text = _NAMED.sub(r"\1[redacted:value]", text)
        text = _OPTION.sub(r"\1[redacted:value]", text)
    return text
