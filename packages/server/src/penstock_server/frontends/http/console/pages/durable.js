// One durable: how far it is behind, who reads it, what it is owed.
import { html, useEffect, useState } from "../view.js";
import { get, path, post, remove } from "../api.js";
import { ago, backoff, brief, count, duration, known, many, moment, quoted, span } from "../format.js";
import { durableHistory, hasFigures, useLive, useWatched } from "../live.js";
import { Lacks } from "../session.js";
import { Button, Empty, Facts, Head, Loading, Note, Panel, Refusal, Stat, Tag, TypeName, tell, useDoing, useLoaded, useRefreshed } from "../parts.js";
import { Plot } from "../plot.js";
import { go, to } from "../router.js";
import { Day } from "./day.js";
import { Detail } from "./detail.js";
import { Rows } from "./rows.js";
import { PurgeDialog } from "./purge.js";
import { SeekDialog } from "./seek.js";

const PAGE = 50;

function Outstanding({ channel, name, outstanding }) {
  const [after, setAfter] = useState([undefined]);
  const [chosen, setChosen] = useState(null);
  const loaded = useLoaded((signal) => get(path("channels", channel, "durables", name, "events"), { limit: PAGE, after: after.at(-1), data_bytes: 400 }, signal), [channel, name, after]);
  const page = loaded.value;
  // What was empty fills by itself; a list that one reads does not move.
  useEffect(() => { if (page?.items.length === 0) loaded.again(); }, [outstanding > 0]);
  return html`<div class="events-grid ${chosen === null ? "" : "with-detail"}"><${Panel} title="Outstanding events" hint="in delivery order; browsing changes nothing" bare>
    ${loaded.error && html`<div class="panel-body"><${Refusal} error=${loaded.error} /></div>`}
    ${!page && !loaded.error && html`<${Loading} />`}
    ${page && (page.items.length ? html`<${Rows} label="Outstanding events" events=${page.items} chosen=${chosen} onPick=${setChosen} />` : html`<${Empty} title="No outstanding events">All events for this durable have been acknowledged.</${Empty}>`)}
    ${page && html`<div class="pager"><span>${many(outstanding, "event")} outstanding</span><span class="fill"></span><${Button} kind="small plain" icon="again" onClick=${loaded.again}>Refresh</${Button}>
      <${Button} kind="small" icon="left" disabled=${after.length < 2} onClick=${() => setAfter(after.slice(0, -1))}>Previous</${Button}>
      <${Button} kind="small" disabled=${page.next === null} onClick=${() => setAfter([...after, page.next])}>Next</${Button}></div>`}</${Panel}>
    ${chosen !== null && html`<${Detail} key=${chosen} kind="channel" name=${channel} id=${chosen} onClose=${() => setChosen(null)} />`}</div>`;
}

