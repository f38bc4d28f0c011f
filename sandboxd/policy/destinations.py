# SPDX-License-Identifier: GPL-3.0-or-later
"""Where programs write that no effect table reads: which of their words name a destination.

Copying clients of clouds and clusters, converters, makers of environments, programs whose words are little scripts: the
tables call them opaque, and a mention is no evidence there. A protected name in the place of a destination is.

To add one: a row in `DESTINATIONS`, and a row in tests/corpus/policy_touch.jsonl.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sandboxd.killswitch import protected_fragments
from sandboxd.model import PartKind, Word
from sandboxd.policy.gittouch import Argv, is_protected, word_set

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Destination:
    """Which words are written: the `last` operand, the `second`, `every` one, the values of `options`, what group 1 of `pattern`
    finds in a word. `verbs`: only when one of these stands among the first operands; `less`: an ending that the tool
    takes off; `unless`: nothing is written beside one of these options, or by this subcommand."""

    last: bool = False
    every: bool = False
    second: bool = False
    options: frozenset[str] = _NONE
    verbs: frozenset[str] = _NONE
    valued: frozenset[str] = _NONE
    pattern: re.Pattern[str] | None = None
    less: re.Pattern[str] | None = None
    unless: frozenset[str] = _NONE


_LAST, _EVERY = Destination(last=True), Destination(every=True)
_COPIES = word_set("cp mv sync rsync mirror")
_UNPACKED = Destination(
    every=True, less=re.compile(r"\.(?:gz|z|tgz|bz2|xz|lzma|zst|lz4|Z)\Z"), unless=word_set("-c --stdout -t --test -l --list")
)
_EDITOR = Destination(pattern=re.compile(r"(?:^|[\s|:+])(?:w|wq|sav|saveas|write)!?\s+(\S+)"))
_PIP = Destination(
    verbs=word_set("install download wheel"), options=word_set("-d --dest -t --target --prefix --root -w --wheel-dir --src")
)
_NODE = Destination(
    verbs=word_set("install i ci add update uninstall"), options=word_set("--prefix -C --dir --cwd --modules-folder")
)

DESTINATIONS: dict[str, Destination] = {
    **dict.fromkeys(word_set("convert composite montage mogrify"), Destination(last=True, options=word_set("-write -path"))),
    **dict.fromkeys(word_set("wkhtmltopdf wkhtmltoimage ditto pax virtualenv"), _LAST),
    "magick": Destination(last=True, unless=word_set("identify compare")),
    **dict.fromkeys(
        word_set(
            "qpdf pdftk sox cwebp dwebp ddrescue e2image xfs_metadump xfs_copy mcopy weasyprint pdftoppm pdfimages"
            " pdftocairo pdfseparate pdfunite"
        ),
        _LAST,
    ),
    "sd": Destination(last=True, unless=word_set("-p --preview")),
    "rustfmt": Destination(every=True, unless=word_set("--check --version -V --help -h")),
    "tesseract": Destination(second=True),
    "indent": Destination(every=True, unless=word_set("-st --standard-output --version")),
    "dprint": Destination(every=True, verbs=word_set("fmt")),
    **dict.fromkeys(word_set("cabextract unsquashfs"), Destination(options=word_set("-d --directory -dest"))),
    "valgrind": Destination(options=word_set("--log-file --xml-file")),
    "dlv": Destination(options=word_set("--log-dest --output -o")),
    "unrar": Destination(last=True, verbs=word_set("x e")),
    **dict.fromkeys(word_set("7z 7za 7zz 7zr rar"), Destination(second=True, verbs=word_set("a u d rn m f"))),
    "qemu-img": Destination(every=True, verbs=word_set("create convert resize commit rebase amend snapshot")),
    "virsh": Destination(last=True, verbs=word_set("save screenshot dump vol-download managedsave")),
    "btrfs": Destination(last=True, verbs=word_set("restore")),
    "meson": Destination(every=True, verbs=word_set("setup install")),
    **dict.fromkeys(word_set("rename prename perl-rename file-rename mmv"), _EVERY),
    **dict.fromkeys(
        word_set("kubectl oc aws gsutil s3cmd mc gcloud azcopy"),
        Destination(last=True, verbs=_COPIES | {"copy", "scp", "get-object"}),
    ),
    "rclone": Destination(
        last=True,
        verbs=word_set("copy copyto copyurl move moveto sync bisync delete deletefile purge rmdir rmdirs mkdir touch"),
    ),
    "svn": Destination(last=True, verbs=word_set("co checkout export")),
    "hg": Destination(last=True, verbs=word_set("clone init")),
    **dict.fromkeys(
        word_set("python python3"),
        Destination(last=True, verbs=word_set("venv virtualenv zipfile tarfile"), unless=word_set("-c -l --list -t --test")),
    ),
    "jar": Destination(second=True, verbs=word_set("c cf cvf cfm cvfm cfe cvfe cfM u uf uvf i")),
    "ar": Destination(second=True, verbs=word_set("r rc rcs rcu rcsD rv cr crs cru crv ru q qc qcs d m s")),
    "script": Destination(last=True, valued=word_set("-c --command -E --echo -m --logging-format -o --output-limit")),
    "logrotate": Destination(options=word_set("-s --state -l --log")),
    "ssh-keygen": Destination(options=word_set("-f"), unless=word_set("-l -F -y -e -B -lf -yf -lvf")),
    "gh": Destination(options=word_set("-D --dir -O --output"), verbs=word_set("download")),
    **dict.fromkeys(word_set("pip pip3"), _PIP),
    **dict.fromkeys(word_set("npm pnpm yarn"), _NODE),
    "cargo": Destination(options=word_set("--root --target-dir --out-dir")),
    "cmake": Destination(options=word_set("-B --prefix")),
    **dict.fromkeys(word_set("make gmake ninja"), Destination(options=word_set("-C --directory"))),
    "gradle": Destination(options=word_set("-p --project-dir")),
    "go": Destination(
        options=word_set("-coverprofile -cpuprofile -memprofile -blockprofile -mutexprofile -trace -outputdir -output -o")
    ),
    "terraform": Destination(options=word_set("-out -state-out -backup -chdir")),
    "helm": Destination(options=word_set("-d --destination --output-dir")),
    "az": Destination(options=word_set("-f --file -d --destination"), verbs=word_set("download")),
    "restic": Destination(options=word_set("-t --target")),
    "aria2c": Destination(options=word_set("-d --dir -o --out -l --log")),
    "redis-cli": Destination(options=word_set("--rdb --functions-rdb")),
    "mongodump": Destination(options=word_set("--archive -o --out")),
    **dict.fromkeys(
        word_set("tex latex pdflatex xelatex lualatex"),
        Destination(options=word_set("-output-directory -jobname --output-directory")),
    ),
    "gs": Destination(options=word_set("-sOutputFile -o")),
    "inkscape": Destination(options=word_set("-o --export-filename --export-png --export-pdf --export-plain-svg")),
    **dict.fromkeys(word_set("libreoffice soffice"), Destination(options=word_set("--outdir"))),
    **dict.fromkeys(
        word_set("chromium chromium-browser google-chrome chrome"),
        Destination(options=word_set("--print-to-pdf --screenshot --user-data-dir")),
    ),
    "msmtp": Destination(options=word_set("-X --logfile")),
    "mutt": Destination(pattern=re.compile(r"\brecord=(\S+)")),
    "keytool": Destination(options=word_set("-file -keystore -destkeystore"), unless=word_set("-list -printcert -printcertreq")),
    "cosign": Destination(options=word_set("--output-signature --output-certificate --output-file --bundle")),
    "minisign": Destination(options=word_set("-s -x"), unless=word_set("-V")),
    **dict.fromkeys(word_set("lvmconfig vgcfgbackup"), Destination(options=word_set("-f --file"))),
    "sfdisk": Destination(options=word_set("-O --backup-file")),
    "exiftool": Destination(options=word_set("-FileName -filename -Directory -directory")),
    "jmap": Destination(pattern=re.compile(r"\A-dump:\S*?file=([^,\s]+)")),
    "jcmd": Destination(
        last=True,
        verbs=word_set("GC.heap_dump Thread.dump_to_file JFR.dump JFR.start VM.cds"),
        pattern=re.compile(r"\Afilename=([^,\s]+)"),
    ),
    "debugfs": Destination(pattern=re.compile(r"\b(?:r?dump|dump_inode|logdump\s+-O)\s+(?:-p\s+)?(?:\S+\s+)?(\S+)\s*\Z")),
    **dict.fromkeys(
        word_set("gdb lldb rust-gdb rust-lldb"),
        Destination(
            pattern=re.compile(
                r"\b(?:dump\s+(?:\w+\s+)?(?:memory|value)|append\s+\w+|logging\s+file|save\s+[\w-]+|generate-core-file|gcore"
                r"|read\s+-o|-o|--outfile)\s+([^\s;|]+)"
            )
        ),
    ),
    **dict.fromkeys(
        word_set("psql pgcli"),
        Destination(pattern=re.compile(r"(?i)(?:\\(?:o|w|g|gx|out|write)\s+|\bto\s+)['\"]?([^'\"\s;|]+)")),
    ),
    **dict.fromkeys(
        word_set("mysql mariadb mycli"),
        Destination(pattern=re.compile(r"(?i)(?:\boutfile|\bdumpfile|\btee|\\T)\s+['\"]?([^'\"\s;|]+)")),
    ),
    "duckdb": Destination(pattern=re.compile(r"(?i)\b(?:to|database|attach)\s+['\"]([^'\"]+)")),
    "ansible": Destination(pattern=re.compile(r"\b(?:dest=|path=(?=\S.{0,300}\bstate=))(\S+)")),
    # A directory or file of this machine that a container may write to.
    **dict.fromkeys(
        word_set("docker podman nerdctl"),
        Destination(
            options=word_set("--iidfile --cidfile --metadata-file"),
            pattern=re.compile(
                r"(?:\A(?:-v|--volume=)?(?=[^:=,\s]+:/[^:\s]*(?::(?!ro\b)\S+)?\Z)"
                r"|\b(?:src|source)=(?!.{0,300}\b(?:ro|readonly)\b))([^:=,\s]+)"
            ),
        ),
    ),
    "tsc": Destination(options=word_set("--outDir --outFile --declarationDir --tsBuildInfoFile")),
    "bsdtar": Destination(options=word_set("-C --cd --directory")),
    "sqlite3": Destination(
        pattern=re.compile(
            r"(?i)(?:\.(?:output|once|backup|save|clone|log|trace)\s+(?:main\s+)?|\bvacuum\s+into\s+|\battach\s+)['\"]?([^'\"\s;]+)"
        )
    ),
    "socat": Destination(pattern=re.compile(r"(?i)(?:\A|!!)(?:file|open|create|creat|gopen|pipe|unix-listen):([^,!]+)")),
    **dict.fromkeys(word_set("gunzip unxz bunzip2 unzstd unlzma uncompress"), _UNPACKED),
    **dict.fromkeys(word_set("rimraf del-cli trash trash-put wipe srm fallocate"), _EVERY),
    "gio": Destination(every=True, verbs=word_set("trash remove copy move rename save set mkdir")),
    **dict.fromkeys(word_set("vi vim nvim ex gvim rvim vimdiff"), _EDITOR),
}


def destination(argv: Argv, words: tuple[Word, ...]) -> str | None:
    """The protected destination of a command that `DESTINATIONS` knows, as its line spells it. `words` are those of the
    line, of which the last may be one that is not known and still says enough: `~/.bashrc`, `"$d/.git"`."""
    if not argv or argv[0] is None:
        return None
    name = argv[0].rpartition("/")[2]
    special = _SPECIAL.get(name)
    if special is not None:
        return next((word for word in special(argv) if is_protected(word)), None)
    rule = DESTINATIONS.get(name)
    if rule is None:
        return None
    operands: list[str | None] = []
    named: list[str | None] = []
    at = 1
    while at < len(argv):
        word = argv[at]
        at += 1
        option, sign, value = ("", "", "") if word is None else word.partition("=")
        if word is None or not word.startswith("-") or word == "-":
            operands.append(word)
        elif option in rule.unless:
            return None
        elif option in rule.options:
            named.append(value if sign else argv[at] if at < len(argv) else "")
            at += not sign
        elif word in rule.valued:
            at += 1
    if operands and operands[0] in rule.unless:
        return None
    if rule.verbs and rule.verbs.isdisjoint(operands[:3]):
        return None
    if rule.last:
        named += operands[-1:]
    elif rule.second:
        named += operands[1:2]
    elif rule.every:
        named += operands
    if rule.pattern is not None:
        named += [found for word in argv[1:] if word is not None for found in rule.pattern.findall(word)]
    for word in named:
        path = _spelled(words) if word is None else word if rule.less is None else rule.less.sub("", word)
        if path is not None and (word is None or is_protected(path)):
            return path
    return None


def _spelled(words: tuple[Word, ...]) -> str | None:
    """The last word's literal text, when that names something protected."""
    if not words or words[-1].values:
        return None
    texts = tuple(part.text for part in words[-1].parts if part.kind is PartKind.LITERAL)
    return "".join(texts) if protected_fragments(texts) is not None else None


