# SPDX-License-Identifier: GPL-3.0-or-later
"""SQL and the dot and backslash commands of its shells: a small set of statements that only read; the rest is OPAQUE."""

from __future__ import annotations

import re

from sandboxd.effects.call import Call

_STRINGS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--(?![^\s])[^\n]*|/\*(?![!M])(?:(?!/\*).)*?\*/", re.S)
# What servers read differently, so that a string or a comment may end elsewhere: a backslash before a quote, a comment that is
# executed (`/*!`) or nested, `--` without a blank, dollar quotes, a quoted name that is called, and except in PostgreSQL `#`
# comments and `[names]`.
_ESCAPED = re.compile(r"\\['\"]")
_AMBIGUOUS = re.compile(r"'\s*\(|--|/\*|\*/|\$\w*\$|[\\`]")
_READS = re.compile(
    r"\s*(?:select|values|table\s+[\w.]+\s*\Z|explain(?:\s+query\s+plan|\s+analyze|\s+verbose|\s+format\s*=\s*\w+|\s*\([\w\s,]*\))*\s+(?:select|values)"
    r"|show|describe|desc|pragma\s+\w+\s*\Z|pragma\s+\w+\s*\(\s*\w+\s*\)\s*\Z)\b|\s*pragma\s",
    re.I,
)
_PRAGMAS = re.compile(
    r"\s*pragma\s+(?:\w+\.)?(?:table_x?info|index_x?info|index_list|database_list|foreign_key_list|table_list|compile_options"
    r"|user_version|schema_version|page_count|page_size|integrity_check|quick_check|encoding|freelist_count|collation_list|function_list)"
    r"\s*(?:\(\s*['\"\w]*\s*\))?\s*\Z",
    re.I,
)
# `WITH name (columns) AS (SELECT …`: what writes in it, or behind it, is among the words below.
_WITH = re.compile(
    r"\s*with\s+(?:recursive\s+)?\w+\s*(?:\([\w\s,]*\)\s*)?as\s*(?:(?:not\s+)?materialized\s*)?\(\s*(?=(?:select|values)\b)", re.I
)
# The statement that made an object, as text; that of a user holds the password.
_SHOWS = re.compile(
    r"\s*show\s+create\s+(?:table|view|procedure|function|trigger|event|database|schema|sequence)\s+[\w.]+\s*\Z", re.I
)
# mysql sends a statement also at `\G`.
_SENT = re.compile(r"\\[gG]\s*\Z")
# Of PostgreSQL's own tables those without passwords, of its functions those that only look.
_CATALOGUE = """catalog class namespace attribute attrdef type enum constraint index indexes tables views matviews sequences
    sequence database roles user extension available_extensions settings proc trigger description depend locks tablespace inherits
    stat_activity stat_user_tables stat_user_indexes stat_all_tables stat_all_indexes stat_database stat_replication stat_bgwriter
    stat_statements stat_progress_vacuum stat_progress_create_index stat_wal stat_io statio_user_tables statio_user_indexes stats
    prepared_xacts publication publication_tables policies rules timezone_names"""
_LOOKS = """size_pretty database_size total_relation_size relation_size table_size indexes_size get_viewdef get_constraintdef
    get_indexdef get_functiondef get_expr get_userbyid get_serial_sequence is_in_recovery postmaster_start_time backend_pid
    typeof encoding_to_char table_is_visible column_size blocking_pids"""
