// All views, what is wrong, and the engine in numbers.
import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { Fleet } from "./fleet.js";
import { Doc, Linked, More, ofMessage, page } from "./manual.js";
import { Filling, Pill, Run } from "./pieces.js";
import { Batches, Spark } from "./plots.js";
import { ASSERTED, bytes, calls, count, link, literal, ms, rank, rate, repairs, tone, when } from "./words.js";

const fact = (facts, name) => facts.find((f) => f.fact === name);

function Tile({ title, value, more, kind, meter, href }) {
  return html`<a class=${`tile ${kind ?? ""}`} href=${href ?? "#/engine"}>
    <span class="title">${title}</span><span class="value">${value}</span>
    ${meter != null && html`<span class="meter" aria-hidden="true"><span style=${{ width: `${Math.min(100, meter * 100)}%` }}></span></span>`}
    <span class="more">${more}</span></a>`;
}

function tiles(data) {
  const { views, facts, memory } = data;
  const running = views.filter((v) => v.status === "running").length;
  const others = Object.entries(views.reduce((all, v) => {
    const [, words] = tone(v);
    return words === "running" ? all : { ...all, [words]: (all[words] ?? 0) + 1 };
  }, {})).map(([words, n]) => `${n} ${words}`).join(", ");
  const timed = views.filter((v) => v.p99_ms != null && v.status === "running");
  const worst = timed.reduce((a, b) => (a && a.p99_ms >= b.p99_ms ? a : b), null);
  const p50 = timed.map((v) => v.p50_ms).sort((a, b) => a - b)[Math.floor(timed.length / 2)];
  const kept = fact(facts, "WAL kept"), behind = fact(facts, "furthest back");
  const states = (memory ?? []).find((m) => m.part === "states" && !m.view);
  const own = (memory ?? []).filter((m) => m.part === "states" && m.view).reduce((s, m) => s + m.bytes, 0);
  return html`<section class="tiles" aria-label="The engine in numbers">
    <${Tile} title="Views" value=${html`${running}<small> of ${views.length} running</small>`} more=${others || "no problems"}
      kind=${views.some((v) => tone(v)[0] === "bad") ? "bad" : views.some((v) => tone(v)[0] === "warn") ? "warn" : ""} href="#/" />
    <${Tile} title="Freshness" value=${p50 == null ? html`<small>nothing written</small>` : html`${ms(p50)}<small> p50</small>`}
      more=${worst ? `p99 ${ms(worst.p99_ms)}, ${worst.name}` : "of the last minute"} href=${worst ? link(worst.name) : "#/"} />
    <${Tile} title="Rows written" value=${html`${rate(views.reduce((s, v) => s + (v.rows_per_s ?? 0), 0))}<small>/s</small>`}
      more=${`${count(views.reduce((s, v) => s + (v.rows ?? 0), 0))} rows in all views`} />
    <${Tile} title="WAL kept" value=${kept ? kept.value.split(",")[0] : "–"} kind=${kept && kept.ok === false ? "bad" : ""}
      more=${behind ? `furthest back: ${behind.value}` : "no view is far behind"} />
    <${Tile} title="Memory of states" value=${bytes(states ? states.bytes : own || null)} meter=${states?.limit_bytes ? states.bytes / states.limit_bytes : null}
      more=${states?.limit_bytes ? `of ${bytes(states.limit_bytes)}` : "of the views you may see"} />
  </section>`;
}

function Held({ state }) {
  const [kind, words] = ASSERTED[state] ?? ["idle", state];
  return html`<span class=${`pill ${kind}`}><i aria-hidden="true"></i>${words}</span>`;
}

function Assertions({ assertions }) {
  if (!assertions?.length) return null;
  return html`<section class="panel" aria-labelledby="assertions"><h2 id="assertions">Assertions</h2><div class="scroll"><table class="plain"><thead><tr>
    <th scope="col">Assertion</th><th scope="col">State</th><th scope="col" class="number">Rows</th><th scope="col">Since</th><th scope="col">Reason</th></tr></thead>
    <tbody>${assertions.map((a) => html`<tr key=${a.name}><th scope="row"><a href=${link(a.name)}>${a.name}</a></th><td><${Held} state=${a.state} /></td>
      <td class="number">${count(a.rows)}</td><td>${when(a.since)}</td><td>${[a.reason, a.webhook && `webhook: ${a.webhook}`].filter(Boolean).join("; ")}</td></tr>`)}</tbody></table></div></section>`;
}

