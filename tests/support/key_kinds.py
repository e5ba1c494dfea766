"""Tables whose keys are of every kind: their columns, and rows that are hard to order."""

from __future__ import annotations

WORDS = "('a'),('A '),('b'),('ä'),('Z'),('z1'),('ß'),('ss'),('é'),('e'),('_'),('10'),('9'),('')"
KEYS = {
    # name: (columns and key, rows)
    "integers": ("k BIGINT UNSIGNED PRIMARY KEY", "(0),(18446744073709551615),(5),(9223372036854775808),(7),(8),(9)"),
    "negative": ("k INT PRIMARY KEY", "(-2147483648),(-1),(0),(1),(2),(3),(2147483647)"),
    "decimals": ("k DECIMAL(30,10) PRIMARY KEY", "(-1.5),(0),(0.0000000001),(1),(10),(9)"),
    "doubles": ("k DOUBLE PRIMARY KEY", "(-1e300),(0.1),(1e-300),(123456789.123456789),(3),(2)"),
    "floats": ("k FLOAT PRIMARY KEY", "(3.1415927),(16777216),(0.1),(-1e30),(5),(6)"),
    "enums": ("k ENUM('z','b','a','y') PRIMARY KEY", "('a'),('b'),('y'),('z')"),
    "sets": ("k SET('z','b','a') PRIMARY KEY", "('a'),('b'),('z'),('a,z'),('')"),
    "bits": ("k BIT(20) PRIMARY KEY", "(0),(1),(255),(256),(1000000)"),
    "dates": ("k DATE PRIMARY KEY", "('1000-01-01'),('2020-02-29'),('2020-03-01'),('9999-12-31')"),
    "datetimes": ("k DATETIME(3) PRIMARY KEY", "('2020-01-01'),('2020-01-01 00:00:00.001'),('1999-12-31')"),
    "timestamps": ("k TIMESTAMP(6) PRIMARY KEY", "('2020-01-01'),('2020-01-01 00:00:00.000001'),('1970-01-02')"),
    "times": ("k TIME(2) PRIMARY KEY", "('-838:59:59'),('-00:00:01.5'),('00:00:00'),('100:00:00'),('99:00:00')"),
    "years": ("k YEAR PRIMARY KEY", "(1999),(2000),(2155),(1901)"),
    "binary": ("k BINARY(4) PRIMARY KEY", "('a'),('ab'),(x'ff00'),(x'00'),(x'61000001')"),
    "varbinary": ("k VARBINARY(9) PRIMARY KEY", "(''),('a'),(x'6100'),(x'ff'),(x'00'),('A')"),
    "blobs": ("k BLOB NOT NULL, h INT, PRIMARY KEY (h)", "('x', 1), ('y', 2)"),
    "utf8mb4": ("k VARCHAR(9) CHARACTER SET utf8mb4 PRIMARY KEY", WORDS),
    "utf8mb4_bin": ("k VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY", WORDS + ",('\U0001f600')"),
    "latin1": ("k VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin PRIMARY KEY", WORDS),
    "latin1_ci": ("k CHAR(9) CHARACTER SET latin1 COLLATE latin1_german2_ci PRIMARY KEY", WORDS + ",('ad'),('af')"),
    "utf16": ("k VARCHAR(9) CHARACTER SET utf16 COLLATE utf16_bin PRIMARY KEY", WORDS),
    "ujis": ("k VARCHAR(9) CHARACTER SET ujis COLLATE ujis_bin PRIMARY KEY", "('あ'),('ア'),('亜'),('a'),('~')"),
    "composite": (
        "a INT, b VARCHAR(5) CHARACTER SET latin1, c DATE, PRIMARY KEY (b, a, c)",
        "(1,'x','2020-01-01'),(1,'X','2020-01-02'),(2,'x','2020-01-01'),(2,'b','2020-01-01'),(0,'é','2020-01-01'),"
        "(7,'','1999-01-01')",
    ),
    "by number": (
        "e ENUM('3','1','z') NOT NULL, s SET('z','b','a'), b BIT(64), n INT, PRIMARY KEY (e, s, b, n)",
        "('1','a,z',1,1),('1','a,z',1,2),('3','',255,0),('3','b',0,0),('z','z,b,a',18446744073709551615,-1),"
        "('z','z,b,a',18446744073709551614,7),('z','z,b,a',18446744073709551615,8),('none','',0,0)",
    ),
}  # fmt: skip
