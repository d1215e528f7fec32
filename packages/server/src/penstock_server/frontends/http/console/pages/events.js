// Browse stored events page by page, or watch events as they are published. Neither consumes events.
import { html, useEffect, useState } from "../view.js";
import { get } from "../api.js";
import { count, many, quoted } from "../format.js";
import { Button, Choice, Empty, Field, Loading, Panel, Refusal } from "../parts.js";
import { note } from "../router.js";
import { Detail } from "./detail.js";
import { Rows } from "./rows.js";
import { routeOf } from "./store.js";
import { Tail } from "./tail.js";

const PAGE = 50;

function Browse({ kind, name, info, selector, from, chosen, setChosen, onRefused }) {
  const [page, setPage] = useState({ items: null, next: null });
  const [steps, setSteps] = useState([{}]);
  const [turn, setTurn] = useState(0);
  const [failed, setFailed] = useState(null);
  const newest = kind === "channel" && from === "newest", route = routeOf(kind, name, "events"), step = steps.at(-1);
  useEffect(() => { setSteps([{}]); }, [selector, from]);
  useEffect(() => {
    const control = new AbortController(), query = { selector, data_bytes: 400 };
    const where = kind === "queue" ? {} : newest ? { newest: true } : { start: from };
    get(route, { ...query, ...where, limit: PAGE, after: step.after }, control.signal).then((answer) => { setPage(newest ? { ...answer, items: [...answer.items].reverse() } : answer); setFailed(null); onRefused(null); },
      (error) => { if (error.name !== "AbortError") { setFailed(error); onRefused(error); } });
    return () => control.abort();
  }, [selector, from, step, turn]);
  // What was empty fills by itself; a list that one reads does not move.
  useEffect(() => { if (page.items?.length === 0) setTurn((number) => number + 1); }, [info.events > 0]);
  const items = page.items ?? [];
  const hasMore = page.next !== null && page.next !== undefined;
  const onward = () => setSteps([...steps, { after: page.next }]);
  if (page.items === null) return failed ? null : html`<${Loading} />`;
  return html`<div class="events-grid ${chosen === null ? "" : "with-detail"}">
    <${Panel} bare label="Events">
      ${items.length ? html`<${Rows} label="Stored events" events=${items} chosen=${chosen} onPick=${setChosen} />`
        : hasMore ? html`<${Empty} title="No matches yet" acts=${html`<${Button} kind="first" onClick=${onward}>Continue</${Button}>`}>No ${selector ? "matching " : ""}event was found
            ${page.looked_at ? html` among the ids ${count(page.looked_at.first_id)} to ${count(page.looked_at.last_id)}` : " so far"}; ${newest ? "older" : "newer"} events have not been examined yet.</${Empty}>`
        : selector || steps.length > 1 ? html`<${Empty} title="No matching events">No ${steps.length > 1 ? (newest ? "older " : "newer ") : ""}stored event ${selector ? "matches the selector" : "is in this part"}.</${Empty}>`
        : html`<${Empty} title="No stored events" shell="penstock ${kind === "queue" ? "queue push" : "publish"} ${quoted(name)} 'hello'"
            python=${`session.${kind}s.get(${JSON.stringify(name)}).${kind === "queue" ? "push" : "publish"}(b"hello", properties={"price": 9.5})`}>Published events appear here.</${Empty}>`}
      <div class="pager"><span>${items.length ? `${many(items.length, "event")} of ${count(info.events)} stored` : ""}</span><span class="fill"></span>
        <${Button} kind="small plain" icon="again" onClick=${() => setTurn(turn + 1)}>Refresh</${Button}>
        <${Button} kind="small" icon="left" disabled=${steps.length < 2} onClick=${() => setSteps(steps.slice(0, -1))}>${newest ? "Newer" : "Before"}</${Button}>
        <${Button} kind="small" disabled=${!hasMore} onClick=${onward}>${newest ? "Older" : "After"}</${Button}></div></${Panel}>
    ${chosen !== null && html`<${Detail} key=${chosen} kind=${kind} name=${name} id=${chosen} onClose=${() => setChosen(null)} onGone=${() => setTurn(turn + 1)} />`}</div>`;
}

/** What an address says about the events of a store: `event` is the one that is shown in full. */
function asked(kind, query) {
  const from = query.from ?? (kind === "queue" ? "earliest" : "newest");
  return {
    mode: query.view === "live" ? "live" : "browse", selector: query.selector ?? "", from,
    origin: ["newest", "earliest"].includes(from) ? from : "at", event: /^\d+$/.test(query.event ?? "") ? query.event : null,
  };
}

export function Events({ kind, name, info, route }) {
  const given = asked(kind, route.query);
  const [mode, setMode] = useState(given.mode);
  const [typed, setTyped] = useState(given.selector);
  const [selector, setSelector] = useState(given.selector);
  const [origin, setOrigin] = useState(given.origin);
  const [at, setAt] = useState(given.origin === "at" ? given.from : "");
  const [from, setFrom] = useState(given.from);
  const [chosen, setChosen] = useState(given.event);
  const [error, setError] = useState(null);
  // A link to another event of the same store, or the way back from it.
  useEffect(() => {
    setMode(given.mode); setTyped(given.selector); setSelector(given.selector); setOrigin(given.origin); setFrom(given.from); setChosen(given.event);
    if (given.origin === "at") setAt(given.from);
  }, [route]);
  const apply = (event) => {
    event?.preventDefault();
    setError(null);
    setSelector(typed.trim());
    setFrom(origin === "at" ? at.trim() || "earliest" : origin);
  };
  useEffect(() => { note(kind, name, "events", { view: mode === "live" ? "live" : "", selector, from: from === (kind === "queue" ? "earliest" : "newest") ? "" : from, event: chosen }); }, [mode, selector, from, chosen]);
  const atSelector = error?.code === "invalid-selector";
  return html`<div class="stack"><form class="find" onSubmit=${apply}>
      <${Choice} label="View" value=${mode} onPick=${(next) => { setError(null); setMode(next); }} options=${[["browse", "Stored"], ["live", "Live"]]} />
      ${mode === "browse" && kind === "channel" && html`<${Field} label="From" value=${origin} onInput=${(next) => { setOrigin(next); if (next !== "at") setFrom(next); }}
        options=${[["newest", "newest first"], ["earliest", "oldest first"], ["at", "an id or a time…"]]} />
        ${origin === "at" && html`<${Field} label="Id or time" value=${at} onInput=${setAt} placeholder="4711 or 2026-05-04T12:00:00Z" mono />`}`}
      <div class="grow"><${Field} label="Selector" value=${typed} onInput=${setTyped} mono placeholder="price > 5 AND sku LIKE 'a%'" wrong=${atSelector ? `${error.code}: ${error.message}` : undefined} /></div>
      <button type="submit" class="button first">${mode === "live" ? "Watch" : "Find"}</button></form>
    ${error && !atSelector && html`<${Refusal} error=${error} />`}
    ${mode === "live" ? html`<${Tail} kind=${kind} name=${name} selector=${selector} chosen=${chosen} setChosen=${setChosen} onRefused=${setError} />`
      : html`<${Browse} kind=${kind} name=${name} info=${info} selector=${selector} from=${from} chosen=${chosen} setChosen=${setChosen} onRefused=${setError} />`}</div>`;
}
