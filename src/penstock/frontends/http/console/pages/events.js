// Snoop: browse what is stored page by page, or watch events as they come. Neither takes anything.
import { html, useEffect, useRef, useState } from "../view.js";
import { get, stream } from "../api.js";
import { clock, count, many, moment, quoted } from "../format.js";
import { Button, Choice, Empty, Field, Loading, Note, Panel, Refusal } from "../parts.js";
import { note } from "../router.js";
import { Detail } from "./detail.js";
import { routeOf } from "./store.js";

const PAGE = 50;
const BUFFER = 500;
const DRAW_MS = 200;
/** What Space works. */
const SPACED = "input, textarea, select, summary, [contenteditable], [role=tree], button:not(.event-row)";

/** What an event says, in one line: its properties, then its data. */
export function Summary({ event }) {
  const properties = Object.entries(event.properties ?? {});
  const data = event.message !== undefined && event.message !== null ? JSON.stringify(event.message) : event.data ?? (event.data_base64 ? `binary, ${event.size} bytes` : "");
  return html`<span class="what">${event.is_delta && "Δ "}${properties.slice(0, 12).map(([key, value]) =>
    html`<span key=${key}><span class="key">${key}=</span><b>${typeof value === "object" ? JSON.stringify(value) : String(value)}</b> </span>`)}${String(data).slice(0, 300)}</span>`;
}

export function EventRow({ event, chosen, onPick }) {
  return html`<button type="button" class="event-row" aria-current=${chosen ? "true" : undefined} onClick=${() => onPick(String(event.event_id))}>
    <span class="id">${count(event.event_id)}</span><span class="at" title=${moment(event.published)}>${clock(event.published)}</span>
    <span class="tag-text">${event.tag ?? ""}</span><${Summary} event=${event} /></button>`;
}

/** Up and down move through the rows of a list of events. */
export function alongRows(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const rows = [...event.currentTarget.querySelectorAll("button.event-row")];
  const next = rows[rows.indexOf(document.activeElement) + step];
  if (next) { event.preventDefault(); next.focus(); }
}

export const RowsHead = () => html`<div class="event-row event-head" aria-hidden="true"><span class="id">Id</span><span class="at">Published</span><span class="tag-text">Tag</span><span>Properties and data</span></div>`;

