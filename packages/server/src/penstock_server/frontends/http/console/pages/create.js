// A new channel or queue.
import { html, useState } from "../view.js";
import { post, upload } from "../api.js";
import { quoted } from "../format.js";
import { Button, Choice, Field, Head, Line, Panel, Refusal, tell, useDoing } from "../parts.js";
import { go, to } from "../router.js";
import { AttributeFields, STORAGE_USUAL, changes } from "./settings.js";

// The first of each is the default of the realm.
const TYPES = [
  ["mixed", "Each event sets whether it is stored on disk."], ["persistent", "All events are stored on disk."], ["reliable", "Events are kept in memory."], ["transient", "Events are relayed and never stored."],
  ["paged", "Memory-mapped; deprecated."], ["off_heap", "Deprecated."], ["simple", "Deprecated."],
];
const ENGINES = [["default", "Events stay; any client can replay them."], ["jms", "Events stay while a durable needs them."], ["merge", "One state per key."]];
const namesOf = (choices) => choices.map(([key]) => key);
const helpOf = (choices, chosen) => choices.find(([key]) => key === chosen)[1];

const OF_NAMES = new Set(["invalid-name", "name-already-bound"]);

const USUAL = { ttl: 0, capacity: 0, dead_event_store: "", archive: "", topics: [], payload: "bytes", max_deliveries: 0, event_ttl: false, retain_consumed: false, storage: STORAGE_USUAL };

function keysOf(text) {
  const keys = {};
  for (const part of text.split(",").map((each) => each.trim()).filter(Boolean)) {
    const [, name, depth] = /^(.*?)(?:\s*[:=]\s*(\d+))?$/.exec(part);
    keys[name] = Number(depth ?? 1);
  }
  return keys;
}

/** A channel or queue as an export has it. */
function Import() {
  const [file, setFile] = useState(null), [name, setName] = useState("");
  const doing = useDoing();
  const bring = async () => {
    const made = await doing.act(() => upload("/imports", file, "application/x-tar", { name }));
    if (made) { tell(`${made.name} was imported.`); go(made.definition.kind, made.name); }
  };
  return html`<div class="form"><label>Export file (.tar)<input type="file" accept=".tar" onChange=${(event) => setFile(event.target.files[0] ?? null)} /></label>
    <${Field} label="New name" mono value=${name} onInput=${setName} placeholder="the exported name" />
    <${Refusal} error=${doing.error} /><div class="row"><${Button} busy=${doing.busy || !file} onClick=${bring}>Import</${Button}></div></div>`;
}

export function NewStore({ route }) {
  const [kind, setKind] = useState(route.query.kind === "queue" ? "queue" : "channel");
  const [name, setName] = useState(route.query.name ?? "");
  const [own, setOwn] = useState({ type: TYPES[0][0], engine: ENGINES[0][0], keys: "" });
  const [given, setGiven] = useState(USUAL);
  const doing = useDoing();
  const create = async (event) => {
    event.preventDefault();
    const made = await doing.act(async () => {
      const attributes = { ...changes(USUAL, given), type: own.type };
      if (kind === "channel" && own.engine !== "default") attributes.engine = own.engine;
      if (own.keys.trim()) attributes.keys = keysOf(own.keys);
      return post(`/${kind}s`, { name, attributes });
    });
    if (made) { tell(`${made.name} was created.`); go(kind, made.name); }
  };
  const shell = `penstock ${kind} create ${quoted(name || "eu/orders")} --type ${own.type}${kind === "channel" && own.engine !== "default" ? ` --engine ${own.engine}` : ""}${Number(given.capacity) ? ` --capacity ${given.capacity}` : ""}${given.dead_event_store ? ` --dead-event-store ${quoted(given.dead_event_store)}` : ""}`;
  return html`<div class="page"><${Head} crumbs=${[["Overview", to("")]]} title="New ${kind}" lead=${kind === "channel" ? "A named, ordered store of events that any number of subscribers and durables read." : "A store in which each event goes to one reader."} />
    <div class="columns wide-left"><${Panel} label="Attributes"><form class="form" onSubmit=${create}>
      <div><${Choice} label="What to create" value=${kind} onPick=${setKind} options=${[["channel", "Channel"], ["queue", "Queue"]]} /></div>
      <${Field} label="Name" mono value=${name} onInput=${setName} help="A / separates folders: eu/orders is in the folder eu." placeholder="eu/orders" required autofocus
        wrong=${doing.error && OF_NAMES.has(doing.error.code) ? `${doing.error.code}: ${doing.error.message}` : undefined} />
      <div class="pair"><${Field} label="Type" value=${own.type} onInput=${(type) => setOwn({ ...own, type })} options=${namesOf(TYPES)} help=${helpOf(TYPES, own.type)} />
        ${kind === "channel" && html`<${Field} label="Engine" value=${own.engine} onInput=${(engine) => setOwn({ ...own, engine })} options=${namesOf(ENGINES)} help=${helpOf(ENGINES, own.engine)} />`}
        <${Field} label="Publish keys" mono value=${own.keys} onInput=${(keys) => setOwn({ ...own, keys })} placeholder="sku:1" help="number of newest events to keep for each value" /></div>
      <${AttributeFields} kind=${kind} given=${given} set=${(part) => setGiven({ ...given, ...part })} />
      ${doing.error && !OF_NAMES.has(doing.error.code) && html`<${Refusal} error=${doing.error} />`}
      <div class="row"><button type="submit" class="button first" disabled=${doing.busy || !name}>Create ${kind}</button></div></form></${Panel}>
      <div class="stack"><${Panel} title="Shell command"><${Line} text=${shell} /></${Panel}>
        <${Panel} title="Import" hint="complete or not at all"><${Import} /></${Panel}></div></div></div>`;
}