const SHOWN = 8, LATE_SHOWN = 3;

function Trouble({ view }) {
  const text = view.message ?? view.held_by, to = ofMessage(view.message) ?? ofMessage(view.held_by);
  return html`<li class=${tone(view)[0]}><a href=${link(view.name)}>${view.name}</a> <${Pill} view=${view} />
    <p><${Linked} text=${text} /><${More} to=${to} /></p>
    ${repairs(view).map(([sql, why]) => html`<${Run} key=${sql} sql=${sql} why=${why} />`)}</li>`;
}

function Attention({ data }) {
  const violated = (data.assertions ?? []).filter((a) => a.state === "violated");
  const wrong = data.views.filter((v) => rank(v) < 2).sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
  // Late views are often late together: a few stand for all.
  let late = 0;
  const shown = wrong.slice(0, SHOWN).filter((v) => rank(v) === 0 || (late += 1) <= LATE_SHOWN);
  const facts = data.facts.filter((f) => f.ok === false && f.fact !== "views");
  const sources = (data.sources ?? []).filter((s) => !["running", "starting"].includes(s.state));
  const workers = (data.workers ?? []).filter((w) => ["down", "lost"].includes(w.state));
  if (!wrong.length && !facts.length && !sources.length && !workers.length && !violated.length) return null;
  return html`<section class="panel attention" aria-labelledby="attention"><h2 id="attention">Needs attention</h2><ul>
    ${facts.map((f) => html`<li class="bad" key=${f.fact}><strong>${f.fact}</strong> <span>${f.value}</span>${f.hint && html`<p><${Linked} text=${f.hint} /><${More} to=${page("monitoring", "the-engine-status")} /></p>`}
      ${calls(f.hint).map(([sql, why]) => html`<${Run} key=${sql} sql=${sql} why=${why} />`)}</li>`)}
    ${sources.map((s) => html`<li class="bad" key=${`s ${s.source}`}><strong>source ${s.source}</strong> <span>${s.state}</span><p>${s.problem}<${More} to=${page("troubleshooting", "workers-and-sources")} /></p></li>`)}
    ${workers.map((w) => html`<li class="bad" key=${`w ${w.worker}`}><strong>worker ${w.worker}</strong> <span>${w.state}: ${w.state === "lost" ? "its views are being rebuilt elsewhere" : `its ${w.views} views stand still`}</span><${More} to=${page("troubleshooting", "workers-and-sources")} /></li>`)}
    ${violated.slice(0, SHOWN).map((a) => html`<li class="bad" key=${`a ${a.name}`}><a href=${link(a.name)}>${a.name}</a> <${Held} state=${a.state} /> <span>${count(a.rows)} ${a.rows === 1 ? "row" : "rows"} since ${when(a.since)}</span>${a.reason && html`<p>${a.reason}</p>`}
      <${Run} sql=${`SELECT * FROM ${a.name};`} why="shows the rows that violate it" /></li>`)}
    ${violated.length > SHOWN && html`<li>and ${violated.length - SHOWN} more violated assertions, below</li>`}
    ${shown.map((v) => html`<${Trouble} key=${v.name} view=${v} />`)}
    ${wrong.length > shown.length && html`<li>and ${wrong.length - shown.length} more, first in the list below</li>`}
  </ul></section>`;
}

const COLUMNS = [
  ["name", "View", (v) => v.name],
  ["status", "Status", rank],
  ["fresh", "Freshness, 15 min", null],
  ["p50_ms", "p50", (v) => v.p50_ms ?? -1],
  ["p99_ms", "p99", (v) => v.p99_ms ?? -1],
  ["rows_per_s", "Rows/s", (v) => v.rows_per_s ?? -1],
  ["rows", "Rows", (v) => v.rows ?? -1],
  ["state_bytes", "State", (v) => v.state_bytes ?? -1],
  ["owner", "Owner", (v) => v.owner ?? "\uffff"],
];
const LISTED = ["reference", "list_views"];
const ABOUT = { fresh: ["monitoring", "the-past-lag_history-batches"], status: ["monitoring", "each-view-list_views"] };
const NUMBERS = new Set(["p50_ms", "p99_ms", "rows_per_s", "rows", "state_bytes"]);

