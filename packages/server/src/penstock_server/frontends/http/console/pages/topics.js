// Topics of MQTT: what is retained, by level and by filter, the live tail of a filter, and sessions.
import { html, useEffect, useState } from "../view.js";
import { get, path, remove as del } from "../api.js";
import { ago, bytes, count, duration, many, moment, quoted } from "../format.js";
import { Button, Empty, Facts, Field, Head, Loading, Note, Panel, Refusal, Table, Tabs, Tag, TypeName, tell, useDoing, useLoaded, useRefreshed } from "../parts.js";
import { note, to } from "../router.js";
import { Lacks, may } from "../session.js";
import { Detail } from "./detail.js";
import { Tail } from "./tail.js";
import { TopicTree } from "./topic-tree.js";

const PAGE = 50;
const SHOWN_BYTES = 400;

/** How to begin, where the realm serves no MQTT. */
const Unserved = ({ what }) => html`<${Panel} label=${what} bare><${Empty} title="This realm does not serve MQTT" shell="penstock serve --data ./data --mqtt-port 1883">
  Start it with an MQTT port. Messages of devices are then stored in one channel, with the topic as a property. This page shows retained messages and sessions.</${Empty}></${Panel}>`;

/** A form with a topic filter; `onApply` gets it without spaces at its ends. */
function FilterForm({ filter, onApply, verb, wrong, children }) {
  const [typed, setTyped] = useState(filter);
  useEffect(() => { setTyped(filter); }, [filter]);
  const apply = (event) => { event.preventDefault(); onApply(typed.trim() || "#"); };
  return html`<form class="find" onSubmit=${apply}><div class="grow"><${Field} label="Topic filter" mono value=${typed} onInput=${setTyped} placeholder="plant/+/temp" wrong=${wrong} /></div>
    ${children}<button type="submit" class="button first">${verb}</button></form>`;
}

const wordsOf = (error) => (error ? `${error.code}: ${error.message}` : undefined);

/** What is published from now on, of one channel: that of all topics, or one with topics of its own. */
function Live({ route }) {
  const [filter, setFilter] = useState(route.query.filter ?? "#");
  const [channel, setChannel] = useState(route.query.channel ?? "");
  const [chosen, setChosen] = useState(/^\d+$/.test(route.query.event ?? "") ? route.query.event : null);
  const [refused, setRefused] = useState(null);
  useEffect(() => { setFilter(route.query.filter ?? "#"); setChannel(route.query.channel ?? ""); setChosen(/^\d+$/.test(route.query.event ?? "") ? route.query.event : null); }, [route]);
  useEffect(() => { note("topics", "live", { filter: filter === "#" ? "" : filter, channel, event: chosen }); }, [filter, channel, chosen]);
  const told = useLoaded((signal) => get("/mqtt", { filter }, signal), [filter]);
  const met = (told.value?.channels ?? []).filter((each) => each.selector !== null);
  const shown = met.find((each) => each.name === channel) ?? met[0];
  const wrong = told.error?.code === "invalid-argument" ? wordsOf(told.error) : undefined;
  const pick = (name) => { setChannel(name === met[0]?.name ? "" : name); setChosen(null); };
  return html`<div class="stack"><${FilterForm} filter=${filter} verb="Watch" wrong=${wrong} onApply=${(next) => { if (next !== filter) setChosen(null); setFilter(next); }}>
      ${met.length > 1 && html`<${Field} label="Channel" value=${shown.name} options=${met.map((each) => [each.name, each.topics.length ? `${each.name}: ${each.topics.join(", ")}` : `${each.name}: all other topics`])} onInput=${pick} />`}</${FilterForm}>
    ${(refused || (told.error && !wrong)) && html`<${Refusal} error=${refused ?? told.error} />`}
    ${told.error ? null : told.loading || !told.value ? html`<${Loading} />`
      : shown ? html`<${Tail} key=${shown.name} name=${shown.name} selector=${shown.selector} chosen=${chosen} setChosen=${setChosen} onRefused=${setRefused}
          example=${`publish ${quoted(shown.name)} 21.5 --property topic=${quoted(filter.replaceAll("+", "1").replace(/#$/, "1"))}`} />`
      : html`<${Panel} label="Live events" bare><${Empty} title="No channel stores these topics">At least none that you may read.</${Empty}></${Panel}>`}</div>`;
}

