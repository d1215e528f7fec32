// Events that wait for their time.
import { html, useState } from "../view.js";
import { get, path, remove } from "../api.js";
import { count, duration, many, moment } from "../format.js";
import { Button, Empty, Head, Loading, Note, Panel, Refusal, Table, TypeName, tell, useDoing, useRefreshed } from "../parts.js";
import { to } from "../router.js";
import { Summary } from "./rows.js";

export function ScheduledPage() {
  const loaded = useRefreshed((signal) => get("/schedule", { limit: 500 }, signal), [], 3000);
  const [cancelling, setCancelling] = useState(null);
  const doing = useDoing(), rows = loaded.value?.items;
  const cancel = async () => {
    const done = await doing.act(async () => { await remove(path(`${cancelling.kind}s`, cancelling.destination, "schedule", String(cancelling.number))); return true; });
    if (done) { tell(`Scheduled event ${count(cancelling.number)} was cancelled.`); setCancelling(null); loaded.again(); }
  };
  return html`<div class="page"><${Head} title="Scheduled" lead="Events that will be published at a later time." />
    ${loaded.error && html`<${Refusal} error=${loaded.error} />`}
    <${Panel} label="Scheduled events" bare>${!rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} first label="Scheduled events" rows=${rows} keyOf=${(row) => `${row.destination} ${row.number}`} columns=${[
      { label: "When", kind: "lead tight", cell: (row) => html`${moment(row.deliver_at)}<div class="sub">in ${duration(Math.max(0, new Date(row.deliver_at) - Date.now()))}</div>` },
      { label: "Where", cell: (row) => html`<a href=${to(row.kind, row.destination)}>${row.destination}</a>` },
      { label: "Number", kind: "num", cell: (row) => count(row.number) },
      { label: "Event", cell: (row) => html`<span class="mono"><${Summary} event=${row.event} /></span>` },
      { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => html`<${Button} kind="small danger" onClick=${() => setCancelling(row)} label="Cancel number ${row.number} for ${row.destination}">Cancel…</${Button}>` },
    ]} />` : html`<${Empty} title="No scheduled events" python=${'from datetime import datetime, timedelta, UTC\norders.publish(b"later", deliver_at=datetime.now(UTC) + timedelta(hours=1))'}>An event with a delivery time is stored safely, and published at that time.</${Empty}>`}</${Panel}>
    ${loaded.value?.next && html`<p class="help-line">The first ${many(rows.length, "event")}.</p>`}
    ${cancelling && html`<${TypeName} title="Cancel a scheduled event" name=${cancelling.destination} verb="Cancel event" doing=${doing} onDone=${cancel} onClose=${() => setCancelling(null)}>
      <${Note} kind="warn" title="It will never be published.">It was scheduled on ${cancelling.destination} for ${moment(cancelling.deliver_at)}.</${Note}></${TypeName}>`}</div>`;
}
