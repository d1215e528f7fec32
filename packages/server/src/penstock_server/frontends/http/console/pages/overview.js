// The realm at a glance: what flows, what it takes, what wants attention.
import { html, useState } from "../view.js";
import { get, patch } from "../api.js";
import { brief, bytes, count, duration, many, moment } from "../format.js";
import { durableHistory, hasFigures, useLive } from "../live.js";
import { Button, Empty, Facts, Head, Loading, Note, Panel, Refusal, Stat, Table, Tag, TypeName, tell, useDoing, useRefreshed } from "../parts.js";
import { Plot, Spark } from "../plot.js";
import { to } from "../router.js";
import { Lacks, may } from "../session.js";
import { Day } from "./day.js";

const OLD_MS = 3_600_000;
const LISTED = 8;
const OWN = 100;

function usedOf(used, most) {
  const part = most ? used / most : 0;
  return { part, kind: part >= 0.95 ? "bad" : part >= 0.8 ? "warn" : "ok" };
}

function Gauge({ label, used, most }) {
  if (!most) return null;
  const { part, kind } = usedOf(used, most);
  return html`<div class="section"><div class="row"><span>${label}</span><span class="hint" style=${{ marginLeft: "auto" }}>${bytes(used)} of ${bytes(most)}</span></div>
    <div class="gauge ${kind}" role="meter" aria-label=${label} aria-valuenow=${used} aria-valuemin="0" aria-valuemax=${most} aria-valuetext="${bytes(used)} of ${bytes(most)}">
      <i style=${{ width: `${Math.min(100, Math.max(part * 100, used ? 1 : 0))}%` }}></i></div></div>`;
}

/** What somebody should look at, worst first. */
export function warnings(realm, rates, connections) {
  const found = [];
  for (const text of realm?.damage ?? []) found.push(["bad", "Damage was found at start-up", text]);
  if (realm?.publishing_paused) found.push(["warn", "Publishing is paused.", "Publishes of clients are refused with publishing-paused until an administrator resumes publishing."]);
  for (const [name, used, most] of [["Memory", "memory_bytes", "memory_bytes_max"], ["Off-heap memory", "off_heap_bytes", "off_heap_bytes_max"], ["Pages", "paged_bytes", "paged_bytes_max"]]) {
    const { part, kind } = usedOf(realm?.[used] ?? 0, realm?.[most]);
    if (kind !== "ok") found.push([kind, `${name} ${Math.round(part * 100)} % full.`, "At the limit publishing is refused with memory-limit; nothing is dropped."]);
  }
  for (const channel of rates?.channels ?? []) {
    if (channel.counters.quarantined) found.push(["bad", `${many(channel.counters.quarantined, "event")} quarantined`, html`on <a href=${to(channel.kind, channel.name)}>${channel.name}</a>: unreadable, set aside, never deleted.`]);
  }
  for (const each of connections ?? []) if (each.is_stalled) found.push(["warn", "A connection is stalled.", html`${each.user} does not read what the realm sends. <a href=${to("connections")}>Connections</a>`]);
  for (const each of (rates?.durables ?? []).filter((durable) => durable.clients === 0 && durable.outstanding > 0 && durable.oldest_outstanding_ms > OLD_MS).slice(0, 5)) {
    found.push(["warn", "A durable has no client.", html`<a href=${to("channel", each.channel, "durables", each.name)}>${each.name}</a> on ${each.channel} has outstanding events; the oldest has waited for ${duration(each.oldest_outstanding_ms)}.`]);
  }
  return found.slice(0, 12);
}

const Awaited = () => html`<${Loading} what="Waiting for the first figures" />`;

function Lagging({ rates }) {
  if (!rates) return html`<${Awaited} />`;
  const rows = (rates?.durables ?? []).filter((each) => each.outstanding > 0)
    .sort((one, other) => other.outstanding - one.outstanding).slice(0, LISTED);
  if (!rows.length) {
    return html`<${Empty} title=${rates?.durables.length ? "Every durable is up to date" : "No durables yet"}
      shell=${rates?.durables.length ? undefined : "penstock durable create CHANNEL billing --type shared"}>
      ${rates?.durables.length ? "Durables with outstanding events are listed here, those with the most events first." : "A durable remembers which events its clients have acknowledged. Durables with outstanding events are listed here."}</${Empty}>`;
  }
  return html`<${Table} label="Durables with outstanding events" keyOf=${(row) => `${row.channel}\n${row.name}`} rows=${rows} columns=${[
    { label: "Durable", kind: "lead", cell: (row) => html`<a href=${to("channel", row.channel, "durables", row.name)}>${row.name}</a><div class="sub">${row.channel}</div>` },
    { label: "Outstanding", kind: "num", cell: (row) => html`<strong>${count(row.outstanding)}</strong>` },
    { label: "Oldest", kind: "num", cell: (row) => duration(row.oldest_outstanding_ms) },
    { label: "Clients", kind: "num", cell: (row) => (row.clients ? count(row.clients) : html`<${Tag} kind="warn" icon="warning">none</${Tag}>`) },
    { label: "Last minutes", kind: "tight", cell: (row) => html`<${Spark} values=${durableHistory(row.channel, row.name).values("outstanding")} />` },
  ]} />`;
}

