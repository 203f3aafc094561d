"""Untrusted names: what a terminal obeys, what pages and files take for more than a name."""

NASTY = {
    "color": "\x1b[31mred\x1b[0m",
    "cursor": "a\x1b[2J\x1b[Hb",
    "title of the window": "\x1b]0;owned\x07x",
    "link of a terminal": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "C1 control": "a\x9b31mb\x9d0;t\x9c",
    "delete and backspace": "good\x7f\x08\x08\x08\x08evil",
    "carriage return": "evil\rgood",
    "line break": "a\nkfl: all is well",
    "Unicode's own line break": "a\u2028b\u2029c\x85d",
    "tab": "a\tb",
    "nul": "a\x00b",
    "turned around": "photo\u202egnp.exe",
    "isolate": "a\u2066b\u2069",
    "no width": "de\u200bvice\u200d\ufeff",
    "half a pair": "a\ud800b",
    "undecodable byte": "a\udcffb",
    "very long": "n" * 100_000,
    "long and wide": "名" * 100_000,
    "marks on a letter": "a" + "\u0301" * 5_000,
    "tag": "<script>window.hacked=1</script>",
    "attribute": '"><img src=x onerror="window.hacked=1">',
    "single quotes": "' onmouseover='window.hacked=1",
    "comment": "--><b>x</b><!--",
    "entity": "&lt;b&gt;&amp;&#0;",
    "link of Plotly": '<a href="javascript:alert(1)">x</a><br>',
    "template of Plotly": "%{x} %{customdata[0]}",
    "markup of rich": "[bold red]x[/] [link=http://evil.example]y[/link] [/nothing]",
    "emoji code": ":smile: :warning:",
    "cells of Markdown": "a|b|c\\|d",
    "link of Markdown": "[click](javascript:alert(1)) ![x](http://evil.example/x.png)",
    "code of Markdown": "``` `x` ~~~",
    "heading": "# heading",
    "mathematics": r"$\frac{1}{0}$ $x_{",
    "one dollar": "5$ and \\$",
    "underscore first": "_hidden",
    "formula": "=cmd|'/C calc'!A0",
    "formula with at": "@SUM(1+1)",
    "formula with plus": "+1+cmd|' /C calc'!A0",
    "formula after an apostrophe": "'=1+1",
    "parent folders": "../../../../tmp/x",
    "absolute path": "/etc/passwd",
    "path of Windows": "C:\\Windows\\..\\x",
    "device of Windows": "NUL",
    "device with an ending": "com1.txt",
    "hidden file": ".bashrc",
    "dots": "..",
    "looks alike": "dеvice-0",  # its second letter is Cyrillic
    "emoji": "👩‍💻🇩🇪",
    "from right to left": "מכשיר",
    "percent": "%s %d %n %(x)s",
    "braces": "{0} {x} {{}} {__class__}",
    "shell": "$(reboot) `reboot`; reboot & rm -rf *",
    "flag": "--out=/tmp/x",
    "comma and quotes": 'a,"b",c',
    "nothing": "",
    "blanks": "   ",
}

_RANGES = (range(32), range(127, 160), range(0x200B, 0x2010), range(0x2028, 0x202F), range(0x2066, 0x206A))
FORBIDDEN = {chr(one) for some in (*_RANGES, range(0xD800, 0xE000), [0xFEFF]) for one in some} - {"\n"}
"""Characters that no terminal may be given, whatever the name; a line break is ours alone, which tests count."""


def harmless(shown: str) -> bool:
    """Whether a terminal would only show this text."""
    return not FORBIDDEN & set(shown)