export function DurablePage({ channel, name }) {
  useWatched(channel);
  const route = path("channels", channel, "durables", name);
  const loaded = useRefreshed((signal) => get(route, {}, signal), [channel, name], 1500);
  const [asked, setAsked] = useState(null);
  const unbinding = useDoing(), deleting = useDoing();
  const now = useLive(), history = durableHistory(channel, name);
  const info = loaded.value, last = history.last ?? {};
  const rate = (now.byChannel.get(channel) ?? []).find((each) => each.name === name);
  const unbind = async () => {
    const done = await unbinding.act(() => post(`${route}/unbind`));
    if (done) { tell(done.count ? `${many(done.count, "client")} unbound; their unacknowledged events go back.` : "No client was bound."); setAsked(null); loaded.again(); }
  };
  const destroy = async () => {
    const done = await deleting.act(async () => { await remove(route); return true; });
    if (done) { tell(`Durable ${name} is deleted.`); go("channel", channel, "durables"); }
  };
  const crumbs = [[channel, to("channel", channel)], ["Durables", to("channel", channel, "durables")]];
  const acts = info && html`<${Button} onClick=${() => setAsked("unbind")}>Unbind clients…</${Button}><${Button} onClick=${() => setAsked("seek")}>Move…</${Button}><${Button} kind="danger" onClick=${() => setAsked("purge")}>Purge…</${Button}><${Button} kind="danger" onClick=${() => setAsked("delete")}>Delete…</${Button}>`;
  return html`<div class="page"><${Head} crumbs=${crumbs} title=${name} tags=${info && html`<${Tag} kind="accent">durable</${Tag}><${Tag}>${info.type}</${Tag}>${info.deprecated ? html`<${Tag} kind="warn">deprecated</${Tag}>` : ""}`} acts=${acts} />
    ${loaded.error && html`<${Refusal} error=${loaded.error} />`}${!info && !loaded.error && html`<${Loading} />`}
    ${info && html`${info.clients.length === 0 && info.outstanding > 0 && html`<${Note} kind="warn" title="No client reads this durable.">${many(info.outstanding, "event")} outstanding; the oldest has waited for ${duration(info.oldest_outstanding_ms)}.</${Note}>`}
      <dl class="stats"><${Stat} label="Outstanding" swatch="s1" value=${count(rate?.outstanding ?? info.outstanding)} under="not acknowledged" />
        <${Stat} label="In flight" swatch="s2" value=${count(rate?.in_flight ?? info.in_flight)} under="of these: with a client" />
        <${Stat} label="Ready" value=${count(Math.max(0, (rate?.outstanding ?? info.outstanding) - (rate?.in_flight ?? info.in_flight) - info.waiting))} under="of these: with no client" />
        ${info.waiting > 0 && html`<${Stat} label="Waiting" value=${count(info.waiting)} under=${`the first until ${moment(info.waiting_until_us / 1000)}`} />`}
        <${Stat} label="Oldest event" value=${span(rate ? rate.oldest_outstanding_ms : info.oldest_outstanding_ms)} />
        ${hasFigures() ? html`<${Stat} label="Acknowledged" value=${brief(last.acknowledged)} unit="/s" under=${`last read ${ago(info.last_read_ms)}`} />`
          : html`<${Stat} label="Last read" value=${span(info.last_read_ms)} under=${known(info.last_read_ms) ? "ago" : "never"} />`}
        <${Stat} label="Clients" value=${count(info.clients.length)} under=${info.redelivered ? `${count(info.redelivered)} redelivered` : ""} /></dl>
      <div class="columns wide-left"><${Panel} title="Lag" hint="events" bare=${!hasFigures()}>${hasFigures() ? html`<${Plot} label="Lag of ${name}" times=${history.times}
          series=${[{ name: "Outstanding", values: history.values("outstanding") }, { name: "In flight", values: history.values("in_flight") }]} />` : html`<${Lacks} what="Figures" right="monitor">The lag over time is not shown.</${Lacks}>`}</${Panel}>
        <${Panel} title="Attributes"><${Facts} rows=${[["Type", info.type], ["Selector", info.selector ? html`<code>${info.selector}</code>` : "all events"], ["Position", count(info.position)],
          ["Survives a restart", info.persistent ? "yes" : "no"], ["Maximum deliveries", info.max_deliveries ? count(info.max_deliveries) : "no limit"],
          ["Backoff", backoff(info.backoff)], ["Acknowledgement timeout", info.ack_timeout ? duration(info.ack_timeout) : "no limit"],
          info.order_by ? ["Order by", html`<code>${info.order_by}</code>`] : null, info.strict_order ? ["Strict order", "yes"] : null, ["Cluster-wide", info.cluster_wide ? "yes" : "no"]]} /></${Panel}></div>
      <${Panel} title="Clients" bare>${info.clients.length ? html`<ul class="acts-list">${info.clients.map((client, index) => html`<li key=${`${client} ${index}`}><span class="mono">${client}</span></li>`)}</ul>`
        : html`<${Empty} title="No client is bound" python=${`for event in session.channels.get(${JSON.stringify(channel)}).durables.get(${JSON.stringify(name)}).subscribe():\n    event.ack()`} shell="penstock durable browse ${quoted(channel)} ${quoted(name)}">The durable keeps its position while no client is connected.</${Empty}>`}</${Panel}>
      <div class="section"><${Outstanding} channel=${channel} name=${name} outstanding=${info.outstanding} /></div>
      ${hasFigures() && html`<${Day} channel=${channel} durable=${name} whose="of ${name}" />`}`}
    ${asked === "unbind" && html`<${TypeName} title="Unbind the clients of ${name}" name=${name} verb="Unbind" doing=${unbinding} onDone=${unbind} onClose=${() => setAsked(null)}>
      <${Note} kind="warn" title="${many(info.clients.length, "client")} lose their seats.">Events that they have not acknowledged go back and are delivered again. The clients may subscribe again at once.</${Note}></${TypeName}>`}
    ${asked === "seek" && html`<${SeekDialog} route="${route}/seek" name=${name} onClose=${() => setAsked(null)} onDone=${loaded.again} />`}
    ${asked === "purge" && html`<${PurgeDialog} route="${route}/purge" name=${name} what="outstanding events of ${name}" of=${info.outstanding} onClose=${() => setAsked(null)} onDone=${loaded.again} />`}
    ${asked === "delete" && html`<${TypeName} title="Delete durable ${name}" name=${name} verb="Delete" doing=${deleting} onDone=${destroy} onClose=${() => setAsked(null)}>
      <${Note} kind="warn" title="Its position is lost.">${many(info.outstanding, "outstanding event")} will no longer be kept for it; ${many(info.clients.length, "client")} will be refused.</${Note}></${TypeName}>`}</div>`;
}
