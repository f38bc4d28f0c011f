# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that hold secrets: policy asks before they are read, isolation hides them in every box.

To add a secret: add its pattern to SECRET_PATHS (`~/` for a home directory, `/` absolute, `**/` at any depth) and a row
to tests/corpus/policy_sensitive.toml. Nothing else; both lines of defence read this tuple.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sandboxd.globs import is_glob, overlaps, path_overlaps
from sandboxd.model.effects import Sensitivity
from sandboxd.paths import expand_home, strip_proc_root

# A pattern names a file, or a directory with everything below it.
SECRET_PATHS: tuple[str, ...] = (
    # keys
    "~/.ssh",
    "~/.gnupg",
    "~/.pki",
    "~/.putty",
    "~/.password-store",
    "~/.config/age",
    "~/.config/sops",
    "~/.age",
    "/etc/ssh/*_key",
    "/etc/ssl/private",
    "/etc/letsencrypt/archive",
    "/etc/letsencrypt/live",
    # accounts
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/security/opasswd",
    "/etc/krb5.keytab",
    "/etc/master.passwd",
    "/etc/ppp/chap-secrets",
    "/etc/ppp/pap-secrets",
    "/etc/ipsec.secrets",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/NetworkManager/system-connections",
    "/etc/samba/private",
    "/etc/mysql/debian.cnf",
    "/etc/postfix/sasl_passwd",
    "/etc/exim4/passwd.client",
    "/etc/kubernetes/admin.conf",
    "/etc/kubernetes/pki",
    "/etc/rancher/k3s/k3s.yaml",
    # clouds and clusters
    "~/.aws",
    "~/.azure",
    "~/.config/gcloud",
    "~/.config/doctl",
    "~/.config/hcloud",
    "~/.config/linode-cli",
    "~/.config/scw",
    "~/.config/rclone",
    "~/.boto",
    "~/.s3cfg",
    "~/.oci",
    "~/.bluemix",
    "~/.aliyun",
    "~/.fly",
    "~/.vercel",
    "~/.config/netlify",
    "~/.config/heroku",
    "~/.config/wrangler",
    "~/.wrangler",
    "~/.kube/config",
    "~/.docker/config.json",
    "~/.docker/contexts",
    "~/.config/containers/auth.json",
    "~/.config/helm/registry",
    "~/.terraform.d/credentials*",
    "~/.pulumi/credentials.json",
    "~/.vault-token",
    "~/.config/op",
    "~/.snowsql",
    "~/.databrickscfg",
    "~/.kaggle/kaggle.json",
    "~/.cache/huggingface/token",
    "~/.huggingface/token",
    # registries and forges
    "~/.npmrc",
    "~/.yarnrc.yml",
    "~/.pypirc",
    "~/.netrc",
    "~/.authinfo",
    "~/.authinfo.gpg",
    "~/.git-credentials",
    "~/.config/git/credentials",
    "~/.config/gh/hosts.yml",
    "~/.config/hub",
    "~/.config/glab-cli/config.yml",
    "~/.config/tea/config.yml",
    "~/.cargo/credentials*",
    "~/.gem/credentials",
    "~/.local/share/gem/credentials",
    "~/.composer/auth.json",
    "~/.config/composer/auth.json",
    "~/.m2/settings-security.xml",
    "~/.nuget/NuGet/NuGet.Config",
    "~/.config/pypoetry/auth.toml",
    # databases and mail
    "~/.pgpass",
    "~/.my.cnf",
    "~/.mylogin.cnf",
    "~/.mongorc.js",
    "~/.dbshell",
    "~/.msmtprc",
    "~/.config/msmtp",
    "~/.thunderbird",
    # agents
    "~/.claude/.credentials.json",
    "~/.codex/auth.json",
    "~/.gemini/oauth_creds.json",
    "~/.config/github-copilot",
    # keyrings
    "~/.local/share/keyrings",
    "~/.local/share/kwalletd",
    "~/.kde/share/apps/kwallet",
    "~/Library/Keychains",
    "~/.config/1Password",
    "~/.config/Bitwarden",
    "~/.config/Bitwarden CLI",
    "~/.config/KeePassXC",
    # browser profiles
    "~/.mozilla",
    "~/.config/google-chrome*",
    "~/.config/chromium",
    "~/.config/BraveSoftware",
    "~/.config/microsoft-edge*",
    "~/.config/vivaldi",
    "~/.config/opera",
    "~/snap/firefox",
    "~/snap/chromium",
    "~/.var/app/org.mozilla.firefox",
    "~/Library/Application Support/Firefox",
    "~/Library/Application Support/Google/Chrome",
    # what was typed
    "~/.bash_history",
    "~/.zsh_history",
    "~/.zhistory",
    "~/.history",
    "~/.sh_history",
    "~/.local/share/fish/fish_history",
    "~/.python_history",
    "~/.node_repl_history",
    "~/.psql_history",
    "~/.mysql_history",
    "~/.sqlite_history",
    "~/.rediscli_history",
    "~/.lesshst",
    "~/.viminfo",
    # other processes
    "/proc/*/environ",
    "/proc/*/task/*/environ",
    "/proc/*/mem",
    "/proc/kcore",
    "/proc/keys",
    "/dev/mem",
    "/dev/kmem",
    "/dev/port",
    # mounted secrets
    "/run/secrets",
    "/var/run/secrets",
    "/var/lib/docker",
    "/var/lib/sss/secrets",
    # settings of an application
    "**/.env",
    "**/.env.*",
)
# Names like a secret's that hold none.
HARMLESS_ENV_SUFFIXES: tuple[str, ...] = (".example", ".sample", ".template", ".dist")

