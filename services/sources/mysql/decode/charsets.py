"""MySQL's character sets: text in the binlog is as stored, while in a SELECT the server converts it to UTF-8.

MySQL 9.7 and MariaDB 10.11 agree about every character. Where Python's codecs differ from them, the tables here hold
the servers' answers; tests/integration/source/test_types.py asks the servers again. A byte or pair without a character becomes
"?", as in a SELECT.
"""

# ruff: noqa: RUF001, E501 (characters that look like others, and whole rows of tables, are the point here)

from __future__ import annotations

from functools import lru_cache

from cutline.services.sources.mysql.decode.codes import P_AMBIGUOUS, P_PAIR, P_TRIPLE

_COLLATIONS = {
    "big5": "1 84 1025 1108",
    "latin2": "2 9 21 27 77 1033 1101",
    "dec8": "3 69 1027 1093",
    "cp850": "4 80 1028 1104",
    "latin1": "5 8 15 31 47-49 94 1032 1071",
    "hp8": "6 72 1030 1096",
    "koi8r": "7 74 1031 1098",
    "swe7": "10 82 1034 1106",
    "ascii": "11 65 1035 1089",
    "ujis": "12 91 1036 1115",
    "sjis": "13 88 1037 1112",
    "cp1251": "14 23 50-52 1074-1075",
    "hebrew": "16 71 1040 1095",
    "tis620": "18 89 1042 1113",
    "euckr": "19 85 1043 1109",
    "latin7": "20 41-42 79 1065 1103",
    "koi8u": "22 75 1046 1099",
    "gb2312": "24 86 1048 1110",
    "greek": "25 70 1049 1094",
    "cp1250": "26 34 44 66 99 1050 1090",
    "gbk": "28 87 1052 1111",
    "cp1257": "29 58-59 1082-1083",
    "latin5": "30 78 1054 1102",
    "armscii8": "32 64 1056 1088",
    "utf8mb3": "33 76 83 192-215 223 576-607 1057 1107 1216-1247 2048-2303",
    "ucs2": "35 90 128-151 159 640-671 1059 1114 1152-1183 2560-2815",
    "cp866": "36 68 1060 1092",
    "keybcs2": "37 73 1061 1097",
    "macce": "38 43 1062 1067",
    "macroman": "39 53 1063 1077",
    "cp852": "40 81 1064 1105",
    "utf8mb4": "45-46 224-247 255-323 608-639 1069-1070 1248-1279 2304-2559",
    "utf16": "54-55 101-124 672-703 1078-1079 1120-1151 2816-3071",
    "utf16le": "56 62 1080 1086",
    "cp1256": "57 67 1081 1091",
    "utf32": "60-61 160-183 736-767 1084-1085 1184-1215 3072-3327",
    "binary": "63",
    "geostd8": "92-93 1116-1117",
    "cp932": "95-96 1119-1120",
    "eucjpms": "97-98 1121-1122",
    "gb18030": "248-250",
}