def _tar_members(argv: Argv) -> list[str]:
    """What `tar x` is told to take out of the archive by name."""
    words = [word or "" for word in argv[1:]]
    letters = "".join(word.lstrip("-") for at, word in enumerate(words) if not at or re.fullmatch(r"-[a-zA-Z]+", word))
    if not ("x" in letters or "--extract" in words or "--get" in words) or "O" in letters or "--to-stdout" in words:
        return []
    first = 0 if not words[0].startswith("-") else -1  # a cluster without a dash: its values follow in order
    skipped = {
        first,
        *(at + 1 for at, word in enumerate(words) if word in _TAR_VALUED or re.fullmatch(r"-[a-zA-Z]*[fCXTbKN]", word)),
    }
    if first == 0:
        skipped.update(range(1, 1 + sum(letter in "fCXTbKN" for letter in words[0])))
    return [word for at, word in enumerate(words) if at not in skipped and not word.startswith("-")]


def _zip_members(argv: Argv) -> list[str]:
    """What `unzip` is told to take out of the archive by name; what follows `-x` is left out."""
    words = [word or "" for word in argv[1:]]
    words = words[: words.index("-x")] if "-x" in words else words
    if any(re.fullmatch(r"-[a-zA-Z]*[lptvZcz][a-zA-Z]*", word) for word in words):
        return []
    names = [word for at, word in enumerate(words) if not word.startswith("-") and (not at or words[at - 1] != "-d")]
    return names[1:]


