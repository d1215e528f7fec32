// Who is connected, and ending a connection.
import { html, useState } from "../view.js";
import { all, path, remove } from "../api.js";
import { ago, bytes, count, many, moment } from "../format.js";
import { may } from "../session.js";
import { Button, Empty, Field, Head, Loading, Note, Panel, Refusal, Table, Tag, TypeName, tell, useDoing, useRefreshed } from "../parts.js";

const SHOWN = 200;

export function ConnectionsPage() {
  const loaded = useRefreshed((signal) => all("/connections", {}, signal), [], 2000);
  const [closing, setClosing] = useState(null);
  const [filter, setFilter] = useState("");
  const doing = useDoing(), sought = filter.trim().toLowerCase();
  const rows = loaded.value?.filter((row) => !sought || `${row.session} ${row.user} ${row.client}`.toLowerCase().includes(sought));
  const close = async () => {
    const done = await doing.act(async () => { await remove(path("connections", closing.id)); return true; });
    if (done) { tell(`The connection of ${closing.user} is closed.`); setClosing(null); loaded.again(); }
  };
  return html`<div class="page"><${Head} title="Connections" lead=${loaded.value ? `${many(loaded.value.length, "client")} connected.` : ""} />
    ${loaded.error && html`<${Refusal} error=${loaded.error} />`}
    ${loaded.value?.length > 10 && html`<div class="find" style=${{ marginBottom: "16px" }}><div class="grow"><${Field} label="Filter by session, user or client" type="search" value=${filter} onInput=${setFilter} /></div></div>`}
    <${Panel} label="Connections" bare>${!rows ? !loaded.error && html`<${Loading} />` : rows.length ? html`<${Table} first label="Connections" rows=${rows.slice(0, SHOWN)} keyOf=${(row) => row.id} columns=${[
      { label: "User", kind: "lead", cell: (row) => html`${row.user}<div class="sub mono">${row.session}</div>` },
      { label: "Client", cell: (row) => html`${row.client || "–"}<div class="sub">${row.protocol}</div>` },
      { label: "Opened", kind: "tight", cell: (row) => moment(row.opened) },
      { label: "Last data", kind: "num", cell: (row) => ago(row.idle_ms) },
      { label: "Subscriptions", kind: "num", cell: (row) => count(row.subscriptions) },
      { label: "Requests", kind: "num", cell: (row) => count(row.requests) },
      { label: "Unsent", kind: "num", cell: (row) => (row.is_stalled ? html`<${Tag} kind="warn" icon="warning">${bytes(row.unsent_bytes)}, stalled</${Tag}>` : bytes(row.unsent_bytes)) },
      { label: "Acts", hidden: true, kind: "acts-cell", cell: (row) => may("admin") && html`<${Button} kind="small danger" onClick=${() => setClosing(row)} label="Close the connection of ${row.user}, ${row.session}">Close…</${Button}>` },
    ]} />` : sought && loaded.value.length ? html`<${Empty} title="No connection matches" />` : html`<${Empty} title="No clients are connected" python=${`import penstock\n\nwith penstock.connect("penstock://${location.hostname}:9000") as session:\n    print(session.channels.list())`}>Connected clients are listed here.</${Empty}>`}</${Panel}>
    ${rows?.length > SHOWN && html`<p class="help-line">The first ${count(SHOWN)} of ${count(rows.length)} are shown; the filter finds the others.</p>`}
    ${closing && html`<${TypeName} title="Close a connection" name=${closing.user} verb="Close connection" doing=${doing} onDone=${close} onClose=${() => setClosing(null)}>
      <${Note} kind="warn" title="${many(closing.subscriptions, "subscription")} of ${closing.session} end.">Its unacknowledged events go back. Its client may connect again at once.</${Note}></${TypeName}>`}</div>`;
}