_EIGHT_BIT_CODECS = {
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "macroman": "mac_roman",
    "macce": "mac_latin2",
    "hp8": "hp_roman8",
    "tis620": "tis_620",
    "ascii": "ascii",
    "dec8": "latin_1",
    "swe7": "ascii",
    "armscii8": "ascii",
    "geostd8": "ascii",
    "keybcs2": "ascii",
}
_EIGHT_BIT_DIFFERENCES = {
    "armscii8": {
        0x80: "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0❁§։)(»«\u2014.՝,-՟\u2026՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ\u2019'",
    },
    "cp1256": {
        0x8A: "?",
        0x8F: "?",
        0x98: "?",
        0x9A: "?",
        0x9F: "?",
        0xAA: "?",
        0xC0: "?",
        0xFF: "?",
    },
    "cp866": {
        0xFC: "ⁿ²",
    },
    "dec8": {
        0xA4: "?",
        0xA6: "?",
        0xA8: "¤",
        0xAC: "????",
        0xB4: "?",
        0xB8: "?",
        0xBE: "?",
        0xD0: "?",
        0xD7: "Œ",
        0xDD: "Ÿ?",
        0xF0: "?",
        0xF7: "œ",
        0xFD: "ÿ??",
    },
    "geostd8": {
        0x80: "€",
        0x82: "\u201a",
        0x84: "\u201e\u2026\u2020\u2021",
        0x89: "‰",
        0x8B: "‹",
        0x91: "\u2018\u2019\u201c\u201d\u2022\u2013\u2014",
        0x9B: "›",
        0xA0: "\xa0¡¢£¤¥¦§¨©ª«¬\xad®¯°±²³´µ¶·¸¹º»¼½¾¿აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ",
        0xFD: "№",
    },
    "greek": {
        0xA1: "ʽʼ",
        0xA4: "??",
        0xAA: "?",
    },
    "hebrew": {
        0xAF: "‾",
    },
    "keybcs2": {
        0x80: "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0",
    },
    "koi8u": {
        0x95: "\u2022",
    },
    "latin1": {
        0x81: "\x81",
        0x8D: "\x8d",
        0x8F: "\x8f\x90",
        0x9D: "\x9d",
    },
    "swe7": {
        0x40: "É",
        0x5B: "ÄÖÅÜ",
        0x60: "é",
        0x7B: "äöåü?",
    },
    "tis620": {
        0xA0: "\ufffd",
        0xDB: "\ufffd\ufffd\ufffd\ufffd",
        0xFC: "\ufffd\ufffd\ufffd\ufffd",
    },
}

_MULTI_BYTE_CODECS = {
    "big5": "big5",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ujis": "euc_jp",
}
_MULTI_BYTE_DIFFERENCES = {
    "big5": {
        0xA15A: "\ufffd",
        0xA1C3: "\ufffd",
        0xA1C5: "\ufffd",
        0xA1FE: "\ufffd",
        0xA240: "\ufffd",
        0xA2CC: "\ufffd",
        0xA2CE: "\ufffd",
        0xF9D6: "碁銹裏墻恒粧嫺",
    },
    "sjis": {
        0x815F: "\x5c",
    },
    "ujis": {
        0xA1C0: "\x5c",
    },
    "eucjpms": {
        0xA1C1: "～∥",
        0xA1DD: "－",
        0xA1F1: "￠￡",
        0xA2CC: "￢",
        0xADA1: "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ",
        0xADC0: "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡",
        0xADDF: "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪",
        0x8FA2B7: "～",
        0x8FA2C3: "￤",
        0x8FF3F3: "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ",
        0x8FF4A1: "ⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤﨎咊坙﨏塚增寬峵嵓﨑德悅愠敎昻晥晴朗栁﨓﨔橫櫢淸淲瀨凞猪甁皂皞益礰礼神祥福竧靖精綠緖羽荢﨟薰蘒﨡蠇諸譿賴赶﨣﨤逸郞都鄕﨧﨨閒隆﨩霻靍靑飯飼館馞髙魲鶴黑",
    },
}

EIGHT_BIT = frozenset(_EIGHT_BIT_CODECS)
"""Character sets of one byte a character."""

MULTI_BYTE = frozenset(_MULTI_BYTE_CODECS)
"""Character sets of one to three bytes a character, without Unicode's; gb18030, of up to four, is decoded by Python."""


@lru_cache(maxsize=1)
def _by_collation() -> dict[int, str]:
    found = {}
    for charset, text in _COLLATIONS.items():
        for part in text.split():
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found[number] = charset
    return found


def charset_of(collation: int) -> str | None:
    """The character set of a collation's number, or None if the number is unknown."""
    return _by_collation().get(collation)


@lru_cache(maxsize=64)
def code_points(charset: str) -> tuple[int, ...]:
    """The 256 code points of a character set in EIGHT_BIT."""
    text = bytearray(range(256)).decode(_EIGHT_BIT_CODECS[charset], "replace")
    points = [63 if c == "\ufffd" else ord(c) for c in text]
    for first, run in _EIGHT_BIT_DIFFERENCES.get(charset, {}).items():
        points[first : first + len(run)] = [ord(c) for c in run]
    return tuple(points)