function Dead({ rates }) {
  if (!rates) return html`<${Awaited} />`;
  const rows = (rates?.channels ?? []).filter((each) => each.died > 0)
    .sort((one, other) => other.died - one.died).slice(0, LISTED);
  if (!rows.length) {
    return html`<${Empty} title="No dead events" shell="penstock channel edit orders --dead-event-store dead/orders">
      Events that leave their channel unconsumed, or are delivered too often, go to its dead event store.</${Empty}>`;
  }
  return html`<${Table} label="Channels with dead events" keyOf=${(row) => row.name} rows=${rows} columns=${[
    { label: "Channel or queue", kind: "lead", cell: (row) => html`<a href=${to(row.kind, row.name)}>${row.name}</a>` },
    { label: "Dead events", kind: "num", cell: (row) => html`<strong>${count(row.died)}</strong><div class="sub">${((100 * row.died) / Math.max(row.counters.published, 1)).toFixed(1)} % of published</div>` },
  ]} />`;
}

function Busiest({ now }) {
  // A rate is the difference of two answers.
  if (!now.realm.last) return html`<${Awaited} />`;
  const rows = (now.rates?.channels ?? []).map((channel) => ({ ...channel, history: now.channels.get(channel.name) }))
    .filter(({ history }) => history?.last?.published > 0 || history?.last?.acknowledged > 0)
    .sort((one, other) => (other.history.last.published ?? 0) - (one.history.last.published ?? 0)).slice(0, LISTED);
  if (!rows.length) return html`<${Empty} title="No traffic right now">Channels and queues with traffic are listed here, the busiest first.</${Empty}>`;
  return html`<${Table} label="Busiest channels and queues" keyOf=${(row) => row.name} rows=${rows} columns=${[
    { label: "Channel", kind: "lead", cell: (row) => html`<a href=${to(row.kind, row.name)}>${row.name}</a>` },
    { label: "Published/s", kind: "num", cell: (row) => brief(row.history.last.published) },
    { label: "Acknowledged/s", kind: "num", cell: (row) => brief(row.history.last.acknowledged) },
    { label: "Stored", kind: "num", cell: (row) => count(row.events) },
    { label: "Last minutes", kind: "tight", cell: (row) => html`<${Spark} values=${row.history.values("published").map((value) => value ?? 0)} />` },
  ]} />`;
}

function Publishing({ realm }) {
  const [asked, setAsked] = useState(false);
  const doing = useDoing(), paused = realm.publishing_paused;
  const turn = async () => {
    const now = await doing.act(() => patch("/realm", { paused: !paused }));
    if (now) { tell(now.publishing_paused ? "Publishing is paused." : "Publishing is resumed."); setAsked(false); }
  };
  return html`<${Button} icon=${paused ? "play" : "pause"} onClick=${() => (paused ? turn() : setAsked(true))}>${paused ? "Resume publishing" : "Pause publishing…"}</${Button}>
    ${asked && html`<${TypeName} title="Pause publishing" name=${realm.name} verb="Pause" doing=${doing} onDone=${turn} onClose=${() => setAsked(false)}>
      <${Note} kind="warn" title="Publishes are refused.">Publishes and commits of clients are refused with publishing-paused until publishing is resumed. Consumers, joins and administration continue.</${Note}></${TypeName}>`}`;
}

/** What there is to see for somebody without the realm's figures: what they have rights on. */
function Own({ realm }) {
  const loaded = useRefreshed(async (signal) => {
    const [channels, queues] = await Promise.all([get("/channels", { limit: OWN }, signal), get("/queues", { limit: OWN }, signal)]);
    return { rows: [...channels.items, ...queues.items], more: Boolean(channels.next || queues.next) };
  }, [], 5000);
  const { value, error } = loaded;
  return html`<${Panel} title="Channels and queues you may see" bare>
      ${error && html`<div class="panel-body"><${Refusal} error=${error} /></div>`}
      ${!value && !error && html`<${Loading} />`}
      ${value && (value.rows.length ? html`<${Table} label="Channels and queues you may see" keyOf=${(row) => `${row.definition.kind} ${row.name}`} rows=${value.rows} columns=${[
        { label: "Name", kind: "lead", cell: (row) => html`<a href=${to(row.definition.kind, row.name)}>${row.name}</a><div class="sub">${row.definition.kind}</div>` },
        { label: "Stored", kind: "num", cell: (row) => html`<strong>${count(row.events)}</strong>` },
        { label: "Oldest", kind: "num", cell: (row) => duration(row.oldest_event_ms) },
        { label: "Published in total", kind: "num", cell: (row) => count(row.counters.published) },
        { label: "Durables", kind: "num", cell: (row) => (row.definition.kind === "queue" ? "–" : count(row.durables)) },
      ]} />` : html`<${Empty} title=${may("channels") ? "No channels yet" : "No channel or queue that you may see"} shell=${may("channels") ? undefined : "penstock acl grant channel orders alice@* subscribe"}
        acts=${may("channels") && html`<a class="button first" href=${to("new")}>Create a channel</a>`}>
        ${may("channels") ? "" : "You see the channels and queues that you have a right on. A user who manages their rights can grant you one."}</${Empty}>`)}
      ${value?.more && html`<div class="pager">Only the first ${count(OWN)} of each are shown; the filter on the left finds all of them.</div>`}</${Panel}>
    <div class="columns">
      <${Panel} title="Figures of the realm" bare><${Lacks} what="Figures" right="monitor">Rates, lagging durables, connections and dead events of all channels are not shown.</${Lacks}></${Panel}>
      <${Panel} title="Memory and disk">${realm ? html`<${Space} realm=${realm} />` : html`<${Loading} />`}</${Panel}></div>`;
}

