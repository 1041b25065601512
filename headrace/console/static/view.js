// One view: how fresh, why not, what it is made of and what that costs.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { eventsOf } from "./events.js";
import { Dataflow, NodeFacts, rates } from "./graph.js";
import { Doc, Linked, More, ofMessage, ofStatus, page } from "./manual.js";
import { Filling, Pill, Run } from "./pieces.js";
import { Curve } from "./plots.js";
import { bytes, calls, count, link, ms, rate, remedies, repairs, when } from "./words.js";

const RANGES = [["15 min", 900], ["6 h", 21600], ["7 days", 604800]];
const SNAPSHOTS = 6;

// What was between two samples that are far apart: nothing was written, and nothing lagged.
function filled(lag, seconds, now) {
  const out = { at: [], p50: [], p99: [], late: [], rows: [] };
  const push = (at, p50, p99, late, rows) => {
    out.at.push(at); out.p50.push(p50); out.p99.push(p99); out.late.push(late); out.rows.push(rows);
  };
  const from = now - seconds;
  let last = null;
  lag.at.forEach((at, i) => {
    if (at < from) return;
    const step = lag.step_s[i];
    if (last !== null && at - last > 2.5 * step) {
      push(last + step, null, null, null, 0);
      push(at - step, null, null, null, 0);
    }
    push(at, lag.p50_ms[i], lag.p99_ms[i], lag.lag_ms[i], lag.rows_per_s[i]);
    last = at;
  });
  return out;
}

function Plots({ data, theme }) {
  const [seconds, setSeconds] = useState(900);
  const found = useMemo(() => filled(data.lag, seconds, data.at), [data.lag, seconds]);
  const fresh = useMemo(() => [
    { label: "p50", color: "--accent", values: found.p50 },
    { label: "p99", color: "--second", values: found.p99 },
    { label: "lag", color: "--muted", values: found.late },
  ], [found]);
  const rows = useMemo(() => [{ label: "rows/s", color: "--accent", fill: "--wash", values: found.rows }], [found]);
  const choice = html`<div class="choice" role="group" aria-label="Range">${RANGES.map(([words, s]) => html`<button type="button" key=${s} aria-pressed=${s === seconds} onClick=${() => setSeconds(s)}>${words}</button>`)}</div>`;
  return html`<section class="panel wide" aria-labelledby="plots"><header><h2 id="plots">Freshness and throughput <${Doc} to=${page("monitoring", "the-past-lag_history-batches")} label="lag_history, in the manual" /></h2>${choice}</header>
    ${found.at.length ? html`<div class="two">
      <figure><figcaption>From commit to visible</figcaption><${Curve} times=${found.at} series=${fresh} unit=${ms} theme=${theme} label="p50, p99 and lag over time" /></figure>
      <figure><figcaption>Rows written per second</figcaption><${Curve} times=${found.at} series=${rows} unit=${rate} theme=${theme} label="rows per second over time" /></figure></div>`
    : html`<p class="empty">Nothing was written, and nothing lagged, in this time.</p>`}</section>`;
}

