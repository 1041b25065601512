// The engine in numbers: facts, processes, memory, workers, sources, batches.
import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { Doc, Linked, page } from "./manual.js";
import { Batches, Curve } from "./plots.js";
import { bytes, count, ms, percent } from "./words.js";

const RANGES = [["15 min", "fine"], ["24 h", "coarse"]];
const DRAWN = 8, OWN_SHOWN = 15;

// One line a process; of many, those with the highest values.
function drawn(told, figure) {
  const all = Object.entries(told.of).map(([name, found]) => ({ label: name, values: found[figure] }));
  const most = (line) => Math.max(0, ...line.values.filter((v) => v != null));
  return all.sort((a, b) => most(b) - most(a)).slice(0, DRAWN).sort((a, b) => (a.label < b.label ? -1 : 1))
    .map((line, i) => ({ ...line, color: `--c${i + 1}` }));
}

function Processes({ told, theme }) {
  const [range, setRange] = useState("fine");
  const found = told?.[range];
  const cpu = useMemo(() => (found ? drawn(found, "cpu") : []), [found]);
  const memory = useMemo(() => (found ? drawn(found, "memory") : []), [found]);
  if (!told?.fine) return null;
  return html`<section class="panel" aria-labelledby="processes"><header><h2 id="processes">Processes <${Doc} to=${page("how")} label="How it works, in the manual" /></h2>
      <div class="choice" role="group" aria-label="Range">${RANGES.map(([words, id]) => html`<button type="button" key=${id} aria-pressed=${id === range} onClick=${() => setRange(id)}>${words}</button>`)}</div></header>
    ${found?.at.length > 1 ? html`<div class="two">
      <figure><figcaption>Processor (100 %: one core)</figcaption><${Curve} times=${found.at} series=${cpu} unit=${percent} theme=${theme} label="processor time of each process over time" /></figure>
      <figure><figcaption>Memory</figcaption><${Curve} times=${found.at} series=${memory} unit=${bytes} binary=${true} theme=${theme} label="memory of each process over time" /></figure></div>`
    : html`<p class="quiet">The first samples come ${range === "fine" ? "within 20 seconds" : "within four minutes"} of the start.</p>`}
    <p class="quiet">Processes on this computer, since the server has started.</p></section>`;
}