export function Rows({ events, chosen, onPick, label, live = false }) {
  return html`<${RowsHead} /><div class="events event-room ${live ? "live" : ""}" role="group" aria-label=${label} onKeyDown=${alongRows}>
    ${events.map((event) => html`<${EventRow} key=${event.event_id} event=${event} chosen=${String(event.event_id) === chosen} onPick=${onPick} />`)}</div>`;
}

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
        : hasMore ? html`<${Empty} title="Nothing found yet" acts=${html`<${Button} kind="first" onClick=${onward}>Look on</${Button}>`}>No event ${selector ? "that matches" : ""} was found
            ${page.looked_at ? html` among the ids ${count(page.looked_at.first_id)} to ${count(page.looked_at.last_id)}` : " so far"}; there are ${newest ? "older" : "newer"} ones that were not looked at.</${Empty}>`
        : selector || steps.length > 1 ? html`<${Empty} title="No event here matches">Nothing that is stored ${steps.length > 1 ? (newest ? "before" : "after") : ""} ${selector ? "matches the selector" : "lies in this part"}.</${Empty}>`
        : html`<${Empty} title="Nothing is stored" shell="penstock ${kind === "queue" ? "queue push" : "publish"} ${quoted(name)} 'hello'"
            python=${`session.${kind}s.get(${JSON.stringify(name)}).${kind === "queue" ? "push" : "publish"}(b"hello", properties={"price": 9.5})`}>Events appear here once somebody publishes them.</${Empty}>`}
      <div class="pager"><span>${items.length ? `${many(items.length, "event")} of ${count(info.events)} stored` : ""}</span><span class="fill"></span>
        <${Button} kind="small plain" icon="again" onClick=${() => setTurn(turn + 1)}>Look again</${Button}>
        <${Button} kind="small" icon="left" disabled=${steps.length < 2} onClick=${() => setSteps(steps.slice(0, -1))}>${newest ? "Newer" : "Before"}</${Button}>
        <${Button} kind="small" disabled=${!hasMore} onClick=${onward}>${newest ? "Older" : "After"}</${Button}></div></${Panel}>
    ${chosen !== null && html`<${Detail} key=${chosen} kind=${kind} name=${name} id=${chosen} onClose=${() => setChosen(null)} onGone=${() => setTurn(turn + 1)} />`}</div>`;
}

function Tail({ kind, name, selector, chosen, setChosen, onRefused }) {
  const [shown, setShown] = useState([]);
  const [running, setRunning] = useState(true);
  const [waiting, setWaiting] = useState(0);
  const [total, setTotal] = useState(0);
  const [lost, setLost] = useState(0);
  const [state, setState] = useState("opening");
  const kept = useRef({ buffer: [], running: true, total: 0, dirty: false });
  kept.current.running = running;
  useEffect(() => {
    const control = new AbortController(), own = kept.current;
    own.buffer = [];
    own.total = 0;
    setShown([]); setTotal(0); setWaiting(0); setLost(0); setState("opening");
    stream(routeOf(kind, name, "live"), { selector }, control.signal, (what, data) => {
      if (what === "event") {
        own.buffer.unshift(data);
        own.buffer.length = Math.min(own.buffer.length, BUFFER);
        own.total += 1;
        own.dirty = true;
      } else if (what === "lost") setLost((before) => before + data.events);
      else if (what === "end") setState("ended");
    }, () => { setState("open"); onRefused(null); }).then(() => setState("ended"), (error) => {
      if (!control.signal.aborted) { setState("ended"); onRefused(error); }
    });
    return () => control.abort();
  }, [kind, name, selector]);
  useEffect(() => {
    let drawn = kept.current.total;
    const timer = setInterval(() => {
      const own = kept.current;
      if (!own.dirty) return;
      if (own.running) { setShown([...own.buffer]); drawn = own.total; own.dirty = false; setWaiting(0); setTotal(own.total); } else setWaiting(own.total - drawn);
    }, DRAW_MS);
    return () => clearInterval(timer);
  }, [running]);
  const turn = () => { if (!running) kept.current.dirty = true; setRunning(!running); };
  const turning = useRef(turn);
  turning.current = turn;
  // Wherever the focus is, unless Space has a meaning there.
  useEffect(() => {
    const press = (event) => {
      if (event.key !== " " || event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) return;
      if (document.querySelector("dialog[open]") || event.target.closest?.(SPACED)) return;
      event.preventDefault();
      if (!event.repeat) turning.current();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const saying = { opening: "Opening", ended: "Ended", open: running ? "Watching" : "Paused" }[state];
  return html`<div class="events-grid ${chosen === null ? "" : "with-detail"}">
    <${Panel} bare label="Live events">
      <div class="pager" style=${{ borderTop: 0 }}><${Button} kind=${running ? "small" : "small first"} icon=${running ? "pause" : "play"} onClick=${turn}>${running ? "Pause" : "Go on"}</${Button}>
        <span role="status"><i class="dot ${state === "open" && running ? "ok" : "warn"}" style=${{ display: "inline-block", marginRight: "8px" }}></i>${saying}${waiting ? `, ${many(waiting, "event")} waiting` : ""}</span>
        <span class="fill"></span><span>${many(total, "event")} seen${total > BUFFER ? `, the last ${count(BUFFER)} kept` : ""}</span>
        <${Button} kind="small plain" onClick=${() => { kept.current.buffer = []; setShown([]); }}>Clear</${Button}></div>
      ${lost > 0 && html`<div class="panel-body"><${Note} kind="warn" slim title="Too fast to show.">${many(lost, "event")} were skipped here; they are stored all the same.</${Note}></div>`}
      ${shown.length ? html`<${Rows} live label="Live events, the newest first" events=${shown} chosen=${chosen} onPick=${setChosen} />`
        : html`<div class="event-room live"><${Empty} title=${{ ended: "The live view has ended", opening: "Opening the live view" }[state] ?? "Waiting for events"} shell=${state !== "open" ? undefined : `penstock ${kind === "queue" ? "queue push" : "publish"} ${quoted(name)} 'hello'`}>
          ${state !== "open" ? "" : `What is published from now on${selector ? " and matches" : ""} appears here, the newest first. Nobody notices that you watch.`}</${Empty}></div>`}</${Panel}>
    ${chosen !== null && html`<${Detail} key=${chosen} kind=${kind} name=${name} id=${chosen} known=${kept.current.buffer.find((each) => String(each.event_id) === chosen)} onClose=${() => setChosen(null)} />`}</div>`;
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
      <${Choice} label="What to look at" value=${mode} onPick=${(next) => { setError(null); setMode(next); }} options=${[["browse", "Stored"], ["live", "Live"]]} />
      ${mode === "browse" && kind === "channel" && html`<${Field} label="From" value=${origin} onInput=${(next) => { setOrigin(next); if (next !== "at") setFrom(next); }}
        options=${[["newest", "the newest, back"], ["earliest", "the oldest, on"], ["at", "an id or a time…"]]} />
        ${origin === "at" && html`<${Field} label="Id or time" value=${at} onInput=${setAt} placeholder="4711 or 2026-05-04T12:00:00Z" mono />`}`}
      <div class="grow"><${Field} label="Selector" value=${typed} onInput=${setTyped} mono placeholder="price > 5 AND sku LIKE 'a%'" wrong=${atSelector ? `${error.code}: ${error.message}` : undefined} /></div>
      <button type="submit" class="button first">${mode === "live" ? "Watch" : "Find"}</button></form>
    ${error && !atSelector && html`<${Refusal} error=${error} />`}
    ${mode === "live" ? html`<${Tail} kind=${kind} name=${name} selector=${selector} chosen=${chosen} setChosen=${setChosen} onRefused=${setError} />`
      : html`<${Browse} kind=${kind} name=${name} info=${info} selector=${selector} from=${from} chosen=${chosen} setChosen=${setChosen} onRefused=${setError} />`}</div>`;
}
