// Write a query: check it, see its plan, create a view of it.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { Dataflow, NodeFacts } from "./graph.js";
import { Doc, Linked, More, ofCall, ofError, page } from "./manual.js";
import { Run } from "./pieces.js";
import { body, link, literal } from "./words.js";

const EXAMPLE = "SELECT country, sum(amount) AS amount\n  FROM orders\n GROUP BY country";
const KEPT = "headrace-sql";

function kept() {
  try { return JSON.parse(sessionStorage.getItem(KEPT)) ?? {}; } catch { return {}; }
}

// Line and column of a position, which counts characters from 1; as psql shows it.
export function excerpt(text, position) {
  const before = [...text].slice(0, position - 1).join("");
  const number = before.split("\n").length, start = before.lastIndexOf("\n") + 1;
  const line = text.slice(start).split("\n")[0].replace(/\t/g, " ");
  const at = [...before.slice(start)].length, all = [...line];
  const left = Math.max(0, Math.min(at - 30, all.length - 60));
  const head = `LINE ${number}: ${left ? "…" : ""}`;
  return `${head}${all.slice(left, left + 60).join("")}${left + 60 < all.length ? "…" : ""}\n${" ".repeat(head.length + at - left)}^`;
}

function Failed({ error, query, show }) {
  const rows = [["Detail", error.detail], ["Hint", error.hint], ["SQLSTATE", error.sqlstate]].filter(([, v]) => v);
  return html`<section class="panel trouble" role="alert" aria-labelledby="failed"><h2 id="failed">${error.message}</h2>
    ${error.position && html`<pre class="sql at">${excerpt(query, Number(error.position))}</pre><p><button type="button" class="small" onClick=${show}>Go to the position</button></p>`}
    <dl class="facts">${rows.map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd class="lines-kept"><${Linked} text=${v} /></dd></div>`)}</dl>
    <p class="quiet"><${More} to=${ofError(error)} words="What this means, in the manual" /></p></section>`;
}

function Plan({ graph }) {
  const [chosen, setChosen] = useState(null);
  const node = graph.nodes.find((n) => n.id === chosen);
  const choose = (id, stay) => setChosen((now) => (now === id && !stay ? null : id));
  return html`<section class="panel" aria-labelledby="plan"><header><h2 id="plan">Plan <${Doc} to=${page("explain")} label="Reading plans, in the manual" /></h2>
      <span class="key">state: what the planner expects</span></header>
    <${Dataflow} graph=${graph} stats=${null} live=${{}} chosen=${chosen} choose=${choose} />
    ${node ? html`<${NodeFacts} node=${node} planned=${true} />` : html`<p class="quiet">Choose a node to see its columns, state and cost; the arrow keys follow the edges.</p>`}
    ${graph.notes.length > 0 && html`<ul class="notes">${graph.notes.map((n) => html`<li key=${n}>${n}</li>`)}</ul>`}</section>`;
}

function Outcome({ told, query, views, show }) {
  if (!told) return null;
  const row = views.find((v) => v.name === told.view);
  const gone = told.view && told.seen && !row;
  return html`${told.error && html`<${Failed} error=${told.error} query=${told.query} show=${show} />`}
    ${told.done && html`<section class="panel good" role="status"><h2>${gone ? "The view was not created" : row?.status === "running" ? "The view is up to date" : told.done}</h2>
      ${gone ? html`<p>Filling it failed. <a href="#/events">The events</a> have the reason.</p>`
        : told.view ? html`<p><a href=${link(told.view)}>${told.view}</a> ${row ? html`<small>${row.status}${row.percent != null ? `, ${row.percent} %` : ""}</small>` : ""}</p>` : null}</section>`}
    ${told.notices?.length > 0 && html`<section class="panel" aria-labelledby="notices"><h2 id="notices">Notices</h2><ul class="notes">${told.notices.map((n, i) => html`<li key=${i}>${n}</li>`)}</ul></section>`}
    ${told.graph?.nodes.length > 0 && html`<${Plan} key=${query} graph=${told.graph} />`}`;
}

export function Sql({ who, overview }) {
  const before = useRef(kept());
  const [query, setQuery] = useState(before.current.query ?? "");
  const [name, setName] = useState(before.current.name ?? "");
  const [options, setOptions] = useState(before.current.options ?? "");
  const [told, setTold] = useState(null);
  const [busy, setBusy] = useState(null);
  const area = useRef(null), running = useRef(null);
  useEffect(() => { try { sessionStorage.setItem(KEPT, JSON.stringify({ query, name, options })); } catch { /* not kept */ } }, [query, name, options]);
  useEffect(() => () => running.current?.abort(), []);
  const views = overview.views;
  useEffect(() => {
    if (told?.view && !told.seen && views.some((v) => v.name === told.view)) setTold({ ...told, seen: true });
  }, [views, told]);
  const act = async (action) => {
    let given = {};
    try { given = options.trim() ? JSON.parse(options) : {}; } catch (e) {
      setTold({ query, error: { message: "the options are not a JSON object", detail: String(e.message), sqlstate: "22023" } });
      return;
    }
    if (!query.trim()) { area.current.focus(); return; }
    const stop = new AbortController();
    running.current = stop;
    setBusy(action); setTold(null);
    try {
      const answer = await fetch("/api/sql", {
        method: "POST", signal: stop.signal, body: JSON.stringify({ action, query, name: action === "create" ? name : "", options: given }),
        headers: { "content-type": "application/json", "x-headrace-csrf": who.csrf },
      });
      const found = await body(answer);
      setTold({ query, ...(found ?? { error: { message: answer.status === 413 ? "the query is too long for this page" : `the server answers ${answer.status}`, hint: answer.status === 413 ? "Create the view in psql." : undefined } }) });
    } catch {
      setTold(stop.signal.aborted ? { query, error: { message: "cancelled", sqlstate: "57014" } } : { query, error: { message: "the server does not answer" } });
    }
    setBusy(null);
  };
  const show = () => {
    const at = [...query].slice(0, Number(told.error.position) - 1).join("").length;
    area.current.focus();
    area.current.setSelectionRange(at, at + 1);
  };
  const keys = (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); act("check"); } };
  const call = name.trim() && query.trim() ? `CALL headrace.create_view(${literal(name)}, ${literal(query)}${options.trim() ? `, ${literal(options)}` : ""});` : null;
  return html`<h1>SQL</h1>
    <section class="panel write" aria-labelledby="write"><header><h2 id="write">Query of a view</h2><span class="quiet">as ${who.role}</span></header>
      <label class="out" for="query">Query</label>
      <textarea id="query" ref=${area} rows="9" spellcheck=${false} autocapitalize="none" placeholder=${EXAMPLE} value=${query} onInput=${(e) => setQuery(e.currentTarget.value)} onKeyDown=${keys}></textarea>
      <div class="fields"><label>Name of the view<input name="view" autocomplete="off" autocapitalize="none" spellcheck=${false} placeholder="sales" value=${name} onInput=${(e) => setName(e.currentTarget.value)} /></label>
        <label><span>Options <${Doc} to=${page("reference", "options")} label="Options, in the manual" /></span><input name="options" autocomplete="off" autocapitalize="none" spellcheck=${false} placeholder='{"key": ["country"]}' value=${options} onInput=${(e) => setOptions(e.currentTarget.value)} /></label></div>
      <div class="acts"><button type="button" disabled=${busy !== null} onClick=${() => act("check")} title="Ctrl+Enter">Check</button>
        <button type="button" disabled=${busy !== null} onClick=${() => act("explain")}>Explain</button>
        <button type="button" class="main" disabled=${busy !== null || who.reads_only || !name.trim()} onClick=${() => act("create")}>Create view</button>
        ${busy && html`<button type="button" class="small" onClick=${() => running.current?.abort()}>Cancel</button><span class="quiet" role="status">${{ check: "Checking …", explain: "Explaining …", create: "Creating …" }[busy]}</span>`}</div>
      ${who.reads_only ? html`<p class="quiet">This login reads only${who.engine ? ": to create views, log in as a role of the database" : ""}. Check and Explain work.</p>`
        : html`<p class="quiet"><${Doc} to=${ofCall("check_view")}>Check<//> tries everything that creating a view needs, and creates nothing. <${Doc} to=${ofCall("create_view")}>Create view<//> makes the view yours, and fills it in the background.</p>`}
    </section>
    <${Outcome} told=${told} query=${told?.query} views=${views} show=${show} />
    ${call && html`<section class="panel" aria-labelledby="call"><h2 id="call">As a call</h2><${Run} sql=${call} /></section>`}`;
}
