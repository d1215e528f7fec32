// Curves over the last minutes or hours, drawn as SVG: at most three, each told apart by colour and dashes.
import { html, useState } from "./view.js";
import { brief, clock, duration } from "./format.js";
import { useWidth } from "./parts.js";

const TOP = 8, BOTTOM = 20, LEFT = 44, RIGHT = 8;

/** The least round number that is no less: 1, 2, 5 and their tens. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * ten >= value) * ten;
}

function curve(values, x, y) {
  let text = "", pen = "M";
  values.forEach((value, index) => {
    if (value === null || value === undefined) { pen = "M"; return; }
    text += `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return text;
}

const LONG = 600;
const before = (seconds) => (seconds < LONG ? `${seconds} s` : duration(seconds * 1000));

const GROWTH = [10, 30, 60];

/** How wide a plot is that has no more than its first points: they fill most of it. */
const grown = (times, seconds) => GROWTH.find((step) => step < seconds && times.at(-1) - times[0] <= step * 1000) ?? seconds;

/**
 * `times` are milliseconds; `series` are `{ name, values }` of the same length, newest last.
 * `seconds` is how much the plot is wide, whether there are values yet or not; one that `grows`
 * begins narrower.
 */
export function Plot({ label, times, series, seconds: widest = 120, unit = "", small = false, quiet, grows = false }) {
  const seconds = grows && times.length ? grown(times, widest) : widest;
  const [box, width] = useWidth();
  const [at, setAt] = useState(null);
  const height = small ? 120 : 176;
  const inside = { width: Math.max(width - LEFT - RIGHT, 1), height: height - TOP - BOTTOM };
  const end = times.at(-1) ?? 0;
  const most = ceiling(Math.max(0, ...series.flatMap(({ values }) => values.filter((value) => value !== null))));
  const x = (index) => LEFT + inside.width * (1 - (end - times[index]) / (seconds * 1000));
  const y = (value) => TOP + inside.height * (1 - value / most);
  const seen = times.findIndex((time) => end - time <= seconds * 1000);
  const shown = series.map(({ values }) => values.map((value, index) => (index < seen ? null : value)));
  const point = (event) => {
    const place = event.clientX - box.current.getBoundingClientRect().left;
    let best = null;
    for (let index = Math.max(seen, 0); index < times.length; index += 1) {
      if (best === null || Math.abs(x(index) - place) < Math.abs(x(best) - place)) best = index;
    }
    setAt(best);
  };
  const cursor = at !== null && at < times.length ? at : null;
  const read = cursor ?? times.length - 1;
  const area = shown[0] && curve(shown[0], x, y);
  const summary = series.map(({ name, values }) => `${name} ${brief(values.at(-1))}${unit}`).join(", ");
  return html`<figure>
    <ul class="legend">${series.map(({ name, values }, index) => html`<li key=${name}><i class="swatch s${index + 1}"></i>${name}
      <b>${brief(values[read])}${values[read] === null || values[read] === undefined ? "" : unit}</b></li>`)}
      <li>${cursor === null ? "" : clock(times[cursor]).slice(0, 8)}</li></ul>
    <div class="plot ${small ? "small" : ""}" ref=${box} onPointerMove=${point} onPointerLeave=${() => setAt(null)}>
      <svg role="img" aria-label="${label}: ${summary || "nothing yet"}">
        ${[0, 0.5, 1].map((part) => html`<g key=${part}><line class="grid" x1=${LEFT} x2=${width - RIGHT} y1=${y(most * part)} y2=${y(most * part)} />
          <text x=${LEFT - 8} y=${y(most * part) + 4} text-anchor="end">${brief(most * part)}</text></g>`)}
        ${[1, 0.5, 0].map((part) => html`<text key=${part} x=${LEFT + inside.width * (1 - part)} y=${height - 4}
          text-anchor=${part === 1 ? "start" : part ? "middle" : "end"}>${part ? `−${before(seconds * part)}` : "now"}</text>`)}
        ${area && times.length > 1 && html`<path class="area" d="${area}L${x(times.length - 1).toFixed(1)} ${y(0)}L${x(Math.max(seen, 0)).toFixed(1)} ${y(0)}Z" />`}
        ${shown.map((values, index) => html`<path key=${index} class="curve s${index + 1}" d=${curve(values, x, y)} />`)}
        ${cursor !== null && html`<line class="cursor" x1=${x(cursor)} x2=${x(cursor)} y1=${TOP} y2=${TOP + inside.height} />`}
      </svg>
      ${quiet && html`<div class="quiet">${quiet}</div>`}</div></figure>`;
}

/** A curve as small as a word; the number beside it says what it means. */
export function Spark({ values }) {
  const most = Math.max(1e-9, ...values);
  const step = 96 / Math.max(values.length - 1, 1);
  const line = values.map((value, index) => `${index ? "L" : "M"}${(index * step).toFixed(1)} ${(22 - 20 * (value / most)).toFixed(1)}`).join("");
  return html`<svg class="spark" viewBox="0 0 96 24" aria-hidden="true"><path d=${line} /></svg>`;
}
