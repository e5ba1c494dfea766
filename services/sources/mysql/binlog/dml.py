"""Which part of a DML statement in the binlog can name the tables that it writes (pure).

A statement in STATEMENT format changes rows without row events. It can write its targets, and by their triggers and
views other tables of their databases; tables that it only reads stay as they are, unless it calls a routine. So
`targets` cuts a statement down to the tokens that name its targets:

| statement | its targets are in |
|---|---|
| INSERT, REPLACE, LOAD | the table's name |
| UPDATE, also after WITH | the table references, up to SET, without sub-selects |
| DELETE, also after WITH | the table references, up to WHERE, ORDER, LIMIT or RETURNING, without sub-selects |

Of several tables in the references only those are targets that SET names before each of its columns, or that DELETE
lists; each may be one if SET has a column without its table.

**In doubt there is no such part**, and any table that the statement names counts: another verb; a name before a
parenthesis that is no word of SQL and no function of every server (it may be a routine, which writes what it likes,
and if it has no database before it, one of the session's database); a comment that only some versions execute; several
statements; sql_mode=ORACLE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from cutline.services.sources.mysql.binlog.sql import Token

_DOT, _STAR = Token("sign", "."), Token("sign", "*")
_MODIFIERS = frozenset("LOW_PRIORITY DELAYED HIGH_PRIORITY QUICK IGNORE".split())
_AFTER_INSERTED = frozenset("( VALUES VALUE SELECT SET WITH TABLE PARTITION".split())
_ENDS_DELETE = frozenset("WHERE ORDER LIMIT RETURNING".split())
_BEFORE_REFERENCE = frozenset("UPDATE FROM USING JOIN STRAIGHT_JOIN , (".split()) | _MODIFIERS
_AFTER_REFERENCE = frozenset(
    "CROSS FOR FORCE FULL IGNORE INNER JOIN LEFT LIMIT NATURAL ON ORDER PARTITION RIGHT SET STRAIGHT_JOIN USE USING"
    " WHERE".split()
)
_SUB_SELECT = frozenset("SELECT WITH VALUES TABLE".split())
_BEFORE_COLUMNS = frozenset("USING PARTITION INDEX KEY".split())
_WORDS = frozenset(
    "ALL AND AS BETWEEN BY CASE DISTINCT DIV ELSE EXISTS FOR FROM HAVING IN INDEX INTERVAL JOIN KEY LIKE"
    " LIMIT LINES MOD NOT ON OR OVER PARTITION REGEXP RLIKE SELECT SET THEN UNION UPDATE USING VALUES WHEN"
    " WHERE XOR".split()
)
"""Reserved words of both servers, which no routine is called by, that may come before a parenthesis."""
_TYPES = frozenset("BINARY CHAR DATE DATETIME DECIMAL NCHAR TIME".split())
_FUNCTIONS = frozenset(
    "ABS ACOS ADDDATE ADDTIME AES_DECRYPT AES_ENCRYPT ASCII ASIN ATAN ATAN2 AVG BIN BIT_AND BIT_COUNT"
    " BIT_LENGTH BIT_OR BIT_XOR CAST CEIL CEILING CHARACTER_LENGTH CHARSET CHAR_LENGTH COALESCE COERCIBILITY"
    " COLLATION COMPRESS CONCAT CONCAT_WS CONNECTION_ID CONV CONVERT CONVERT_TZ COS COT COUNT CRC32 CUME_DIST"
    " CURDATE CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER CURTIME DATABASE DATEDIFF DATE_ADD"
    " DATE_FORMAT DATE_SUB DAY DAYNAME DAYOFMONTH DAYOFWEEK DAYOFYEAR DEFAULT DEGREES DENSE_RANK ELT EXP"
    " EXPORT_SET EXTRACT FIELD FIND_IN_SET FIRST_VALUE FLOOR FORMAT FOUND_ROWS FROM_BASE64 FROM_DAYS"
    " FROM_UNIXTIME GET_FORMAT GREATEST GROUP_CONCAT HEX HOUR IF IFNULL INET6_ATON INET6_NTOA INET_ATON"
    " INET_NTOA INSERT INSTR ISNULL JSON_ARRAY JSON_ARRAYAGG JSON_CONTAINS JSON_CONTAINS_PATH JSON_DEPTH"
    " JSON_EXTRACT JSON_INSERT JSON_KEYS JSON_LENGTH JSON_OBJECT JSON_OBJECTAGG JSON_QUOTE JSON_REMOVE"
    " JSON_REPLACE JSON_SEARCH JSON_SET JSON_TYPE JSON_UNQUOTE JSON_VALID LAG LAST_DAY LAST_INSERT_ID"
    " LAST_VALUE LCASE LEAD LEAST LEFT LENGTH LN LOCALTIME LOCALTIMESTAMP LOCATE LOG LOG10 LOG2 LOWER LPAD"
    " LTRIM MAKEDATE MAKETIME MAKE_SET MATCH MAX MICROSECOND MID MIN MINUTE MOD MONTH MONTHNAME NOW"
    " NTH_VALUE NTILE NULLIF OCT OCTET_LENGTH ORD PERCENT_RANK PERIOD_ADD PERIOD_DIFF PI POSITION POW POWER"
    " QUARTER QUOTE RADIANS RAND RANK REGEXP_INSTR REGEXP_REPLACE REGEXP_SUBSTR REPEAT REPLACE REVERSE RIGHT"
    " ROUND ROW ROW_COUNT ROW_NUMBER RPAD RTRIM SCHEMA SECOND SEC_TO_TIME SESSION_USER SHA2 SIGN SIN"
    " SOUNDEX SPACE SQRT STD STDDEV STDDEV_POP STDDEV_SAMP STRCMP STR_TO_DATE SUBDATE SUBSTR SUBSTRING"
    " SUBSTRING_INDEX SUBTIME SUM SYSDATE SYSTEM_USER TAN TIMEDIFF TIMESTAMP TIMESTAMPADD TIMESTAMPDIFF"
    " TIME_FORMAT TIME_TO_SEC TO_BASE64 TO_DAYS TO_SECONDS TRIM TRUNCATE UCASE UNCOMPRESS UNHEX UNIX_TIMESTAMP"
    " UPPER USER UTC_DATE UTC_TIME UTC_TIMESTAMP UUID VARIANCE VAR_POP VAR_SAMP VERSION WEEK WEEKDAY"
    " WEEKOFYEAR YEAR YEARWEEK".split()
)
"""Functions that MySQL 8.0 and MariaDB 10.5 and later have all of: without a database before it, such a name never
calls a routine. (MySQL 9.7 calls one by MD5, SHA and SHA1, MariaDB by AGAINST.)"""
_BESIDE = frozenset(
    "ADDDATE BIT_AND BIT_OR BIT_XOR CAST COUNT CUME_DIST CURDATE CURTIME DATE_ADD DATE_SUB DENSE_RANK EXTRACT"
    " FIRST_VALUE GROUP_CONCAT JSON_ARRAYAGG JSON_OBJECTAGG LAG LEAD MAX MID MIN NOW NTH_VALUE NTILE PERCENT_RANK"
    " POSITION RANK SESSION_USER STD STDDEV STDDEV_POP STDDEV_SAMP SUBDATE SUBSTR SUBSTRING SUM SYSDATE SYSTEM_USER"
    " TRIM VARIANCE VAR_POP VAR_SAMP".split()
)
"""Of them, those that call a routine of their name if the parenthesis stands apart."""
_BEFORE_PARENTHESIS = _WORDS | _TYPES | _FUNCTIONS


def targets(tokens: Sequence[Token], statement: str, *, oracle: bool) -> Sequence[Token] | None:
    """The tokens of a DML statement that name the tables that it writes; None in doubt. `oracle`: of the session's
    sql_mode."""
    words = _words(tokens)
    if oracle or "/*!" in statement or "/*M!" in statement or ";" in words[:-1]:
        return None
    begin = 0
    ctes: Sequence[int] = ()  # where the names of a WITH are
    if words[0] == "WITH":
        begin = next((i for i in _outside(words, 0) if words[i] in ("UPDATE", "DELETE", "INSERT", "SELECT")), 0)
        if words[begin] not in ("UPDATE", "DELETE"):
            return None
        befores = ("WITH", "RECURSIVE", ",")
        ctes = [i for i in _outside(words, 0) if 0 < i < begin and words[i - 1] in befores and words[i] != "RECURSIVE"]
    first = begin + 1  # the first word after the verb's modifiers
    while first < len(words) and words[first] in _MODIFIERS:
        first += 1
    end: int | None = None
    columns_at = None  # where a list of columns follows the target's name
    chosen: Set[str] | None = None  # the names of the targets in the references; None: each may be one
    match words[begin]:
        case "INSERT" | "REPLACE":
            end = columns_at = _after_name(tokens, first + (words[first : first + 1] == ["INTO"]))
            if end is None or words[end : end + 1] == [] or words[end] not in _AFTER_INSERTED:
                return None
        case "LOAD":
            into = next((i for i in range(1, len(words)) if words[i : i + 2] == ["INTO", "TABLE"]), None)
            end = columns_at = None if into is None else _after_name(tokens, into + 2)
        case "UPDATE":
            outside = _outside(words, begin)
            end = next((i for i in outside if words[i] == "SET"), None)
            chosen = None if end is None else _assigned(tokens, words, [i for i in outside if i >= end])
        case "DELETE":
            outside = _outside(words, begin)
            end = next((i for i in outside if words[i] in _ENDS_DELETE), len(words))
            references = "USING" if words[first : first + 1] == ["FROM"] else "FROM"  # DELETE FROM t needs neither
            at = next((i for i in outside if words[i] == references and i < end), None)
            if at is not None and (references == "USING" or at > first):
                chosen = _listed(tokens[first + (references == "USING") : at])
            begin = begin if at is None else at
    lists = {columns_at, *(i + 1 for i in ctes)}
    if end is None or any(i not in lists for i in _calls(tokens)):
        return None
    return _chosen(chosen, _without({tokens[i].value for i in ctes}, _references(tokens[begin:end])))


def calls_in_session(tokens: Sequence[Token]) -> bool:
    """Whether a statement may call a routine of the session's database."""
    return any(tokens[i - 2 : i - 1] != [_DOT] for i in _calls(tokens))


