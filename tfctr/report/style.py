"""The style sheet of the page: light or dark, as the reader's system is."""

STYLE = """
:root { color-scheme: light dark; --page: #f8fafc; --card: #fff; --ink: #1e293b;
  --faint: #64748b; --line: #e2e8f0; --accent: #3b82f6; }
@media (prefers-color-scheme: dark) { :root { --page: #0f172a; --card: #1e293b;
  --ink: #e2e8f0; --faint: #94a3b8; --line: #334155; --accent: #60a5fa; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 28px 20px 60px; color: var(--ink);
  background: var(--page); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans",
  "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 12px; }
p { margin: 4px 0; color: var(--faint); }
section { scroll-margin-top: 10px; }
.cards, .plots { display: grid; gap: 14px; }
.cards { grid-template-columns: repeat(auto-fit, minmax(160px, 1fr));
  margin-top: 22px; }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); }
.card, figure, .table { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.card { padding: 12px 16px; }
.card b { display: block; font-size: 21px; font-weight: 600; white-space: nowrap; }
.card span { color: var(--faint); font-size: 13px; }
figure { margin: 0; padding: 14px 16px 8px; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { margin-bottom: 6px; font-weight: 600; }
figcaption span { color: var(--faint); font-size: 13px; font-weight: 400; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 14px; text-align: right; white-space: nowrap; }
th { font-size: 12.5px; font-weight: 500; color: var(--faint); }
tbody tr { border-top: 1px solid var(--line); }
tbody tr.more { border-top-color: transparent; }
th[scope=row], th.name, td.name { text-align: left; }
th[scope=row] { color: inherit; font-size: inherit; font-weight: 600; }
.bar { display: flex; height: 12px; border-radius: 6px; overflow: hidden;
  margin-bottom: 8px; background: var(--line); }
.legend span { margin-right: 18px; white-space: nowrap; color: var(--ink); }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px;
  margin-right: 6px; }
.input { background: #3b82f6; } .lookup { background: #f59e0b; }
.dense { background: #10b981; } .update { background: #ef4444; }
"""
