// A channel or a queue: its tabs, and the first of them, what it is and how it goes.
import { html } from "../view.js";
import { all, get, path } from "../api.js";
import { ago, backoff, brief, bytes, count, duration, many, moment } from "../format.js";
import { channelHistory, hasFigures, useLive, useWatched } from "../live.js";
import { Empty, Facts, Head, Loading, Note, Panel, Refusal, Stat, Table, Tabs, Tag, useLoaded, useRefreshed } from "../parts.js";
import { Plot } from "../plot.js";
import { flat } from "../columns.js";
import { to } from "../router.js";
import { Lacks } from "../session.js";
import { Day } from "./day.js";
import { Equation } from "./equation.js";
import { Events } from "./events.js";
import { Publish } from "./publish.js";
import { Durables } from "./durables.js";
import { Missing } from "./missing.js";
import { Settings } from "./settings.js";

/** Where the routes of a store are: `/channels/…` or `/queues/…`. */
export const routeOf = (kind, name, ...more) => path(`${kind}s`, name, ...more);

const HOMES = {
  journal: "on disk", heap: "in memory", off_heap: "in memory outside the Python heap", pages: "in memory-mapped pages", nowhere: "not stored: events are relayed",
};

export function attributesOf(info) {
  const { definition } = info, full = definition.storage.honour_capacity ? "when full, new events are refused" : "when full, the oldest are dropped";
  const keys = Object.entries(definition.keys ?? {}).map(([name, depth]) => `${name} (newest ${count(depth)})`).join(", ");
  return [
    ["Type", html`${definition.type}${info.deprecated ? html` <${Tag} kind="warn">deprecated</${Tag}>` : ""}`],
    ["Engine", definition.engine],
    ["Time to live", definition.ttl ? duration(definition.ttl) : "for ever"],
    ["Capacity", definition.capacity ? `${many(definition.capacity, "event")}; ${full}` : "no limit"],
    ["Dead events", definition.dead_event_store ? html`go to <a href=${to("dead", definition.dead_event_store)}>${definition.dead_event_store}</a>` : "only counted"],
    definition.max_deliveries ? ["Deliveries", `at most ${count(definition.max_deliveries)}, then the event is dead`] : null,
    definition.backoff ? ["Backoff", backoff(definition.backoff)] : null,
    info.waiting ? ["Waiting", `${many(info.waiting, "event")}, the first until ${moment(info.waiting_until_us / 1000)}`] : null,
    ["Keys", keys || "none"],
    definition.kind === "channel" ? ["Consumed events", definition.retain_consumed || definition.engine === "merge" ? "kept" : "removed when all durables have acknowledged them"] : null,
    ["Sync", definition.storage.sync === "none" ? "left to the operating system" : definition.storage.sync_each_write ? "each publish separately" : "in groups"],
    definition.message_types?.length ? ["Messages", definition.message_types.join(", ")] : null,
    definition.archive ? ["Archive", definition.archive] : null,
    definition.topics?.length ? ["MQTT topics", `${definition.topics.join(", ")}${definition.payload === "json" ? "; JSON fields become properties" : ""}`] : null,
    ["Cluster-wide", definition.cluster_wide ? "yes" : "no"],
  ];
}

function StorageFacts({ info }) {
  const { storage } = info;
  const cluster = useRefreshed((signal) => (hasFigures() ? get("/cluster", {}, signal) : Promise.resolve(null)), [], 5000).value;
  return html`<${Facts} rows=${[
    cluster?.node ? ["Owner", html`<a href=${to("cluster")}>${cluster.node}</a>`] : null,
    ["Events are stored", HOMES[storage.home] ?? storage.home],
    ["Ids", info.last_event_id < 0 ? "none yet" : info.first_event_id === null ? `none stored, the last was ${count(info.last_event_id)}` : `${count(info.first_event_id)} to ${count(info.last_event_id)}`],
    ["Oldest event", info.oldest_event_ms === null || info.oldest_event_ms === undefined ? "–" : ago(info.oldest_event_ms)],
    storage.home === "journal" ? ["Segment files", `${count(storage.sealed_files)}, ${bytes(storage.sealed_bytes)}`] : null,
    storage.home === "pages" ? ["Pages", bytes(storage.paged_bytes)] : ["Not sealed yet", bytes(storage.tail_bytes)],
    storage.memory_bytes ? ["In memory only", bytes(storage.memory_bytes)] : null,
    ["Scheduled", info.scheduled ? html`<a href=${to("scheduled")}>${many(info.scheduled, "event")}</a>` : "none"],
  ]} />`;
}

