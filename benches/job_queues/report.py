"""The results as a table, and as SVG: figures as bars, and what became of the messages at each fault."""

from html import escape

BACKGROUND, INK, GRID = "#f8fafc", "#0f172a", "#cbd5e1"
COLOURS = {"pillarbox": "#0369a1", "BullMQ": "#b45309", "Graphile Worker": "#64748b"}
# Title, figure, divisor.
PANELS = [
    ("accepted a second, 1 connection", "accepted_1", 1),
    ("accepted a second, 64 connections", "accepted_64", 1),
    ("accepted and sent a second", "sent", 1),
    ("processor time to accept, µs", "accept_processor_us_64", 1),
    ("processor time to accept and send, µs", "sent_processor_us", 1),
    ("memory when idle, MiB", "idle_bytes", 1 << 20),
]
# Titles of the faults.
FAULTS = {
    "lost answers": "SES takes the message, and one answer in ten is lost",
    "throttled": "SES throttles every call for two minutes",
    "killed": "all processes are killed in the middle of sending, and started again",
}
# Outcome as the results name it, title, colour.
OUTCOMES = [
    ("once", "received once", "#0369a1"),
    ("twice", "received twice", "#b45309"),
    ("failed", "failed, not received", "#b91c1c"),
    ("waiting", "still waiting", "#94a3b8"),
    ("lost", "lost", "#0f172a"),
]


def document(width, height, title, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="system-ui, sans-serif" font-size="13" fill="{INK}" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>', *parts, "</svg>", "",
    ])


def text(x, y, content, **attributes):
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x}" y="{y}"{more}>{escape(content)}</text>'


def bar(x, y, length, height, colour):
    return f'<rect x="{x:.1f}" y="{y}" width="{max(length, 1):.1f}" height="{height}" fill="{colour}"/>'


def rounded(value):
    """Three digits, with separators of thousands."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def figures(results):
    parts = []
    for number, (title, figure, divisor) in enumerate(PANELS):
        x, y = 16 + number % 2 * 376, 28 + number // 2 * 112
        parts.append(text(x, y, title, font_weight=600))
        values = {name: of_system[figure] for name, of_system in results.items()}
        scale = 170 / max(value["max"] for value in values.values())
        for row, (name, value) in enumerate(values.items()):
            top = y + 12 + row * 24
            parts.append(text(x, top + 14, name))
            parts.append(bar(x + 116, top, value["median"] * scale, 18, COLOURS[name]))
            # From the lowest round to the highest one.
            low, high = (x + 116 + value[end] * scale for end in ("min", "max"))
            parts.append(f'<path d="M{low:.1f} {top + 9}H{high:.1f}" stroke="{INK}" stroke-width="1.5"/>')
            end = max(high, x + 117) + 6
            parts.append(text(f"{end:.1f}", top + 14, rounded(value["median"] / divisor)))
    title = "Figures of pillarbox, BullMQ and Graphile Worker; the table on this page has the same"
    return document(752, 350, title, parts)


def faults(results):
    parts, y = [], 16
    for fault, of_fault in results.items():
        y += 14
        parts.append(text(16, y, FAULTS[fault], font_weight=600))
        for name, outcome in of_fault.items():
            y += 6
            # A queue may need time that the bench lets pass.
            later = next((key for key in outcome if key.startswith("after ")), None)
            parts.append(text(16, y + 14, f"{name}, {later}" if later else name))
            outcome = outcome[later] if later else outcome
            x = 230
            for key, _, colour in OUTCOMES:
                if count := outcome.get(key, 0):
                    length = count / outcome["accepted"] * 480
                    parts.append(bar(x, y, length, 18, colour))
                    if length > 30:
                        parts.append(text(f"{x + 6:.1f}", y + 14, str(count), fill="#fff"))
                    x += length
            y += 20
        y += 18
    x = 16
    for key, title, colour in OUTCOMES:
        if any(f'fill="{colour}"' in part for part in parts):
            parts += [bar(x, y, 12, 12, colour), text(x + 18, y + 11, title)]
            x += 40 + len(title) * 7
    title = "Messages that arrived once, twice or not, at each fault; the table on this page has the same"
    return document(752, y + 30, title, parts)


# Name, figure, divisor.
ROWS = [
    ("accepted a second, 1 connection", "accepted_1", 1),
    ("accepted a second, 64 connections", "accepted_64", 1),
    ("p99 of the answer, 64 connections, ms", "accept_p99_ms_64", 1),
    ("accepted and sent a second, 64 connections", "sent", 1),
    ("processor time to accept a message, 64 connections, µs", "accept_processor_us_64", 1),
    ("processor time to accept and send a message, µs", "sent_processor_us", 1),
    ("memory when idle, MiB", "idle_bytes", 1 << 20),
    ("memory after sending, MiB", "sent_bytes", 1 << 20),
    ("processor time that others used, %", "others", 0.01),
]


def table(results):
    """Medians, with the lowest and the highest round, as Markdown."""
    lines = ["| What | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    for name, figure, divisor in ROWS:
        cells = []
        for of_system in results.values():
            middle, low, high = (rounded(of_system[figure][end] / divisor) for end in ("median", "min", "max"))
            cells.append(middle if low == high else f"{middle} ({low} to {high})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(results, directory):
    directory.mkdir(parents=True, exist_ok=True)
    if "figures" in results:
        (directory / "job-queues.svg").write_text(figures(results["figures"]))
    if "behaviours" in results:
        (directory / "job-queues-faults.svg").write_text(faults(results["behaviours"]))
