// Sparklines as SVG, curves by uPlot.
import { html, useEffect, useRef } from "./vendor/preact-htm.js";

// points: [at, p50, p99, lag, rows/s]; the last 15 minutes.
export function Spark({ points, now, label }) {
  const W = 120, H = 28, from = now - 900;
  const seen = (points ?? []).filter((p) => p[0] >= from);
  if (!seen.length) return html`<span class="spark none" aria-label="nothing was written">idle</span>`;
  const late = (p) => p[1] ?? p[3] ?? 0;
  const top = Math.max(1, ...seen.map((p) => Math.max(late(p), p[2] ?? 0)));
  const x = (p) => ((p[0] - from) / 900) * (W - 4) + 2;
  const y = (v) => H - 2 - (v / top) * (H - 5);
  const line = (value) => seen.map((p, i) => {
    const gap = i && p[0] - seen[i - 1][0] > 35;
    // A line of no length is a dot: so a sample without neighbours is seen as well.
    return `${i === 0 || gap ? "M" : "L"}${x(p).toFixed(1)} ${y(value(p)).toFixed(1)}${i === 0 || gap ? "h0" : ""}`;
  }).join("");
  const last = seen[seen.length - 1];
  return html`<svg class="spark" viewBox="0 0 ${W} ${H}" width=${W} height=${H} role="img" aria-label=${label}>
    <path class="p99" d=${line((p) => p[2] ?? late(p))} />
    <path class="p50" d=${line(late)} />
    <circle class="dot" cx=${x(last)} cy=${y(late(last))} r="2" />
  </svg>`;
}

// Batches, newest first, as stacked bars: computed, waited, written.
export function Batches({ batches }) {
  const done = (batches ?? []).filter((b) => b.fresh_us != null).slice(0, 80).reverse();
  if (!done.length) return html`<p class="quiet">No batch yet.</p>`;
  const parts = [["process_us", "process"], ["wait_us", "wait"], ["write_us", "write"]];
  const whole = (b) => parts.reduce((sum, [key]) => sum + (b[key] ?? 0), 0);
  const top = Math.max(1, ...done.map(whole));
  const W = 640, H = 120, step = W / Math.max(40, done.length);
  return html`<svg class="bars" viewBox="0 0 ${W} ${H}" preserveAspectRatio="none" role="img"
      aria-label="Times of the last ${done.length} batches; the longest took ${(top / 1000).toFixed(0)} ms">
    ${done.map((b, i) => {
      let y = H;
      return parts.map(([key, kind]) => {
        const h = ((b[key] ?? 0) / top) * (H - 4);
        y -= h;
        return html`<rect class=${kind} x=${W - (done.length - i) * step + 0.5} y=${y} width=${Math.max(1, step - 1.5)} height=${h}>
          <title>${`batch ${b.txid}: ${b.rows} rows, ${(b.fresh_us / 1000).toFixed(0)} ms from commit to visible`}</title></rect>`;
      });
    })}
  </svg>`;
}

// Ticks of a time axis: hours and minutes, seconds or the day where these matter.
function clock(at, step, index) {
  const t = new Date(at * 1000), two = (n) => String(n).padStart(2, "0");
  const time = `${two(t.getHours())}:${two(t.getMinutes())}`;
  if (step < 60) return `${time}:${two(t.getSeconds())}`;
  const day = `${two(t.getMonth() + 1)}-${two(t.getDate())}`;
  if (step >= 86400) return day;
  return step >= 3600 && (index === 0 || t.getHours() === 0) ? `${day} ${time}` : time;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Distances of ticks for bytes: 1, 2, 5 times a power of 1024, and tens and hundreds of these.
const BINARY = [0, 1, 2, 3, 4].flatMap((unit) => [1, 2, 5, 10, 20, 50, 100, 200, 500].map((n) => n * 1024 ** unit));

// series: [{label, color (CSS variable), values, fill?}]; times in seconds; unit: value -> text.
export function Curve({ times, series, unit, binary, height = 190, theme, label }) {
  const place = useRef(null), plot = useRef(null);
  const shape = JSON.stringify([series.map((s) => s.label), theme, height]);
  useEffect(() => {
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const options = {
      width: Math.max(200, place.current.clientWidth),
      height,
      cursor: { points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "headrace" } },
      legend: { live: true },
      // Never so short that one sample is all there is.
      scales: { x: { range: (_, low, high) => [Math.min(low, high - 120), high] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.12 : 1] } },
      axes: [
        { ...axis, space: 80, size: 30, values: (_, ticks) => ticks.map((t, i) => clock(t, ticks[1] - ticks[0], i)) },
        { ...axis, size: 62, ...(binary && { incrs: BINARY }), values: (_, ticks) => ticks.map(unit) },
      ],
      series: [{ value: (_, v) => (v == null ? "" : new Date(v * 1000).toLocaleTimeString("en-GB")) },
        ...series.map((s) => ({
          label: s.label,
          stroke: css(s.color),
          width: 1.6,
          fill: s.fill ? css(s.fill) : undefined,
          // A sample without neighbours is no line, but the scale counts it.
          points: { show: true, size: 4, filter: (u, index) => u.data[index].flatMap((v, i, all) => (v != null && all[i - 1] == null && all[i + 1] == null ? [i] : [])) },
          value: (_, v) => (v == null ? "–" : unit(v)),
        }))],
    };
    plot.current = new window.uPlot(options, [times, ...series.map((s) => s.values)], place.current);
    const last = () => plot.current?.setLegend({ idx: plot.current.data[0].length - 1 });
    plot.current.over.addEventListener("mouseleave", () => setTimeout(last));
    last();
    const fit = new ResizeObserver(() => {
      const width = Math.max(200, place.current?.clientWidth ?? 0);
      if (plot.current && width !== plot.current.width) plot.current.setSize({ width, height });
    });
    fit.observe(place.current);
    return () => { fit.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => {
    plot.current?.setData([times, ...series.map((s) => s.values)]);
    if (plot.current?.cursor.idx == null) plot.current?.setLegend({ idx: times.length - 1 });
  }, [times, series]);
  return html`<div class="curve" ref=${place} role="img" aria-label=${label}></div>`;
}