_OWN = "|".join((*_CATALOGUE.split(), *_LOOKS.split()))
# Words with which a SELECT can still write, run, load or wait.
_DANGER = re.compile(
    r"\binto\b|\boutfile\b|\bdumpfile\b|\bload_file\b|\bload_extension\b|\bwritefile\b|\bedit\b|\breadfile\b|\bfts3_tokenizer\b"
    r"|\bdelete\b|\bupdate\b|\binsert\b|\bmerge\b|\bdrop\b|\balter\b|\bcreate\b|\btruncate\b|\bcopy\b|\bgrant\b|\bcall\b|\bdo\b|\bfor\s+(?:update|share)\b"
    rf"|\bpg_(?!(?:{_OWN})\b)\w*|\blo_\w+|\bdblink\w*|\bset_config\b|\bnextval\b|\bsetval\b|\bsleep\b|\bbenchmark\b|\bget_lock\b|\bxp_\w+|\bquery_to_xml\w*",
    re.I,
)
# A name before a parenthesis; with a schema it is nobody's built-in.
_CALLS = re.compile(r"([\w.]+(?:\s*\.\s*\w+)*)\s*\(")
# Functions and words that stand before a parenthesis and change nothing. To add one: read what it does in all of these servers.
_CALLED = frozenset(
    """
    select from where and or not in exists on using as over filter when then else case between like ilike is any all
    some values union intersect except having by limit offset join lateral within group order distinct array row rows
    interval partition range char varchar character varying text numeric decimal integer int bigint smallint float
    double precision real date time timestamp timestamptz signed unsigned binary bit count sum min max avg total
    group_concat string_agg array_agg json_agg jsonb_agg json_object_agg jsonb_object_agg bool_and bool_or every stddev
    stddev_pop stddev_samp variance var_pop var_samp corr median mode percentile_cont percentile_disc bit_and bit_or
    row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value grouping coalesce
    nullif ifnull if iif nvl greatest least cast convert try_cast typeof quote hex unhex length char_length
    character_length octet_length upper lower initcap trim ltrim rtrim btrim lpad rpad left right substr substring
    replace instr position strpos locate concat concat_ws reverse repeat split_part substring_index regexp_replace
    regexp_matches regexp_match regexp_like regexp_substr regexp_split_to_array regexp_split_to_table translate ascii
    chr format printf to_char to_date to_number to_timestamp md5 sha1 sha2 sha256 encode decode overlay starts_with
    soundex field find_in_set elt unicode glob string_to_array array_to_string array_length cardinality array_position
    unnest generate_series abs ceil ceiling floor round trunc truncate mod power pow sqrt exp ln log log10 log2 sign
    random rand pi degrees radians sin cos tan asin acos atan atan2 div gcd lcm width_bucket now current_date
    current_time current_timestamp localtime localtimestamp date_trunc date_part extract age datetime strftime julianday
    unixepoch date_format date_add date_sub datediff timediff timestampdiff timestampadd from_unixtime unix_timestamp
    year month day dayofweek dayofmonth dayofyear weekday week quarter hour minute second last_day make_date
    make_interval make_timestamp curdate curtime sysdate utc_timestamp utc_date str_to_date time_format makedate adddate
    subdate json json_array json_object json_extract json_type json_valid json_array_length json_each json_tree
    json_unquote json_keys json_contains json_length json_pretty json_build_object jsonb_build_object json_build_array
    jsonb_build_array jsonb_each jsonb_each_text json_each_text json_object_keys jsonb_object_keys json_array_elements
    jsonb_array_elements json_array_elements_text jsonb_array_elements_text json_extract_path json_extract_path_text
    jsonb_extract_path jsonb_extract_path_text jsonb_typeof json_typeof jsonb_array_length jsonb_pretty to_json to_jsonb
    row_to_json json_quote version database schema user current_user session_user current_database current_schema
    last_insert_rowid changes total_changes found_rows row_count sqlite_version sqlite_source_id connection_id explain
    materialized obj_description col_description format_type to_regclass has_table_privilege has_schema_privilege
    inet_server_addr inet_server_port
    """.split()  # noqa: SIM905  one name a line would hide them
) | {f"pg_{name}" for name in _LOOKS.split()}
_DOTS = frozenset(
    [
        ".schema",
        ".tables",
        ".databases",
        ".indexes",
        ".indices",
        ".fullschema",
        ".headers",
        ".mode",
        ".width",
        ".help",
        ".show",
        ".dbinfo",
        ".lint",
        ".version",
        ".dump",
        ".print",
        ".separator",
        ".nullvalue",
        ".timer",
        ".stats",
    ]
)
_BACKSLASHES = re.compile(r"\\(?:d[a-zA-Z]*[+S]*|l\+?|z|s[fv]\+?|conninfo|encoding|timing|x|pset|t|a|h\w*)(?:\s+[\w.*\"-]*)*\Z")


def read(call: Call) -> None:
    """Operands and options with the role `program` hold SQL; infer hands them over in `call.programs`."""
    for word in call.programs:
        if word.value is None:
            call.opaque("opaque.dynamic_code", f"{call.id}.sql", word.span, "SQL", call.mentions(True))
        elif not reads_only(word.value, postgres=call.name == "psql"):
            call.opaque("opaque.code", f"{call.id}.sql", word.span, "SQL that is not known to only read", call.mentions(True))


def reads_only(text: str, *, postgres: bool = False) -> bool:
    """Whether all statements in `text` are known to only read, however the server reads quotes and comments."""
    stripped = text.strip()
    if stripped.startswith("."):
        return stripped.split()[0] in _DOTS and "|" not in stripped and "\n" not in stripped
    if stripped.startswith("\\"):
        return _BACKSLASHES.match(stripped) is not None
    if not postgres:
        text = _SENT.sub("", text)
    bare = _STRINGS.sub("''", text)
    if "'" in bare.replace("''", "") or '"' in bare or _ESCAPED.search(text) or _AMBIGUOUS.search(bare):
        return False
    if not postgres and ("#" in bare or "[" in bare):
        return False
    statements = [statement for statement in bare.split(";") if statement.strip()]
    return bool(statements) and all(_statement(statement) for statement in statements)


def _statement(text: str) -> bool:
    if re.match(r"\s*pragma\b", text, re.I):
        return _PRAGMAS.match(text.replace("''", "x")) is not None
    if _SHOWS.match(text) is not None:
        return True
    named = _WITH.match(text)
    if named is not None:
        text = "select " + text[named.end() :]
    if _READS.match(text) is None or _DANGER.search(text) is not None:
        return False
    return all(name.lower() in _CALLED for name in _CALLS.findall(text))
