// One event in full: headers, typed properties, data in every way it can be read.
import { html, useEffect, useRef, useState } from "../view.js";
import { getExact, get } from "../api.js";
import { bytes, bytesAcross, clock, count, duration, fromBase64, hexRows, moment, utc } from "../format.js";
import { Choice, Facts, Loading, Panel, Refusal, Tag, Button, useLoaded, useWidth } from "../parts.js";
import { propertyTypes } from "../columns.js";
import { kindOf, shown } from "../exact.js";
import { go, to } from "../router.js";
import { draft } from "./draft.js";
import { routeOf } from "./store.js";

const CUT = 64 * 1024;
/** How wide one is, is measured on these. */
const SIGNS = "00000000";
const ORDINARY = new Set(["event_id", "published"]);

function Json({ value }) {
  return html`<pre class="detail-data" tabindex="0">${JSON.stringify(value, null, 2).slice(0, CUT)}</pre>`;
}

function Hex({ data }) {
  const [box, width] = useWidth();
  const sign = useRef(null);
  const columns = width && sign.current ? Math.floor(width / (sign.current.getBoundingClientRect().width / SIGNS.length)) : 0;
  return html`<pre class="detail-data hex" tabindex="0" ref=${box}><span class="measure" aria-hidden="true" ref=${sign}>${SIGNS}</span>${columns > 0 && hexRows(data, bytesAcross(columns)).map(([offset, pairs, text]) => html`<span key=${offset}><span class="offset">${offset}</span>  ${pairs}  <span class="punct">${text}</span>${"\n"}</span>`)}
    ${data.length > 4096 && `… ${count(data.length - 4096)} bytes more`}</pre>`;
}

function Data({ views, size }) {
  const data = fromBase64(views.base64);
  const [view, setView] = useState(views.protobuf ? "protobuf" : views.json ? "json" : views.text !== undefined && views.text !== null ? "text" : "hex");
  const hasText = views.text !== undefined && views.text !== null;
  return html`<div class="section"><h3>Data <span class="hint">${bytes(size)}</span>
      <${Choice} label="Show the data as" value=${view} onPick=${setView} options=${[["text", "Text", hasText], ["json", "JSON", Boolean(views.json)], ["hex", "Hex"], ["protobuf", "Protobuf", Boolean(views.protobuf)]]} /></h3>
    ${size === 0 ? html`<p class="help-line">No data.</p>`
      : view === "text" ? html`<pre class="detail-data" tabindex="0">${views.text.slice(0, CUT)}</pre>`
      : view === "json" ? html`<${Json} value=${views.json} />`
      : view === "protobuf" ? html`<p class="help-line">${views.message_type}</p><${Json} value=${views.protobuf} />`
      : html`<${Hex} data=${data} />`}
    ${hasText && view === "text" && views.text.length > CUT && html`<p class="help-line">Only the first ${bytes(CUT)} are shown.</p>`}</div>`;
}

function Properties({ properties, types }) {
  const rows = Object.entries(properties);
  if (!rows.length) return null;
  return html`<div class="section"><h3>Properties <span class="hint">${count(rows.length)}</span></h3><div class="sheet first"><table class="props"><caption class="unseen">Properties</caption>
    <tbody>${rows.map(([name, value]) => html`<tr key=${name}><td>${name}</td><td><div class="value">${shown(value)}</div></td><td class="type">${types.get(name) ?? kindOf(value)}</td></tr>`)}</tbody></table></div></div>`;
}

function Origin({ origin }) {
  return html`<div class="section"><h3>Origin</h3><${Facts} rows=${Object.entries(origin).filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length))
    .map(([name, value]) => [name[0].toUpperCase() + name.slice(1).replaceAll("_", " "), name === "store" ? html`<a href=${to("channel", value)}>${value}</a>` : name === "at" ? moment(value) : shown(value)])} /></div>`;
}

export function Detail({ kind, name, id, known, onClose, several = false, part = "events" }) {
  const box = useRef(null);
  const loaded = useLoaded((signal) => getExact(routeOf(kind, name, part, String(id)), {}, signal), [id]);
  const columns = useLoaded((signal) => get(routeOf(kind, name, "columns"), {}, signal), [name]);
  useEffect(() => { if (matchMedia("(max-width: 1080px)").matches) box.current.scrollIntoView({ block: "start" }); }, []);
  const { value } = loaded, event = value?.event ?? known;
  const types = propertyTypes(columns.value?.items ?? []);
  const again = () => { draft.take(kind, name, value, types); go(kind, name, "publish"); };
  const link = `${location.origin}${location.pathname}${to(kind, name, "events", { event: String(id) })}`;
  const [copied, setCopied] = useState(false);
  const copy = () => {
    navigator.clipboard?.writeText(link).catch(() => {});
    setCopied(true);
  };
  const acts = html`<a class="button small" href=${link} onClick=${copy} title="Link to this event">${copied ? "Link copied" : "Link"}</a>${value && html`<${Button} kind="small" icon="send" onClick=${again}>Edit a copy</${Button}>`}
    <button type="button" class="button plain icon small" aria-label="Close the event" onClick=${onClose}>✕</button>`;
  return html`<div class="detail" ref=${box}><${Panel} title="Event ${count(id)}${several ? ` of ${name}` : ""}" acts=${acts}>
    ${loaded.error && html`<${Refusal} error=${loaded.error} slim />`}
    ${!event && !loaded.error && html`<${Loading} />`}
    ${event && html`<${Facts} rows=${[
        ["Published", html`<span title=${utc(event.published)}>${moment(event.published)}.${clock(event.published).slice(-3)}</span>`],
        event.tag ? ["Tag", event.tag] : null,
        event.is_delta ? ["Kind", html`<${Tag}>delta: only changed properties</${Tag}>`] : null,
        event.redelivery_count ? ["Redelivered", html`<${Tag} kind="warn" icon="again">${count(event.redelivery_count)} times</${Tag}>`] : null,
        event.ttl ? ["Time to live", duration(Number(event.ttl))] : null,
        event.priority !== undefined && event.priority !== 4 ? ["Priority", shown(event.priority)] : null,
        event.persistent === false ? ["Stored", "in memory only"] : null,
        ...Object.entries(event.headers ?? {}).filter(([key]) => !ORDINARY.has(key)).map(([key, header]) => [key[0].toUpperCase() + key.slice(1).replaceAll("_", " "), shown(header)]),
      ]} />
      <${Properties} properties=${event.properties ?? {}} types=${types} />
      ${event.origin && html`<${Origin} origin=${event.origin} />`}
      ${value && html`<${Data} views=${value.views} size=${Number(event.size)} />`}`}</${Panel}></div>`;
}