function Views({ data, samples }) {
  const [text, setText] = useState("");
  const [order, setOrder] = useState(["status", 1]);
  const shown = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const key = COLUMNS.find(([id]) => id === order[0])[2];
    return data.views
      .filter((v) => words.every((w) => `${v.name} ${v.owner ?? ""} ${tone(v)[1]} ${v.status}`.toLowerCase().includes(w)))
      .sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        return (x < y ? -1 : x > y ? 1 : 0) * order[1] || (a.name < b.name ? -1 : 1);
      });
  }, [data.views, text, order]);
  const sort = (id) => setOrder(([now, way]) => [id, now === id ? -way : NUMBERS.has(id) ? -1 : 1]);
  return html`<section class="panel views" aria-labelledby="views"><header><h2 id="views">Views</h2>
      <input id="search" type="search" placeholder="Search  ( / )" aria-label="Search views by name, owner or status" value=${text} onInput=${(e) => setText(e.currentTarget.value)} /></header>
    ${!data.views.length ? html`<div class="empty"><p>There are no views yet. Create one <a href="#/sql">here</a>, or on the port of Headrace:</p>
        <${Run} sql="CALL headrace.create_view('sales', 'SELECT country, sum(amount) AS amount FROM orders GROUP BY country');" /></div>`
    : html`<div class="scroll"><table><thead><tr>${COLUMNS.map(([id, title, key]) => html`<th key=${id} scope="col" class=${NUMBERS.has(id) ? "number" : ""}
          aria-sort=${order[0] === id ? (order[1] > 0 ? "ascending" : "descending") : "none"}>
          ${key ? html`<button type="button" onClick=${() => sort(id)}>${title}<span aria-hidden="true">${order[0] === id ? (order[1] > 0 ? " ↑" : " ↓") : ""}</span></button>` : title} <${Doc} to=${page(...(ABOUT[id] ?? LISTED))} label=${`${title}, in the manual`} /></th>`)}</tr></thead>
      <tbody>${shown.map((v) => html`<tr key=${v.name} class=${tone(v)[0]} onClick=${(e) => { if (!e.target.closest("a")) location.hash = link(v.name); }}>
        <th scope="row"><a href=${link(v.name)}>${v.name}</a></th>
        <td class="st"><${Pill} view=${v} />${v.percent != null ? html`<${Filling} view=${v} />` : v.held_by && html`<small class="held">${v.held_by}</small>`}</td>
        <td class="sp"><${Spark} points=${samples[v.name]} now=${data.at} label=${`freshness of ${v.name}: p50 ${ms(v.p50_ms)}, p99 ${ms(v.p99_ms)}`} /></td>
        <td class="number" data-label="p50">${ms(v.p50_ms)}</td><td class="number" data-label="p99">${ms(v.p99_ms)}</td>
        <td class="number" data-label="rows/s">${rate(v.rows_per_s)}</td><td class="number" data-label="rows">${count(v.rows)}</td>
        <td class="number" data-label="state">${bytes(v.state_bytes)}</td><td class="owner" data-label="owner">${v.owner ?? html`<span class="quiet" title="owned by another role: only its name and status are shown">–</span>`}</td>
      </tr>`)}</tbody></table>${!shown.length && html`<p class="empty">No view matches the search.</p>`}</div>`}
  </section>`;
}

export function Overview({ data, samples }) {
  return html`${tiles(data)}<${Attention} data=${data} />
    ${data.views.length > 0 && html`<${Fleet} samples=${samples} now=${data.at} />`}
    <${Views} data=${data} samples=${samples} /><${Assertions} assertions=${data.assertions} />
    ${data.batches?.length ? html`<section class="panel" aria-labelledby="batches"><header><h2 id="batches">Last batches</h2>
      <span class="key"><i class="process"></i>computed <i class="wait"></i>waited <i class="write"></i>written</span></header>
      <${Batches} batches=${data.batches} /></section>` : null}`;
}
