// Missing ids: which of them have no event any more, and why each is gone (SEM T8).
import { html, useState } from "../view.js";
import { get } from "../api.js";
import { count, many } from "../format.js";
import { Empty, Field, Loading, Note, Panel, Refusal, Table, Tag, useRefreshed } from "../parts.js";
import { note } from "../router.js";
import { routeOf } from "./store.js";

const MEANING = {
  consumed: "acknowledged by all durables", expired: "past their time to live",
  evicted: "removed for newer events when the store was full", purged: "removed on request", replaced: "replaced by a newer event of the same key",
  redriven: "published again, to their origin or another store", relayed: "delivered to connected clients, never stored",
  dropped: "no subscriber had interest in them", redelivery_limit: "delivered too often", rejected: "rejected by a client", buried: "rejected by a client",
  quarantined: "unreadable, set aside", never: "never stored, or no longer known",
};
const BAD = new Set(["quarantined", "redelivery_limit", "rejected", "buried"]);
const SHOWN = 12;

const isId = (text) => /^\d{1,18}$/.test(text);
const range = ([first, end]) => (end - first === 1 ? count(first) : `${count(first)} to ${count(end - 1)}`);

function Ranges({ spans, events }) {
  const told = spans.slice(0, SHOWN), covered = told.reduce((sum, [first, end]) => sum + end - first, 0);
  return html`<span class="mono">${told.map(range).join(", ")}</span>${covered < events && html` <span class="hint">and ${many(events - covered, "more id")}</span>`}`;
}

function wrongIn(from, to) {
  if (from && !isId(from)) return { from: `"${from}" is not an event id` };
  if (to && !isId(to)) return { to: `"${to}" is not an event id` };
  return from && to && BigInt(to) < BigInt(from) ? { to: "must not be below the first id" } : {};
}

export function Missing({ kind, name, info, route }) {
  const [asked, setAsked] = useState({ from: route.query.from ?? "", to: route.query.to ?? "" });
  const from = asked.from.trim(), to = asked.to.trim(), wrong = wrongIn(from, to), isWrong = wrong.from || wrong.to;
  const query = { ...(from ? { start: from } : {}), ...(to ? { end: to } : {}) };
  const { value, error } = useRefreshed((signal) => (isWrong ? Promise.resolve(undefined) : get(routeOf(kind, name, "missing"), query, signal)), [kind, name, from, to], 5000);
  const set = (part) => {
    const now = { ...asked, ...part };
    setAsked(now);
    note(kind, name, "missing", { from: now.from.trim(), to: now.to.trim() });
  };
  const rows = value?.items, gone = rows?.reduce((sum, row) => sum + row.events, 0);
  const within = from || to ? ` between ${from || "the first"} and ${to || "the last"}` : "";
  return html`<${Panel} title="Range of ids" hint="inclusive; if empty, all assigned ids"><div class="form"><div class="pair">
      <${Field} label="From id" value=${asked.from} wrong=${wrong.from} onInput=${(value) => set({ from: value })} inputmode="numeric" placeholder="the first" mono />
      <${Field} label="To id" value=${asked.to} wrong=${wrong.to} onInput=${(value) => set({ to: value })} inputmode="numeric" placeholder="${info.last_event_id < 0 ? "none yet" : count(info.last_event_id)}" mono /></div></div></${Panel}>
    ${error && html`<${Refusal} error=${error} />`}
    ${!rows && !error && !isWrong && html`<${Loading} />`}
    ${rows?.length === 0 && html`<${Panel} label="Missing ids" bare><${Empty} title="No missing ids">${info.last_event_id < 0 ? "No id has been assigned yet." : `Every id${within} has its event.`}</${Empty}></${Panel}>`}
    ${rows?.length > 0 && html`<${Panel} title="${many(gone, "id")} without an event" hint=${within.trim()} bare><${Table} label="Missing ids" rows=${rows} keyOf=${(row) => row.cause} columns=${[
      { label: "Why", kind: "lead", cell: (row) => html`<${Tag} kind=${BAD.has(row.cause) ? "bad" : ""}>${row.cause}</${Tag}> <span class="hint">${MEANING[row.cause] ?? ""}</span>` },
      { label: "Ids", kind: "num", cell: (row) => count(row.events) },
      { label: "Which", cell: (row) => html`<${Ranges} spans=${row.spans} events=${row.events} />` },
    ]} /></${Panel}>
    <${Note} slim>Ids are never reused: removed events leave gaps.</${Note}>`}`;
}