def calls(tokens: Sequence[Token]) -> bool:
    """Whether a statement may call a routine of any database."""
    return any(True for _ in _calls(tokens))


def query_in(tokens: Sequence[Token]) -> Sequence[Token]:
    """The query in a CREATE TABLE after the table's name, () if there is none. MariaDB logs it as it is, and a routine
    in it may write other tables."""
    words = _words(tokens)
    begin = next((i for i, word in enumerate(words) if word == "SELECT" or words[i : i + 2] == ["VALUES", "("]), None)
    return () if begin is None else tokens[begin:]


def _assigned(tokens: Sequence[Token], words: Sequence[str], outside: Sequence[int]) -> Set[str] | None:
    """The names of tables before the columns that SET, the first of these tokens, assigns; None if one has none."""
    found = set()
    for i in outside:
        if words[i] in ("WHERE", "ORDER", "LIMIT", "RETURNING"):
            break
        if words[i] in ("SET", ","):
            if tokens[i + 2 : i + 3] != [_DOT]:
                return None
            found.add(tokens[i + (3 if tokens[i + 4 : i + 5] == [_DOT] else 1)].value.lower())
    return found


def _listed(tokens: Sequence[Token]) -> Set[str]:
    """The names of tables in the list of a DELETE, as `a, shop.b, c.*`."""
    return {
        token.value.lower()
        for i, token in enumerate(tokens)
        if token.kind in ("name", "word")
        and (tokens[i + 1 : i + 2] != [_DOT] or tokens[i + 1 : i + 3] == [_DOT, _STAR])
    }


