// Dead events: where they are, why they died, and bringing them back, counted before it is done.
import { html, useEffect, useState } from "../view.js";
import { all, get, path, post } from "../api.js";
import { count, many, moment, quoted } from "../format.js";
import { useLive } from "../live.js";
import { Button, Dialog, Empty, Field, Head, Line, Loading, Note, Panel, Refusal, Table, Tag, tell, useDoing, useLoaded } from "../parts.js";
import { go, to } from "../router.js";
import { may } from "../session.js";
import { storeNames } from "../stores.js";

const CAUSES = {
  expired: "past their time to live", evicted: "removed for newer events", redelivery_limit: "delivered too often", rejected: "rejected by a client", buried: "rejected by a client",
};
const SETTLED_MS = 300;

/** The stores that channels send their dead events to, with the channels that do. */
async function deadStores(signal) {
  const [channels, queues] = await Promise.all([all("/channels", {}, signal), all("/queues", {}, signal)]);
  const infos = [...channels, ...queues], byName = new Map(infos.map((info) => [info.name, info])), stores = new Map();
  for (const info of infos) {
    const target = info.definition.dead_event_store;
    if (!target) continue;
    if (!stores.has(target)) stores.set(target, { name: target, info: byName.get(target), from: [], died: 0 });
    stores.get(target).from.push(info.name);
    stores.get(target).died += info.counters.dead;
  }
  return { stores: [...stores.values()].sort((one, other) => (other.info?.events ?? 0) - (one.info?.events ?? 0)), counted: infos.filter((info) => info.counters.dead && !info.definition.dead_event_store) };
}

function Stores() {
  const loaded = useLoaded(deadStores, []);
  const [name, setName] = useState("");
  const found = loaded.value;
  return html`<div class="page"><${Head} title="Dead events" lead="Events that left unconsumed: expired, evicted, delivered too often, or rejected by a client." acts=${html`<${Button} icon="again" onClick=${loaded.again}>Refresh</${Button}>`} />
    ${loaded.error && html`<${Refusal} error=${loaded.error} />`}
    <${Panel} title="Dead event stores" bare>${!found ? html`<${Loading} />` : found.stores.length ? html`<${Table} label="Dead event stores" rows=${found.stores} keyOf=${(row) => row.name} columns=${[
      { label: "Store", kind: "lead", cell: (row) => html`<a href=${to("dead", row.name)}>${row.name}</a>` },
      { label: "Stored events", kind: "num", cell: (row) => (row.info ? html`<strong>${count(row.info.events)}</strong>` : html`<${Tag} kind="bad" icon="warning">does not exist</${Tag}>`) },
      { label: "Dead events in total", kind: "num", cell: (row) => count(row.died) },
      { label: "From", cell: (row) => row.from.slice(0, 6).map((source, index) => html`${index > 0 && ", "}<a key=${source} href=${to("channel", source)}>${source}</a>`).concat(row.from.length > 6 ? [` and ${row.from.length - 6} more`] : []) },
      { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => html`<a class="button small" href=${to("dead", row.name)}>By cause</a>` },
    ]} />` : html`<${Empty} title=${may("admin", "monitor", "channels") ? "No channel keeps its dead events" : "No channel that you may see keeps its dead events"} shell="penstock channel edit orders --dead-event-store dead/orders"
      python=${'session.channels.get("orders").edit(dead_event_store="dead/orders")'}>Set a dead event store on a channel to keep its dead events. Without one they are only counted.</${Empty}>`}</${Panel}>
    <${Panel} title="Another store"><form class="find" onSubmit=${(event) => { event.preventDefault(); if (name) go("dead", name); }}><div class="grow"><${Field} label="Channel or queue" mono value=${name} onInput=${setName} list="stores" />
      <datalist id="stores">${storeNames().slice(0, 500).map((each) => html`<option key=${each} value=${each}></option>`)}</datalist></div>
      <button type="submit" class="button" disabled=${!name}>Show</button></form></${Panel}></div>`;
}

