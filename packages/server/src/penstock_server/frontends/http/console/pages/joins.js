// Joins: what is published on one store is copied to another.
import { html, useState } from "../view.js";
import { all, path, post, remove } from "../api.js";
import { count } from "../format.js";
import { Button, Check, Dialog, Empty, Field, Head, Loading, Note, Panel, Refusal, Table, Tag, TypeName, tell, useDoing, useRefreshed } from "../parts.js";
import { storeNames } from "../stores.js";
import { to } from "../router.js";
import { may } from "../session.js";

function NewJoin({ onClose, onDone, source = "" }) {
  const [given, setGiven] = useState({ source, destination: "", selector: "", archive: false });
  const doing = useDoing();
  const set = (part) => setGiven({ ...given, ...part });
  const create = async () => {
    const made = await doing.act(() => post("/joins", { ...given, source: given.source.trim(), destination: given.destination.trim(), selector: given.selector.trim() }));
    if (made) { tell(`${made.source} is copied to ${made.destination} from now on.`); onDone(); onClose(); }
  };
  const atSelector = doing.error?.code === "invalid-selector";
  return html`<${Dialog} title="New join" onClose=${onClose} onSubmit=${create} foot=${html`<${Button} onClick=${onClose}>Cancel</${Button}>
      <button type="submit" class="button first" disabled=${doing.busy || !given.source || !given.destination}>Create join</button>`}>
    <div class="form"><div class="pair"><${Field} label="From channel" mono value=${given.source} onInput=${(value) => set({ source: value })} list="join-stores" autofocus />
      <${Field} label="To channel or queue" mono value=${given.destination} onInput=${(destination) => set({ destination })} list="join-stores" /></div>
      <datalist id="join-stores">${storeNames().slice(0, 500).map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
      <${Field} label="Selector" mono value=${given.selector} onInput=${(selector) => set({ selector })} placeholder="all events" wrong=${atSelector ? `${doing.error.code}: ${doing.error.message}` : undefined} />
      <${Check} label="Archive join: to a queue, keeps duplicates" checked=${given.archive} onInput=${(archive) => set({ archive })} /></div>
    ${!atSelector && html`<${Refusal} error=${doing.error} />`}</${Dialog}>`;
}

export function JoinsPage() {
  const loaded = useRefreshed((signal) => all("/joins", {}, signal), [], 2000);
  const [making, setMaking] = useState(false);
  const [ending, setEnding] = useState(null);
  const doing = useDoing(), rows = loaded.value;
  const end = async () => {
    const done = await doing.act(async () => { await remove(path("joins", ending.id)); return true; });
    if (done) { tell(`The join from ${ending.source} to ${ending.destination} has ended.`); setEnding(null); loaded.again(); }
  };
  return html`<div class="page"><${Head} title="Joins" lead="Joins copy events published on a channel to other channels and queues." acts=${may("realm") && html`<${Button} kind="first" icon="plus" onClick=${() => setMaking(true)}>New join</${Button}>`} />
    ${loaded.error && html`<${Refusal} error=${loaded.error} />`}
    <${Panel} label="Joins" bare>${!rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} first label="Joins" rows=${rows} keyOf=${(row) => row.id} columns=${[
      { label: "From", kind: "lead", cell: (row) => html`<a href=${to("channel", row.source)}>${row.source}</a>` },
      { label: "To", cell: (row) => html`${row.leads_out ? row.destination : html`<a href=${to("channel", row.destination)}>${row.destination}</a>`}${row.leads_out ? html` <${Tag}>cluster</${Tag}>` : ""}${row.ending ? html` <${Tag} kind="warn">ending</${Tag}>` : ""}${row.archive ? html` <${Tag}>archive</${Tag}>` : ""}` },
      { label: "Selector", cell: (row) => (row.selector ? html`<code>${row.selector}</code>` : "all events") },
      { label: "Copied", kind: "num", cell: (row) => count(row.copied) },
      { label: "Dropped", kind: "num", cell: (row) => (row.dropped ? html`<${Tag} kind="warn" icon="warning">${count(row.dropped)}</${Tag}>` : "0") },
      ...(rows.some((row) => row.leads_out) ? [{ label: "Waiting", kind: "num", cell: (row) => (row.leads_out ? html`<span title=${row.waits_for}>${row.waits_for ? html`<${Tag} kind="warn" icon="warning">${count(row.waiting)}</${Tag}>` : count(row.waiting)}</span>` : "") }] : []),
      { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => may("realm") && !row.ending && html`<${Button} kind="small danger" onClick=${() => setEnding(row)} label="End the join from ${row.source} to ${row.destination}">End…</${Button}>` },
    ]} />` : html`<${Empty} title="No joins yet" shell="penstock join create orders archive/orders --selector 'price > 100'" python=${'session.joins.create("orders", "archive/orders", selector="price > 100")'}>
      A join copies events published on a channel, from its creation on, to another channel or queue. Each copy gets a new id.</${Empty}>`}</${Panel}>
    ${rows?.length > 0 && html`<p class="help-line">The numbers count from the start of the realm. An event is dropped if joins form a loop, or would copy it through too many stores.</p>`}
    ${rows?.filter((row) => row.waits_for).map((row) => html`<${Note} key=${row.id} kind="warn" title="${row.source} to ${row.destination}: ${count(row.waiting)} events wait">${row.waits_for}</${Note}>`)}
    ${making && html`<${NewJoin} onClose=${() => setMaking(false)} onDone=${loaded.again} />`}
    ${ending && html`<${TypeName} title="End the join to ${ending.destination}" name=${ending.source} verb="End join" doing=${doing} onDone=${end} onClose=${() => setEnding(null)}>
      <${Note} kind="warn" title="No more events are copied.">Events already copied from ${ending.source} to ${ending.destination} stay.</${Note}></${TypeName}>`}</div>`;
}
