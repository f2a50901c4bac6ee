"""How the page of `nfn_monomial.benchmarks.report.page` looks: on a phone, on paper, in a light and a dark room."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c1f23; --faint: #5a6270; --line: #d7dbe0;
  --shade: #f3f5f7; --link: #0b57a8; --warn: #a3260b; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181c; --ink: #e4e7eb; --faint: #9ba4b0; --line: #363c44; --shade: #1f242a; --link: #7db6f2;
    --warn: #ff9a80; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1, h2, h3, h4, h5, h6 { line-height: 1.25; overflow-wrap: anywhere; }
h1 { font-size: 1.8rem; margin: 1rem 0 .25rem; }
h2 { font-size: 1.4rem; margin: 0; }
h3 { font-size: 1.1rem; margin: 1.75rem 0 .5rem; }
h4, h5, h6 { font-size: 1rem; margin: 1.25rem 0 .5rem; }
p, main ul, main ol, blockquote, pre { max-width: 46rem; }
a { color: var(--link); overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .875em; }
code { background: var(--shade); border-radius: 3px; padding: .1em .3em; overflow-wrap: anywhere; }
pre { background: var(--shade); border-radius: 4px; padding: .75rem; overflow-x: auto; }
pre code { padding: 0; overflow-wrap: normal; }
blockquote { margin: 1rem 0; padding-left: 1rem; border-left: 3px solid var(--line); color: var(--faint); }
main > section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1.5rem; }
.faint { color: var(--faint); font-size: .9rem; margin: .25rem 0 1rem; overflow-wrap: anywhere; }
.problem { color: var(--warn); font-weight: 600; }
.title { margin: 1.5rem 0 .25rem; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; font-size: .85rem; line-height: 1.35; }
th, td { padding: .3rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { border-bottom-color: var(--faint); vertical-align: bottom; }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th.n { white-space: normal; }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: var(--paper); }
.settings td { overflow-wrap: anywhere; }
.settings th[scope=row] { font-weight: 400; border-bottom-color: var(--line); vertical-align: top; }
figure { margin: 1rem 0; }
figcaption { color: var(--faint); font-size: .85rem; }
img { max-width: 100%; height: auto; background: #ffffff; border-radius: 4px; }
details { border: 1px solid var(--line); border-radius: 4px; margin: .5rem 0; padding: 0 .75rem; }
summary { cursor: pointer; padding: .4rem 0; }
@media (max-width: 40rem) {
  body { padding: .5rem .75rem 3rem; }
  .scroll th:first-child, .scroll td:first-child { max-width: 8rem; overflow-wrap: anywhere; } }
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  :root { color-scheme: light; --paper: #ffffff; --ink: #000000; --faint: #444444; --line: #bbbbbb;
    --shade: #f3f3f3; --link: #000000; --warn: #000000; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2, h3, h4, .title { break-after: avoid; }
  tr, img { break-inside: avoid; }
  img { max-height: 160mm; width: auto; }
  .scroll { overflow: visible; }
  .scroll th:first-child, .scroll td:first-child { position: static; }
  table { font-size: 6.5pt; }
  th, td { padding: 1pt 2pt; }
  .n { white-space: normal; } }
"""
