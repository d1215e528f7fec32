// Attributes of a channel or queue that can be edited, and what cannot be undone.
import { html, useState } from "../view.js";
import { fileAt, patch, post, remove } from "../api.js";
import { bytes, many } from "../format.js";
import { Button, Check, Field, Note, Panel, Refusal, TypeName, tell, useDoing } from "../parts.js";
import { go, to } from "../router.js";
import { PurgeDialog } from "./purge.js";
import { routeOf } from "./store.js";

const NUMBERS = [
  ["ttl", "Time to live, ms", "0 is for ever"],
  ["capacity", "Capacity, events", "0 is no limit"],
];
const STORED = [
  ["sync_max_batch_size", "Sync a group at, bytes"], ["sync_batch_time", "or after, ms"], ["events_per_spindle", "Events in a segment file"],
  ["read_buffer_size", "Read buffer, bytes"], ["priority", "Default priority"],
];
const SWITCHES = [
  ["honour_capacity", "When full, refuse new events instead of dropping the oldest"], ["sync_each_write", "Sync each publish separately"],
  ["auto_maintenance", "Rewrite a single file automatically"], ["enable_caching", "Cache events after they are read"], ["cache_on_reload", "Load events into the cache at start-up"],
  ["stamp_dictionary", "Stamp publisher, host, time and id as properties"],
];

export const STORAGE_USUAL = {
  honour_capacity: false, sync: "group", sync_each_write: false, sync_max_batch_size: 1 << 20, sync_batch_time: 2, events_per_spindle: 50_000,
  auto_maintenance: true, enable_caching: true, cache_on_reload: false, read_buffer_size: 1 << 20, priority: 4, stamp_dictionary: false, compression: "none",
};

function numberOf(text, label) {
  if (!/^\d+$/.test(String(text).trim())) throw new Error(`${label}: "${text}" is not a whole number`);
  return Number(text);
}

/** What is typed about waits after a rollback, as the realm takes it; null: there are none. */
export function backoffOf(given) {
  if (!given || !numberOf(given.first, "First wait")) return null;
  const factor = Number(given.factor);
  if (!(factor >= 1)) throw new Error(`Factor: "${given.factor}" is not a number of at least 1`);
  return { ...given, first: numberOf(given.first, "First wait"), factor, most: numberOf(given.most, "Longest wait") };
}

export function BackoffFields({ given, set }) {
  const shown = given ?? { first: 0, factor: 2, most: 300_000 };
  const part = (key) => (value) => set({ ...shown, [key]: value });
  return html`<${Field} label="First wait after a rollback, ms" help="0 is none" inputmode="numeric" value=${shown.first} onInput=${part("first")} />
    <${Field} label="Factor of further waits" help="each wait is this many times longer" inputmode="decimal" value=${shown.factor} onInput=${part("factor")} />
    <${Field} label="Longest wait, ms" inputmode="numeric" value=${shown.most} onInput=${part("most")} />`;
}

/** Topics as the field has them, with commas, or as the realm has them. */
function topicsOf(given) {
  return (Array.isArray(given) ? given : String(given ?? "").split(",")).map((each) => each.trim()).filter(Boolean);
}

/** Only what differs from before: the realm refuses what has no effect on a store of this type. */
export function changes(before, given) {
  const body = {}, storage = {};
  for (const [key, label] of [...NUMBERS, ["max_deliveries", "Maximum deliveries"]]) if (String(given[key]) !== String(before[key])) body[key] = numberOf(given[key], label);
  for (const key of ["dead_event_store", "archive", "event_ttl", "retain_consumed", "payload"]) if (given[key] !== before[key]) body[key] = given[key];
  const topics = topicsOf(given.topics);
  if (JSON.stringify(topics) !== JSON.stringify(topicsOf(before.topics))) body.topics = topics;
  for (const [key, label] of STORED) if (String(given.storage[key]) !== String(before.storage[key])) storage[key] = numberOf(given.storage[key], label);
  for (const key of ["sync", "compression", ...SWITCHES.map(([name]) => name)]) if (given.storage[key] !== before.storage[key]) storage[key] = given.storage[key];
  const backoff = backoffOf(given.backoff);
  if (JSON.stringify(backoff) !== JSON.stringify(before.backoff ?? null)) body.backoff = backoff;
  if (Object.keys(storage).length) body.storage = storage;
  return body;
}

