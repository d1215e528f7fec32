// The durables of a channel, and a new one, of a channel or over a pattern.
import { html, useState } from "../view.js";
import { get, path, post } from "../api.js";
import { ago, count, duration, many, quoted } from "../format.js";
import { Button, Check, Dialog, Empty, Field, Loading, Panel, Refusal, Table, Tag, tell, useDoing, useRefreshed } from "../parts.js";
import { Spark } from "../plot.js";
import { durableHistory, useLive } from "../live.js";
import { to } from "../router.js";
import { BackoffFields, backoffOf } from "./settings.js";

const TYPES = [
  ["shared", "shared: several clients share the events"], ["exclusive", "exclusive: one client, in order"], ["serial", "serial: in order, other clients stand by"],
  ["priority", "priority (deprecated)"], ["shared_queued", "shared_queued (deprecated)"],
];

const FILTERED = new Set(["shared", "serial", "shared_queued"]);

/** A new durable on a channel, or without one over a pattern. */
export function NewDurable({ channel, onClose, onDone }) {
  const [given, setGiven] = useState({ pattern: "", name: "", type: "shared", from: "earliest", at: "", selector: "", max_deliveries: "0", strict_order: false, order_by: "", backoff: null, ack_timeout: "0" });
  const doing = useDoing();
  const set = (part) => setGiven({ ...given, ...part });
  const create = async () => {
    const made = await doing.act(async () => {
      const body = { name: given.name.trim(), type: given.type, start: given.from === "at" ? given.at.trim() : given.from };
      if (FILTERED.has(given.type)) {
        body.selector = given.selector.trim();
        if (!/^\d+$/.test(given.max_deliveries.trim() || "0")) throw new Error(`Maximum deliveries: "${given.max_deliveries}" is not a whole number`);
        if (Number(given.max_deliveries)) body.max_deliveries = Number(given.max_deliveries);
        const backoff = backoffOf(given.backoff);
        if (backoff) body.backoff = backoff;
        if (!/^\d+$/.test(given.ack_timeout.trim() || "0")) throw new Error(`Acknowledgement timeout: "${given.ack_timeout}" is not a whole number`);
        if (Number(given.ack_timeout)) body.ack_timeout = Number(given.ack_timeout);
      }
      if (given.type === "serial" && given.strict_order) body.strict_order = true;
      if (given.type === "serial" && given.order_by.trim()) body.order_by = given.order_by.trim();
      return channel ? post(path("channels", channel, "durables"), body) : post("/durables", { ...body, pattern: given.pattern.trim() });
    });
    if (made) { tell(channel ? `Durable ${made.name} was created.` : `Durable ${made.name} was created on ${many(made.channels, "channel")}.`); onDone(); onClose(); }
  };
  const atSelector = doing.error?.code === "invalid-selector";
  return html`<${Dialog} title=${channel ? `New durable on ${channel}` : "New durable over a pattern"} onClose=${onClose} onSubmit=${create} foot=${html`<${Button} onClick=${onClose}>Cancel</${Button}>
      <button type="submit" class="button first" disabled=${doing.busy || !given.name.trim() || !(channel || given.pattern.trim())}>Create durable</button>`}>
    <div class="form">${!channel && html`<${Field} label="Pattern of channels" mono help="* matches up to the next /, ** also across /" value=${given.pattern} onInput=${(pattern) => set({ pattern })} autofocus placeholder="orders/*" />`}
      <${Field} label="Name" mono value=${given.name} onInput=${(name) => set({ name })} autofocus=${Boolean(channel)} placeholder="billing" />
      <div class="pair"><${Field} label="Type" value=${given.type} onInput=${(type) => set({ type })} options=${TYPES} />
        <${Field} label="Start position" value=${given.from} onInput=${(from) => set({ from })} options=${[["earliest", "the oldest event"], ["latest", "new events only"], ["at", "an id or a time…"]]} /></div>
      ${given.from === "at" && html`<${Field} label="Id or time" mono value=${given.at} onInput=${(at) => set({ at })} placeholder="4711 or 2026-05-04T12:00:00Z" />`}
      ${FILTERED.has(given.type) && html`<${Field} label="Selector" mono value=${given.selector} onInput=${(selector) => set({ selector })} placeholder="all events" wrong=${atSelector ? `${doing.error.code}: ${doing.error.message}` : undefined} />
        <${Field} label="Maximum deliveries of an event" help="then the event is dead; 0 is no limit" inputmode="numeric" value=${given.max_deliveries} onInput=${(max_deliveries) => set({ max_deliveries })} />
        <div class="pair"><${BackoffFields} given=${given.backoff} set=${(backoff) => set({ backoff })} /></div>
        <${Field} label="Acknowledgement timeout, ms" help="then the event goes back; 0 is no limit" inputmode="numeric" value=${given.ack_timeout} onInput=${(ack_timeout) => set({ ack_timeout })} />`}
      ${given.type === "serial" && html`<div class="pair"><${Field} label="Order by property" mono help="events with the same value stay in order" value=${given.order_by} onInput=${(order_by) => set({ order_by })} />
        <div class="field"><span class="label">Strict order</span><${Check} label="Redeliver a rolled-back event first" checked=${given.strict_order} onInput=${(strict_order) => set({ strict_order })} /></div></div>`}</div>
    ${!atSelector && html`<${Refusal} error=${doing.error} />`}</${Dialog}>`;
}