export function RedriveDialog({ store, group, onClose, onDone }) {
  const [given, setGiven] = useState({ destination: "", selector: "" });
  const [plan, setPlan] = useState(null);
  const [refused, setRefused] = useState(null);
  const doing = useDoing();
  const body = { source: store, destination: given.destination.trim(), selector: given.selector.trim() };
  useEffect(() => {
    setPlan(null);
    let over = false;
    const timer = setTimeout(async () => {
      try { const answer = await post("/redrive", { ...body, dry_run: true }); if (!over) { setPlan(answer); setRefused(null); } } catch (error) { if (!over) setRefused(error); }
    }, SETTLED_MS);
    return () => { over = true; clearTimeout(timer); };
  }, [given.destination, given.selector]);
  const redrive = async () => {
    const answer = await doing.act(() => post("/redrive", { ...body, dry_run: false }));
    if (answer) { tell(`${many(answer.moved, "event")} redriven, ${count(answer.left)} left.`); onDone(); onClose(); }
  };
  const targets = Object.entries(plan?.destinations ?? {});
  return html`<${Dialog} title="Redrive ${store}" onClose=${onClose} onSubmit=${() => plan?.moved && redrive()} foot=${html`<${Button} onClick=${onClose}>Cancel</${Button}>
      <button type="submit" class="button first" disabled=${doing.busy || !plan?.moved}>${plan?.moved ? `Redrive ${many(plan.moved, "event")}` : "Redrive"}</button>`}>
    <p>Publishes dead events again, each exactly once, and removes them from this store.${group ? ` Its events have several causes; select some with a selector.` : ""}</p>
    <div class="form"><${Field} label="To" mono value=${given.destination} onInput=${(destination) => setGiven({ ...given, destination })} placeholder="the origin of each event" list="redrive-to" />
      <datalist id="redrive-to">${storeNames().slice(0, 500).map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
      <${Field} label="Selector" mono value=${given.selector} onInput=${(selector) => setGiven({ ...given, selector })} placeholder="price > 5" /></div>
    <div class="counted" role="status">${refused ? html`<${Refusal} error=${refused} slim />` : !plan ? html`<${Note} slim>Counting…</${Note}>`
      : html`<${Note} kind=${plan.moved ? "ok" : "info"} slim title="${many(plan.moved, "event")} would move, ${count(plan.left)} would stay.">${targets.map(([name, moved]) => html`<div key=${name}>${count(moved)} to ${name}</div>`)}</${Note}>`}</div>
    <${Refusal} error=${doing.error} />
    <${Line} text="penstock redrive ${quoted(store)}${body.destination ? ` --to ${quoted(body.destination)}` : ""}${body.selector ? ` --selector ${quoted(body.selector)}` : ""} --dry-run" /></${Dialog}>`;
}

const VARYING = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{12,}\b|\d+/gi;

/** Groups whose reasons differ in numbers and ids only, as one: a reason often names its event. */
function alike(groups) {
  const merged = new Map();
  for (const group of groups) {
    const key = `${group.store}\n${group.cause}\n${group.reason.replace(VARYING, "…")}`, known = merged.get(key);
    merged.set(key, !known ? { ...group, reasons: 1 } : {
      ...known, events: known.events + group.events, reasons: known.reasons + 1, reason: group.reason.replace(VARYING, "…"),
      first_id: Math.min(known.first_id, group.first_id), last_id: Math.max(known.last_id, group.last_id),
      oldest: known.oldest < group.oldest ? known.oldest : group.oldest, newest: known.newest > group.newest ? known.newest : group.newest,
    });
  }
  return [...merged.values()].sort((one, other) => other.events - one.events);
}

function Store({ name }) {
  const now = useLive();
  const [asked, setAsked] = useState(false);
  const kind = now.rates?.channels.find((each) => each.name === name)?.kind;
  const loaded = useLoaded(async (signal) => {
    try { return await get(path(kind === "queue" ? "queues" : "channels", name, "dead"), {}, signal); } catch (error) {
      if (error.status !== 404 || kind) throw error;
      return get(path("queues", name, "dead"), {}, signal);
    }
  }, [name, kind]);
  const groups = alike(loaded.value?.groups ?? []);
  return html`<div class="page"><${Head} crumbs=${[["Dead events", to("dead")]]} title=${name} lead=${loaded.value ? `${many(loaded.value.events, "dead event")}${loaded.value.is_complete ? "" : "; further events were not counted"}` : ""}
      acts=${html`<a class="button" href=${to(kind ?? "channel", name, "events")}>Browse events</a><${Button} kind="first" icon="again" onClick=${() => setAsked(true)}>Redrive…</${Button}>`} />
    ${loaded.error && html`<${Refusal} error=${loaded.error} />`}
    <${Panel} title="By cause" bare>${!loaded.value ? !loaded.error && html`<${Loading} />` : groups.length ? html`<${Table} label="Dead events by cause" rows=${groups} keyOf=${(row) => `${row.store} ${row.cause} ${row.reason}`} columns=${[
      { label: "Cause", kind: "lead", cell: (row) => html`<${Tag} kind="bad">${row.cause}</${Tag}><div class="sub">${row.reason || CAUSES[row.cause] || ""}${row.reasons > 1 ? ` (${many(row.reasons, "similar reason")})` : ""}</div>` },
      { label: "Events", kind: "num", cell: (row) => html`<strong>${count(row.events)}</strong>` },
      { label: "From", cell: (row) => html`<a href=${to("channel", row.store)}>${row.store}</a>` },
      { label: "Ids", kind: "num", cell: (row) => html`<a href=${to(kind ?? "channel", name, "events", { from: String(row.first_id) })}>${count(row.first_id)} to ${count(row.last_id)}</a>` },
      { label: "Oldest", kind: "tight", cell: (row) => moment(row.oldest) }, { label: "Newest", kind: "tight", cell: (row) => moment(row.newest) },
    ]} />` : html`<${Empty} title="No dead events here" shell="penstock redrive ${quoted(name)} --dry-run">This store has no dead events of other stores.</${Empty}>`}</${Panel}>
    ${asked && html`<${RedriveDialog} store=${name} group=${groups.length > 1} onClose=${() => setAsked(false)} onDone=${loaded.again} />`}</div>`;
}

export const DeadPage = ({ name }) => (name ? html`<${Store} name=${name} />` : html`<${Stores} />`);
