# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets leave the text; everything else stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.redact import redact

# Put together here so that no scanner takes this file for a leak.
GITHUB = "ghp_" + "a1B2" * 9
SLACK = "xoxb-" + "123456789012-abcdef"
PEM = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIE\nabc\n-----END RSA PRIVATE " + "KEY-----"

SECRET = [
    ("aws s3 ls # AKIA" + "IOSFODNN7EXAMPLE", "aws s3 ls # [redacted:aws_key]"),
    (f"curl -H 'X: {GITHUB}'", "curl -H 'X: [redacted:github_token]'"),
    ("github_pat_" + "11AAAAAAA0" * 3, "[redacted:github_token]"),
    ("glpat-" + "x" * 20, "[redacted:gitlab_token]"),
    (SLACK, "[redacted:slack_token]"),
    ("sk-ant-" + "api03-abcdefghijkl", "[redacted:api_key]"),
    ("sk_live_" + "4eC39HqLyjWD", "[redacted:api_key]"),
    ("AIza" + "S" * 35, "[redacted:google_key]"),
    ("npm_" + "x" * 36, "[redacted:registry_token]"),
    ("hf_" + "x" * 30, "[redacted:token]"),
    ("eyJhbGciOiJI." + "eyJzdWIiOiIx.SflKxw", "[redacted:jwt]"),
    (f"cat <<E\n{PEM}\nE", "cat <<E\n[redacted:private_key]\nE"),
    ("-----BEGIN PRIVATE " + "KEY-----\ncut off", "[redacted:private_key]"),
    ("curl -H 'Authorization: Bearer abc.def'", "curl -H 'Authorization: Bearer [redacted:header]'"),
    ('curl -H "authorization: token abcdef"', 'curl -H "authorization: token [redacted:header]"'),
    ("x-api-key: 12345", "x-api-key: [redacted:header]"),
    ("Bearer abcdefghijklmnopqrst==", "Bearer [redacted:header]"),
    ("git clone https://me:hunter2@example.com/r", "git clone https://me:[redacted:password]@example.com/r"),
    ("psql postgres://u:p%40ss@db/x", "psql postgres://u:[redacted:password]@db/x"),
    ("curl -u me:hunter2 x", "curl -u me:[redacted:password] x"),
    ("curl --user 'me:hunter2' x", "curl --user 'me:[redacted:password]' x"),
    ("PGPASSWORD=hunter2 psql", "PGPASSWORD=[redacted:value] psql"),
    ("export MY_TOKEN='a b'; ls", "export MY_TOKEN=[redacted:value]; ls"),
    ('{"api_key": "abc", "n": 1}', '{"api_key": [redacted:value], "n": 1}'),
    ("password: hunter2", "password: [redacted:value]"),
    ("AWS_SECRET_ACCESS_KEY=abc/def aws s3 ls", "AWS_SECRET_ACCESS_KEY=[redacted:value] aws s3 ls"),
    ("//registry.example/:_authToken=abc", "//registry.example/:_authToken=[redacted:value]"),
    ("login --password hunter2 --x", "login --password [redacted:value] --x"),
    ("gh auth --with-token abc", "gh auth --with-token [redacted:value]"),
    ("x --api-key=abc y", "x --api-key=[redacted:value] y"),
]
PLAIN = [
    "git commit -m 'add password reset'",
    'TOKEN="$GITHUB_TOKEN" run',
    "TOKEN=$(pass show x)",
    "TOKEN=`pass show x`",
    "TOKEN= run",
    "--max-tokens 100 max_tokens=100 tokenizer=fast",
    "grep -rn token src",
    "--token-file x.txt",
    "--password --other",
    "if token == other: pass",
    "cat sk-learn.txt task-list",
    "ssh://host:22/path user@host:dir",
    "docker run -u 1000:$GID x",
    "echo https://example.com:8080/a@b",
    "curl https://$USER:$PASS@example.com",
    "",
]


@pytest.mark.parametrize(("text", "clean"), SECRET)
def test_secrets_go(text: str, clean: str) -> None:
    """Each kind of secret is blotted out, and nothing beside it."""
    assert redact(text) == clean


@pytest.mark.parametrize("text", PLAIN)
def test_the_rest_stays(text: str) -> None:
    """References, names and words that only look alike stay readable."""
    assert redact(text) == text


def test_known_secrets() -> None:
    """Known values go wherever they stand, the longest first; very short ones are left alone."""
    assert redact("echo hunter22 hunter2 abc", ("hunter2", "hunter22", "abc")) == "echo [redacted:known] [redacted:known] abc"


@given(st.text())
def test_stable(text: str) -> None:
    """What is clean stays as it is."""
    assert redact(redact(text)) == redact(text)


OPENINGS = [
    "--token",
    "-----BEGIN PRIVATE KEY-----",
    "a://",
    "password=",
    "eyJ",
    "eyJ-",
    "-SG.",
    "x-api-key",
    "-u a",
    "bearer ",
    " ",
]


@pytest.mark.parametrize("piece", OPENINGS)
def test_linear(piece: str) -> None:
    """Repetition of any opening does not make it slow: twice the text is far less than eight times the work."""
    texts = [piece * (count // len(piece)) for count in (20_000, 80_000)]
    took = []
    for text in texts:
        start = time.perf_counter()
        redact(text)
        took.append(time.perf_counter() - start)
    assert took[1] < 10 * took[0] + 0.05