export function Durables({ channel }) {
  const [making, setMaking] = useState(false);
  const loaded = useRefreshed((signal) => get(path("channels", channel, "durables"), { limit: 1000 }, signal), [channel], 2000);
  useLive();
  const rows = loaded.value?.items;
  const button = html`<${Button} kind="first" icon="plus" onClick=${() => setMaking(true)}>New durable</${Button}>`;
  return html`<${Panel} title="Durables" hint="each remembers which events its clients have acknowledged" acts=${button} bare>
    ${loaded.error && html`<div class="panel-body"><${Refusal} error=${loaded.error} /></div>`}
    ${!rows && !loaded.error && html`<${Loading} />`}
    ${rows && rows.length === 0 && html`<${Empty} title="No durables yet" shell="penstock durable create ${quoted(channel)} billing --type shared"
      python=${`session.channels.get(${JSON.stringify(channel)}).durables.create("billing", type="shared")`}>A durable remembers which events its clients have acknowledged. The others wait, even while no client is connected.</${Empty}>`}
    ${rows && rows.length > 0 && html`<${Table} label="Durables" rows=${rows} keyOf=${(row) => row.name} columns=${[
      { label: "Name", kind: "lead", cell: (row) => html`<a href=${to("channel", channel, "durables", row.name)}>${row.name}</a>${row.selector && html`<div class="sub mono">${row.selector}</div>`}` },
      { label: "Type", cell: (row) => html`${row.type}${row.deprecated ? html` <${Tag} kind="warn">deprecated</${Tag}>` : ""}` },
      { label: "Outstanding", kind: "num", cell: (row) => html`<strong>${count(row.outstanding)}</strong>` },
      { label: "In flight", kind: "num", cell: (row) => count(row.in_flight) },
      { label: "Redelivered", kind: "num", cell: (row) => count(row.redelivered) },
      { label: "Oldest", kind: "num", cell: (row) => duration(row.oldest_outstanding_ms) },
      { label: "Clients", kind: "num", cell: (row) => (row.clients.length ? count(row.clients.length) : row.outstanding ? html`<${Tag} kind="warn" icon="warning">none</${Tag}>` : "0") },
      { label: "Last read", kind: "num", cell: (row) => ago(row.last_read_ms) },
      { label: "Lag", kind: "tight", cell: (row) => html`<${Spark} values=${durableHistory(channel, row.name).values("outstanding")} />` },
    ]} />`}
    ${making && html`<${NewDurable} channel=${channel} onClose=${() => setMaking(false)} onDone=${loaded.again} />`}</${Panel}>`;
}