def _remote_names(argv: Argv) -> list[str]:
    """The last names of remote sources that come into a directory: `scp host:.npmrc .`."""
    words = [word or "" for word in argv[1:] if word is None or not word.startswith("-")]
    if len(words) < 2 or not (words[-1].endswith("/") or words[-1].rpartition("/")[2] in (".", "..")):
        return []
    return [word.rpartition(":")[2].rpartition("/")[2] for word in words[:-1] if ":" in word]


def _url_names(argv: Argv) -> list[str]:
    """The names that files get from their addresses."""
    words = [word or "" for word in argv[1:]]
    formats: list[str] = []
    if argv[0] is not None and argv[0].endswith("curl"):
        saved = any(map(_CURL_SAVES.fullmatch, words))
        formats = [found for word in words if "%output{" in word for found in _CURL_OUTPUT.findall(word)]
    else:
        saved = not any(map(_WGET_ELSEWHERE.match, words))
    return formats + ([found[1] for found in map(_URL_NAME.search, words) if found is not None] if saved else [])


_TAR_VALUED = word_set("--file --directory --exclude --exclude-from --files-from --transform --xform --owner --group --mode")
_CURL_OUTPUT = re.compile(r"%output\{>*([^}]*)\}")
_CURL_SAVES = re.compile(r"-[a-zA-Z]*O[a-zA-Z]*|--remote-name(?:-all)?")
_WGET_ELSEWHERE = re.compile(r"-[a-zA-Z]*O|--output-d|--spider")
_URL_NAME = re.compile(r"^(?!-)[^?#]*/([^/?#]+)(?:[?#].*)?\Z")
_SPECIAL: dict[str, Callable[[Argv], list[str]]] = {
    "tar": _tar_members,
    "gtar": _tar_members,
    "unzip": _zip_members,
    "scp": _remote_names,
    "rsync": _remote_names,
    "curl": _url_names,
    "wget": _url_names,
}
KNOWN = DESTINATIONS.keys() | _SPECIAL.keys()