PATH_MAX = 4_096  # what is longer names no file
_FILES = ("/proc/", "/dev/")  # what lies there are files: nothing is below them
_HOMES = re.compile(r"/(?:root|(?:home|Users|var/home)/[^/]+)(?=/|$)")
_SETTINGS = "settings*.json"


def _split(patterns: tuple[str, ...], prefix: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Patterns under `prefix` as component tuples, by first component (those have no pattern there)."""
    out: dict[str, list[tuple[str, ...]]] = {}
    for pattern in patterns:
        if pattern.startswith(prefix):
            pieces = tuple(pattern[len(prefix) :].split("/"))
            out.setdefault(pieces[0], []).append(pieces)
    return {name: tuple(rows) for name, rows in out.items()}


_IN_HOME = _split(SECRET_PATHS, "~/")
_ABSOLUTE = _split(SECRET_PATHS, "/")


def _secret(pieces: list[str], table: dict[str, tuple[tuple[str, ...], ...]]) -> bool:
    for row in table.get(pieces[0], ()) if pieces else ():
        if len(row) <= len(pieces) and all(
            want == got or (is_glob(want) and overlaps(want, got)) for want, got in zip(row, pieces, strict=False)
        ):
            return True
    return False


def _env_file(name: str) -> bool:
    return name == ".env" or (name.startswith(".env.") and not name.endswith(HARMLESS_ENV_SUFFIXES))


def _is_settings(pieces: list[str]) -> bool:
    return len(pieces) > 1 and pieces[-2].casefold() == ".claude" and overlaps(_SETTINGS, pieces[-1].casefold())


@lru_cache(maxsize=2048)
def sensitivity(path: str, home: str) -> Sensitivity:
    """How sensitive reading the absolute lexical `path` is. Every home directory counts, not only `home`."""
    path = strip_proc_root(expand_home(path, home))
    pieces = path.strip("/").split("/")
    if _is_settings(pieces):
        return Sensitivity.SETTINGS
    if _env_file(pieces[-1]) or _secret(pieces, _ABSOLUTE):
        return Sensitivity.SECRET
    if home != "/" and path.startswith(home + "/") and _secret(path[len(home) + 1 :].split("/"), _IN_HOME):
        return Sensitivity.SECRET
    other = _HOMES.match(path)
    if other is not None and _secret(path[other.end() + 1 :].split("/"), _IN_HOME):
        return Sensitivity.SECRET
    return Sensitivity.NONE


@lru_cache(maxsize=512)
def pattern_sensitivity(pattern: str, home: str) -> Sensitivity:
    """How sensitive the most sensitive path is that the shell glob `pattern` can match.

    A leading `*` does not match a dot; a `**` component is taken for a walk of the tree, whose patterns do match dots.
    """
    if not is_glob(pattern):
        return sensitivity(pattern, home)
    pattern = strip_proc_root(expand_home(pattern, home))
    dots = "**" in pattern
    pieces = pattern.strip("/").split("/")
    name = pieces[-1]
    if len(pieces) > 1 and overlaps(pieces[-2], ".claude", dots) and overlaps(name, _SETTINGS, dots):
        return Sensitivity.SETTINGS
    if is_glob(name) and name != "**" and (overlaps(name, ".env", dots) or _env_glob(name)) and not _vague(name):
        return Sensitivity.SECRET
    if not is_glob(name) and _env_file(name):
        return Sensitivity.SECRET
    homes = {home, "/root", "/home/?*", "/Users/?*"}
    for secret in SECRET_PATHS:
        if secret.startswith("~/"):
            if any(path_overlaps(pattern, f"{one}/{secret[2:]}/**", dots) for one in homes):
                return Sensitivity.SECRET
        elif secret.startswith("/") and path_overlaps(pattern, secret if secret.startswith(_FILES) else f"{secret}/**", dots):
            return Sensitivity.SECRET
    return Sensitivity.NONE


def _env_glob(name: str) -> bool:
    """A glob like `.env.*` or `.e*`: it can name an environment file, and not only the harmless ones."""
    return name.startswith(".") and overlaps(name, ".env.?*") and not name.endswith(HARMLESS_ENV_SUFFIXES)


def _vague(name: str) -> bool:
    """A glob that says nothing of the name (`*`, `*.*`): the mount plan hides what it meets."""
    return name.strip("*?.") == "" and not name.startswith(".")


@lru_cache(maxsize=64)  # a command of many words may ask for the same pieces as often
def fragments_sensitivity(fragments: tuple[str, ...], home: str) -> Sensitivity:
    """How sensitive a target is of which only literal pieces are known: `/proc/$$/environ`, `~/.ssh/$k`; a piece that is a
    whole path may be one by itself: `set -- /etc/shadow; cat "$1"`."""
    if not fragments:
        return Sensitivity.NONE
    if fragments[:2] == ("/", "//"):  # a walk of everything: `find / -name x -exec cat {} +`
        return Sensitivity.SECRET
    pattern = "*".join(fragment.replace("\\", "\\\\") for fragment in fragments)
    first = None
    if pattern.startswith("/") and len(pattern) <= PATH_MAX:
        first = pattern_sensitivity(pattern + ("*" if pattern.endswith("/") else ""), home)
    if first is not None and first is not Sensitivity.NONE:
        return first
    for fragment in fragments:
        if fragment[:1] == "/" and len(fragment) <= PATH_MAX:
            whole = sensitivity(fragment, home)
            if whole is not Sensitivity.NONE:
                return whole
        pieces = fragment.split("/")
        if any(map(_env_piece, pieces)) or not _FRAGMENT_NAMES.isdisjoint(pieces):
            return Sensitivity.SECRET
        if is_glob(fragment) and _names_env(pieces):
            return Sensitivity.SECRET
    return Sensitivity.NONE


def _env_piece(piece: str) -> bool:
    return _env_file(piece) or (piece.startswith(".env") and _env_glob(piece))


def _names_env(pieces: list[str]) -> bool:
    """Whether a glob among the last components says of a name that it can be an environment file's, or a key's."""
    name = pieces[-1]
    if not is_glob(name) or _vague(name):
        return False
    dots = "**" in pieces
    return overlaps(name, ".env", dots) or _env_glob(name) or any(overlaps(name, key, dots) for key in _KEYS)


# Names of keys, which lie in `~/.ssh` as a rule.
_KEYS = ("id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk")
# Directory and file names that are a secret's wherever they stand, for targets whose beginning is unknown.
_FRAGMENT_NAMES = frozenset(
    (
        *_KEYS,
        *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".netrc", ".pypirc", ".git-credentials", ".pgpass", "environ"),
        *(".vault-token", ".bash_history", "application_default_credentials.json"),
    )
)


def secret_masks(home: str) -> tuple[str, ...]:
    """The paths that isolation hides in every box, `home` put in; a glob stays a glob, for the caller to expand.

    `/proc` and `/dev` are not among them (every box has its own), nor the `**` patterns, which are the read-only
    box's business.
    """
    return tuple(expand_home(pattern, home) for pattern in SECRET_PATHS if not pattern.startswith(("**", "/proc/", "/dev/")))
