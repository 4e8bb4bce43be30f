"""The style sheet of a report: for light and dark, wide and narrow screens. It names no other resource."""

from __future__ import annotations

from typing import Final

_DARK = """
--ground: #12161c; --card: #1b212a; --ink: #e8ebef; --soft: #a3adb9; --line: #343c48; --track: #2a323d;
--log: #f0a35b; --generation: #79b0f2; --base: #6fc79a; --other: #a3adb9; --bad: #ff9d94; --bad-card: #3a1d1d;
color-scheme: dark
"""

STYLE: Final = f"""
.lsm {{
--ground: #ffffff; --card: #f5f7f9; --ink: #1b1f24; --soft: #59636e; --line: #d5dbe2; --track: #e6eaef;
--log: #c96a15; --generation: #2f6fb5; --base: #2f8057; --other: #7a8591; --bad: #a3161f; --bad-card: #fdeeee;
color-scheme: light;
box-sizing: border-box; margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 3rem;
font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Open Sans", sans-serif;
color: var(--ink); background: var(--ground)
}}
@media (prefers-color-scheme: dark) {{ .lsm:not([data-theme="light"]) {{ {_DARK} }} }}
.lsm[data-theme="dark"] {{ {_DARK} }}
.lsm * {{ box-sizing: border-box }}
.lsm h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere }}
.lsm h2 {{ font-size: 1.15rem; margin: 2.5rem 0 0.75rem; padding-top: 0.75rem; border-top: 1px solid var(--line) }}
.lsm p {{ margin: 0.5rem 0; overflow-wrap: anywhere; max-width: 48rem }}
.lsm .soft {{ color: var(--soft) }}
.lsm code {{ font: 0.92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere }}
.lsm .tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 0.75rem;
margin: 1.25rem 0 }}
.lsm .tile {{ background: var(--card); border-radius: 8px; padding: 0.7rem 0.9rem; color: var(--soft) }}
.lsm .tile b {{ display: block; color: var(--ink); font-size: 1.5rem; line-height: 1.2;
font-variant-numeric: tabular-nums }}
.lsm .tile.bad, .lsm .finding {{ background: var(--bad-card); color: var(--bad) }}
.lsm .tile.bad b {{ color: var(--bad) }}
.lsm ul {{ list-style: none; margin: 0; padding: 0 }}
.lsm .finding {{ border-left: 4px solid var(--bad); border-radius: 4px; margin: 0.5rem 0; padding: 0.6rem 0.9rem;
overflow-wrap: anywhere }}
.lsm .finding span {{ display: block; color: var(--ink) }}
.lsm dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1rem; margin: 0.75rem 0 }}
.lsm dt {{ color: var(--soft) }}
.lsm dd {{ margin: 0; overflow-wrap: anywhere; min-width: 0 }}
.lsm figure {{ margin: 1rem 0 }}
.lsm figcaption {{ color: var(--soft); margin-bottom: 0.35rem }}
.lsm svg {{ display: block; width: 100% }}
.lsm .frame {{ display: grid; padding-top: 0.4rem; grid-template-columns: max-content minmax(0, 1fr);
column-gap: 0.6rem; font-size: 0.85rem;
color: var(--soft); font-variant-numeric: tabular-nums }}
.lsm .ticks {{ display: flex; flex-direction: column; justify-content: space-between; text-align: right; line-height: 1;
margin: -0.5em 0 }}
.lsm .times {{ grid-column: 2; display: flex; justify-content: space-between; gap: 1rem; padding-top: 0.3rem }}
.lsm .times span:last-child {{ text-align: right }}
.lsm .lane {{ align-self: center; text-align: right }}
.lsm .line {{ height: 11rem; border-left: 1px solid var(--line); border-bottom: 1px solid var(--line) }}
.lsm .events {{ height: 2.2rem; margin: 0.2rem 0; background: var(--card); border-radius: 4px }}
.lsm .levels {{ display: grid; grid-template-columns: max-content minmax(4rem, 1fr) max-content; gap: 0.5rem 0.8rem;
align-items: center; font-variant-numeric: tabular-nums }}
.lsm .levels svg {{ height: 1.3rem; background: var(--track); border-radius: 4px }}
.lsm .share svg {{ height: 1.3rem; border-radius: 4px; background: var(--track) }}
.lsm table {{ color: inherit; font-size: inherit; border-collapse: collapse; width: 100%;
margin: 0.75rem 0; font-variant-numeric: tabular-nums }}
.lsm th {{ text-align: left; color: var(--soft); font-weight: 600; font-size: 0.88rem; vertical-align: bottom }}
.lsm th, .lsm td {{ padding: 0.35rem 0.6rem 0.35rem 0; border-bottom: 1px solid var(--line) }}
.lsm td {{ overflow-wrap: anywhere; vertical-align: top }}
.lsm td svg {{ height: 0.4rem; border-radius: 2px; background: var(--track); margin-top: 0.15rem; min-width: 5rem }}
.lsm summary {{ cursor: pointer; color: var(--soft) }}
.lsm .log {{ fill: var(--log); stroke: var(--log) }}
.lsm .generation {{ fill: var(--generation); stroke: var(--generation) }}
.lsm .base {{ fill: var(--base); stroke: var(--base) }} .lsm .other {{ fill: var(--other); stroke: var(--other) }}
.lsm rect {{ stroke: none }}
.lsm .area {{ stroke: none; fill-opacity: 0.18 }}
.lsm .curve {{ fill: none; stroke-width: 2; vector-effect: non-scaling-stroke }}
.lsm .event {{ stroke-width: 2.5; vector-effect: non-scaling-stroke }}
.lsm .grid {{ stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke }}
@media (max-width: 640px) {{
.lsm h1 {{ font-size: 1.35rem }}
.lsm .tiles {{ grid-template-columns: repeat(2, minmax(0, 1fr)) }}
.lsm dl {{ grid-template-columns: 1fr }} .lsm dd {{ margin-bottom: 0.4rem }}
.lsm thead {{ display: none }}
.lsm tr {{ display: block; padding: 0.5rem 0; border-bottom: 1px solid var(--line) }}
.lsm td {{ display: grid; grid-template-columns: 9rem minmax(0, 1fr); gap: 0.6rem; border: 0; padding: 0.1rem 0 }}
.lsm td::before {{ content: attr(data-label); color: var(--soft) }}
}}
"""
