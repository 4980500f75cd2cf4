"""Makes messages whose From and Subject have encoded words in many charsets, and says what Python's
email package reads in them: one JSON line each."""

import base64
import json
import random
import sys
from email.header import Header, decode_header, make_header
from email.policy import default
from email.parser import Parser

seed, count = int(sys.argv[1]), int(sys.argv[2])
random.seed(seed)

LATIN = "J\u00f6rg M\u00fcller \u00e9t\u00e9 \u00df"
CENTRAL = "\u0141\u00f3d\u017a \u010cesko \u0151"
CYRILLIC = "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440"
GREEK = "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1"
HEBREW = "\u05e9\u05dc\u05d5\u05dd"
ARABIC = "\u0645\u0631\u062d\u0628\u0627"
THAI = "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"
JAPANESE = "\u8acb\u6c42\u66f8\u306e\u3054\u9023\u7d61 \u30c6\u30b9\u30c8"
CHINESE = "\u4f60\u597d \u4e16\u754c \u53d1\u7968"
TAIWAN = "\u4f60\u597d \u5c08\u696d \u767c\u7968"
KOREAN = "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4"
# Names as messages have them. Both sides have the same table for each of these characters.
TEXTS = {
    "utf-8": LATIN + CYRILLIC + JAPANESE + "\U0001f4ee",
    "us-ascii": "plain words",
    "iso-8859-1": LATIN,
    "iso-8859-2": CENTRAL,
    "iso-8859-3": "\u0126a\u011dar",
    "iso-8859-4": "\u0100\u0112\u0122",
    "iso-8859-5": CYRILLIC,
    "iso-8859-6": ARABIC,
    "iso-8859-7": GREEK,
    "iso-8859-8": HEBREW,
    "iso-8859-9": "\u0130stanbul \u015fi\u011f",
    "iso-8859-10": "\u0100\u00de\u0145",
    "iso-8859-13": "\u0104\u017d\u016b",
    "iso-8859-14": "\u1e02\u0174",
    "iso-8859-15": LATIN + "\u20ac\u0153",
    "iso-8859-16": "\u0218\u021a\u20ac",
    "windows-1250": CENTRAL,
    "windows-1251": CYRILLIC,
    "windows-1252": LATIN + "\u20ac\u201e",
    "windows-1253": GREEK,
    "windows-1254": "\u0130stanbul \u015fi\u011f",
    "windows-1255": HEBREW,
    "windows-1256": ARABIC,
    "windows-1257": "\u0104\u017d\u016b",
    "windows-1258": "\u0110\u01a0\u20ab",
    "koi8-r": CYRILLIC,
    "koi8-u": CYRILLIC + "\u0491\u0454",
    "ibm866": CYRILLIC,
    "macintosh": LATIN,
    "tis-620": THAI,
    "shift_jis": JAPANESE,
    "euc-jp": JAPANESE,
    "iso-2022-jp": JAPANESE,
    "gb2312": CHINESE,
    "gbk": CHINESE,
    "gb18030": CHINESE + "\U0001f4ee",
    "big5": TAIWAN,
    "euc-kr": KOREAN,
    "ks_c_5601-1987": KOREAN,
    "utf-16le": CHINESE,
    "utf-16be": CHINESE,
}


def word(charset, piece):
    charset = random.choice([charset, charset.upper()])
    if random.random() < 0.5:
        return f"=?{charset}?B?{base64.b64encode(piece).decode()}?="
    text = "".join(
        chr(b) if chr(b).isalnum() and b < 128 else "_" if b == 32 else f"={b:02X}" for b in piece
    )
    return f"=?{charset}?{random.choice('Qq')}?{text}?="


def by_hand(charset, text):
    """Words that split the text's bytes anywhere, also within a character."""
    data, words = text.encode(charset), []
    while data:
        length = random.randint(1, 24)
        words.append(word(charset, data[:length]))
        data = data[length:]
    return "\r\n ".join(words)


def by_package(charset, text):
    """Words as Python's own package writes them."""
    return Header(text, charset, maxlinelen=60).encode(linesep="\r\n")


def read(value):
    return str(make_header(decode_header(value.replace("\r\n", ""))))


charsets = list(TEXTS)
for number in range(count):
    charset = charsets[number % len(charsets)]
    words = list(TEXTS[charset])
    start = random.randint(0, len(words) // 2)
    text = "".join(words[start:]).strip() or TEXTS[charset]
    written = random.choice([by_hand, by_package])(charset, text)
    assert read(written) == text, (charset, text, written, read(written))
    # White space after plain words counts.
    if written.endswith("?=") and random.random() < 0.3:
        other = random.choice(charsets)
        tail = TEXTS[other].split()[0]
        # White space between two words is none, whatever their charsets (RFC 2047 section 6.2).
        if other != charset:
            written, text = written + "\r\n " + by_hand(other, tail), text + tail
    print(json.dumps({"charset": charset, "written": written, "text": text}))
