// Events as rows of a list: of one channel or queue, or of several channels, each event with its own.
import { html } from "../view.js";
import { clock, count, moment } from "../format.js";

/** What an event is called in an address: its id, and with several channels its channel. */
export const idOf = (event) => (event.channel === undefined ? String(event.event_id) : `${event.event_id}@${event.channel}`);

/** What an event says, in one line: its properties, then its data. */
export function Summary({ event }) {
  const properties = Object.entries(event.properties ?? {});
  const data = event.message !== undefined && event.message !== null ? JSON.stringify(event.message) : event.data ?? (event.data_base64 ? `binary, ${event.size} bytes` : "");
  return html`<span class="what">${event.is_delta && "Δ "}${properties.slice(0, 12).map(([key, value]) =>
    html`<span key=${key}><span class="key">${key}=</span><b>${typeof value === "object" ? JSON.stringify(value) : String(value)}</b> </span>`)}${String(data).slice(0, 300)}</span>`;
}

function EventRow({ event, chosen, onPick }) {
  const own = event.channel;
  return html`<button type="button" class="event-row ${own === undefined ? "" : "of-channel"}" aria-current=${chosen ? "true" : undefined} onClick=${() => onPick(idOf(event))}>
    ${own !== undefined && html`<span class="channel" title=${own}>${own}</span>`}<span class="id">${count(event.event_id)}</span><span class="at" title=${moment(event.published)}>${clock(event.published)}</span>
    <span class="tag-text">${event.tag ?? ""}</span><${Summary} event=${event} /></button>`;
}

/** Up and down move through the rows of a list of events. */
function alongRows(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const rows = [...event.currentTarget.querySelectorAll("button.event-row")];
  const next = rows[rows.indexOf(document.activeElement) + step];
  if (next) { event.preventDefault(); next.focus(); }
}

const RowsHead = ({ several }) => html`<div class="event-row event-head ${several ? "of-channel" : ""}" aria-hidden="true">${several && html`<span class="channel">Channel</span>`}<span class="id">Id</span><span class="at">Published</span><span class="tag-text">Tag</span><span>Properties and data</span></div>`;

export function Rows({ events, chosen, onPick, label, live = false, several = false }) {
  return html`<${RowsHead} several=${several} /><div class="events event-room ${live ? "live" : ""}" role="group" aria-label=${label} onKeyDown=${alongRows}>
    ${events.map((event) => html`<${EventRow} key=${idOf(event)} event=${event} chosen=${idOf(event) === chosen} onPick=${onPick} />`)}</div>`;
}