/** One retained message in short: its data as text, or how large it is. */
const inShort = (event) => event.data ?? (event.message ? JSON.stringify(event.message) : `binary, ${bytes(event.size)}`);

function expiry(event, now) {
  if (!event.ttl) return "never";
  const left = new Date(event.published).getTime() + Number(event.ttl) - now;
  return left > 0 ? `in ${duration(left)}` : "now";
}

function Retained({ route, channel }) {
  const given = { filter: route.query.filter ?? "#", event: /^\d+$/.test(route.query.event ?? "") ? route.query.event : null };
  const [filter, setFilter] = useState(given.filter);
  const [chosen, setChosen] = useState(given.event);
  const [steps, setSteps] = useState([""]);
  const [removing, setRemoving] = useState(null);
  const doing = useDoing();
  useEffect(() => { setFilter(given.filter); setChosen(given.event); }, [route]);
  useEffect(() => { setSteps([""]); }, [filter]);
  useEffect(() => { note("topics", "retained", { filter: filter === "#" ? "" : filter, event: chosen }); }, [filter, chosen]);
  const loaded = useLoaded((signal) => get(path("channels", channel, "retained"), { filter, limit: PAGE, after: steps.at(-1), data_bytes: SHOWN_BYTES }, signal), [channel, filter, steps]);
  const rows = loaded.value?.items, now = Date.now(), most = chosen === null ? 120 : 24;
  const wrong = loaded.error?.code === "invalid-argument" ? wordsOf(loaded.error) : undefined;
  const remove = async () => {
    const done = await doing.act(() => del(path("channels", channel, "retained"), { filter: removing.properties.topic }));
    if (!done) return;
    tell(done.count ? `The retained message of ${removing.properties.topic} was removed.` : `${removing.properties.topic} had no retained message any more.`);
    if (String(removing.event_id) === chosen) setChosen(null);
    setRemoving(null);
    loaded.again();
  };
  return html`<div class="stack"><${FilterForm} filter=${filter} verb="Find" wrong=${wrong} onApply=${(next) => { setFilter(next); setChosen(null); }} />
    ${loaded.error && !wrong && html`<${Refusal} error=${loaded.error} />`}
    <div class="events-grid ${chosen === null ? "" : "with-detail"}"><${Panel} label="Retained messages" bare>
      ${!rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} first label="Retained messages" rows=${rows} keyOf=${(row) => row.event_id} chosen=${(row) => String(row.event_id) === chosen} columns=${[
        { label: "Topic", kind: "lead", cell: (row) => html`<a class="mono" href=${to("topics", "retained", { filter: filter === "#" ? "" : filter, event: row.event_id })}>${row.properties.topic}</a>` },
        { label: "Payload", cell: (row) => html`<span class="mono">${inShort(row).slice(0, most)}${row.is_cut || inShort(row).length > most ? "…" : ""}</span>` },
        chosen === null && { label: "Age", kind: "num", cell: (row) => html`<span title=${moment(row.published)}>${ago(Math.max(0, now - new Date(row.published).getTime()))}</span>` },
        chosen === null && { label: "Expires", kind: "num", cell: (row) => expiry(row, now) },
        { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => html`<${Button} kind="small danger" onClick=${() => { doing.clear(); setRemoving(row); }} label="Remove the retained message of ${row.properties.topic}">Remove…</${Button}>` },
      ].filter(Boolean)} />` : steps.length > 1 ? html`<${Empty} title="No more retained messages" />`
        : html`<${Empty} title="No retained messages${filter === "#" ? "" : ` match ${filter}`}" shell="mosquitto_pub -t plant/3/state -m on -q 1 -r">For each topic, the newest message with the retain flag is kept for later subscribers.</${Empty}>`}
      <div class="pager"><span>${rows?.length ? many(rows.length, "message") : ""}</span><span class="fill"></span>
        <${Button} kind="small plain" icon="again" onClick=${loaded.again}>Refresh</${Button}>
        <${Button} kind="small" icon="left" disabled=${steps.length < 2} onClick=${() => setSteps(steps.slice(0, -1))}>Previous</${Button}>
        <${Button} kind="small" disabled=${!loaded.value?.next} onClick=${() => setSteps([...steps, loaded.value.next])}>Next</${Button}></div></${Panel}>
      ${chosen !== null && html`<${Detail} key=${chosen} kind="channel" name=${channel} part="retained" id=${chosen} known=${rows?.find((each) => String(each.event_id) === chosen)} onClose=${() => setChosen(null)} />`}</div>
    ${removing && html`<${TypeName} title="Remove the retained message of ${removing.properties.topic}" name=${removing.properties.topic} verb="Remove" doing=${doing} onDone=${remove} onClose=${() => setRemoving(null)}>
      <${Note} kind="warn" title="Later subscribers do not get it.">Clients that have received it keep it. A newer retained message of this topic stays.</${Note}></${TypeName}>`}</div>`;
}

const stateOf = (session) => (session.version ? html`<${Tag} kind="ok">connected</${Tag}><div class="sub">MQTT ${session.version}</div>`
  : html`<${Tag}>away</${Tag}><div class="sub">since ${moment(session.ended)}</div>`);
const endOf = (session) => (session.expires ? moment(session.expires) : session.expiry_s === null ? "never" : session.expiry_s === 0 ? "with its connection" : `${duration(session.expiry_s * 1000)} after its connection`);

/** The subscriptions of one session. */
function Subscriptions({ session, channel, onClose }) {
  return html`<div class="detail"><${Panel} title=${session.client_id} acts=${html`<button type="button" class="button plain icon small" aria-label="Close the session" onClick=${onClose}>✕</button>`} bare>
    <div class="panel-body even"><${Facts} rows=${[["User", session.user], ["Ends", endOf(session)], ["Subscriptions", count(session.subscription_count)], ["In flight", count(session.in_flight)]]} /></div>
    ${session.will_due && html`<div class="panel-body"><${Note} slim title="Its will is published at ${moment(session.will_due)}.">Unless its client reconnects before.</${Note}></div>`}
    ${session.subscriptions.length ? html`<${Table} first label="Subscriptions of ${session.client_id}" rows=${session.subscriptions} keyOf=${(row) => row.filter} columns=${[
      { label: "Filter", kind: "lead", cell: (row) => html`<code>${row.filter}</code>` },
      { label: "QoS", kind: "num", cell: (row) => row.qos },
      { label: "Waiting", kind: "num", cell: (row) => (row.durable ? html`<a href=${to("channel", channel, "durables", row.durable)} title=${row.durable}>${count(row.waiting)}</a>` : "–") },
    ]} />` : html`<${Empty} title="No subscriptions" />`}
    ${session.subscription_count > session.subscriptions.length && html`<p class="help-line">The first ${count(session.subscriptions.length)} of ${count(session.subscription_count)}.</p>`}</${Panel}></div>`;
}

function Sessions({ route, channel }) {
  const [chosen, setChosen] = useState(route.query.client ?? null);
  const [steps, setSteps] = useState([route.query.after ?? ""]);
  useEffect(() => { setChosen(route.query.client ?? null); }, [route]);
  const after = steps.at(-1);
  useEffect(() => { note("topics", "sessions", { after, client: chosen }); }, [after, chosen]);
  const loaded = useRefreshed((signal) => get("/mqtt/sessions", { limit: PAGE, after }, signal), [after], 3000);
  const rows = loaded.value?.items, shown = rows?.find((each) => each.client_id === chosen);
  const [ending, setEnding] = useState(null);
  const doing = useDoing();
  const end = async () => {
    const done = await doing.act(async () => { await del("/mqtt/sessions", { client_id: ending.client_id, user: ending.user }); return true; });
    if (done) { tell(`The session of ${ending.client_id} has ended.`); setEnding(null); loaded.again(); }
  };
  return html`<div class="stack">${loaded.error && html`<${Refusal} error=${loaded.error} />`}
    <div class="events-grid ${shown ? "with-detail" : ""}"><${Panel} label="Sessions" bare>${!rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} first label="Sessions" rows=${rows} keyOf=${(row) => `${row.client_id} ${row.user}`} chosen=${(row) => row.client_id === chosen} columns=${[
        { label: "Client", kind: "lead", cell: (row) => html`<a class="mono" href=${to("topics", "sessions", { after, client: row.client_id })}>${row.client_id}</a><div class="sub">${row.user}</div>` },
        { label: "State", cell: stateOf },
        !shown && { label: "Ends", cell: endOf },
        !shown && { label: "Subscriptions", kind: "num", cell: (row) => count(row.subscription_count) },
        { label: "Waiting", kind: "num", cell: (row) => count(row.waiting) },
        !shown && { label: "In flight", kind: "num", cell: (row) => count(row.in_flight) },
        may("admin") && { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => html`<${Button} kind="small danger" onClick=${() => { doing.clear(); setEnding(row); }} label="End the session of ${row.client_id}, ${row.user}">End…</${Button}>` },
      ].filter(Boolean)} />` : html`<${Empty} title=${after ? "No more sessions" : "No sessions"}>MQTT clients that are connected, or whose session outlives their connection, are listed here.</${Empty}>`}
      ${(loaded.value?.next || steps.length > 1) && html`<div class="pager"><span class="fill"></span>
        <${Button} kind="small" icon="left" disabled=${steps.length < 2} onClick=${() => setSteps(steps.slice(0, -1))}>Previous</${Button}>
        <${Button} kind="small" disabled=${!loaded.value?.next} onClick=${() => setSteps([...steps, loaded.value.next])}>Next</${Button}></div>`}</${Panel}>
      ${shown && html`<${Subscriptions} session=${shown} channel=${channel} onClose=${() => setChosen(null)} />`}</div>
    <p class="help-line">Close a connection on the page <a href=${to("connections")}>Connections</a>; a persistent session then stays. A session ends when its client connects with a clean start, when it expires, when its user is deleted, or when an administrator ends it here.</p>
    ${ending && html`<${TypeName} title="End the session of ${ending.client_id}" name=${ending.client_id} verb="End session" doing=${doing} onDone=${end} onClose=${() => setEnding(null)}>
      <${Note} kind="warn" title="${many(ending.waiting, "waiting message")} and ${many(ending.subscription_count, "subscription")} of ${ending.user} are deleted.">Its connection is closed. Its client may connect again at once, with an empty session.</${Note}></${TypeName}>`}</div>`;
}

