// Links to the manual: what has a heading or a row there is linked, and nothing else.
import { html, useEffect, useState } from "./vendor/preact-htm.js";

const NONE = { settings: {}, calls: {}, events: {}, messages: [] };
let terms = NONE, asked = null;

// Examples in the manual have numbers; a text of the engine has others.
const pattern = (text) => new RegExp(text.split("…").map((s) => s.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\d+/g, "[\\d.]+")).join("[^]*?"));

// Read once; without a built manual there are no links.
export function useManual() {
  const [, ready] = useState(0);
  useEffect(() => {
    asked ??= fetch("/manual/terms.json").then((answer) => (answer.ok ? answer.json() : NONE), () => NONE)
      .then((found) => { terms = { ...found, messages: found.messages.map(([text, to]) => [pattern(text), to]) }; });
    asked.then(() => ready((n) => n + 1));
  }, []);
}

export function Doc({ to, label, children }) {
  if (terms === NONE || !to) return children ?? null;
  return html`<a class=${children ? "doc" : "doc mark"} href=${`/manual/${to}`} target="_blank" rel="noopener" aria-label=${label} title=${label}>${children ?? "?"}</a>`;
}

// A link of its own; nothing where the manual has nothing to say.
export function More({ to, words }) {
  return to && terms !== NONE ? html` <${Doc} to=${to}>${words ?? "In the manual"}<//>` : null;
}

export const page = (name, anchor) => `manual/${name}.html${anchor ? `#${anchor}` : ""}`;
export const ofCall = (name) => terms.calls[name];
export const ofEvent = (name) => terms.events[name];
export const ofMessage = (text) => (text ? terms.messages.find(([known]) => known.test(text))?.[1] : undefined);
export const ofStatus = () => page("reference", "list_views");

const SQLSTATES = {
  "0A000": ["maintained"], "42501": ["reference"], "42P01": ["reference"], "53400": ["reference"], "55006": ["reference"], "57P03": ["reference"],
  "22023": ["reference", "options"], "42P07": ["reference", "create_view"],
};

// The page about an error: by its text, else by its SQLSTATE.
export const ofError = (error) => ofMessage(error.message) ?? (SQLSTATES[error.sqlstate] ? page(...SQLSTATES[error.sqlstate]) : page("troubleshooting", "creating-a-view"));

// Text in which settings and calls are links.
export function Linked({ text }) {
  return String(text ?? "").split(/(\b[a-z]+(?:_[a-z]+)+\b(?:\(\))?)/).map((part, i) => {
    const name = part.replace("()", "");
    const to = i % 2 ? terms.settings[name] ?? terms.calls[name] : undefined;
    return to ? html`<${Doc} key=${i} to=${to} label=${`${name} in the manual`}>${part}<//>` : part;
  });
}