const SEGMENTS = 6;

function Segments({ kind, name }) {
  const { value, error } = useLoaded((signal) => get(routeOf(kind, name, "storage"), {}, signal), [name]);
  if (error) return html`<div class="panel-body"><${Refusal} error=${error} slim /></div>`;
  if (!value) return html`<${Loading} />`;
  const left = value.segments.length + value.segments_left_out - SEGMENTS;
  if (!value.segments.length) return html`<${Empty} title="Nothing is sealed yet">${many(value.unsealed_events, "event")} not sealed yet. Full segments become files that Spark and other programs can map.</${Empty}>`;
  return html`<${Table} label="Segment files" rows=${value.segments.slice(-SEGMENTS).reverse()} keyOf=${(row) => row.path || row.first_id} columns=${[
    { label: "Ids", kind: "lead", cell: (row) => `${count(row.first_id)} to ${count(row.last_id)}` },
    { label: "Events", kind: "num", cell: (row) => count(row.events) },
    { label: "Size", kind: "num", cell: (row) => bytes(row.size) },
    { label: "File", cell: (row) => html`<span class="mono" title=${row.path}>${row.path.split("/").slice(-2, -1)[0] || "–"}</span>` },
  ]} />${left > 0 && html`<div class="pager">The newest files; ${many(left, "older file")} not shown.</div>`}`;
}

function Schema({ kind, name }) {
  const { value, error } = useLoaded((signal) => get(routeOf(kind, name, "columns"), {}, signal), [name]);
  const columns = value?.items;
  if (error) return html`<div class="panel-body"><${Refusal} error=${error} slim /></div>`;
  if (!columns) return html`<${Loading} />`;
  const teaches = html`<${Empty} title="No properties yet" python=${`session.${kind}s.get(${JSON.stringify(name)}).publish(b"", properties={"price": 9.5})`}>The properties of events become columns with their types.</${Empty}>`;
  const rows = flat(columns);
  return html`<${Table} label="Columns" rows=${rows} keyOf=${(row) => `${row.isProperty} ${row.name}`} columns=${[
    { label: "Column", kind: "lead", cell: (row) => html`<span class="mono">${row.name}</span>${row.isProperty ? html` <span class="hint">property</span>` : ""}` },
    { label: "Type", cell: (row) => html`<span class="mono">${row.type}</span>` },
  ]} />${!rows.some((row) => row.isProperty) && teaches}`;
}

function About({ info, kind, name }) {
  const now = useLive(), history = channelHistory(name), last = history.last ?? {};
  const settled = kind === "queue" ? "Consumed" : "Acknowledged";
  const series = [["Published", "published"], ["Delivered", "delivered"], [settled, "acknowledged"]].map(([title, flow]) => ({ name: title, values: history.values(flow) }));
  const owed = (now.byChannel.get(name) ?? []).reduce((sum, each) => sum + each.outstanding, 0);
  if (!hasFigures()) return html`<${Standing} info=${info} kind=${kind} name=${name} />`;
  return html`${info.storage.quarantined.map((text) => html`<${Note} key=${text} kind="bad" title="Quarantined">${text}</${Note}>`)}
    <dl class="stats ${kind === "queue" ? "five" : ""}">
      <${Stat} label="Published" swatch="s1" value=${brief(last.published)} unit="/s" under=${`${count(info.counters.published)} in total`} />
      <${Stat} label="Delivered" swatch="s2" value=${brief(last.delivered)} unit="/s" under=${`${count(info.counters.redelivered)} redelivered`} />
      <${Stat} label=${settled} swatch="s3" value=${brief(last.acknowledged)} unit="/s" />
      <${Stat} label="Stored" value=${brief(info.events)} under=${bytes(info.storage.home === "pages" ? info.storage.paged_bytes : info.storage.tail_bytes + info.storage.sealed_bytes)} />
      ${kind === "queue"
        ? html`<${Stat} label="In flight" value=${brief(info.in_flight)} under="with ${many(info.readers.length, "reader")}" />`
        : html`<${Stat} label="Outstanding" value=${brief(now.rates ? owed : null)} under=${`for ${many(info.durables, "durable")}`} />`}
      ${kind === "channel" && html`<${Stat} label="Subscribers" value=${count(info.subscribers)} />`}
    </dl>
    <${Panel} title="Events per second"><${Plot} label="Events per second on ${name}" times=${history.times} series=${series} unit="/s" /></${Panel}>
    <${Contents} info=${info} kind=${kind} name=${name} />
    <${Day} channel=${name} whose="of ${name}" />`;
}

