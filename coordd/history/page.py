"""The frame of the report: one template, its style inside, nothing fetched from anywhere."""

from string import Template

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>coordd run history</title>
<style>
:root { color-scheme: light dark; --paper: #f6f7f9; --sheet: #fff; --ink: #1c2430; --dim: #667085; --line: #e4e7ec;
  --good: #0f7b4f; --fair: #a15c00; --bad: #b42318; --good-soft: #e5f5ed; --fair-soft: #fdf1dc; --bad-soft: #fdeae8; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --sheet: #1b212a; --ink: #e6e9ee; --dim: #97a1b0;
  --line: #2c3440; --good: #4cc38a; --fair: #f0b352; --bad: #ff8b7e; --good-soft: #14301f; --fair-soft: #37290f;
  --bad-soft: #3c1a17; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; margin: 0 0 16px; letter-spacing: -.01em; }
h2 { font-size: 16px; margin: 0 0 14px; }
section { background: var(--sheet); border: 1px solid var(--line); border-radius: 10px; padding: 20px;
  margin-top: 18px; }
.verdict { border-left: 5px solid; border-radius: 8px; padding: 14px 18px; font-size: 17px; font-weight: 600; }
.verdict.good { color: var(--good); background: var(--good-soft); }
.verdict.fair { color: var(--fair); background: var(--fair-soft); }
.verdict.bad { color: var(--bad); background: var(--bad-soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(108px, 1fr)); gap: 12px; margin-top: 18px; }
.card { background: var(--sheet); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.card b { display: block; font-size: 25px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.card span, .none, .keys, footer, th { color: var(--dim); font-size: 13px; }
.card.good b { color: var(--good); } .card.fair b { color: var(--fair); } .card.bad b { color: var(--bad); }
svg { width: 100%; height: auto; display: block; font: 12.5px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .label { text-anchor: end; } span.time { white-space: nowrap; }
svg .time { text-anchor: middle; fill: var(--dim); }
svg .inside { fill: #fff; font-weight: 600; } svg .lane, svg .tick { stroke: var(--line); }
svg .over { stroke: var(--ink); stroke-width: 1.6; fill: none; } svg .open { stroke-dasharray: 3 3; }
.keys { margin: 8px 0 0; } .keys span { margin-right: 18px; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; } th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } td:last-child { min-width: 150px; } tr:last-child td { border-bottom: 0; }
code { font: 12.5px ui-monospace, monospace; white-space: nowrap; }
.badge { display: inline-block; border-radius: 99px; padding: 0 9px; font-size: 12.5px; font-weight: 600;
  background: var(--line); }
.badge.success { color: var(--good); background: var(--good-soft); }
.badge.failure, .badge.violation { color: var(--bad); background: var(--bad-soft); }
.badge.retry, .badge.revoked, .badge.rejected, .badge.notice { color: var(--fair); background: var(--fair-soft); }
.none { margin: 6px 0 0; } footer { margin-top: 22px; }
</style>
</head>
<body><main>
<h1>Run history</h1>
<div class="verdict $judgement">$verdict</div>
<div class="cards">$cards</div>
<section><h2>Attempts over time (UTC)</h2>$timeline</section>
<section><h2>Launches per node</h2>$launches</section>
<section><h2>Audit</h2>$findings</section>
<section><h2>Latest runs</h2>$runs</section>
<footer>$footer</footer>
</main></body>
</html>
""")
