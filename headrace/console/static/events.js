// Events of the engine: filtered, the newest first, live.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { Doc, ofEvent, page } from "./manual.js";
import { body, link, when } from "./words.js";

const LEVELS = [["", "All levels"], ["warning", "Warnings and errors"], ["error", "Errors"]];
const TONES = { info: "idle", warning: "warn", error: "bad", critical: "bad" };
const KEPT = 1000, LONG = 220;
const NONE = { level: "", view: "", process: "", text: "" };

export const eventsOf = (view) => `#/events?view=${encodeURIComponent(view)}`;

function given() {
  const found = new URLSearchParams(location.hash.split("?")[1] ?? "");
  return Object.fromEntries(Object.keys(NONE).map((name) => [name, found.get(name) ?? ""]));
}

const query = (filters, more) => new URLSearchParams(Object.entries({ ...filters, ...more }).filter(([, v]) => v !== "" && v != null)).toString();

async function fetched(filters, more, stop) {
  const answer = await fetch(`/api/log?${query(filters, more)}`, { signal: stop });
  const found = await body(answer);
  if (!answer.ok || found === null) throw new Error(found?.error ?? `the server answers ${answer.status}`);
  return found;
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function Fields({ fields }) {
  // The reason first: the others explain it.
  const rows = Object.entries(fields).filter(([, v]) => v !== null && v !== "").sort(([a], [b]) => (b === "reason") - (a === "reason"));
  return rows.map(([name, value]) => {
    const text = shown(value);
    return html`<span class="field" key=${name}><b>${name}</b> ${text.length > LONG ? html`<details><summary>${text.slice(0, LONG)}…</summary><pre>${text}</pre></details>` : text}</span> `;
  });
}

function Filters({ filters, set, processes }) {
  const put = (name) => (e) => set({ ...filters, [name]: e.currentTarget.value });
  const field = (name, words) => html`<input type="search" aria-label=${words} placeholder=${words} list=${name === "process" ? "processes" : undefined} value=${filters[name]} onInput=${put(name)} autocapitalize="none" spellcheck=${false} />`;
  return html`<form class="filters" onSubmit=${(e) => e.preventDefault()}>
    <select aria-label="Level" value=${filters.level} onChange=${put("level")}>${LEVELS.map(([id, words]) => html`<option key=${id} value=${id}>${words}</option>`)}</select>
    ${field("view", "View")}${field("process", "Process")}${field("text", "Text")}
    <datalist id="processes">${processes.map((p) => html`<option key=${p} value=${p}></option>`)}</datalist></form>`;
}

export function Events({ newest }) {
  const [filters, setFilters] = useState(given);
  const [state, setState] = useState({ events: [], more: false, loaded: false });
  const asked = useRef(0);
  const set = (next) => { setFilters(next); history.replaceState(null, "", `#/events${query(next) ? `?${query(next)}` : ""}`); };
  useEffect(() => {
    const stop = new AbortController();
    // A pause in typing, so that not every letter is a query.
    const timer = setTimeout(() => {
      asked.current = newest ?? 0;
      fetched(filters, {}, stop.signal).then((found) => setState({ ...found, loaded: true, error: null }), (error) => { if (!stop.signal.aborted) setState({ events: [], more: false, loaded: true, error: error.message }); });
    }, state.loaded ? 250 : 0);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [filters]);
  useEffect(() => {
    if (!state.loaded || newest == null || newest <= asked.current) return undefined;
    const stop = new AbortController();
    asked.current = newest;
    fetched(filters, { after: state.events[0]?.id ?? 0 }, stop.signal).then((found) => setState((s) => (found.more
      ? { ...found, loaded: true, error: null }  // too many have come meanwhile
      : { ...s, error: null, events: [...found.events.filter((e) => e.id > (s.events[0]?.id ?? 0)), ...s.events].slice(0, KEPT) })), () => { asked.current = 0; });
    return () => stop.abort();
  }, [newest, state.loaded]);
  const older = () => fetched(filters, { before: state.events[state.events.length - 1].id })
    .then((found) => setState((s) => ({ ...s, more: found.more, events: [...s.events, ...found.events] })), (error) => setState((s) => ({ ...s, error: error.message })));
  const processes = [...new Set(["commander", "worker", "builder", ...state.events.map((e) => e.process)])];
  return html`<h1>Events <${Doc} to=${page("events")} label="Events, in the manual" /></h1>
    <section class="panel log" aria-label="Events"><${Filters} filters=${filters} set=${set} processes=${processes} />
      ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
      ${!state.loaded ? html`<p class="empty" role="status">Loading …</p>` : !state.events.length ? html`<p class="empty">${query(filters) ? "No event matches the filter." : "There are no events that you may see: those of your views, and for members of the engine's role all."}</p>`
      : html`<ol>${state.events.map((e) => html`<li key=${e.id} class=${TONES[e.level] ?? "idle"}>
        <span class="at">${when(e.at)}</span><span class=${`pill ${TONES[e.level] ?? "idle"}`}><i aria-hidden="true"></i>${e.level}</span>
        <span class="what"><${Doc} to=${ofEvent(e.event)} label="In the manual">${e.event}<//> ${e.view && html`<a class="of" href=${link(e.view)}>${e.view}</a>`}<small>${e.process}${e.pid ? ` ${e.pid}` : ""}</small></span>
        <span class="fields-of"><${Fields} fields=${e.fields} /></span></li>`)}</ol>`}
      ${state.more && html`<p><button type="button" onClick=${older}>Older events</button></p>`}</section>`;
}
