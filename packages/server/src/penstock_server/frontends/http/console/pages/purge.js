// Purge: first the realm counts what would go, then the name has to be typed.
import { html, useEffect, useState } from "../view.js";
import { post } from "../api.js";
import { count, many } from "../format.js";
import { Field, Note, Refusal, TypeName, tell, useDoing } from "../parts.js";

const SETTLED_MS = 300;

function wanted({ start, end, selector }) {
  const body = { selector: selector.trim() };
  for (const [name, text] of [["start", start], ["end", end]]) {
    if (!text.trim()) continue;
    if (!/^\d+$/.test(text.trim())) throw new Error(`"${text}" is not an event id`);
    body[name] = Number(text);
  }
  return body;
}

/** `route` takes the purge; `name` is what has to be typed; `of` how many events there are. */
export function PurgeDialog({ route, name, what, of, onClose, onDone }) {
  const [range, setRange] = useState({ start: "", end: "", selector: "" });
  const [counted, setCounted] = useState(null);
  const [refused, setRefused] = useState(null);
  const doing = useDoing();
  useEffect(() => {
    setCounted(null);
    let over = false;
    const timer = setTimeout(async () => {
      try {
        const answer = await post(route, { ...wanted(range), dry_run: true });
        if (!over) { setCounted(answer.count); setRefused(null); }
      } catch (error) { if (!over) setRefused(error); }
    }, SETTLED_MS);
    return () => { over = true; clearTimeout(timer); };
  }, [range.start, range.end, range.selector]);
  const purge = async () => {
    const answer = await doing.act(() => post(route, { ...wanted(range), dry_run: false }));
    if (answer) { tell(`${many(answer.count, "event")} purged.`); onDone(); onClose(); }
  };
  const set = (part) => setRange({ ...range, ...part });
  return html`<${TypeName} title="Purge ${what}" name=${name} verb=${counted ? `Purge ${many(counted, "event")}` : "Purge"} ready=${counted > 0 && !refused} doing=${doing} onDone=${purge} onClose=${onClose}>
    <div class="form"><div class="pair"><${Field} label="From id" value=${range.start} onInput=${(start) => set({ start })} inputmode="numeric" placeholder="the first" mono />
      <${Field} label="To id, inclusive" value=${range.end} onInput=${(end) => set({ end })} inputmode="numeric" placeholder="the last" mono /></div>
    <${Field} label="Selector" value=${range.selector} onInput=${(selector) => set({ selector })} mono placeholder="sku = 'a-17'" /></div>
    <div class="counted" role="status">${refused ? html`<${Refusal} error=${refused} slim />`
      : counted === null ? html`<${Note} slim>Counting…</${Note}>`
      : counted === 0 ? html`<${Note} slim>No event would be removed.</${Note}>`
      : html`<${Note} kind="warn" slim title="${many(counted, "event")} would be removed">${of ? `of ${count(of)}. ` : ""}This cannot be undone. Purged events do not become dead events.</${Note}>`}</div></${TypeName}>`;
}