@lru_cache(maxsize=16)
def multi_byte_points(charset: str) -> tuple[int, ...]:
    """The code points of a character set in MULTI_BYTE: 256 single bytes, 65536 pairs and, for EUC, what follows 0x8F.

    A byte that starts a pair has P_PAIR, 0x8F in EUC has P_TRIPLE; a pair is at 256 + 256 * first + second.
    """
    codec = _MULTI_BYTE_CODECS[charset]
    euc = codec == "euc_jp"
    points = [63] * (256 + 65536 * (2 if euc else 1))
    for b in range(256):
        try:
            points[b] = ord(bytes([b]).decode(codec))
        except UnicodeDecodeError:
            points[b] = P_PAIR if b >= 0x80 else 63
    if euc:
        points[0x8F] = P_TRIPLE
    for first in range(0x80, 0x100):
        if points[first] != P_PAIR:
            continue
        for second in range(0x40, 0x100):
            points[256 + 256 * first + second] = _point(bytes((first, second)), codec)
    if euc:
        for first in range(0xA1, 0xFF):
            for second in range(0xA1, 0xFF):
                at = 256 * first + second
                points[256 + 65536 + at] = _point(bytes((0x8F, first, second)), codec)
                if first >= 0xF5:  # the private use area
                    points[256 + at] = 0xE000 + 94 * (first - 0xF5) + second - 0xA1
                    points[256 + 65536 + at] = 0xE3AC + 94 * (first - 0xF5) + second - 0xA1
    for code, run in _MULTI_BYTE_DIFFERENCES.get(charset, {}).items():
        at = 256 + code if code < 0x10000 else 256 + 65536 + (code & 0xFFFF)
        points[at : at + len(run)] = [ord(c) for c in run]
    return tuple(points)


@lru_cache(maxsize=64)
def key_points(charset: str) -> tuple[int, ...]:
    """As `code_points` or `multi_byte_points`, but P_AMBIGUOUS for bytes that a server does not get back from their
    character: they have none, or the server encodes it in other bytes (in cp932 those of IBM's selection before NEC's,
    in sjis 0x815F for a backslash, else the first).
    """
    points = list(code_points(charset) if charset in EIGHT_BIT else multi_byte_points(charset))
    order = list(range(len(points)))
    if charset == "cp932":
        order.sort(key=lambda at: 256 + 256 * 0xED <= at < 256 + 256 * 0xEF)
    elif charset == "sjis":
        order.sort(key=lambda at: at == 0x5C)
    seen = {63, 0xFFFD}
    for at in order:
        if at != 63 and points[at] in seen:
            points[at] = P_AMBIGUOUS
        elif points[at] >= 0:
            seen.add(points[at])
    return tuple(points)


def _point(raw: bytes, codec: str) -> int:
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError:
        return 63
    return ord(text) if len(text) == 1 else 63


_PYTHON_CODECS = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}


def to_text(raw: bytes, charset: str) -> str:
    """Decode text of any of MySQL's character sets. (values.py decodes the common ones itself.)

    UnicodeDecodeError if the bytes are malformed in a Unicode character set.
    """
    if charset in EIGHT_BIT:
        points = code_points(charset)
        return "".join(chr(points[b]) for b in raw)
    if charset in MULTI_BYTE:
        points, found, at = multi_byte_points(charset), [], 0
        while at < len(raw):
            point = points[raw[at]]
            if point == P_PAIR and at + 1 < len(raw):
                found.append(points[256 + 256 * raw[at] + raw[at + 1]])
                at += 2
            elif point == P_TRIPLE and at + 2 < len(raw):
                found.append(points[256 + 65536 + 256 * raw[at + 1] + raw[at + 2]])
                at += 3
            else:
                found.append(max(point, 63) if point < 0 else point)
                at += 1
        return "".join(map(chr, found))
    if charset == "gb18030":
        # MySQL follows the edition of 2005, Python that of 2000: two code points changed places
        return raw.decode("gb18030").translate({0xE7C7: 0x1E3F, 0x1E3F: 0xE7C7})
    return raw.decode(_PYTHON_CODECS.get(charset, "utf-8"))