export function AttributeFields({ kind, given, set }) {
  const inStorage = (part) => set({ storage: { ...given.storage, ...part } });
  return html`<div class="pair">${NUMBERS.map(([key, label, help]) => html`<${Field} key=${key} label=${label} help=${help} inputmode="numeric" value=${given[key]} onInput=${(value) => set({ [key]: value })} />`)}
      <${Field} label="Dead event store" help="if empty, dead events are only counted" mono value=${given.dead_event_store} onInput=${(value) => set({ dead_event_store: value })} />
      ${kind === "queue" ? html`<${Field} label="Maximum deliveries" help="then an event is dead; 0 is no limit" inputmode="numeric" value=${given.max_deliveries} onInput=${(value) => set({ max_deliveries: value })} /><${BackoffFields} given=${given.backoff} set=${(backoff) => set({ backoff })} />`
        : html`<${Field} label="Archive" help="table with events that have left the channel" mono value=${given.archive} onInput=${(value) => set({ archive: value })} />
          <${Field} label="MQTT topics" help="separated by commas; a level in braces becomes a property" mono placeholder="plant/{line}/temp" value=${Array.isArray(given.topics) ? given.topics.join(", ") : given.topics} onInput=${(topics) => set({ topics })} />
          <${Field} label="Payload of these topics" value=${given.payload} onInput=${(payload) => set({ payload })} options=${[["bytes", "any bytes"], ["json", "JSON objects; fields become properties"]]} />`}</div>
    <div class="row" style=${{ gap: "0 24px" }}><${Check} label="Honour the time to live of each event" checked=${given.event_ttl} onInput=${(event_ttl) => set({ event_ttl })} />
      ${kind === "channel" && html`<${Check} label="Keep events that all durables have acknowledged" checked=${given.retain_consumed} onInput=${(retain_consumed) => set({ retain_consumed })} />`}</div>
    <details><summary>Storage properties</summary><div class="form" style=${{ marginTop: "8px" }}><div class="pair">
      <${Field} label="Sync" value=${given.storage.sync} onInput=${(sync) => inStorage({ sync })} options=${[["group", "in groups"], ["none", "left to the operating system"]]} />
      <${Field} label="Compress files" value=${given.storage.compression} onInput=${(compression) => inStorage({ compression })} options=${[["none", "no compression"], ["zstd", "zstd"], ["lz4", "lz4"]]} />
      ${STORED.map(([key, label]) => html`<${Field} key=${key} label=${label} inputmode="numeric" value=${given.storage[key]} onInput=${(value) => inStorage({ [key]: value })} />`)}</div>
      <div>${SWITCHES.map(([key, label]) => html`<div key=${key}><${Check} label=${label} checked=${given.storage[key]} onInput=${(value) => inStorage({ [key]: value })} /></div>`)}</div></div></details>`;
}