/** The same without what only the figures by the second tell. */
function Standing({ info, kind, name }) {
  const owed = useRefreshed((signal) => (kind === "queue" ? Promise.resolve(null) : all(path("channels", name, "durables"), {}, signal)), [kind, name], 5000);
  return html`${info.storage.quarantined.map((text) => html`<${Note} key=${text} kind="bad" title="Quarantined">${text}</${Note}>`)}
    <dl class="stats five">
      <${Stat} label="Published" value=${brief(info.counters.published)} under="in total" />
      <${Stat} label="Redelivered" value=${brief(info.counters.redelivered)} under="in total" />
      <${Stat} label="Stored" value=${brief(info.events)} under=${bytes(info.storage.home === "pages" ? info.storage.paged_bytes : info.storage.tail_bytes + info.storage.sealed_bytes)} />
      ${kind === "queue"
        ? html`<${Stat} label="In flight" value=${brief(info.in_flight)} under="with ${many(info.readers.length, "reader")}" /><${Stat} label="Readers" value=${count(info.readers.length)} />`
        : html`<${Stat} label="Outstanding" value=${brief(owed.value?.reduce((sum, each) => sum + each.outstanding, 0))} under=${owed.error ? "not visible to you" : `for ${many(info.durables, "durable")}`} />
          <${Stat} label="Subscribers" value=${count(info.subscribers)} />`}
    </dl>
    <${Panel} title="Events per second" bare><${Lacks} what="Figures" right="monitor">The rates of events are not shown.</${Lacks}></${Panel}>
    <${Contents} info=${info} kind=${kind} name=${name} />`;
}

function Contents({ info, kind, name }) {
  return html`<${Panel} title="Events by outcome" hint="the number of published events is the sum of the others"><${Equation} conservation=${info.conservation} /></${Panel}>
    <div class="columns">
      <${Panel} title="Attributes"><${Facts} rows=${attributesOf(info)} /></${Panel}>
      <${Panel} title="Storage"><${StorageFacts} info=${info} /></${Panel}>
      <${Panel} title="Schema" bare><${Schema} kind=${kind} name=${name} /></${Panel}>
      ${info.storage.home === "journal" && html`<${Panel} title="Segments" bare><${Segments} kind=${kind} name=${name} /></${Panel}>`}</div>`;
}

export function StorePage({ kind, name, tab, route }) {
  useWatched(name);
  const loaded = useRefreshed((signal) => get(routeOf(kind, name), {}, signal), [kind, name], 2000);
  const { value: info, error } = loaded;
  const tabs = [["", "Overview", to(kind, name)], ["events", "Events", to(kind, name, "events")], ["publish", kind === "queue" ? "Push" : "Publish", to(kind, name, "publish")]];
  if (kind === "channel") tabs.push(["durables", "Durables", to(kind, name, "durables"), info ? count(info.durables) : undefined]);
  tabs.push(["missing", "Missing ids", to(kind, name, "missing")], ["settings", "Settings", to(kind, name, "settings")]);
  const tags = info && html`<${Tag} kind="accent">${kind}</${Tag}><${Tag}>${info.definition.type}</${Tag}>
    ${info.definition.engine !== "default" && html`<${Tag}>${info.definition.engine} engine</${Tag}>`}`;
  const missing = error && error.status === 404;
  return html`<div class="page"><${Head} folder=${name.slice(0, name.lastIndexOf("/") + 1)} title=${name.slice(name.lastIndexOf("/") + 1)} tags=${tags} />
    ${missing ? html`<${Refusal} error=${error} /><${Empty} title="It was deleted, or never existed" shell="penstock ${kind} create ${name}"
        acts=${html`<a class="button first" href=${to("new", { name, kind })}>Create this ${kind}</a>`} />`
    : html`<${Tabs} label="About this ${kind}" current=${tab} items=${tabs} />
      ${error && html`<${Refusal} error=${error} />`}
      ${!info && !error && html`<${Loading} />`}
      ${info && tab === "" && html`<${About} info=${info} kind=${kind} name=${name} />`}
      ${info && tab === "events" && html`<${Events} kind=${kind} name=${name} info=${info} route=${route} />`}
      ${info && tab === "publish" && html`<${Publish} kind=${kind} name=${name} info=${info} />`}
      ${info && tab === "durables" && html`<${Durables} channel=${name} />`}
      ${info && tab === "missing" && html`<${Missing} kind=${kind} name=${name} info=${info} route=${route} />`}
      ${info && tab === "settings" && html`<${Settings} kind=${kind} name=${name} info=${info} again=${loaded.again} />`}`}</div>`;
}
