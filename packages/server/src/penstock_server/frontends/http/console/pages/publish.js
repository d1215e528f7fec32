// Write an event and publish it. What is typed stays until it is published, whatever goes wrong.
import { html, useState } from "../view.js";
import { post } from "../api.js";
import { bytes, count, many, quoted } from "../format.js";
import { Button, Check, Choice, Field, Line, Note, Panel, Refusal, tell, useDoing } from "../parts.js";
import { to } from "../router.js";
import { HEADERS, KINDS, blank, blankRow, draft, eventOf } from "./draft.js";
import { routeOf } from "./store.js";

const HINTS = {
  text: "Sent as UTF-8.", json: "Checked, and sent as written.", hex: "Pairs of hex digits; spaces are ignored.",
  base64: "For binary data.", protobuf: "The message as JSON; its type is the header message_type.",
};

function Properties({ rows, setRows }) {
  const change = (key, part) => {
    const next = rows.map((row) => (row.key === key ? { ...row, ...part } : row));
    setRows(next.at(-1).name || next.at(-1).value ? [...next, blankRow()] : next);
  };
  return html`<fieldset><legend>Properties</legend><div class="form" style=${{ gap: "8px" }}>${rows.map((row, index) => html`<div key=${row.key} class="property">
    <input class="mono" aria-label="Property ${index + 1}: name" placeholder="name" value=${row.name} onInput=${(event) => change(row.key, { name: event.target.value })} autocomplete="off" spellcheck=${false} />
    <select aria-label="Property ${index + 1}: type" value=${row.kind} onInput=${(event) => change(row.key, { kind: event.target.value, value: event.target.value === "boolean" ? "true" : row.value })}>
      ${KINDS.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === row.kind}>${text}</option>`)}</select>
    ${row.kind === "boolean"
      ? html`<select aria-label="Property ${index + 1}: value" value=${row.value} onInput=${(event) => change(row.key, { value: event.target.value })}><option value="true" selected=${row.value === "true"}>true</option><option value="false" selected=${row.value === "false"}>false</option></select>`
      : html`<input class="mono" aria-label="Property ${index + 1}: value" placeholder=${row.kind === "null" ? "" : "value"} value=${row.kind === "null" ? "" : row.value} disabled=${row.kind === "null"} onInput=${(event) => change(row.key, { value: event.target.value })} autocomplete="off" spellcheck=${false} />`}
    <${Button} kind="plain icon" icon="close" label="Remove property ${index + 1}" disabled=${rows.length === 1} onClick=${() => setRows(rows.filter((each) => each.key !== row.key))} /></div>`)}</div></fieldset>`;
}

/** Publishes the same event as a request, and shows the reply. */
function Ask({ kind, name, given }) {
  const [wait, setWait] = useState("10"), [reply, setReply] = useState(null);
  const asking = useDoing();
  const ask = async () => {
    setReply(null);
    const answer = await asking.act(async () => {
      const timeout = Number(wait.trim());
      if (!(timeout > 0)) throw new Error(`Timeout, s: "${wait}" is not a number of seconds above 0`);
      return post(routeOf(kind, name, "requests"), eventOf(given), { timeout });
    });
    if (answer) setReply(answer);
  };
  const data = reply && (reply.message ? JSON.stringify(reply.message, null, 2) : reply.data ?? reply.data_base64 ?? "");
  return html`<${Panel} title="Send a request"><p class="help-line">Publishes this event as a request. Its consumer replies to this page only.</p>
    <div class="form"><${Field} label="Timeout, s" help="at most 30" inputmode="decimal" value=${wait} onInput=${setWait} />
      <${Refusal} error=${asking.error} />
      <div class="row"><${Button} disabled=${asking.busy} onClick=${ask}>${asking.busy ? "Waiting…" : "Request"}</${Button}></div>
      ${reply && html`<div role="status"><p class="help-line">The reply, ${bytes(reply.size)}${reply.tag ? `, with the tag ${reply.tag}` : ""}:</p><pre>${data}</pre>
        ${Object.keys(reply.properties).length > 0 && html`<pre>${JSON.stringify(reply.properties, null, 2)}</pre>`}</div>`}</div></${Panel}>`;
}

export function Publish({ kind, name, info }) {
  const [given, setGiven] = useState(() => draft.of(kind, name));
  const [done, setDone] = useState(null);
  const doing = useDoing();
  const set = (part) => { const next = { ...given, ...part }; draft.keep(kind, name, next); setGiven(next); };
  const verb = kind === "queue" ? "Push" : "Publish", hasTypes = info.definition.message_types?.length > 0;
  const publish = async (event) => {
    event.preventDefault();
    const answer = await doing.act(async () => post(routeOf(kind, name, "events"), eventOf(given)));
    if (!answer) return;
    setDone(answer);
    tell(answer.scheduled ? `The event is scheduled.` : `${kind === "queue" ? "Pushed" : "Published"} as event ${count(answer.first_id)}.`);
  };
  const clear = () => { const next = blank(); draft.keep(kind, name, next); setGiven(next); setDone(null); doing.clear(); };
  const shell = `penstock ${kind === "queue" ? "queue push" : "publish"} ${quoted(name)} ${quoted(given.as === "text" && given.data.length < 60 ? given.data.split("\n")[0] || "hello" : "…")}${given.tag ? ` --tag ${quoted(given.tag)}` : ""}${given.properties.filter((row) => row.name).slice(0, 4).map((row) => ` --property ${quoted(`${row.name}=${row.value}`)}`).join("")}`;
  return html`<div class="columns wide-left"><${Panel} title="${verb} an event" hint=${given.copyOf !== null ? `copied from event ${count(given.copyOf)}` : ""}
      acts=${html`<${Button} kind="small plain" onClick=${clear}>Clear</${Button}>`}>
    <form class="form" onSubmit=${publish}>
      <div><div class="row" style=${{ marginBottom: "8px" }}><span class="label">Data</span>
        <${Choice} label="The data is" value=${given.as} onPick=${(as) => set({ as })} options=${[["text", "Text"], ["json", "JSON"], ["hex", "Hex"], ["base64", "Base64"], ...(hasTypes ? [["protobuf", "Protobuf"]] : [])]} /></div>
        <${Field} label=${html`<span class="unseen">Data</span>`} rows=${7} mono value=${given.data} onInput=${(data) => set({ data })} help=${HINTS[given.as]} /></div>
      <${Properties} rows=${given.properties} setRows=${(properties) => set({ properties })} />
      <div class="pair"><${Field} label="Tag" value=${given.tag} onInput=${(tag) => set({ tag })} />
        <${Field} label="Time to live" help="such as 500ms, 10s, 5m, 1h or 2d; without a unit, ms" value=${given.ttl} onInput=${(ttl) => set({ ttl })} placeholder="TTL of the channel" />
        <${Field} label="Priority, 0 to 9" value=${given.priority} inputmode="numeric" onInput=${(priority) => set({ priority })} placeholder=${String(info.definition.storage.priority ?? 4)} />
        <${Field} label="Deliver at" type="datetime-local" step="1" value=${given.deliver_at} onInput=${(deliver_at) => set({ deliver_at })} /></div>
      <div class="row" style=${{ gap: "0 24px" }}><${Check} label="Persistent" checked=${given.persistent} onInput=${(persistent) => set({ persistent })} />
        ${kind === "channel" && html`<${Check} label="Transient: sent to current subscribers only, never stored" checked=${given.transient} onInput=${(transient) => set({ transient })} />`}</div>
      <details open=${Object.values(given.headers).some(Boolean)}><summary>Headers</summary><div class="pair" style=${{ marginTop: "8px" }}>${HEADERS.map((header) =>
        html`<${Field} key=${header} label=${header} mono value=${given.headers[header] ?? ""} onInput=${(value) => set({ headers: { ...given.headers, [header]: value } })} />`)}</div></details>
      <${Refusal} error=${doing.error} />
      <div class="row"><button type="submit" class="button first" disabled=${doing.busy}>${verb}</button>
        ${done && !doing.error && html`<span role="status">${done.scheduled ? html`<a href=${to("scheduled")}>The event is scheduled</a>` : html`Last published: event <a href=${to(kind, name, "events", { from: kind === "channel" ? String(done.first_id) : "" })}>${count(done.first_id)}</a>`}</span>`}</div>
    </form></${Panel}>
    <div><${Ask} kind=${kind} name=${name} given=${given} /><${Panel} title="Shell command"><p class="help-line">The option <code>--file</code> publishes a file of events.</p><${Line} text=${shell} />
      ${!info.durables && kind === "channel" && !info.subscribers && html`<div class="section"><${Note} slim>This channel has no subscribers now. ${info.definition.engine === "jms" || info.definition.type === "transient" ? "Events published now are dropped." : `Events stay ${info.definition.ttl ? "until they expire" : "for ever"} and can be read later.`}</${Note}></div>`}
      ${info.definition.capacity > 0 && html`<div class="section"><${Note} slim>${many(info.events, "event")} of at most ${count(info.definition.capacity)}.</${Note}></div>`}</${Panel}></div></div>`;
}