export function Engine({ data, processes, theme }) {
  const memory = (data.memory ?? []).filter((m) => !m.view);
  const own = (data.memory ?? []).filter((m) => m.view);
  const top = Math.max(1, ...own.map((m) => m.bytes));
  const done = (data.batches ?? []).filter((b) => b.fresh_us != null).slice(0, 12);
  return html`<h1>Engine</h1>
    <${Processes} told=${processes} theme=${theme} />
    <div class="masonry">
    <section class="panel" aria-labelledby="facts"><h2 id="facts">Facts <${Doc} to=${page("monitoring", "the-engine-status")} label="Facts, in the manual" /></h2><dl class="facts">${data.facts.map((f) => html`<div key=${f.fact} class=${f.ok === false ? "bad" : ""}>
      <dt>${f.fact}</dt><dd>${f.value}${f.hint && html` <small class="hint"><${Linked} text=${f.hint} /></small>`}</dd></div>`)}</dl></section>
    ${data.memory == null ? html`<section class="panel"><h2>Memory</h2><p class="quiet">The worker does not answer.</p></section>`
    : html`<section class="panel" aria-labelledby="memory"><h2 id="memory">Memory and disk <${Doc} to=${page("reference", "memory-show_memory")} label="Memory and disk, in the manual" /></h2>${memory.length ? html`<dl class="facts">${memory.map((m) => html`<div key=${m.part}><dt>${m.part}</dt>
      <dd>${bytes(m.bytes)}${m.limit_bytes ? html` <small>of ${bytes(m.limit_bytes)}</small><span class="meter" aria-hidden="true"><span style=${{ width: `${Math.min(100, (100 * m.bytes) / m.limit_bytes)}%` }}></span></span>` : ""}</dd></div>`)}</dl>`
      : html`<p class="quiet">Shown only to members of the engine's role.</p>`}</section>`}
    ${own.length > 0 && html`<section class="panel" aria-labelledby="own"><h2 id="own">Memory by view <${Doc} to=${page("reference", "memory-show_memory")} label="Memory by view, in the manual" /></h2><dl class="facts">${[...own].sort((a, b) => b.bytes - a.bytes).slice(0, OWN_SHOWN).map((m) => html`<div key=${`${m.part} ${m.view}`}><dt>${m.view}</dt>
      <dd>${bytes(m.bytes)} <small>${m.part}</small><span class="meter" aria-hidden="true"><span style=${{ width: `${(100 * m.bytes) / top}%` }}></span></span></dd></div>`)}</dl></section>`}
    ${data.workers?.length > 0 && html`<section class="panel" aria-labelledby="workers"><h2 id="workers">Workers <${Doc} to=${page("workers")} label="Workers, in the manual" /></h2><div class="scroll"><table class="plain"><thead><tr><th scope="col">Worker</th><th scope="col">State</th><th scope="col" class="number">Views</th><th scope="col" class="number">Memory</th><th scope="col">Address</th></tr></thead>
      <tbody>${data.workers.map((w) => html`<tr key=${w.worker}><th scope="row">${w.worker}</th><td>${w.state}</td><td class="number">${w.views}</td><td class="number">${bytes(w.memory_bytes)}</td><td>${w.address ?? "this machine"}</td></tr>`)}</tbody></table></div></section>`}
    ${data.sources?.length > 0 && html`<section class="panel" aria-labelledby="sources"><h2 id="sources">Other databases <${Doc} to=${page("reference", "other-databases")} label="Other databases, in the manual" /></h2><div class="scroll"><table class="plain"><thead><tr><th scope="col">Source</th><th scope="col">State</th><th scope="col" class="number">Behind</th><th scope="col" class="number">Changes</th><th scope="col" class="number">Views</th><th scope="col">Problem</th></tr></thead>
      <tbody>${data.sources.map((s) => html`<tr key=${s.source}><th scope="row">${s.source}</th><td>${s.state}</td><td class="number">${bytes(s.lag_bytes)}</td><td class="number">${count(s.changes)}</td><td class="number">${s.views}</td><td>${s.problem ?? ""}</td></tr>`)}</tbody></table></div></section>`}
    ${done.length > 0 && html`<section class="panel wide" aria-labelledby="last"><header><h2 id="last">Last batches <${Doc} to=${page("reference", "batches-show_batches")} label="Last batches, in the manual" /></h2><span class="key"><i class="process"></i>computed <i class="wait"></i>waited <i class="write"></i>written</span></header>
      <${Batches} batches=${data.batches} />
      <div class="scroll"><table class="plain"><thead><tr><th scope="col">txid</th><th scope="col">At</th><th scope="col" class="number">Transactions</th><th scope="col" class="number">Rows</th><th scope="col" class="number">Views</th><th scope="col" class="number">Computed</th><th scope="col" class="number">Waited</th><th scope="col" class="number">Written</th><th scope="col" class="number">Commit to visible</th></tr></thead>
      <tbody>${done.map((b) => html`<tr key=${b.txid}><th scope="row">${b.txid}</th><td class="at">${(b.at ?? "").slice(11, 23)}</td><td class="number">${b.transactions}</td><td class="number">${count(b.rows)}</td><td class="number">${b.views}</td><td class="number">${ms(b.process_us / 1000)}</td><td class="number">${ms(b.wait_us / 1000)}</td><td class="number">${ms(b.write_us / 1000)}</td><td class="number">${ms(b.fresh_us / 1000)}</td></tr>`)}</tbody></table></div></section>`}
    </div><p class="quiet">Version ${data.version}. As SQL: <code>SELECT * FROM headrace.status();</code></p>`;
}
