"""The frame of the report: one template, its style inside, nothing fetched from anywhere, no script."""

from string import Template

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>coordd run history</title>
<style>
:root { color-scheme: light dark; --paper: #f4f5f7; --sheet: #fff; --ink: #1b2430; --dim: #5b6675; --line: #e2e6eb;
  --link: #0b5cad; --good: #0b6b45; --fair: #8a4d00; --bad: #b42318; --good-soft: #e3f4eb; --fair-soft: #fcefd9;
  --bad-soft: #fde9e7; --band: #0072b21c; --cell: #eceff3; --heat: #0b5cad;
  --s-success: #0f9d6e; --s-failure: #d5431c; --s-started: #3b8fd4; --s-received: #6db3e8; --s-pending: #a9cdea;
  --s-retry: #e6a117; --s-rejected: #b58a2a; --s-revoked: #8c78b8; --s-other: #9099a5; }
@media (prefers-color-scheme: dark) { :root { --paper: #11151b; --sheet: #1a2029; --ink: #e6e9ee; --dim: #a0aab8;
  --line: #2c3541; --link: #7db8f5; --good: #4cc38a; --fair: #f0b352; --bad: #ff8b7e; --good-soft: #14301f;
  --fair-soft: #37290f; --bad-soft: #3c1a17; --band: #56b4e926; --cell: #232b36; --heat: #4f9be8;
  --s-success: #2fae7d; --s-failure: #f0603a; --s-pending: #45627c; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 56px; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
a { color: var(--link); } :focus-visible { outline: 3px solid var(--link); outline-offset: 2px; border-radius: 3px; }
.skip { position: absolute; left: -999px; } .skip:focus { left: 12px; top: 10px; background: var(--sheet);
  padding: 6px 12px; z-index: 3; }
main { max-width: 1160px; margin: 0 auto; padding: 8px 20px 48px; }
header { max-width: 1160px; margin: 0 auto; padding: 26px 20px 0; }
nav { position: sticky; top: 0; z-index: 2; background: var(--paper); border-bottom: 1px solid var(--line);
  margin-top: 14px; }
nav ul { max-width: 1160px; margin: 0 auto; padding: 8px 20px; list-style: none; display: flex; flex-wrap: wrap;
  gap: 2px 18px; font-size: 14px; }
h1 { font-size: 27px; margin: 0 0 2px; letter-spacing: -.015em; } header p { margin: 0 0 14px; color: var(--dim); }
h2 { font-size: 17px; margin: 0 0 12px; letter-spacing: -.005em; } h3 { font-size: 15px; margin: 22px 0 8px; }
section > p:first-of-type { margin-top: 0; }
section { background: var(--sheet); border: 1px solid var(--line); border-radius: 12px; padding: 20px 22px;
  margin-top: 18px; }
.job h3 { margin: 0 0 4px; font-size: 17px; } .job svg { margin-top: 12px; }
.verdict { border-left: 5px solid; border-radius: 8px; padding: 13px 18px; font-size: 16.5px; font-weight: 600; }
.verdict.good { color: var(--good); background: var(--good-soft); }
.verdict.fair { color: var(--fair); background: var(--fair-soft); }
.verdict.bad { color: var(--bad); background: var(--bad-soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(112px, 1fr)); gap: 12px; margin-top: 14px; }
.card { background: var(--sheet); border: 1px solid var(--line); border-radius: 12px; padding: 11px 14px; }
.card b { display: block; font-size: 25px; line-height: 1.2; font-variant-numeric: tabular-nums; white-space: nowrap; }
.card span, .none, .keys, footer, th, .dim, .facts, summary { color: var(--dim); font-size: 13px; }
.card.good b { color: var(--good); } .card.fair b { color: var(--fair); } .card.bad b { color: var(--bad); }
svg { width: 100%; height: auto; display: block; font: 12.5px system-ui, sans-serif; overflow: visible; }
svg.small { width: auto; display: inline-block; vertical-align: middle; }
svg text { fill: var(--ink); } svg .label { text-anchor: end; } svg .dim, svg .tick-text { fill: var(--dim); }
svg .tick-text { text-anchor: middle; } span.time { white-space: nowrap; }
svg .inside { font-weight: 600; font-size: 12px; } svg .light-ink { fill: #fff; } svg .dark-ink { fill: #14181e; }
svg .mark { font-weight: 700; } svg .m-success { fill: var(--good); } svg .m-failure { fill: var(--bad); }
svg .lane, svg .tick { stroke: var(--line); } svg .axis { stroke: var(--dim); }
svg .over { stroke: var(--ink); stroke-width: 1.8; fill: none; stroke-linecap: round; stroke-linejoin: round; }
svg .lost { stroke-dasharray: 3 3; } svg .open { stroke: none; }
svg .band { fill: var(--band); } svg .median { stroke: var(--dim); stroke-dasharray: 5 4; }
svg .odd { fill: none; stroke: var(--s-failure); stroke-width: 1.8; } svg .again { fill: #fff; }
svg .cross { stroke: var(--s-failure); stroke-width: 2.4; fill: none; stroke-linecap: round; }
svg .open-mark { fill: none; stroke: var(--s-started); stroke-width: 2; }
svg .spark { fill: none; stroke: var(--s-started); stroke-width: 1.6; stroke-linejoin: round; }
svg .cell { fill: var(--cell); } svg .heat { fill: var(--heat); } svg .ring { stroke: var(--sheet); stroke-width: 1.5; }
svg .in-cell { text-anchor: middle; font-size: 11.5px; } svg .on-dark { fill: #fff; }
$classes
.keys { margin: 10px 0 0; display: flex; flex-wrap: wrap; gap: 2px 18px; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px; }
.dot.round { border-radius: 50%; } .heat-key { background: var(--heat); }
.node { white-space: nowrap; margin-right: 8px; }
.to { margin: 0 8px 0 0; }
.share { display: inline-block; width: 54px; height: 7px; border-radius: 4px; background: var(--cell); overflow: hidden;
  vertical-align: 1px; margin-right: 6px; }
.share i { display: block; height: 100%; background: var(--s-success); } .share.low i { background: var(--s-retry); }
.wide { overflow-x: auto; }
.facts { list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 22px; }
.tallies { display: flex; flex-wrap: wrap; gap: 4px 26px; } .tally b { font-size: 20px; margin-right: 4px; }
.warned, .advice { padding-left: 20px; } .warned { border-left: 5px solid var(--fair); background: var(--fair-soft);
  border-radius: 8px; padding: 10px 14px 10px 32px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; white-space: nowrap; } th, td { padding: 6px 14px 6px 0;
  border-bottom: 1px solid var(--line); vertical-align: middle; } tr:last-child td { border-bottom: 0; }
th.n, td.n { text-align: right; white-space: nowrap; } td:last-child, th:last-child { padding-right: 0; }
code { font: 12.5px ui-monospace, monospace; overflow-wrap: anywhere; }
.badge { display: inline-block; border-radius: 99px; padding: 0 9px; font-size: 12.5px; font-weight: 600;
  background: var(--cell); white-space: nowrap; }
.badge.success, .badge.closed { color: var(--good); background: var(--good-soft); }
.badge.failure, .badge.violation, .badge.missed, .badge.open, .badge.isolated {
  color: var(--bad); background: var(--bad-soft); }
.badge.retry, .badge.revoked, .badge.rejected, .badge.notice, .badge.late, .badge.overlap,
.badge.breaker, .badge.limit, .badge.half-open {
  color: var(--fair); background: var(--fair-soft); }
.none { margin: 10px 0 0; } footer { margin-top: 22px; } details { margin-top: 10px; } summary { cursor: pointer; }
.back { margin: 10px 0 0; font-size: 13px; }
@media print { nav, .skip, .back { display: none; } section { break-inside: avoid; } }
</style>
</head>
<body>
<a class="skip" href="#main">to the content</a>
<header><h1>Run history</h1><p>$span</p>
<div class="verdict $judgement">$verdict</div>
<div class="cards">$cards</div></header>
<nav aria-label="sections"><ul>$links</ul></nav>
<main id="main">
$sections
<footer>$footer</footer>
</main></body>
</html>
""")

# The states of runs, as colours.
STATES = ("success", "failure", "started", "received", "pending", "retry", "rejected", "revoked", "other")
CLASSES = "\n".join(
    f"svg .s-{state} {{ fill: var(--s-{state}); }} i.s-{state} {{ background: var(--s-{state}); }}" for state in STATES
)