function Space({ realm, rates }) {
  return html`<${Facts} rows=${[["Journal on disk", bytes(rates?.journal_bytes ?? realm?.journal_bytes)]]} />
    <${Gauge} label="Memory" used=${rates?.memory_bytes ?? realm?.memory_bytes ?? 0} most=${realm?.memory_bytes_max} />
    <${Gauge} label="Off heap" used=${realm?.off_heap_bytes ?? 0} most=${realm?.off_heap_bytes_max} />
    <${Gauge} label="Pages" used=${realm?.paged_bytes ?? 0} most=${realm?.paged_bytes_max} />`;
}

const leadOf = (realm) => (realm ? `${realm.name}, Penstock ${realm.version}, running since ${moment(realm.started)}` : "");

export function Overview({ realm }) {
  useLive();
  if (hasFigures()) return html`<${Figures} realm=${realm} />`;
  return html`<div class="page"><${Head} title="Overview" lead=${leadOf(realm)} acts=${realm && may("configure") && html`<${Publishing} realm=${realm} />`} />
    ${warnings(realm, null, null).map(([kind, title, text], index) => html`<${Note} key=${index} kind=${kind} title=${title}>${text}</${Note}>`)}
    <${Own} realm=${realm} /></div>`;
}

function Figures({ realm }) {
  const now = useLive();
  const connections = useRefreshed((signal) => get("/connections", {}, signal), [], 5000);
  const { rates } = now, last = now.realm.last ?? {};
  const stored = rates?.channels.reduce((sum, each) => sum + each.events, 0);
  const owed = rates?.durables.reduce((sum, each) => sum + each.outstanding, 0);
  const series = [["Published", "published"], ["Delivered", "delivered"], ["Acknowledged", "acknowledged"]].map(([name, flow]) => ({ name, values: now.realm.values(flow) }));
  const wrong = warnings(realm, rates, connections.value?.items ?? connections.value);
  const empty = rates && rates.channels.length === 0;
  return html`<div class="page"><${Head} title="Overview" lead=${leadOf(realm)} acts=${realm && may("configure") && html`<${Publishing} realm=${realm} />`} />
    ${wrong.map(([kind, title, text], index) => html`<${Note} key=${index} kind=${kind} title=${title}>${text}</${Note}>`)}
    <dl class="stats">
      <${Stat} label="Published" swatch="s1" value=${brief(last.published)} unit="/s" />
      <${Stat} label="Delivered" swatch="s2" value=${brief(last.delivered)} unit="/s" />
      <${Stat} label="Acknowledged" swatch="s3" value=${brief(last.acknowledged)} unit="/s" />
      <${Stat} label="Stored events" value=${brief(stored)} under=${rates ? `on ${many(rates.channels.length + (rates.left_out ?? 0), "destination")}` : ""} />
      <${Stat} label="Outstanding" value=${brief(owed)} under=${rates ? `for ${many(rates.durables.length, "durable")}` : ""} />
      <${Stat} label="Connections" value=${count(rates?.connections ?? realm?.connections)} />
    </dl>
    ${empty && html`<${Panel} title="Getting started" bare><${Empty} title="This realm has no channels yet" shell="penstock channel create orders --type persistent && penstock publish orders 'hello'"
      python=${'session.channels.create("orders", type="persistent").publish(b"hello")'} acts=${html`<a class="button first" href=${to("new")}>Create a channel</a>`}>
      A channel stores events in order. Publishers append events, and subscribers read them from any position.</${Empty}></${Panel}>`}
    <div class="columns wide-left">
      <${Panel} title="Events per second" hint="all channels and queues"><${Plot} label="Events per second in the realm" times=${now.realm.times} series=${series} unit="/s" grows /></${Panel}>
      <${Panel} title="Memory and disk">
        <${Space} realm=${realm} rates=${rates} /></${Panel}></div>
    <div class="columns wide-left">
      <${Panel} title="Lagging durables" hint="most outstanding events first" bare><${Lagging} rates=${rates} /></${Panel}>
      <${Panel} title="Dead events" acts=${html`<a class="button small" href=${to("dead")}>Details</a>`} bare><${Dead} rates=${rates} /></${Panel}></div>
    <${Panel} title="Busiest now" bare><${Busiest} now=${now} /></${Panel}>
    <${Day} whose="of the realm" /></div>`;
}