const TABS = [["", "By level"], ["live", "Live"], ["retained", "Retained"], ["sessions", "Sessions"]];
const LEADS = {
  "": "Topics with a retained message, counted level by level.",
  live: "Messages published from now on, on the topics that match a filter: + matches one level, # all further levels.",
  retained: "The newest message of each topic that was published with the retain flag.",
  sessions: "MQTT clients that are connected or have a persistent session, and the messages that wait for them.",
};

/** `mqtt` says what there is of MQTT; `refused` why it is not known. */
export function TopicsPage({ route, tab, mqtt, refused }) {
  const served = mqtt?.channel ? mqtt : null;
  const items = TABS.map(([key, text]) => [key, text, key ? to("topics", key) : to("topics")]);
  const name = TABS.find(([key]) => key === tab)?.[1];
  const page = () => {
    if (!mqtt) return refused ? html`<${Refusal} error=${refused} />` : html`<${Loading} />`;
    if (tab === "live") return served || mqtt.channels.length ? html`<${Live} route=${route} />` : html`<${Unserved} what="Live" />`;
    if (!served) return html`<${Unserved} what=${name} />`;
    if (tab === "retained") return html`<${Retained} route=${route} channel=${served.retained} />`;
    if (tab === "sessions") return may("monitor", "admin") ? html`<${Sessions} route=${route} channel=${served.channel} />` : html`<${Panel} label="Sessions" bare><${Lacks} what="Sessions" right="monitor" /></${Panel}>`;
    return html`<${TopicTree} route=${route} channel=${served.retained} />`;
  };
  return html`<div class="page"><${Head} title="Topics" lead=${LEADS[tab]} /><${Tabs} label="Parts of the topics" items=${items} current=${tab} />
    ${name ? page() : html`<${Empty} title="Page not found" />`}</div>`;
}
