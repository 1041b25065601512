// All views, what is wrong, and the engine in numbers.
import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { Batches, Spark } from "./plots.js";
import { ASSERTED, bytes, count, mends, ms, rate, tone, when } from "./words.js";

export const link = (name) => `#/view/${encodeURIComponent(name)}`;

export function Pill({ view }) {
  const [kind, words] = tone(view);
  return html`<span class=${`pill ${kind}`}><i aria-hidden="true"></i>${words}</span>`;
}

export function Run({ sql, why }) {
  const [copied, setCopied] = useState(false);
  const copy = async (e) => {
    const code = e.currentTarget.parentElement.querySelector("code");
    try { await navigator.clipboard.writeText(sql); setCopied(true); setTimeout(() => setCopied(false), 1500); } catch {
      getSelection().selectAllChildren(code);  // no clipboard: selected, to be copied by hand
    }
  };
  return html`<div class="run"><code>${sql}</code>${why && html`<span class="why">${why}</span>`}
    <button type="button" class="small" onClick=${copy} aria-label=${`Copy: ${sql}`}>${copied ? "Copied" : "Copy"}</button></div>`;
}

const fact = (facts, name) => facts.find((f) => f.fact === name);

function Tile({ title, value, more, kind, meter, href }) {
  return html`<a class=${`tile ${kind ?? ""}`} href=${href ?? "#/engine"}>
    <span class="title">${title}</span><span class="value">${value}</span>
    ${meter != null && html`<span class="meter" aria-hidden="true"><span style=${{ width: `${Math.min(100, meter * 100)}%` }}></span></span>`}
    <span class="more">${more}</span></a>`;
}