function Trouble({ data, row }) {
  if (!data.message) return null;
  const facts = [["Detail", data.detail], ["Row", data.culprit], ["SQLSTATE", data.sqlstate], ["Tried", data.tried], ["Note", data.note]].filter(([, v]) => v);
  const runs = new Map([...calls(data.hint, data.name), ...repairs(row)]);
  return html`<section class="panel trouble" role="alert" aria-labelledby="trouble"><h2 id="trouble">${data.message}</h2>
    ${facts.length > 0 && html`<dl class="facts">${facts.map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd>${v}</dd></div>`)}</dl>`}
    ${data.hint && html`<p class="hint"><${Linked} text=${data.hint} /></p>`}
    ${[...runs].map(([sql, why]) => html`<${Run} key=${sql} sql=${sql} why=${why} />`)}
    <p class="quiet"><${More} to=${ofMessage(data.message) ?? page("troubleshooting", "a-view-has-stopped")} words="What this means, in the manual" /></p></section>`;
}

function Flow({ data }) {
  const history = useRef([]);
  const [chosen, setChosen] = useState(null);
  const live = useMemo(() => {
    const kept = history.current;
    if (data.stats && kept[kept.length - 1]?.at !== data.at) {
      const before = kept[kept.length - 1]?.stats[0];
      // Begun anew: what was counted before is no measure.
      if (before && data.stats[0] && data.stats[0].batches < before.batches) kept.length = 0;
      kept.push({ at: data.at, stats: data.stats });
      if (kept.length > SNAPSHOTS) kept.shift();
    }
    return rates(kept);
  }, [data]);
  const node = data.graph.nodes.find((n) => n.id === chosen);
  const choose = (id, stay) => setChosen((now) => (now === id && !stay ? null : id));
  return html`<section class="panel wide" aria-labelledby="flow"><header><h2 id="flow">Dataflow <${Doc} to=${page("explain")} label="Reading plans, in the manual" /></h2>
      <span class="key">${data.stats ? html`rows out per second · bar: share of the view's time` : "the worker reports no figures now"}</span></header>
    ${data.graph.nodes.length ? html`<${Dataflow} graph=${data.graph} stats=${data.stats} live=${live} chosen=${chosen} choose=${choose} />
      ${node ? html`<${NodeFacts} node=${node} stat=${(data.stats ?? []).find((s) => s.node === node.id)} live=${live[node.id]} />`
        : html`<p class="quiet">Choose a node to see its figures; the arrow keys follow the edges.</p>`}`
    : html`<pre class="sql">${data.plan}</pre>`}
    ${data.graph.notes.length > 0 && html`<ul class="notes">${data.graph.notes.map((n) => html`<li key=${n}>${n}</li>`)}</ul>`}</section>`;
}

const list = (names) => (names.length ? names.map((n, i) => html`${i ? ", " : ""}<a href=${link(n)}>${n}</a>`) : "none");

function About({ data, row }) {
  const shared = data.graph.nodes.filter((n) => n.shared_with);
  // The index by which the sink finds rows belongs to Headrace.
  const own = data.indexes.filter((i) => !/ INDEX headrace_row_hash_/.test(i));
  const options = data.options && data.options !== "{}" ? data.options : "none";
  const rows = [
    ["Tables", data.tables.join(", ") || "none"],
    ["Reads the views", list(data.reads)],
    ["Read by the views", list(data.read_by)],
    ["Shares", shared.length ? shared.map((n) => html`<div key=${n.id}><code>${n.id}</code> ${n.kind.toLowerCase()}, with ${n.shared_with}</div>`) : "no subplan with other views"],
    ["Indexes", own.length ? own.map((i) => html`<code class="block" key=${i}>${i}</code>`) : "none"],
    ["History", data.history ? `changes are kept for ${data.history}` : "not kept"],
    ["Connection points", data.points.join(", ") || "none"],
    ["Options", html`<code>${options}</code>`],
    ["Created", when(data.created_at)],
    ["Last error", data.last_error ? `${data.last_error} (${when(data.last_error_at)})` : "none"],
    ["Events", html`<a href=${eventsOf(data.name)}>of this view</a>`],
  ];
  return html`<section class="panel" aria-labelledby="about"><h2 id="about">About <${Doc} to=${page("reference", "options")} label="Options, in the manual" /></h2><dl class="facts">${rows.map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd>${v}</dd></div>`)}</dl></section>
    <section class="panel" aria-labelledby="query"><h2 id="query">Query</h2><pre class="sql" tabindex="0">${data.query}</pre>
      <h3>Useful calls</h3>${remedies(row).map(([sql, why]) => html`<${Run} key=${sql} sql=${sql} why=${why} />`)}</section>`;
}

export function View({ name, data, overview, theme }) {
  const heading = useRef(null);
  useEffect(() => { heading.current?.focus({ preventScroll: true }); }, [name]);
  const row = overview?.views.find((v) => v.name === name);
  const figures = row && [
    ["p50", ms(row.p50_ms)], ["p99", ms(row.p99_ms)], ["lag", ms(row.lag_ms)], ["rows/s", rate(row.rows_per_s)],
    ["rows", count(row.rows)], ["state", bytes(row.state_bytes)], ["since", when(row.since)], ["owner", row.owner ?? "–"],
  ];
  return html`<nav class="crumbs" aria-label="Where you are"><a href="#/">Views</a> <span aria-hidden="true">/</span></nav>
    <h1 tabindex="-1" ref=${heading}>${name} ${row && html`<${Doc} to=${ofStatus()} label="Statuses, in the manual"><${Pill} view=${row} /><//>`}</h1>
    ${row?.percent != null && html`<${Filling} view=${row} />`}
    ${row?.held_by && !data?.message && html`<p class="held"><${Linked} text=${row.held_by} /><${More} to=${ofMessage(row.held_by) ?? page("troubleshooting", "a-view-stands-still")} /></p>`}
    ${row && !data?.message && repairs(row).map(([sql, why]) => html`<${Run} key=${sql} sql=${sql} why=${why} />`)}
    ${figures && html`<dl class="figures">${figures.map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd>${v}</dd></div>`)}</dl>`}
    ${!data ? html`<p class="empty" role="status">Loading …</p>`
    : data.missing ? html`<section class="panel"><p>${row ? "This view belongs to another role: you see only its name and status." : "There is no such view."}</p></section>`
    : html`<${Trouble} data=${data} row=${row ?? { name, status: "" }} /><div class="columns"><${Plots} data=${data} theme=${theme} /><${Flow} key=${name} data=${data} /><${About} data=${data} row=${row ?? { name, status: "" }} /></div>`}`;
}
