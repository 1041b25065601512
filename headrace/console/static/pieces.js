// Small parts that several pages have.
import { html, useState } from "./vendor/preact-htm.js";
import { tone } from "./words.js";

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

// Progress of a population: a share where it is known.
export function Filling({ view }) {
  const words = `${view.percent} %${view.left ? `, about ${view.left} left` : ""}`;
  return html`<span class="filling"><span class="meter" role="progressbar" aria-valuenow=${view.percent} aria-valuemin="0" aria-valuemax="100" aria-label=${`${view.name}: filled`}><span style=${{ width: `${Math.min(100, view.percent)}%` }}></span></span><small>${words}</small></span>`;
}