export function tiles(data) {
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

export function Assertions({ assertions }) {
  if (!assertions?.length) return null;
  return html`<section class="panel" aria-labelledby="assertions"><h2 id="assertions">Assertions</h2><div class="scroll"><table class="plain"><thead><tr>
    <th scope="col">Assertion</th><th scope="col">State</th><th scope="col" class="number">Rows</th><th scope="col">Since</th><th scope="col">Reason</th></tr></thead>
    <tbody>${assertions.map((a) => html`<tr key=${a.name}><th scope="row"><a href=${link(a.name)}>${a.name}</a></th><td><${Held} state=${a.state} /></td>
      <td class="number">${count(a.rows)}</td><td>${when(a.since)}</td><td>${[a.reason, a.webhook && `webhook: ${a.webhook}`].filter(Boolean).join("; ")}</td></tr>`)}</tbody></table></div></section>`;
}

export function Attention({ data }) {
  const violated = (data.assertions ?? []).filter((a) => a.state === "violated");
  const wrong = data.views.filter((v) => ["bad", "warn"].includes(tone(v)[0]));
  const facts = data.facts.filter((f) => f.ok === false && f.fact !== "views");
  const sources = (data.sources ?? []).filter((s) => !["running", "starting"].includes(s.state));
  const workers = (data.workers ?? []).filter((w) => ["down", "lost"].includes(w.state));
  if (!wrong.length && !facts.length && !sources.length && !workers.length && !violated.length) return null;
  return html`<section class="panel attention" aria-labelledby="attention"><h2 id="attention">Needs attention</h2><ul>
    ${facts.map((f) => html`<li class="bad" key=${f.fact}><strong>${f.fact}</strong> <span>${f.value}</span>${f.hint && html`<p>${f.hint}</p>`}</li>`)}
    ${sources.map((s) => html`<li class="bad" key=${`s ${s.source}`}><strong>source ${s.source}</strong> <span>${s.state}</span><p>${s.problem}</p></li>`)}
    ${workers.map((w) => html`<li class="bad" key=${`w ${w.worker}`}><strong>worker ${w.worker}</strong> <span>${w.state}: ${w.state === "lost" ? "its views are being rebuilt elsewhere" : `its ${w.views} views stand still`}</span></li>`)}
    ${violated.slice(0, 8).map((a) => html`<li class="bad" key=${`a ${a.name}`}><a href=${link(a.name)}>${a.name}</a> <${Held} state=${a.state} /> <span>${count(a.rows)} rows since ${when(a.since)}</span>${a.reason && html`<p>${a.reason}</p>`}</li>`)}
    ${violated.length > 8 && html`<li>and ${violated.length - 8} more violated assertions, below</li>`}
    ${wrong.slice(0, 8).map((v) => html`<li class=${tone(v)[0]} key=${v.name}>
      <a href=${link(v.name)}>${v.name}</a> <${Pill} view=${v} />
      <p>${v.message ?? v.held_by}</p>
      ${mends(v).map(([sql, why]) => html`<${Run} key=${sql} sql=${sql} why=${why} />`)}</li>`)}
    ${wrong.length > 8 && html`<li>and ${wrong.length - 8} more, below</li>`}
  </ul></section>`;
}

const RANK = { bad: 0, warn: 1, busy: 2, idle: 3, ok: 4 };
const COLUMNS = [
  ["name", "View", (v) => v.name],
  ["status", "Status", (v) => RANK[tone(v)[0]]],
  ["fresh", "Freshness, 15 min", null],
  ["p50_ms", "p50", (v) => v.p50_ms ?? -1],
  ["p99_ms", "p99", (v) => v.p99_ms ?? -1],
  ["rows_per_s", "Rows/s", (v) => v.rows_per_s ?? -1],
  ["rows", "Rows", (v) => v.rows ?? -1],
  ["state_bytes", "State", (v) => v.state_bytes ?? -1],
  ["owner", "Owner", (v) => v.owner ?? "\uffff"],
];
const NUMBERS = new Set(["p50_ms", "p99_ms", "rows_per_s", "rows", "state_bytes"]);

export function Views({ data, samples }) {
  const [text, setText] = useState("");
  const [order, setOrder] = useState(["name", 1]);
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
    ${!data.views.length ? html`<div class="empty"><p>There are no views yet. Create one, on the port of Headrace:</p>
        <${Run} sql="CALL headrace.create_view('sales', 'SELECT country, sum(amount) AS amount FROM orders GROUP BY country');" /></div>`
    : html`<div class="scroll"><table><thead><tr>${COLUMNS.map(([id, title, key]) => html`<th key=${id} scope="col" class=${NUMBERS.has(id) ? "number" : ""}
          aria-sort=${order[0] === id ? (order[1] > 0 ? "ascending" : "descending") : "none"}>
          ${key ? html`<button type="button" onClick=${() => sort(id)}>${title}<span aria-hidden="true">${order[0] === id ? (order[1] > 0 ? " ↑" : " ↓") : ""}</span></button>` : title}</th>`)}</tr></thead>
      <tbody>${shown.map((v) => html`<tr key=${v.name} class=${tone(v)[0]} onClick=${(e) => { if (!e.target.closest("a")) location.hash = link(v.name); }}>
        <th scope="row"><a href=${link(v.name)}>${v.name}</a></th>
        <td class="st"><${Pill} view=${v} />${v.held_by && html`<small class="held">${v.held_by}</small>`}</td>
        <td class="sp"><${Spark} points=${samples[v.name]} now=${data.at} label=${`freshness of ${v.name}: p50 ${ms(v.p50_ms)}, p99 ${ms(v.p99_ms)}`} /></td>
        <td class="number" data-label="p50">${ms(v.p50_ms)}</td><td class="number" data-label="p99">${ms(v.p99_ms)}</td>
        <td class="number" data-label="rows/s">${rate(v.rows_per_s)}</td><td class="number" data-label="rows">${count(v.rows)}</td>
        <td class="number" data-label="state">${bytes(v.state_bytes)}</td><td class="owner" data-label="owner">${v.owner ?? html`<span class="quiet" title="owned by another role: only its name and status are shown">–</span>`}</td>
      </tr>`)}</tbody></table>${!shown.length && html`<p class="empty">No view matches the search.</p>`}</div>`}
  </section>`;
}

export function Overview({ data, samples }) {
  return html`${tiles(data)}<${Attention} data=${data} /><${Views} data=${data} samples=${samples} /><${Assertions} assertions=${data.assertions} />
    ${data.batches?.length ? html`<section class="panel" aria-labelledby="batches"><header><h2 id="batches">Last batches</h2>
      <span class="key"><i class="process"></i>computed <i class="wait"></i>waited <i class="write"></i>written</span></header>
      <${Batches} batches=${data.batches} /></section>` : null}`;
}

export function Engine({ data }) {
  const memory = (data.memory ?? []).filter((m) => !m.view);
  const own = (data.memory ?? []).filter((m) => m.view);
  const top = Math.max(1, ...own.map((m) => m.bytes));
  const done = (data.batches ?? []).filter((b) => b.fresh_us != null).slice(0, 12);
  return html`<h1>Engine</h1>
    <div class="masonry">
    <section class="panel" aria-labelledby="facts"><h2 id="facts">Facts</h2><dl class="facts">${data.facts.map((f) => html`<div key=${f.fact} class=${f.ok === false ? "bad" : ""}>
      <dt>${f.fact}</dt><dd>${f.value}${f.hint && html` <small class="hint">${f.hint}</small>`}</dd></div>`)}</dl></section>
    ${data.memory == null ? html`<section class="panel"><h2>Memory</h2><p class="quiet">The worker does not answer.</p></section>`
    : html`<section class="panel" aria-labelledby="memory"><h2 id="memory">Memory and disk</h2>${memory.length ? html`<dl class="facts">${memory.map((m) => html`<div key=${m.part}><dt>${m.part}</dt>
      <dd>${bytes(m.bytes)}${m.limit_bytes ? html` <small>of ${bytes(m.limit_bytes)}</small><span class="meter" aria-hidden="true"><span style=${{ width: `${Math.min(100, (100 * m.bytes) / m.limit_bytes)}%` }}></span></span>` : ""}</dd></div>`)}</dl>`
      : html`<p class="quiet">Shown only to members of the engine's role.</p>`}</section>`}
    ${own.length > 0 && html`<section class="panel" aria-labelledby="own"><h2 id="own">Memory by view</h2><dl class="facts">${[...own].sort((a, b) => b.bytes - a.bytes).slice(0, 40).map((m) => html`<div key=${`${m.part} ${m.view}`}><dt>${m.view}</dt>
      <dd>${bytes(m.bytes)} <small>${m.part}</small><span class="meter" aria-hidden="true"><span style=${{ width: `${(100 * m.bytes) / top}%` }}></span></span></dd></div>`)}</dl></section>`}
    ${data.workers?.length > 0 && html`<section class="panel" aria-labelledby="workers"><h2 id="workers">Workers</h2><div class="scroll"><table class="plain"><thead><tr><th scope="col">Worker</th><th scope="col">State</th><th scope="col" class="number">Views</th><th scope="col" class="number">Memory</th><th scope="col">Address</th></tr></thead>
      <tbody>${data.workers.map((w) => html`<tr key=${w.worker}><th scope="row">${w.worker}</th><td>${w.state}</td><td class="number">${w.views}</td><td class="number">${bytes(w.memory_bytes)}</td><td>${w.address ?? "this machine"}</td></tr>`)}</tbody></table></div></section>`}
    ${data.sources?.length > 0 && html`<section class="panel" aria-labelledby="sources"><h2 id="sources">Other databases</h2><div class="scroll"><table class="plain"><thead><tr><th scope="col">Source</th><th scope="col">State</th><th scope="col" class="number">Behind</th><th scope="col" class="number">Changes</th><th scope="col" class="number">Views</th><th scope="col">Problem</th></tr></thead>
      <tbody>${data.sources.map((s) => html`<tr key=${s.source}><th scope="row">${s.source}</th><td>${s.state}</td><td class="number">${bytes(s.lag_bytes)}</td><td class="number">${count(s.changes)}</td><td class="number">${s.views}</td><td>${s.problem ?? ""}</td></tr>`)}</tbody></table></div></section>`}
    ${done.length > 0 && html`<section class="panel wide" aria-labelledby="last"><header><h2 id="last">Last batches</h2><span class="key"><i class="process"></i>computed <i class="wait"></i>waited <i class="write"></i>written</span></header>
      <${Batches} batches=${data.batches} />
      <div class="scroll"><table class="plain"><thead><tr><th scope="col">txid</th><th scope="col">At</th><th scope="col" class="number">Transactions</th><th scope="col" class="number">Rows</th><th scope="col" class="number">Views</th><th scope="col" class="number">Computed</th><th scope="col" class="number">Waited</th><th scope="col" class="number">Written</th><th scope="col" class="number">Commit to visible</th></tr></thead>
      <tbody>${done.map((b) => html`<tr key=${b.txid}><th scope="row">${b.txid}</th><td>${(b.at ?? "").slice(11, 23)}</td><td class="number">${b.transactions}</td><td class="number">${count(b.rows)}</td><td class="number">${b.views}</td><td class="number">${ms(b.process_us / 1000)}</td><td class="number">${ms(b.wait_us / 1000)}</td><td class="number">${ms(b.write_us / 1000)}</td><td class="number">${ms(b.fresh_us / 1000)}</td></tr>`)}</tbody></table></div></section>`}
    </div><p class="quiet">Version ${data.version}. As SQL: <code>SELECT * FROM headrace.status();</code></p>`;
}