def _chosen(names: Set[str] | None, tokens: Sequence[Token]) -> Sequence[Token]:
    """The references without the tables that are none of these; all of them if one of the names is none of theirs."""
    found: dict[int, tuple[int, str]] = {}  # where a table begins: where it ends, and what it is called
    for i in range(1, len(tokens)):
        if tokens[i - 1].upper not in _BEFORE_REFERENCE or tokens[i].kind not in ("name", "word"):
            continue
        end = _after_name(tokens, i)
        if end is None or tokens[i].upper in _MODIFIERS:
            continue
        alias = end
        if [token.upper for token in tokens[end : end + 2]] == ["PARTITION", ")"]:  # its list is left out
            alias += 2
        alias += [token.upper for token in tokens[alias : alias + 1]] == ["AS"]
        renamed = alias < len(tokens) and tokens[alias].kind in ("name", "word")
        renamed = renamed and tokens[alias].upper not in _AFTER_REFERENCE
        found[i] = end, tokens[alias if renamed else end - 1].value.lower()
    if names is None or not names <= {name for _, name in found.values()}:
        return tokens
    dropped = {j for i, (end, name) in found.items() if name not in names for j in range(i, end)}
    return [_STAR if i in dropped else token for i, token in enumerate(tokens)]


def _without(ctes: Set[str], tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens with a sign in the place of each name of a WITH, which is no table (but may be the name of one in
    another database, or of a database)."""
    qualified = {j for i, token in enumerate(tokens) if token == _DOT for j in (i - 1, i + 1)}
    return [
        _STAR if token.value in ctes and i not in qualified else token for i, token in enumerate(tokens)
    ]


def _words(tokens: Sequence[Token]) -> list[str]:
    """Each token as `Token.upper`; empty behind a dot, where each word is a name, such as `t.order`."""
    return [token.upper if i == 0 or tokens[i - 1] != _DOT else "" for i, token in enumerate(tokens)]


def _outside(words: Sequence[str], begin: int) -> Sequence[int]:
    """The indexes from `begin` on that are in no parenthesis."""
    depth, found = 0, []
    for i in range(begin, len(words)):
        depth += (words[i] == "(") - (words[i] == ")")
        if depth == 0:
            found.append(i)
    return found


def _after_name(tokens: Sequence[Token], at: int) -> int | None:
    """The index after a table's name that begins at `at`; None if none does."""
    names = [i < len(tokens) and tokens[i].kind in ("name", "word") for i in (at, at + 2)]
    if not names[0]:
        return None
    if at + 1 < len(tokens) and tokens[at + 1].upper == ".":
        return at + 3 if names[1] else None
    return at + 1


def _calls(tokens: Sequence[Token]) -> Iterator[int]:
    """The index of each parenthesis whose name before it may be a routine's."""
    for i in range(1, len(tokens)):
        before = tokens[i - 1]
        if tokens[i].upper != "(" or before.kind not in ("name", "word"):
            continue
        apart = tokens[i].apart and before.upper in _BESIDE
        if apart or before.upper not in _BEFORE_PARENTHESIS or tokens[i - 2 : i - 1] == [_DOT]:
            yield i


def _references(tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens without sub-selects and lists of columns; DELETE's own USING, the first token, has none after it."""
    kept: list[Token] = []
    depth = 0  # of the parentheses that are left out
    for i, token in enumerate(tokens):
        before = tokens[i - 1].upper if i > 1 else ""
        after = tokens[i + 1].upper if i + 1 < len(tokens) else ""
        if depth or (token.upper == "(" and (after in _SUB_SELECT or before in _BEFORE_COLUMNS)):
            depth += (token.upper == "(") - (token.upper == ")")
            if depth:
                continue  # the last parenthesis stays: an alias after it is no table
        kept.append(token)
    return kept