export function Settings({ kind, name, info, again }) {
  const usual = { ...info.definition, storage: { ...STORAGE_USUAL, ...info.definition.storage } };
  const [before, setBefore] = useState(usual);
  const [given, setGiven] = useState(usual);
  const [asked, setAsked] = useState(null);
  const doing = useDoing(), deleting = useDoing(), maintaining = useDoing(), taking = useDoing();
  const [taken, setTaken] = useState(null);
  const set = (part) => setGiven({ ...given, ...part });
  const save = async (event) => {
    event.preventDefault();
    const answer = await doing.act(async () => {
      const body = changes(before, given);
      if (!Object.keys(body).length) throw new Error("Nothing was changed.");
      return patch(routeOf(kind, name), body);
    });
    if (!answer) return;
    const now = { ...answer.definition, storage: { ...STORAGE_USUAL, ...answer.definition.storage } };
    setBefore(now); setGiven(now); again();
    tell("Saved; the changes apply at once.");
  };
  const maintain = async () => {
    const done = await maintaining.act(() => post(routeOf(kind, name, "maintain")));
    if (done) tell(done.reason ? `Nothing to do: ${done.reason}` : `Rewritten: ${bytes(done.bytes_before)} are now ${bytes(done.bytes_after)}.`);
  };
  const take = async () => {
    const done = await taking.act(() => post(routeOf(kind, name, "pop"), { count: 1 }));
    if (done) { setTaken(done.items); again(); }
  };
  const destroy = async () => {
    const done = await deleting.act(async () => { await remove(routeOf(kind, name)); return true; });
    if (done) { tell(`${name} is deleted.`); go(""); }
  };
  return html`<div class="stack"><${Panel} title="Attributes" hint="type, engine and keys cannot be changed"><form class="form" onSubmit=${save}>
      <${AttributeFields} kind=${kind} given=${given} set=${set} /><${Refusal} error=${doing.error} />
      <div class="row"><button type="submit" class="button first" disabled=${doing.busy}>Save</button><${Button} kind="plain" onClick=${() => { setGiven(before); doing.clear(); }}>Reset</${Button}></div></form></${Panel}>
    <${Panel} title="Export, purge, delete" bare><ul class="acts-list">
      <li><div><strong>Export</strong><p>Download the current content: events with their ids, ${kind === "channel" ? "durables and " : "and "}counters. <a href=${to("new", { kind })}>Import</a> creates it again, on this realm or another.</p></div><a class="button" href=${fileAt(routeOf(kind, name, "export"))} download>Export</a></li>
      ${kind === "queue" && html`<li><div><strong>Pop the next event</strong><p>The event is removed from the queue, as by a reader.</p><${Refusal} error=${taking.error} slim />
        ${taken && !taken.length && html`<${Note} slim>The queue has no event to pop.</${Note}>`}
        ${taken?.map((event) => html`<${Note} key=${event.event_id} slim title="Event ${event.event_id} was popped"><span class="mono">${event.data || event.data_base64 || "no data"}</span></${Note}>`)}</div><${Button} busy=${taking.busy} onClick=${take}>Pop</${Button}></li>`}
      <li><div><strong>Purge</strong><p>Remove all events, a range of ids, or the events that match a selector. They are counted first.</p></div><${Button} kind="danger" onClick=${() => setAsked("purge")}>Purge…</${Button}></li>
      ${info.storage.home === "journal" && html`<li><div><strong>Maintain</strong><p>Rewrite the file of a single-file store without its removed events. No stored event is lost.</p><${Refusal} error=${maintaining.error} slim /></div><${Button} busy=${maintaining.busy} onClick=${maintain}>Maintain</${Button}></li>`}
      <li><div><strong>Delete this ${kind}</strong><p>With ${many(info.events, "event")}${kind === "channel" ? ` and ${many(info.durables, "durable")}` : ""}.</p></div><${Button} kind="danger" onClick=${() => setAsked("delete")}>Delete…</${Button}></li></ul></${Panel}>
    ${asked === "purge" && html`<${PurgeDialog} route=${routeOf(kind, name, "purge")} name=${name} what=${name} of=${info.events} onClose=${() => setAsked(null)} onDone=${again} />`}
    ${asked === "delete" && html`<${TypeName} title="Delete ${name}" name=${name} verb="Delete" doing=${deleting} onDone=${destroy} onClose=${() => setAsked(null)}>
      <${Note} kind="warn" title="${many(info.events, "event")} and everything else of this ${kind} will be deleted.">${kind === "channel" && info.durables ? `Its ${many(info.durables, "durable")} will be deleted, too. ` : ""}<a href=${to(kind, name, "events")}>Show the events</a></${Note}></${TypeName}>`}</div>`;
}
