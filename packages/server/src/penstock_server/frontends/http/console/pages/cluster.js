// The cluster: which node owns the realm, which stand by, and which are not there.
import { html } from "../view.js";
import { get } from "../api.js";
import { count, duration, many, moment } from "../format.js";
import { Empty, Facts, Head, Loading, Note, Panel, Refusal, Table, Tag, useRefreshed } from "../parts.js";

const STATES = { owner: ["ok", "check"], "stands by": ["", "check"], drained: ["warn", "pause"], leaving: ["warn", "out"], left: ["warn", "out"], down: ["bad", "error"] };
const WAITS_S = 1;

export function ClusterPage() {
  const loaded = useRefreshed((signal) => get("/cluster", {}, signal), [], 2000);
  const cluster = loaded.value, nodes = cluster?.nodes ?? [];
  const away = nodes.filter(({ state }) => state === "down" || state === "left");
  return html`<div class="page"><${Head} title="Cluster" lead=${cluster?.node ? `${count(nodes.length - away.length)} of ${many(nodes.length, "node")} up; ${cluster.node} owns the realm.` : ""} />
    ${loaded.error && html`<${Refusal} error=${loaded.error} />`}
    ${!cluster ? !loaded.error && html`<${Loading} />` : cluster.local_to ? html`<${Note} title="Local channels of node ${cluster.local_to}">They are stored on this node only, and work without the cluster. Cluster-wide channels are in the realm of the cluster, at the other ports of its nodes.</${Note}>` : !cluster.node ? html`<${Empty} title="This realm is not in a cluster" shell="penstock cluster demo">One process serves it, on one machine.</${Empty}>` : html`
      ${away.map(({ node, state }) => html`<${Note} key=${node} kind=${state === "down" ? "bad" : "warn"} title="${node} ${state === "down" ? "is down" : "was stopped"}.">${nodes.length - away.length > 1 ? "Another node can still take over." : "No other node could take over: start this node, or another one."}</${Note}>`)}
      ${nodes.filter(({ unfit }) => unfit).map(({ node, unfit }) => html`<${Note} key=${`${node} unfit`} kind="warn" title="${node} cannot take over the realm.">${unfit}</${Note}>`)}
      ${cluster.engine_waiting_s > WAITS_S && html`<${Note} kind="bad" title="The engine does not answer.">Publishes have waited for ${duration(cluster.engine_waiting_s * 1000)}.</${Note}>`}
      <${Panel} title="Realm"><${Facts} rows=${[
        ["Owner", cluster.node], ["Epoch", count(cluster.epoch)],
        ["Lease", `${cluster.lease_left_s.toFixed(1)} s of ${cluster.lease_s} s left`],
      ]} /></${Panel}>
      <${Panel} label="Nodes" bare><${Table} first label="Nodes" rows=${nodes} keyOf=${(row) => row.node} columns=${[
        { label: "Node", kind: "lead", cell: (row) => html`${row.node}<div class="sub mono">${row.url}</div>` },
        { label: "State", cell: (row) => html`<${Tag} kind=${STATES[row.state]?.[0]} icon=${STATES[row.state]?.[1]}>${row.state}</${Tag}>${row.unfit && html` <${Tag} kind="warn" icon="warning">unfit</${Tag}>`}` },
        { label: "Version", cell: (row) => row.version },
        { label: "Renewed", kind: "tight", cell: (row) => (row.renewed_us ? moment(new Date(row.renewed_us / 1000).toISOString()) : "–") },
      ]} /></${Panel}>
      ${cluster.local.length > 0 && html`<${Panel} label="Local channels and queues" bare><${Table} label="Local channels and queues" rows=${cluster.local} keyOf=${(row) => row.name} columns=${[
        { label: "Local", kind: "lead", cell: (row) => html`${row.name} @${row.node}<div class="sub mono">${row.url}</div>` },
        { label: "Kind", cell: (row) => row.kind },
      ]} /></${Panel}>`}`}</div>`;
}
